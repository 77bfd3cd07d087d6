//! Listening sockets.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt,
};

use crate::error::ServeError;
use crate::server::ServerOptions;
use crate::tls::TlsIdentity;

/// Connections that wait to be accepted, as in Redis.
const BACKLOG: i32 = 511;

/// Sockets on which clients connect; a server accepts on them.
#[derive(Debug)]
pub struct ListeningSockets {
    /// The UNIX socket.
    pub unix: OwnedFd,
    /// The socket on TCP, if there is one.
    pub tcp: Option<OwnedFd>,
    /// The socket on TCP for clients that speak TLS, if there is one.
    pub tls: Option<TlsListening>,
    /// The socket on TCP for Prometheus, if there is one.
    pub metrics: Option<OwnedFd>,
}

/// A socket for clients that speak TLS, with what the server proves itself by.
#[derive(Debug)]
pub struct TlsListening {
    /// The socket on TCP.
    pub socket: OwnedFd,
    /// Certificate and key.
    pub identity: TlsIdentity,
}

/// The listening sockets of a store's name, with the lock of the name, which the kernel unlocks once every process that has
/// it has ended. The UNIX socket's file is removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct StoreListening {
    pub(crate) sockets: ListeningSockets,
    pub(crate) lock: File,
    path: PathBuf,
}

impl StoreListening {
    /// Listens as a server's options say, at a path that only this user can connect to.
    pub(crate) fn open(options: &ServerOptions) -> Result<Self, ServeError> {
        let path = &options.socket;
        let address = SocketAddrUnix::new(path).map_err(|_| ServeError::Path(path.clone()))?;
        // Nothing is made beside a file that is not ours.
        check_socket(path)?;
        let lock = lock(path)?;
        let tcp = options.address.map(listen_tcp).transpose()?;
        let tls = options.tls.as_ref().map(|tls| {
            let identity = TlsIdentity::read(tls)?;
            Ok::<_, ServeError>(TlsListening { socket: listen_tcp(tls.address)?, identity })
        });
        let (tls, metrics) = (tls.transpose()?, options.metrics.map(listen_tcp).transpose()?);
        Ok(Self {
            sockets: ListeningSockets { unix: listen_unix(path, &address)?, tcp, tls, metrics },
            lock,
            path: path.clone(),
        })
    }
}

impl Drop for StoreListening {
    fn drop(&mut self) {
        // The lock's file stays: another server may have opened it and wait for the lock.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl ListeningSockets {
    /// Returns the address on TCP, with the port that the system chose if it was to choose one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        address(self.tcp.as_ref()?)
    }

    /// Returns the address for TLS, likewise.
    pub(crate) fn tls_address(&self) -> Option<SocketAddr> {
        address(&self.tls.as_ref()?.socket)
    }

    /// Returns the address of the metrics, likewise.
    pub(crate) fn metrics_address(&self) -> Option<SocketAddr> {
        address(self.metrics.as_ref()?)
    }

    pub(crate) fn try_clone(&self) -> Result<Self, ServeError> {
        let copied = |socket: &OwnedFd| socket.try_clone().map_err(ServeError::system("copy a descriptor"));
        let tls = self.tls.as_ref().map(|tls| {
            let identity = tls.identity.clone();
            Ok::<_, ServeError>(TlsListening { socket: copied(&tls.socket)?, identity })
        });
        Ok(Self {
            unix: copied(&self.unix)?,
            tcp: self.tcp.as_ref().map(copied).transpose()?,
            tls: tls.transpose()?,
            metrics: self.metrics.as_ref().map(copied).transpose()?,
        })
    }
}

fn address(socket: &OwnedFd) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()
}

/// Listens at a path of which this process holds the lock.
fn listen_unix(path: &Path, address: &SocketAddrUnix) -> Result<OwnedFd, ServeError> {
    remove_left(path)?;
    let listener = new_socket(AddressFamily::UNIX, SocketType::STREAM)?;
    listen_at(&listener, path, address)?;
    Ok(listener)
}

/// Fails if something else than a socket is there; returns whether a socket is.
fn check_socket(path: &Path) -> Result<bool, ServeError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => Ok(true),
        Ok(_) => Err(ServeError::NoSocket(path.to_owned())),
        Err(_) => Ok(false),
    }
}

/// Removes a socket whose maker has ended, because it does not hold the lock.
pub(crate) fn remove_left(path: &Path) -> Result<(), ServeError> {
    match check_socket(path)? {
        true => std::fs::remove_file(path).map_err(ServeError::system(format!("remove {}", path.display()))),
        false => Ok(()),
    }
}

/// Makes a socket listen at a path, to which only this user can connect.
pub(crate) fn listen_at(listener: &OwnedFd, path: &Path, address: &SocketAddrUnix) -> Result<(), ServeError> {
    let failed = || ServeError::system(format!("listen at {}", path.display()));
    bind(listener, address).map_err(failed())?;
    // Nobody can connect before the call of listen, so nobody gets in between.
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))
        .map_err(ServeError::system(format!("protect {}", path.display())))?;
    listen(listener, BACKLOG).map_err(failed())
}

/// Takes the lock of a socket, and writes this process's number into its file, for whoever comes second.
fn lock(socket: &Path) -> Result<File, ServeError> {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    let failed = |source| ServeError::Socket { path: socket.to_owned(), source };
    let mut file = options.open(&path).map_err(failed)?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut text = String::new();
        let _ = file.take(20).read_to_string(&mut text);
        return Err(ServeError::Taken { path: socket.to_owned(), pid: text.trim().parse().ok() });
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed)?;
    Ok(file)
}

fn listen_tcp(address: SocketAddr) -> Result<OwnedFd, ServeError> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let listener = new_socket(family, SocketType::STREAM)?;
    let failed = || ServeError::system(format!("listen on {address}"));
    // A port whose last server has just ended can be used at once.
    sockopt::set_socket_reuseaddr(&listener, true).map_err(failed())?;
    bind(&listener, &address).map_err(failed())?;
    listen(&listener, BACKLOG).map_err(failed())?;
    Ok(listener)
}

pub(crate) fn new_socket(family: AddressFamily, kind: SocketType) -> Result<OwnedFd, ServeError> {
    socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
        .map_err(ServeError::system("make a socket"))
}
