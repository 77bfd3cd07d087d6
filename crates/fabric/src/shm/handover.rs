//! How two processes hand over the memory and the bells of a connection.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use caravan_segment::barrier::{self, Fences};
use caravan_segment::passing::{self, Doorway, DoorwayAddress};
use caravan_segment::{Pages, Segment};
use rustix::event::EventfdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::{ARENA_BYTES_MAX, SIDE_HEAD_BYTES, ShmEndpoint, ShmLayout, ring, take_rings};
use crate::contract::{Error, Provider};

/// The first bytes of the hand-over message: name and version of the layout.
const MAGIC: [u8; 8] = *b"caravan\x03";

/// The accepting side, before the peer has connected.
#[derive(Debug)]
pub struct Listener {
    doorway: Doorway,
    arena_bytes: u64,
}

impl Listener {
    /// Opens a doorway for one peer. The returned descriptor is for that peer alone, over a channel
    /// that has authenticated it: any process of this user that has the descriptor may connect.
    pub fn listen(arena_bytes: u64) -> Result<(Self, Vec<u8>), Error> {
        Self::listen_with(arena_bytes, Fences::Asymmetric)
    }

    /// Does the same with these fences, or symmetric ones where the kernel has no others. Asymmetric ones make sleeping dear: the
    /// kernel interrupts other processors.
    pub fn listen_with(arena_bytes: u64, fences: Fences) -> Result<(Self, Vec<u8>), Error> {
        if !is_size(arena_bytes) {
            return Err(Error::ArenaBytes { bytes: arena_bytes, maximum: ARENA_BYTES_MAX });
        }
        let (doorway, address) = Doorway::listen()?;
        let fences = [u8::from(fences == Fences::Asymmetric && barrier::join())];
        let descriptor = [&MAGIC[..], &fences, &arena_bytes.to_le_bytes(), &address.to_bytes()].concat();
        Ok((Self { doorway, arena_bytes }, descriptor))
    }

    /// Takes the peer's memory. Call it when the control channel says that the peer has connected.
    pub fn accept(self) -> Result<ShmEndpoint, Error> {
        let delivery = self.doorway.accept()?;
        let fences = match delivery.payload.strip_prefix(&MAGIC) {
            Some([0]) => Fences::Symmetric,
            Some([1]) if barrier::join() => Fences::Asymmetric,
            _ => return Err(protocol("its hand-over message is of another version")),
        };
        let descriptors: [OwnedFd; 4] =
            delivery.descriptors.try_into().map_err(|_| protocol("it did not send four descriptors"))?;
        let [memory, their_bell, our_bell, tether] = descriptors;
        for bell in [&their_bell, &our_bell] {
            check_bell(bell)?;
        }
        check_count(&our_bell)?;
        check_tether(&tether)?;
        let side_bytes = SIDE_HEAD_BYTES + self.arena_bytes;
        let segment = Arc::new(Segment::attach(memory, 2 * side_bytes)?);
        let sides = ShmLayout { bytes: side_bytes, ours_at: side_bytes, theirs_at: 0, fences };
        ShmEndpoint::new(segment, sides, [our_bell, their_bell], tether)
    }
}

/// Connects: makes the memory, and hands it to the side that sent `descriptor`.
pub fn connect(descriptor: &[u8]) -> Result<ShmEndpoint, Error> {
    let Descriptor { joined, arena_bytes, address } = parse(descriptor)?;
    let side_bytes = SIDE_HEAD_BYTES + arena_bytes;
    let segment = Arc::new(Segment::create("caravan-link", 2 * side_bytes, Pages::Small)?);
    segment.grow(2 * side_bytes)?;
    let (our_bell, their_bell) = (bell()?, bell()?);
    // Both sides must take part in the barrier; the connecting side decides.
    let fences = if joined && barrier::join() { Fences::Asymmetric } else { Fences::Symmetric };
    let message = [&MAGIC[..], &[u8::from(fences == Fences::Asymmetric)]].concat();
    let (tether, their_tether) = tether()?;
    let descriptors = [segment.as_fd(), our_bell.as_fd(), their_bell.as_fd(), their_tether.as_fd()];
    passing::send(&address, &message, &descriptors)?;
    let sides = ShmLayout { bytes: side_bytes, ours_at: 0, theirs_at: side_bytes, fences };
    ShmEndpoint::new(segment, sides, [our_bell, their_bell], tether)
}

