//! The socket at which a keeper takes orders, beside the store's own socket.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, socket_with,
};

use crate::error::ServeError;
use crate::keeper::channel::{ChannelEnd, KeeperAnswer, KeeperChannel, KeeperOrder};
use crate::limits::KEEPER_CALLERS_MAX;
use crate::listen::{listen_at, new_socket, remove_left};

/// Connects to the keeper of the store at a socket. Only the user who serves it, and the superuser, can.
pub fn call_keeper(socket: &Path) -> io::Result<KeeperChannel> {
    let address = SocketAddrUnix::new(control_path(socket))?;
    let caller = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&caller, &address)?;
    Ok(KeeperChannel::of(caller))
}

/// Returns where the keeper of the store at a socket takes orders.
fn control_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".keeper");
    PathBuf::from(name)
}

/// The socket, with the connections that have sent no order yet. Its file is removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct ControlDoor {
    listener: OwnedFd,
    path: PathBuf,
    callers: VecDeque<KeeperChannel>,
}

impl ControlDoor {
    /// Listens; the caller holds the lock of the store's name.
    pub(crate) fn open(socket: &Path) -> Result<Self, ServeError> {
        let path = control_path(socket);
        let address = SocketAddrUnix::new(&path).map_err(|_| ServeError::Path(socket.to_owned()))?;
        remove_left(&path)?;
        let listener = new_socket(AddressFamily::UNIX, SocketType::SEQPACKET)?;
        listen_at(&listener, &path, &address)?;
        Ok(Self { listener, path, callers: VecDeque::new() })
    }

    /// Returns what to wait for.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd()).chain(self.callers.iter().map(AsFd::as_fd))
    }

    /// Returns the orders that have come, each with its descriptor and the connection for the answer.
    pub(crate) fn orders(&mut self) -> Vec<(KeeperOrder, OwnedFd, KeeperChannel)> {
        while let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC) {
            if self.callers.len() >= KEEPER_CALLERS_MAX {
                // Who has connected first has had the most time to say something.
                self.callers.pop_front();
            }
            self.callers.push_back(KeeperChannel::of(socket));
        }
        let mut orders = Vec::new();
        for caller in std::mem::take(&mut self.callers) {
            match caller.try_receive() {
                Ok((order, descriptors)) => match <[OwnedFd; 1]>::try_from(descriptors) {
                    Ok([descriptor]) => orders.push((order, descriptor, caller)),
                    Err(_) => refuse(&caller, "the order has no descriptor"),
                },
                Err(ChannelEnd::Empty) => self.callers.push_back(caller),
                Err(ChannelEnd::Closed) => {}
                Err(ChannelEnd::Unknown(why)) => {
                    refuse(
                        &caller,
                        &format!("this keeper does not know the order ({why}): restart the store"),
                    );
                }
            }
        }
        orders
    }
}

impl Drop for ControlDoor {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Tells a caller why nothing has changed. The caller may be gone.
pub(crate) fn refuse(caller: &KeeperChannel, why: &str) {
    let _ = caller.send(&KeeperAnswer::Refused(why.to_owned()), &[]);
}
