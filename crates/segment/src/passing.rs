//! Handing descriptors to another process of the same host, network namespace and user.
//!
//! The receiver [listens](Doorway::listen) on an abstract UNIX socket, which exists in one network
//! namespace only and vanishes with the process. Its random name and a nonce travel over the
//! face's authenticated control channel as an [`DoorwayAddress`]. The sender [sends](send) one datagram:
//! the nonce, a payload, the descriptors, and its user, which the kernel checks. No call here
//! blocks: over an ordered control channel, the datagram arrives before the message that announces it.
//!
//! Any user of the host can read the name in `/proc/net/unix` and write to the socket. The kernel
//! drops a message that does not begin with the nonce before it counts for the queue, so no other process can fill
//! the queue. Nothing here needs the other's process number, which a PID namespace may hide.
//!
//! Source: unix(7), `SCM_RIGHTS`, `SCM_CREDENTIALS` and abstract addresses.

mod socket;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, UCred,
};

use crate::error::{Error, system};

/// The number of bytes of a socket's name and of its nonce: 128 random bits each.
const SECRET_BYTES: usize = 16;
/// The largest number of descriptors in one message.
const DESCRIPTORS_MAX: usize = 8;
/// The largest number of bytes of payload in one message.
const PAYLOAD_BYTES_MAX: usize = 256;

/// Where a [`Doorway`] listens, and the secret that opens it.
#[derive(Clone, PartialEq, Eq)]
pub struct DoorwayAddress {
    name: [u8; SECRET_BYTES],
    nonce: [u8; SECRET_BYTES],
}

impl DoorwayAddress {
    /// The number of bytes of an address on the wire.
    pub const BYTES: usize = 2 * SECRET_BYTES;

    /// Returns the bytes that go over the control channel.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..SECRET_BYTES].copy_from_slice(&self.name);
        bytes[SECRET_BYTES..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Parses the bytes that came over the control channel.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let (name, nonce) =
            bytes.split_at_checked(SECRET_BYTES).ok_or(Error::Malformed("the address is short"))?;
        Ok(Self {
            name: name.try_into().map_err(|_| Error::Malformed("the address is short"))?,
            nonce: nonce.try_into().map_err(|_| Error::Malformed("the address has a wrong length"))?,
        })
    }

    fn socket_address(&self) -> Result<SocketAddrUnix, Error> {
        let mut name = *b"caravan-0123456789abcdef0123456789abcdef";
        for (i, byte) in self.name.iter().enumerate() {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            name[8 + 2 * i] = HEX[usize::from(byte >> 4)];
            name[9 + 2 * i] = HEX[usize::from(byte & 15)];
        }
        SocketAddrUnix::new_abstract_name(&name).map_err(system("sockaddr_un"))
    }
}

impl std::fmt::Debug for DoorwayAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DoorwayAddress(secret)")
    }
}

/// A message that came through a doorway.
#[derive(Debug)]
pub struct Delivery {
    /// The sender's bytes, untrusted.
    pub payload: Vec<u8>,
    /// The sender's descriptors, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// The receiving end of a hand-over.
///
/// ```
/// use std::os::fd::AsFd;
///
/// use caravan_segment::passing::{self, Doorway};
///
/// let (doorway, address) = Doorway::listen()?;
/// // The address goes to the sender over an authenticated channel; the sender is another process.
/// let file = std::fs::File::open("/dev/null")?;
/// passing::send(&address, b"a file", &[file.as_fd()])?;
/// let delivery = doorway.accept()?;
/// assert_eq!((&delivery.payload[..], delivery.descriptors.len()), (&b"a file"[..], 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Doorway {
    socket: OwnedFd,
}

impl Doorway {
    /// Opens a doorway under a new random name.
    pub fn listen() -> Result<(Self, DoorwayAddress), Error> {
        let address = DoorwayAddress { name: random()?, nonce: random()? };
        let socket = datagrams()?;
        rustix::net::sockopt::set_socket_passcred(&socket, true)
            .map_err(system("setsockopt(SO_PASSCRED)"))?;
        // The filter must be there before any process can see the name.
        socket::admit_only(socket.as_fd(), &address.nonce).map_err(system("setsockopt(SO_ATTACH_FILTER)"))?;
        rustix::net::bind(&socket, &address.socket_address()?).map_err(system("bind"))?;
        Ok((Self { socket }, address))
    }