/// Returns two connected endpoints in this process, the connecting side's first.
///
/// ```
/// use caravan_fabric::contract::{Endpoint, Event, Local, Operation};
///
/// let (mut near, mut far) = caravan_fabric::shm::pair(4096)?;
/// near.arena().copy_in(0, b"hello");
/// let from = Local { offset: 0, bytes: 5 };
/// near.post(Operation::Write { from, to: 64, immediate: Some(7), context: 0 })?;
/// near.doorbell()?;
/// let mut events = Vec::new();
/// far.poll(&mut events, 16)?;
/// assert_eq!(events, [Event::Immediate(7)]);
/// let mut bytes = [0; 5];
/// far.arena().copy_out(64, &mut bytes);
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), caravan_fabric::Error>(())
/// ```
pub fn pair(arena_bytes: u64) -> Result<(ShmEndpoint, ShmEndpoint), Error> {
    let (listener, descriptor) = Listener::listen(arena_bytes)?;
    let connecting = connect(&descriptor)?;
    Ok((connecting, listener.accept()?))
}

/// Returns the number of bytes of arena that a peer's descriptor asks of each side, so that a face can refuse
/// it before [`connect`] allocates that much memory twice.
pub fn offered_arena_bytes(descriptor: &[u8]) -> Result<u64, Error> {
    Ok(parse(descriptor)?.arena_bytes)
}

/// The fields that follow [`MAGIC`] in the message that the accepting side sends over the control channel.
struct Descriptor {
    /// The accepting side takes part in the barrier.
    joined: bool,
    arena_bytes: u64,
    address: DoorwayAddress,
}

fn parse(descriptor: &[u8]) -> Result<Descriptor, Error> {
    let malformed = || protocol("its descriptor is malformed or of another version");
    let rest = descriptor.strip_prefix(&MAGIC).ok_or_else(malformed)?;
    let ([joined @ (0 | 1)], rest) = rest.split_first_chunk().ok_or_else(malformed)? else {
        return Err(malformed());
    };
    let (size, address) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
    let arena_bytes = u64::from_le_bytes(*size);
    if !is_size(arena_bytes) {
        return Err(protocol("its arena has an impossible size"));
    }
    Ok(Descriptor { joined: *joined == 1, arena_bytes, address: DoorwayAddress::from_bytes(address)? })
}

fn bell() -> Result<OwnedFd, Error> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|source| Error::System { call: "eventfd", source: source.into() })
}

/// Makes a tether: each end hangs up when the other is closed.
fn tether() -> Result<(OwnedFd, OwnedFd), Error> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|source| Error::System { call: "socketpair", source: source.into() })
}

/// Refuses anything but a UNIX socket: to ask another kind of file whether it has hung up could block.
fn check_tether(descriptor: &OwnedFd) -> Result<(), Error> {
    match rustix::net::sockopt::socket_domain(descriptor) {
        Ok(AddressFamily::UNIX) => Ok(()),
        _ => Err(protocol("its tether is not a UNIX socket")),
    }
}

/// Refuses anything but a non-blocking eventfd: a pipe or a file could block this side or grow.
fn check_bell(descriptor: &OwnedFd) -> Result<(), Error> {
    let flags = rustix::fs::fcntl_getfl(descriptor)
        .map_err(|source| Error::System { call: "fcntl(F_GETFL)", source: source.into() })?;
    if !flags.contains(rustix::fs::OFlags::NONBLOCK) {
        return Err(protocol("its bell would block"));
    }
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(descriptor));
    match std::fs::read_link(link) {
        Ok(target) if target.as_os_str() == "anon_inode:[eventfd]" => Ok(()),
        _ => Err(protocol("its bell is not an eventfd")),
    }
}

/// Refuses a bell of this side, which nobody else reads, that was made with EFD_SEMAPHORE: it gives back
/// 1 at a time, so a large count would keep it readable, and this side busy, for ever.
fn check_count(bell: &OwnedFd) -> Result<(), Error> {
    ring(bell, 2)?;
    match take_rings(bell)? {
        0 | 1 => Err(protocol("its bell does not count as bells do")),
        2 => Ok(()),
        more => ring(bell, more - 2),
    }
}

fn is_size(arena_bytes: u64) -> bool {
    arena_bytes % 8 == 0 && (8..=ARENA_BYTES_MAX).contains(&arena_bytes)
}

fn protocol(what: &str) -> Error {
    Error::Protocol(Provider::Shm, what.to_owned())
}
