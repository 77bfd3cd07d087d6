//! How the primary of a part comes to write into the ring of a copy, over a connection that tells each side of the other
//! one's end.
//!
//! | sender | bytes |
//! |---|---|
//! | primary | AUTH and the password, if there is one; then `CARAVAN.MEMBER COPY` with a [`CopyCall`], over a UNIX socket with the address of a doorway, too |
//! | copy | a descriptor of the ring to the doorway, if there is one; then the number of the ring's bytes, or a refusal |
//! | both | without a doorway `Link::connect` and `Link::accept`; then the copy sends the ring's token |
//! | primary | now and then a byte: there is something to apply |

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use caravan_cluster::{MemberIdentity, PartId, StoreInstance};
use caravan_fabric::contract::Provider;
use caravan_fabric::{Link, Region, RegionAccess, RegionToken};
use caravan_segment::barrier::Fences;
use caravan_segment::passing::{self, Doorway, DoorwayAddress};
use caravan_store::connected::{ConnectLimit, ServerSocket};
use caravan_store::{ConnectOptions, CopyWriter, FabricRing, MappedRing, StoreError};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::{Deserialize, Serialize};

use crate::limits::FEED_ARENA_BYTES;
use crate::links::BlockingChannel;

/// The rings of the link over which a connection is made; nothing else uses them.
const LINK_RING_BYTES: u64 = 4 << 10;

/// What a primary says with `CARAVAN.MEMBER COPY`, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyCall {
    pub(crate) instance: StoreInstance,
    pub(crate) part: PartId,
    pub(crate) primary: MemberIdentity,
    pub(crate) primary_since: u64,
    /// In which epoch the filling of the copy began; none if it is complete.
    pub(crate) filling_since: Option<u64>,
}

/// The way to a copy.
#[derive(Debug)]
pub(super) struct CopyTarget {
    pub(super) writer: Box<dyn CopyWriter>,
    pub(super) bell: FeedBell,
    pub(super) carrier: Provider,
}

/// The connection beside the ring.
#[derive(Debug)]
pub(super) struct FeedBell(OwnedFd);

impl FeedBell {
    fn new(socket: OwnedFd) -> Result<Self, String> {
        rustix::io::ioctl_fionbio(&socket, true).map_err(|error| error.to_string())?;
        Ok(Self(socket))
    }

    /// Tells the copy that there is something to apply. One that was told often enough needs no further byte.
    pub(super) fn ring(&self) {
        let _ = send(&self.0, &[0], SendFlags::NOSIGNAL);
    }

    /// Takes what the other side has sent; `false` if that has ended.
    pub(super) fn hear(&self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match recv(&self.0, &mut bytes, RecvFlags::empty()) {
                Ok((0, _)) => return false,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
    }
}

impl AsFd for FeedBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Connects to a copy at the first of these addresses that works.
pub(super) fn dial(
    addresses: &[String],
    password: Option<&[u8]>,
    call: &CopyCall,
) -> Result<CopyTarget, String> {
    let mut reasons = Vec::new();
    for address in addresses {
        match dial_one(&super::address::options(address, password), call) {
            Ok(target) => return Ok(target),
            Err(error) => {
                reasons.push(error.to_string());
                // The copy itself has said no, and its other addresses are no better ways to it.
                if matches!(error.downcast_ref(), Some(StoreError::Refused(_))) {
                    break;
                }
            }
        }
    }
    Err(if reasons.is_empty() { "it has no address for this host".to_owned() } else { reasons.join("; ") })
}

fn dial_one(options: &ConnectOptions, call: &CopyCall) -> Result<CopyTarget, Box<dyn std::error::Error>> {
    let mut socket = ServerSocket::connect(options, ConnectLimit::of(options))?;
    let call = serde_json::to_vec(call)?;
    let mut words: Vec<&[u8]> = vec![b"CARAVAN.MEMBER", b"COPY", &call];
    if socket.is_local() {
        let (doorway, address) = Doorway::listen()?;
        let address = address.to_bytes();
        words.push(&address);
        let ring_bytes = number(&socket.command(options, &words)?)?;
        let ring = doorway.accept()?.descriptors.into_iter().next().ok_or("it has sent no descriptor")?;
        let writer = Box::new(MappedRing::open(ring, ring_bytes)?);
        return Ok(CopyTarget { writer, bell: FeedBell::new(socket.into())?, carrier: Provider::Shm });
    }
    number(&socket.command(options, &words)?)?;
    let link = Link::connect_sharing(&mut socket, &[Provider::Rdma, Provider::Tcp], FEED_ARENA_BYTES)?;
    let carrier = link.provider();
    let mut token = [0; RegionToken::BYTES];
    socket.read_exact(&mut token)?;
    let token = RegionToken::from_bytes(&token).ok_or("its token is malformed")?;
    let writer = Box::new(FabricRing::borrow(link.into_endpoint(), &token)?);
    Ok(CopyTarget { writer, bell: FeedBell::new(socket.into())?, carrier })
}

fn number(answer: &[u8]) -> Result<u64, String> {
    let text = std::str::from_utf8(answer).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| "its answer is no number".to_owned())
}

/// What keeps a ring reachable for its primary.
#[derive(Debug)]
pub(super) struct CopySource {
    pub(super) bell: FeedBell,
    /// When the primary came.
    pub(super) since: Instant,
    /// Lends the ring, unless the primary maps it.
    _link: Option<Link>,
}

/// A primary that wants to write into a ring: its connection, and its doorway if it is a process of this host.
#[derive(Debug)]
pub(crate) struct CopyCaller {
    pub(crate) socket: OwnedFd,
    pub(crate) door: Option<DoorwayAddress>,
}

impl CopyCaller {
    /// Says why not, without waiting.
    pub(super) fn refuse(self, text: &str) {
        crate::socket::say(&self.socket, &format!("-TRYAGAIN {text}\r\n"));
    }

    /// Gives the primary the ring. Blocks, for a limited time.
    pub(super) fn accept(
        self,
        ring: &OwnedFd,
        region: &Region,
    ) -> Result<CopySource, Box<dyn std::error::Error>> {
        let mut channel = BlockingChannel(self.socket);
        channel.limit(crate::limits::ATTACH_STEP)?;
        let answer = format!("+{}\r\n", region.bytes());
        let link = match &self.door {
            Some(door) => {
                passing::send(door, b"", &[ring.as_fd()])?;
                channel.write_all(answer.as_bytes())?;
                None
            }
            None => {
                channel.write_all(answer.as_bytes())?;
                let providers = [Provider::Rdma, Provider::Tcp];
                let at = channel.local_address();
                let mut link =
                    Link::accept_on(&mut channel, &providers, LINK_RING_BYTES, at, Fences::Symmetric)?;
                let token = link.lend(region, RegionAccess::Write)?;
                channel.write_all(&token.to_bytes())?;
                Some(link)
            }
        };
        Ok(CopySource { bell: FeedBell::new(channel.0)?, since: Instant::now(), _link: link })
    }
}
