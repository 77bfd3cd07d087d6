//! Messages with descriptors between a keeper, its servers, and the commands that give it orders.
//!
//! A message is one packet of a UNIX socket: JSON, and up to six descriptors. Keeper and server may be of different
//! versions: a message that one of them does not know is an error, and an upgrade fails with it. So a field that is added
//! later has a default.

use std::ffi::OsString;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::ServeError;
use crate::limits::KEEPER_MESSAGE_BYTES_MAX;
use crate::listen::{ListeningSockets, TlsListening};
use crate::member::MemberOptions;
use crate::state::ClientSettings;
use crate::tls::TlsIdentity;

/// Descriptors of one message: those of [`ServerOrder::Serve`].
const DESCRIPTORS_MAX: usize = 6;

/// What a server is to serve.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerSettings {
    /// The name of the store.
    pub name: String,
    /// The path of the UNIX socket.
    pub socket: OsString,
    /// What clients can change, as the server before has left it.
    pub client: ClientSettings,
    /// The memory of the store, everything included.
    pub memory_bytes: u64,
    /// Whether keys that were not used lately are deleted when the memory is used up.
    pub evicts: bool,
    /// Whether the server does requests on keys of other servers itself.
    #[serde(default)]
    pub forwards: bool,
    /// The snapshot with which the store begins; only the first server loads it.
    pub load: Option<OsString>,
    /// The file that the last server writes when it ends.
    pub save: Option<OsString>,
    /// The cluster that the server is to be a member of, if there is one.
    #[serde(default)]
    pub cluster: Option<ClusterSettings>,
    /// What each of the sockets on TCP is for, in the order of their descriptors.
    #[serde(default)]
    pub tcp: Vec<TcpUse>,
}

/// What a server needs to be a member of a cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterSettings {
    /// Where the configuration is: a file, or `etcd://...`.
    pub place: String,
    /// What it is among the members. The keeper sets the port of the addresses.
    pub member: MemberOptions,
}

/// What a socket on TCP is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TcpUse {
    /// Clients speak the Redis protocol.
    Plain,
    /// Clients speak it within TLS.
    Tls(TlsIdentity),
    /// Prometheus gets the counters.
    Metrics,
}

/// What a keeper tells a server to do.
#[derive(Debug, Serialize, Deserialize)]
pub enum ServerOrder {
    /// A server before has had these descriptors held. Such orders come before [`ServerOrder::Serve`].
    Held {
        /// Their name.
        name: String,
        /// What that server has noted.
        note: String,
    },
    /// Open the store and serve it. Descriptors: the memory, the lock of the name, the UNIX socket, and the sockets on TCP
    /// that the settings tell.
    Serve(Box<ServerSettings>),
    /// Save the store to the first descriptor, and tell whoever has the other end of the second one.
    Save,
    /// Answer what has arrived, close all connections, and end.
    End {
        /// Save to the file of the settings first.
        saves: bool,
    },
}

/// What a server tells its keeper.
#[derive(Debug, Serialize, Deserialize)]
pub enum ServerAnswer {
    /// It runs, and waits for [`ServerOrder::Serve`].
    Running,
    /// It serves.
    Serving,
    /// A client has changed this.
    Changed(ClientSettings),
    /// The keeper is to hold these descriptors under a name, with a note, for the servers that follow
    /// ([`ServerOrder::Held`]), in place of what it has held under that name.
    Hold {
        /// The name.
        name: String,
        /// What the next server is to know of them.
        note: String,
    },
    /// The keeper no longer needs to hold what has this name.
    Release(String),
    /// It has left the store of which it was a server, and its keeper ends with it.
    Left,
    /// It ends, for this reason.
    Failed(String),
}

/// What a command tells a keeper to do.
#[derive(Debug, Serialize, Deserialize)]
pub enum KeeperOrder {
    /// Replace the server by one of the program that the descriptor is of.
    Upgrade,
    /// Have the server save the store to the descriptor.
    Save,
}

