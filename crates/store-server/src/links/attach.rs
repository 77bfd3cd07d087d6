//! How a connection becomes a link: the server's side of `caravan_store::connected`'s table. Blocks, for a limited time.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use caravan_cluster::PartId;
use caravan_fabric::Link;
use caravan_fabric::contract::Provider;
use caravan_segment::barrier::Fences;
use caravan_segment::passing::{self, DoorwayAddress};
use caravan_store::StoreError;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, getsockname, recv, send};

use super::client::LinkClient;
use crate::limits;
use crate::member::MemberCall;
use crate::parts::ServedPart;
use crate::state::{ClientEntry, ServerState};

/// What a connection is to become.
#[derive(Debug)]
pub(crate) enum AttachRequest {
    /// A client's link.
    Client(ClientRequest),
    /// One of another member of the cluster.
    Member(MemberCall),
}

/// What a client says with CARAVAN.ATTACH.
#[derive(Debug)]
pub(crate) struct ClientRequest {
    pub(crate) carrier: AttachCarrier,
    /// Which part of the store it is to call; the only one if it names none.
    pub(crate) part: Option<PartId>,
}

/// What carries a client's link.
#[derive(Debug)]
pub(crate) enum AttachCarrier {
    /// Shared memory of this host; the client maps the store's, too, of which it wants a descriptor there, and one of the lease
    /// if it names a part.
    Mapped(DoorwayAddress),
    Network,
}

/// A connection that is to become a link.
#[derive(Debug)]
pub(crate) struct LinkAttachment {
    pub(crate) socket: OwnedFd,
    pub(crate) request: AttachRequest,
    pub(crate) entry: ClientEntry,
}

impl LinkAttachment {
    /// Refuses, without waiting for a client that does not read.
    pub(crate) fn refuse(self, text: &str) {
        crate::socket::say(&self.socket, &format!("-{text}\r\n"));
    }

    /// Makes the link; an error is a sentence for the operator.
    pub(crate) fn run(self, state: &Arc<ServerState>) -> Result<LinkClient, String> {
        let Self { socket, request: AttachRequest::Client(request), mut entry } = self else {
            return Err("a member's connection is no link".to_owned());
        };
        let name = format!("client {} ({})", entry.card.id, entry.card.address);
        let mut channel = BlockingChannel(socket);
        let failed = |error: String| format!("{name} did not attach: {error}");
        let part = |request: &ClientRequest| state.parts.table().part(request.part).map(Arc::clone);
        let begin = part(&request).map_err(|error| failed(error.words()))?;
        let offer = AttachOffer::of(&begin, &request);
        // The part is not held while the client is waited for, as it may be removed meanwhile.
        let tenure = begin.tenure;
        drop(begin);
        let link = accept(&mut channel, &request, offer).map_err(|error| failed(error.to_string()))?;
        let part = part(&request).ok().filter(|part| part.tenure == tenure);
        let part = part.ok_or_else(|| failed("its part of the store was removed".to_owned()))?;
        entry.become_link(matches!(request.carrier, AttachCarrier::Mapped(_)));
        Ok(LinkClient::new(link, channel.0, part, entry, Arc::clone(&state.facts.functions)))
    }
}

/// What a client gets of the part that it attaches to.
struct AttachOffer {
    greeting: Vec<u8>,
    /// The memory, and its lease, for a client that maps them.
    descriptors: Result<Vec<OwnedFd>, StoreError>,
}

impl AttachOffer {
    fn of(part: &ServedPart, request: &ClientRequest) -> Self {
        let is_mapped = matches!(request.carrier, AttachCarrier::Mapped(_));
        let descriptors = match request.part {
            _ if !is_mapped => Ok(Vec::new()),
            Some(_) => part.store.leased_descriptors().map(Vec::from),
            None => part.store.reader_descriptor().map(|memory| vec![memory]),
        };
        Self { greeting: part.store.greeting(), descriptors }
    }
}

fn accept(
    channel: &mut BlockingChannel,
    request: &ClientRequest,
    offer: AttachOffer,
) -> Result<Link, Box<dyn std::error::Error>> {
    channel.limit(limits::ATTACH_STEP)?;
    if let AttachCarrier::Mapped(door) = &request.carrier {
        let descriptors = offer.descriptors?;
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        if let Err(error) = passing::send(door, b"", &descriptors) {
            channel.write_all(format!("-ERR no memory can be handed over: {error}\r\n").as_bytes())?;
            return Err(error.into());
        }
    }
    let providers = match request.carrier {
        AttachCarrier::Mapped(_) => &[Provider::Shm][..],
        AttachCarrier::Network => &[Provider::Rdma, Provider::Tcp],
    };
    let greeting = offer.greeting;
    let mut answer = format!("${}\r\n", greeting.len()).into_bytes();
    answer.extend_from_slice(&greeting);
    answer.extend_from_slice(b"\r\n");
    channel.write_all(&answer)?;
    // The client comes in once more, by the address by which it has come, and by no other one.
    let at = channel.local_address();
    // A thread that serves several links sleeps on most of them most of the time, and its clients use the links of several servers in turn.
    Ok(Link::accept_on(channel, providers, caravan_store::limits::RING_BYTES, at, Fences::Symmetric)?)
}

/// Returns whether an address is one of several devices, so that it alone does not say where to listen.
fn needs_device(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// A connection whose reads and writes wait, for a limited time.
pub(crate) struct BlockingChannel(pub(crate) OwnedFd);

impl BlockingChannel {
    /// Returns the address of this host by which the peer has come, if that alone says where to listen.
    pub(crate) fn local_address(&self) -> Option<IpAddr> {
        let address = getsockname(&self.0).ok().and_then(|address| SocketAddr::try_from(address).ok());
        address.map(|address| address.ip().to_canonical()).filter(|address| !needs_device(address))
    }

    pub(crate) fn limit(&self, limit: std::time::Duration) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&self.0, false)?;
        set_socket_timeout(&self.0, Timeout::Recv, Some(limit))?;
        Ok(set_socket_timeout(&self.0, Timeout::Send, Some(limit))?)
    }
}

impl AsFd for BlockingChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Read for BlockingChannel {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        Ok(recv(&self.0, to, RecvFlags::empty()).map(|(bytes, _)| bytes)?)
    }
}

impl Write for BlockingChannel {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(send(&self.0, from, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
