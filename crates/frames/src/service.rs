//! The thread of a producer that hands its memory to consumers, and learns of their end. It never touches a frame, and a consumer
//! that does not go on costs it nothing.
//!
//! The producer listens on an abstract UNIX socket, whose name is made of the user and the stream. It goes with its process, so
//! nothing is left behind, and no two processes have the same name.
//!
//! | sender | bytes |
//! |---|---|
//! | consumer | the version, the address of a doorway, and whether it wants a seat: [`REQUEST_BYTES`] bytes |
//! | producer | to the doorway: a descriptor that can only read the memory, and one of the seat; the memory's size and where the seat begins |
//! | producer | a byte: [`ACCEPTED`], or [`FULL`] |
//! | producer | later, if it gives a consumer with a seat up: [`CUT_OFF`] |
//!
//! From then on, the connection tells each side of the other one's end.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caravan_segment::passing::{self, DoorwayAddress};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::net::sockopt::socket_peercred;

use crate::audience::{Audience, Consumer};
use crate::error::{Error, system};
use crate::layout::MAGIC;
use crate::limits::{ATTACH_LIMIT, CONSUMERS_MAX, NAME_BYTES_MAX};
use crate::seat::Seat;

/// The bytes of a consumer's request.
pub(crate) const REQUEST_BYTES: usize = 16 + DoorwayAddress::BYTES;
/// The bytes of the payload that comes with the memory.
pub(crate) const HANDOVER_BYTES: usize = 16;
pub(crate) const ACCEPTED: u8 = b'+';
pub(crate) const FULL: u8 = b'-';
pub(crate) const CUT_OFF: u8 = b'!';

/// Returns the address of the socket of a stream of this user.
pub(crate) fn address(name: &str) -> Result<SocketAddr, Error> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_letter) {
        return Err(Error::Name(caravan_segment::printable(name)));
    }
    let user = rustix::process::geteuid().as_raw();
    SocketAddr::from_abstract_name(format!("caravan-frames/{user}/{name}")).map_err(system("sockaddr_un"))
}

/// Fails unless the process at the other end belongs to this user.
pub(crate) fn check_user(socket: &UnixStream, name: &str) -> Result<(), Error> {
    let theirs = socket_peercred(socket).map_err(system("getsockopt(SO_PEERCRED)"))?.uid.as_raw();
    let ours = rustix::process::geteuid().as_raw();
    match theirs == ours {
        true => Ok(()),
        false => Err(Error::OtherUser { name: name.to_owned(), theirs, ours }),
    }
}

/// The thread, which ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Service {
    stop: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Service {
    /// Starts to hand out `memory`, a descriptor that can only read, of `memory_bytes` bytes.
    pub fn start(
        listener: UnixListener,
        memory: OwnedFd,
        memory_bytes: u64,
        has_seats: bool,
        audience: Arc<Audience>,
    ) -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(rustix::event::eventfd(0, flags).map_err(system("eventfd"))?);
        let stopped = Arc::clone(&stop);
        let hall = Hall { listener, memory, memory_bytes, has_seats, audience, callers: Vec::new(), next: 0 };
        let thread = std::thread::Builder::new().name("caravan-frames".to_owned());
        let thread = thread.spawn(move || hall.run(&stopped)).map_err(system("clone"))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes the socket of a stream.
pub(crate) fn listen(name: &str) -> Result<UnixListener, Error> {
    let listener = UnixListener::bind_addr(&address(name)?).map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => Error::Taken(name.to_owned()),
        _ => system("bind")(source),
    })?;
    listener.set_nonblocking(true).map_err(system("ioctl(FIONBIO)"))?;
    Ok(listener)
}

/// A connection.
struct Caller {
    number: u64,
    connection: Arc<UnixStream>,
    /// The request as far as it has come; `None` once it has been answered.
    request: Option<(Vec<u8>, Instant)>,
}

/// What the thread has.
struct Hall {
    listener: UnixListener,
    memory: OwnedFd,
    memory_bytes: u64,
    has_seats: bool,
    audience: Arc<Audience>,
    callers: Vec<Caller>,
    next: u64,
}