/// What became of an order to a keeper.
#[derive(Debug, Serialize, Deserialize)]
pub enum KeeperAnswer {
    /// The new server serves.
    Upgraded {
        /// Its process.
        pid: u32,
    },
    /// The snapshot is complete.
    Saved {
        /// The number of its records.
        records: u64,
        /// The number of its bytes.
        bytes: u64,
    },
    /// Nothing has changed, for this reason.
    Refused(String),
}

/// Why no message came.
#[derive(Debug)]
pub enum ChannelEnd {
    /// The other side has closed its end.
    Closed,
    /// No message is there.
    Empty,
    /// The message is of no known form.
    Unknown(String),
}

/// One end of a connection.
#[derive(Debug)]
pub struct KeeperChannel {
    socket: OwnedFd,
}

impl KeeperChannel {
    /// Makes both ends.
    pub(crate) fn pair() -> Result<(Self, Self), ServeError> {
        let made = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (one, other) = made.map_err(ServeError::system("make a pair of sockets"))?;
        Ok((Self { socket: one }, Self { socket: other }))
    }

    /// Returns the channel of a socket that another process has passed on.
    pub fn of(socket: OwnedFd) -> Self {
        Self { socket }
    }

    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Sends a message. It fails if the other side has ended, or takes nothing.
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> Result<(), ServeError> {
        const WHAT: &str = "send a message to another process of the store";
        let bytes = serde_json::to_vec(message).map_err(ServeError::system(WHAT))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if bytes.len() > KEEPER_MESSAGE_BYTES_MAX
            || !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors))
        {
            return Err(ServeError::system(WHAT)(Errno::MSGSIZE));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, flags)
            .map_err(ServeError::system(WHAT))?;
        Ok(())
    }

    /// Waits for a message, and returns it with its descriptors.
    pub fn receive<M: DeserializeOwned>(&self) -> Result<(M, Vec<OwnedFd>), ChannelEnd> {
        self.take(RecvFlags::empty())
    }

    /// Returns a message that is there, with its descriptors.
    pub fn try_receive<M: DeserializeOwned>(&self) -> Result<(M, Vec<OwnedFd>), ChannelEnd> {
        self.take(RecvFlags::DONTWAIT)
    }

    fn take<M: DeserializeOwned>(&self, flags: RecvFlags) -> Result<(M, Vec<OwnedFd>), ChannelEnd> {
        let mut bytes = vec![0; KEEPER_MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.socket, &mut parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(ChannelEnd::Empty),
                Err(_) => return Err(ChannelEnd::Closed),
            }
        };
        let is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        let descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let descriptors = descriptors.collect();
        if received.bytes == 0 {
            return Err(ChannelEnd::Closed);
        }
        if is_cut {
            return Err(ChannelEnd::Unknown("it is too long".to_owned()));
        }
        match serde_json::from_slice(&bytes[..received.bytes]) {
            Ok(message) => Ok((message, descriptors)),
            Err(error) => Err(ChannelEnd::Unknown(error.to_string())),
        }
    }
}

impl ListeningSockets {
    /// Returns the sockets on TCP and what each is for, to be lent with [`ServerOrder::Serve`].
    pub(crate) fn on_tcp(&self) -> impl Iterator<Item = (TcpUse, BorrowedFd<'_>)> {
        let tcp = self.tcp.iter().map(|socket| (TcpUse::Plain, socket.as_fd()));
        let tls = self.tls.iter().map(|tls| (TcpUse::Tls(tls.identity.clone()), tls.socket.as_fd()));
        let metrics = self.metrics.iter().map(|socket| (TcpUse::Metrics, socket.as_fd()));
        tcp.chain(tls).chain(metrics)
    }

    /// Returns sockets that a keeper has lent.
    pub fn lent(unix: OwnedFd, tcp: impl IntoIterator<Item = (TcpUse, OwnedFd)>) -> Self {
        let mut sockets = Self { unix, tcp: None, tls: None, metrics: None };
        for (tcp_use, socket) in tcp {
            match tcp_use {
                TcpUse::Plain => sockets.tcp = Some(socket),
                TcpUse::Tls(identity) => sockets.tls = Some(TlsListening { socket, identity }),
                TcpUse::Metrics => sockets.metrics = Some(socket),
            }
        }
        sockets
    }
}

impl AsFd for KeeperChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
