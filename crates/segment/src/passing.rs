//! Handing descriptors to another process of the same host, network namespace and user.
//!
//! The receiver [listens](Doorway::listen) on an abstract UNIX socket, which exists in one network
//! namespace only and vanishes with the process. Its random name and a nonce travel over the
//! face's authenticated control channel as an [`Address`]. The sender [sends](send) one message:
//! the nonce, a payload, the descriptors. Each side checks the other's user with `SO_PEERCRED`.
//! No call here blocks: over an ordered control channel the connection is there before the word
//! that it is.
//!
//! Source: unix(7), `SCM_RIGHTS` and abstract addresses.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::error::{Error, system};

/// Bytes of a socket's name and of its nonce: 128 random bits each.
const SECRET_BYTES: usize = 16;
/// Descriptors in one message at most.
const DESCRIPTORS_MAX: usize = 8;
/// Bytes of payload in one message at most.
const PAYLOAD_BYTES_MAX: usize = 256;
/// Strangers turned away at one doorway before it gives up.
const REFUSALS_MAX: usize = 16;

/// Where a [`Doorway`] listens, and the secret that opens it.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    name: [u8; SECRET_BYTES],
    nonce: [u8; SECRET_BYTES],
}

impl Address {
    /// Bytes of an address on the wire.
    pub const BYTES: usize = 2 * SECRET_BYTES;

    /// As it goes over the control channel.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..SECRET_BYTES].copy_from_slice(&self.name);
        bytes[SECRET_BYTES..].copy_from_slice(&self.nonce);
        bytes
    }

    /// As it came over the control channel.
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

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Address(secret)")
    }
}

/// Who is at the other end, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process number, or 0 where its PID namespace hides it.
    pub pid: i32,
    /// Effective user id.
    pub uid: u32,
}

/// What came through a doorway.
#[derive(Debug)]
pub struct Delivery {
    /// Who sent it.
    pub peer: Peer,
    /// The sender's bytes, untrusted.
    pub payload: Vec<u8>,
    /// The sender's descriptors, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// The listening end.
#[derive(Debug)]
pub struct Doorway {
    socket: OwnedFd,
    nonce: [u8; SECRET_BYTES],
}

impl Doorway {
    /// Opens a doorway under a fresh random name.
    pub fn listen() -> Result<(Self, Address), Error> {
        let address = Address { name: random()?, nonce: random()? };
        let socket = seqpacket()?;
        rustix::net::bind(&socket, &address.socket_address()?).map_err(system("bind"))?;
        rustix::net::listen(&socket, REFUSALS_MAX as i32).map_err(system("listen"))?;
        Ok((Self { socket, nonce: address.nonce }, address))
    }

    /// Takes the message of the one who knows the nonce; refuses all others. [`Error::NotThere`]
    /// if it has not come.
    pub fn accept(&self) -> Result<Delivery, Error> {
        let mut refused = Error::NotThere;
        for _ in 0..REFUSALS_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let connection = match rustix::net::accept_with(&self.socket, flags) {
                Ok(connection) => connection,
                Err(Errno::AGAIN) => return Err(refused),
                Err(source) => {
                    return Err(Error::System { call: "accept4", source });
                }
            };
            match self.receive(&connection) {
                Ok(delivery) => return Ok(delivery),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn receive(&self, connection: &OwnedFd) -> Result<Delivery, Error> {
        let peer = same_user(connection.as_fd())?;
        let mut bytes = [0; SECRET_BYTES + PAYLOAD_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = rustix::net::recvmsg(connection, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
            .map_err(|source| match source {
                Errno::AGAIN => Error::NotThere,
                _ => Error::System { call: "recvmsg", source },
            })?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        let message = bytes.get(..received.bytes).unwrap_or_default();
        let (nonce, payload) = message.split_at_checked(SECRET_BYTES).ok_or(Error::WrongNonce)?;
        if !same_secret(nonce, &self.nonce) {
            return Err(Error::WrongNonce);
        }
        Ok(Delivery { peer, payload: payload.to_vec(), descriptors })
    }
}

/// Connects to `address`, checks that its owner is this process's user, and sends it `payload`
/// and `descriptors`.
pub fn send(address: &Address, payload: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<Peer, Error> {
    if payload.len() > PAYLOAD_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
        return Err(Error::Malformed("it is larger than a hand-over may be"));
    }
    let socket = seqpacket()?;
    rustix::net::connect(&socket, &address.socket_address()?).map_err(|source| match source {
        Errno::CONNREFUSED | Errno::NOENT => Error::Unreachable,
        _ => Error::System { call: "connect", source },
    })?;
    let peer = same_user(socket.as_fd())?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Error::Malformed("it has more descriptors than fit"));
    }
    let parts = [IoSlice::new(&address.nonce), IoSlice::new(payload)];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(&socket, &parts, &mut control, flags).map_err(system("sendmsg"))?;
    Ok(peer)
}

fn seqpacket() -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system("socket"))
}

fn same_user(socket: BorrowedFd<'_>) -> Result<Peer, Error> {
    let credentials =
        rustix::net::sockopt::socket_peercred(socket).map_err(system("getsockopt(SO_PEERCRED)"))?;
    let ours = rustix::process::geteuid().as_raw();
    let peer =
        Peer { pid: rustix::process::Pid::as_raw(Some(credentials.pid)), uid: credentials.uid.as_raw() };
    if peer.uid == ours { Ok(peer) } else { Err(Error::OtherUser { theirs: peer.uid, ours }) }
}

fn random() -> Result<[u8; SECRET_BYTES], Error> {
    let mut bytes = [0; SECRET_BYTES];
    // Up to 256 bytes come whole once the kernel's pool is ready (getrandom(2)).
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(SECRET_BYTES) => Ok(bytes),
        Ok(_) => Err(Error::Malformed("the kernel gave too few random bytes")),
        Err(source) => Err(Error::System { call: "getrandom", source }),
    }
}

/// Compares without telling by its time where the first difference is.
fn same_secret(theirs: &[u8], ours: &[u8; SECRET_BYTES]) -> bool {
    theirs.len() == SECRET_BYTES && theirs.iter().zip(ours).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_and_descriptors_come_through() {
        let (doorway, address) = Doorway::listen().unwrap();
        assert!(matches!(doorway.accept(), Err(Error::NotThere)));
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        let address = Address::from_bytes(&address.to_bytes()).unwrap();
        send(&address, b"hello", &[write_end.as_fd()]).unwrap();
        let delivery = doorway.accept().unwrap();
        assert_eq!(delivery.payload, b"hello");
        assert_eq!(delivery.peer.pid, std::process::id() as i32);
        rustix::io::write(&delivery.descriptors[0], b"x").unwrap();
        let mut byte = [0];
        assert_eq!(rustix::io::read(&read_end, &mut byte).unwrap(), 1);
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn who_does_not_know_the_nonce_is_refused_and_the_next_one_served() {
        let (doorway, address) = Doorway::listen().unwrap();
        let stranger = Address { nonce: [0; SECRET_BYTES], ..address.clone() };
        send(&stranger, b"let me in", &[]).unwrap();
        assert!(matches!(doorway.accept(), Err(Error::WrongNonce)));
        send(&stranger, b"again", &[]).unwrap();
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
            assert!(matches!(Address::from_bytes(&vec![1; length]), Err(Error::Malformed(_))));
        }
    }
}