impl Hall {
    fn run(mut self, stop: &OwnedFd) {
        loop {
            let now = Instant::now();
            let deadline = self.callers.iter().filter_map(|caller| Some(caller.request.as_ref()?.1)).min();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let first = [stop.as_fd(), self.listener.as_fd()];
            let descriptors: Vec<BorrowedFd<'_>> = first
                .into_iter()
                .chain(self.callers.iter().map(|caller| caller.connection.as_fd()))
                .collect();
            let mut set: Vec<_> =
                descriptors.iter().map(|one| PollFd::from_borrowed_fd(*one, PollFlags::IN)).collect();
            let polled = rustix::event::poll(&mut set, left.as_ref());
            let ready: Vec<bool> = set.iter().map(|one| !one.revents().is_empty()).collect();
            if polled.is_err() {
                continue;
            }
            if ready[0] {
                return;
            }
            self.serve(&ready[2..]);
            if ready[1] {
                self.admit();
            }
        }
    }

    /// Looks at the connections of which something has come, and at those that are late.
    fn serve(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let mut ready = ready.iter();
        for mut caller in std::mem::take(&mut self.callers) {
            let is_late = caller.request.as_ref().is_some_and(|(_, deadline)| *deadline <= now);
            let is_ready = ready.next().copied().unwrap_or(false);
            if (is_ready && !self.hear(&mut caller)) || (is_late && caller.request.is_some()) {
                self.audience.remove(caller.number);
            } else {
                self.callers.push(caller);
            }
        }
    }

    fn admit(&mut self) {
        // An error leaves the connection in the queue, for the next turn, or it is gone.
        let Ok((connection, _)) = self.listener.accept() else {
            return std::thread::sleep(Duration::from_millis(1));
        };
        if connection.set_nonblocking(true).is_err() || check_user(&connection, "").is_err() {
            return;
        }
        if self.callers.len() >= CONSUMERS_MAX {
            let _ = (&connection).write(&[FULL]);
            return;
        }
        let request = Some((Vec::with_capacity(REQUEST_BYTES), Instant::now() + ATTACH_LIMIT));
        self.callers.push(Caller { number: self.next, connection: Arc::new(connection), request });
        self.next += 1;
    }

    /// Reads what a consumer has sent; false if it is gone or has sent what makes no sense.
    fn hear(&mut self, caller: &mut Caller) -> bool {
        let Some((request, _)) = &mut caller.request else {
            // A consumer says nothing more; what is readable is its end.
            let read = (&*caller.connection).read(&mut [0; 1]);
            return matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock);
        };
        let mut bytes = [0; REQUEST_BYTES];
        let room = REQUEST_BYTES - request.len();
        match (&*caller.connection).read(&mut bytes[..room]) {
            Ok(0) => return false,
            Ok(count) => request.extend_from_slice(&bytes[..count]),
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
        if request.len() < REQUEST_BYTES {
            return true;
        }
        let request = std::mem::take(request);
        caller.request = None;
        self.hand_over(caller, &request).is_ok()
    }

    /// Gives a consumer what it asks for.
    fn hand_over(&self, caller: &Caller, request: &[u8]) -> Result<(), Error> {
        let (head, door) = request.split_at(16);
        let word = |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().unwrap_or_default());
        if word(0) != MAGIC {
            return Err(Error::Protocol("it is of another version of Caravan"));
        }
        let door = DoorwayAddress::from_bytes(door)?;
        let seat = (word(8) == 1 && self.has_seats).then(Seat::create).transpose()?;
        let seat_descriptor = seat.as_ref().map(Seat::descriptor).transpose().map_err(system("dup"))?;
        let mut descriptors = vec![self.memory.as_fd()];
        descriptors.extend(seat_descriptor.as_ref().map(AsFd::as_fd));
        let connection = Arc::clone(&caller.connection);
        let newest = self.audience.add(Consumer { number: caller.number, seat, connection });
        let payload = [self.memory_bytes.to_ne_bytes(), newest.to_ne_bytes()].concat();
        // If this fails, the caller takes it out again.
        passing::send(&door, &payload, &descriptors)?;
        (&*caller.connection).write_all(&[ACCEPTED]).map_err(system("write"))?;
        Ok(())
    }
}
