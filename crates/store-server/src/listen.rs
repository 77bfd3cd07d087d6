//! Listening sockets.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt,
};

use crate::error::ServeError;

/// Connections that wait to be accepted, as in Redis.
const BACKLOG: i32 = 511;

/// A listening UNIX socket with its lock file, which the kernel unlocks however the process ends. The socket's file is removed when the value
/// is dropped.
#[derive(Debug)]
pub(crate) struct UnixListening {
    listener: OwnedFd,
    path: PathBuf,
    _lock: File,
}

impl UnixListening {
    /// Listens at a path, which only this user can connect to.
    pub(crate) fn at(path: &Path) -> Result<Self, ServeError> {
        let address = SocketAddrUnix::new(path).map_err(|_| ServeError::Path(path.to_owned()))?;
        let lock = lock(path)?;
        // Whoever made this socket has ended, because it does not hold the lock.
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                std::fs::remove_file(path)
                    .map_err(ServeError::system(format!("remove {}", path.display())))?;
            }
            Ok(_) => return Err(ServeError::NoSocket(path.to_owned())),
            Err(_) => {}
        }
        let listener = new_socket(AddressFamily::UNIX)?;
        let failed = || ServeError::system(format!("listen at {}", path.display()));
        bind(&listener, &address).map_err(failed())?;
        // Nobody can connect before the call of listen, so nobody gets in between.
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))
            .map_err(ServeError::system(format!("protect {}", path.display())))?;
        listen(&listener, BACKLOG).map_err(failed())?;
        Ok(Self { listener, path: path.to_owned(), _lock: lock })
    }
}

impl AsFd for UnixListening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for UnixListening {
    fn drop(&mut self) {
        // The lock's file stays: another server may have opened it and wait for the lock.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Takes the lock of a socket, and writes this process's number into its file, for whoever comes second.
fn lock(socket: &Path) -> Result<File, ServeError> {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    let failed = || ServeError::system(format!("open {}", path.display()));
    let mut file = options.open(&path).map_err(failed())?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut text = String::new();
        let _ = file.take(20).read_to_string(&mut text);
        return Err(ServeError::Taken { path: socket.to_owned(), pid: text.trim().parse().ok() });
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed())?;
    Ok(file)
}

/// Listens on TCP, and returns the address with the port that the system chose if it was 0.
pub(crate) fn listen_tcp(address: SocketAddr) -> Result<(OwnedFd, SocketAddr), ServeError> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let listener = new_socket(family)?;
    let failed = || ServeError::system(format!("listen on {address}"));
    // A port whose last server has just ended can be used at once.
    sockopt::set_socket_reuseaddr(&listener, true).map_err(failed())?;
    bind(&listener, &address).map_err(failed())?;
    listen(&listener, BACKLOG).map_err(failed())?;
    let bound = rustix::net::getsockname(&listener).map_err(failed())?;
    let bound = SocketAddr::try_from(bound).map_err(failed())?;
    Ok((listener, bound))
}

fn new_socket(family: AddressFamily) -> Result<OwnedFd, ServeError> {
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
        .map_err(ServeError::system("make a socket"))
}