    /// Takes the message of a sender that knows the nonce. [`Error::NotThere`] if it has not come;
    /// [`Error::OtherUser`] if the sender is not of this process's user.
    pub fn accept(&self) -> Result<Delivery, Error> {
        let mut bytes = [0; SECRET_BYTES + PAYLOAD_BYTES_MAX];
        let message = socket::receive(self.socket.as_fd(), &mut bytes).map_err(|source| match source {
            Errno::AGAIN => Error::NotThere,
            _ => system("recvmsg")(source),
        })?;
        let ours = rustix::process::geteuid().as_raw();
        match message.uid {
            Some(theirs) if theirs != ours => return Err(Error::OtherUser { theirs, ours }),
            Some(_) => {}
            None => return Err(Error::Malformed("the kernel does not say who sent it")),
        }
        if message.is_cut {
            return Err(Error::Descriptors);
        }
        let payload = bytes.get(SECRET_BYTES..message.bytes).unwrap_or_default().to_vec();
        Ok(Delivery { payload, descriptors: message.descriptors })
    }
}

/// Sends `payload` and `descriptors` to the doorway at `address`, if it is in this network namespace.
pub fn send(address: &DoorwayAddress, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
    if payload.len() > PAYLOAD_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
        return Err(Error::Malformed("it is larger than a hand-over may be"));
    }
    let socket = datagrams()?;
    let sender = UCred {
        pid: rustix::process::getpid(),
        uid: rustix::process::geteuid(),
        gid: rustix::process::getegid(),
    };
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX), ScmCredentials(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors))
        || !control.push(SendAncillaryMessage::ScmCredentials(sender))
    {
        return Err(Error::Malformed("it has more descriptors than fit"));
    }
    let parts = [IoSlice::new(&address.nonce), IoSlice::new(payload)];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match rustix::net::sendmsg_addr(&socket, &address.socket_address()?, &parts, &mut control, flags) {
        Ok(_) => Ok(()),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Err(Error::Unreachable),
        Err(error) => Err(system("sendmsg")(error)),
    }
}

fn datagrams() -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).map_err(system("socket"))
}

fn random() -> Result<[u8; SECRET_BYTES], Error> {
    let mut bytes = [0; SECRET_BYTES];
    // The kernel returns up to 256 bytes at once when its pool is ready (getrandom(2)).
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(SECRET_BYTES) => Ok(bytes),
        Ok(_) => Err(Error::Malformed("the kernel gave too few random bytes")),
        Err(error) => Err(system("getrandom")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_and_descriptors_come_through() {
        let (doorway, address) = Doorway::listen().unwrap();
        assert!(matches!(doorway.accept(), Err(Error::NotThere)));
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        let address = DoorwayAddress::from_bytes(&address.to_bytes()).unwrap();
        send(&address, b"hello", &[write_end.as_fd()]).unwrap();
        let delivery = doorway.accept().unwrap();
        assert_eq!(delivery.payload, b"hello");
        rustix::io::write(&delivery.descriptors[0], b"x").unwrap();
        let mut byte = [0];
        assert_eq!(rustix::io::read(&read_end, &mut byte).unwrap(), 1);
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn who_does_not_know_all_of_the_nonce_is_not_heard() {
        let (doorway, address) = Doorway::listen().unwrap();
        for byte in 0..SECRET_BYTES {
            let mut stranger = address.clone();
            stranger.nonce[byte] ^= 1;
            send(&stranger, b"let me in", &[]).unwrap();
        }
        let short = datagrams().unwrap();
        let name = address.socket_address().unwrap();
        rustix::net::sendto(&short, &address.nonce[..15], SendFlags::DONTWAIT, &name).unwrap();
        assert!(matches!(doorway.accept(), Err(Error::NotThere)));
        send(&address, b"mine", &[]).unwrap();
        assert_eq!(doorway.accept().unwrap().payload, b"mine");
    }

    #[test]
    fn a_closed_doorway_is_unreachable() {
        let (doorway, address) = Doorway::listen().unwrap();
        drop(doorway);
        assert!(matches!(send(&address, b"", &[]), Err(Error::Unreachable)));
    }

    #[test]
    fn an_address_of_the_wrong_length_is_malformed() {
        for length in [0, 15, 31, 33, 100] {
            assert!(matches!(DoorwayAddress::from_bytes(&vec![1; length]), Err(Error::Malformed(_))));
        }
    }
}
