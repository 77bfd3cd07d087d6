//! Where a store is, and how a client connects to it.

use std::fmt;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::StoreError;
use crate::limits;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreAddress {
    /// The path of a UNIX socket.
    Socket(PathBuf),
    /// A host and a port.
    Host(String),
}

impl StoreAddress {
    /// Parses `unix:PATH`, `HOST:PORT`, or the name of a store of this host and user.
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        let wrong = || StoreError::Address(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Self::Socket(path.into())) };
        }
        if let Some((host, port)) = text.rsplit_once(':') {
            let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
            return if is_port && !host.is_empty() { Ok(Self::Host(text.to_owned())) } else { Err(wrong()) };
        }
        if text.is_empty() || text.contains(['/', '\0']) {
            return Err(wrong());
        }
        let socket = socket_of_name(text);
        socket
            .map(Self::Socket)
            .map_err(|source| StoreError::Unreachable { address: text.to_owned(), source })
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => {
                write!(f, "unix:{}", caravan_segment::printable(path.as_os_str().as_encoded_bytes()))
            }
            Self::Host(host) => f.write_str(&caravan_segment::printable(host)),
        }
    }
}

/// Returns the path of the socket of the store with this name: in `$XDG_RUNTIME_DIR/caravan`, or else in a folder of
/// this user's in /tmp. Makes the folder if it is not there.
pub fn socket_of_name(name: &str) -> io::Result<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let folder = match std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| Path::new(folder).is_dir()) {
        Some(folder) => Path::new(&folder).join("caravan"),
        None => PathBuf::from(format!("/tmp/caravan-{uid}")),
    };
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    // Another user may have made it first, in /tmp.
    let found = std::fs::symlink_metadata(&folder).map_err(failed)?;
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
        return Err(failed(io::Error::other(
            "this is not a folder that only this user can write: give the path of a socket elsewhere",
        )));
    }
    Ok(folder.join(format!("{name}.sock")))
}

/// What a client connects with. `&str` converts into it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The address: `unix:PATH`, `HOST:PORT`, or the name of a store of this host and user.
    pub address: String,
    /// The password of the store, if it has one.
    pub password: Option<Vec<u8>>,
    /// Which part of a store of several servers; `None` for a store of one part. The client finds the server that has the
    /// part if any server that it connects to knows it.
    pub part: Option<u16>,
    /// Addresses of other servers of the same store, which are asked when the first one is out of reach.
    pub others: Vec<String>,
    /// How long connecting may take in all, without the look-up of a host's name; then it fails with
    /// [`StoreError::NoAnswer`].
    pub connect_wait: Duration,
    /// How long an operation waits while the server says nothing; then it fails with [`StoreError::NoAnswer`].
    pub answer_wait: Duration,
}

impl ConnectOptions {
    /// Returns the options for a store without a password.
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            password: None,
            part: None,
            others: Vec::new(),
            connect_wait: limits::CONNECT_WAIT,
            answer_wait: limits::ANSWER_WAIT,
        }
    }

    /// Sets the password.
    pub fn password(mut self, password: impl Into<Vec<u8>>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets which part of a store of several servers the client reads and writes.
    pub fn part(mut self, part: u16) -> Self {
        self.part = Some(part);
        self
    }

    /// Sets the addresses of other servers of the same store, which are asked when the first one is out of reach.
    pub fn others(mut self, addresses: impl IntoIterator<Item = String>) -> Self {
        self.others = addresses.into_iter().collect();
        self
    }

    /// Sets how long connecting may take, instead of [`limits::CONNECT_WAIT`].
    pub fn connect_wait(mut self, wait: Duration) -> Self {
        self.connect_wait = wait;
        self
    }

    /// Sets how long an operation waits while the server says nothing, instead of [`limits::ANSWER_WAIT`].
    pub fn answer_wait(mut self, wait: Duration) -> Self {
        self.answer_wait = wait;
        self
    }
}

impl ConnectOptions {
    /// Returns the addresses at which the store may be found, in the order in which they are tried: `last` is where it was last.
    pub(crate) fn candidates(&self, last: &str) -> Vec<String> {
        let mut candidates: Vec<String> = vec![last.to_owned()];
        for address in std::iter::once(&self.address).chain(&self.others) {
            if !candidates.contains(address) {
                candidates.push(address.clone());
            }
        }
        candidates
    }

    /// Returns how long each of `candidates` servers may take to answer in a round of attempts to connect. Where there are others to
    /// be asked, one that is out of reach must not use up the time for them.
    pub(crate) fn answer_wait_in(&self, round: u32, candidates: usize) -> Duration {
        let is_alone = candidates == 1;
        let wait = limits::ELSEWHERE_WAIT.saturating_mul(2_u32.saturating_pow(round));
        if is_alone { self.connect_wait } else { wait.min(self.connect_wait) }
    }
}

impl From<&str> for ConnectOptions {
    fn from(address: &str) -> Self {
        Self::new(address)
    }
}

impl From<String> for ConnectOptions {
    fn from(address: String) -> Self {
        Self::new(address)
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart() {
        let parsed = |text: &str| StoreAddress::parse(text).ok();
        assert_eq!(parsed("unix:/run/a:b"), Some(StoreAddress::Socket("/run/a:b".into())));
        assert_eq!(parsed("[::1]:6379"), Some(StoreAddress::Host("[::1]:6379".to_owned())));
        assert_eq!(parsed("host:6379"), Some(StoreAddress::Host("host:6379".to_owned())));
        for wrong in ["", "unix:", "host:", "host:0", "host:70000", ":6379", "a/b"] {
            assert!(matches!(StoreAddress::parse(wrong), Err(StoreError::Address(_))), "{wrong}");
        }
        // A name, in a folder of this user's.
        let Some(StoreAddress::Socket(path)) = parsed("cache") else { panic!("a name is an address") };
        assert_eq!(path, socket_of_name("cache").unwrap());
        assert!(path.ends_with("cache.sock"));
    }
    #[test]
    fn each_server_is_tried_once_in_a_round_the_last_one_first() {
        let options =
            ConnectOptions::new("a:1").others(["b:1".to_owned(), "c:1".to_owned(), "a:1".to_owned()]);
        assert_eq!(options.candidates("a:1"), ["a:1", "b:1", "c:1"]);
        assert_eq!(options.candidates("c:1"), ["c:1", "a:1", "b:1"]);
        // One that another server has named.
        assert_eq!(options.candidates("d:1"), ["d:1", "a:1", "b:1", "c:1"]);
    }
}
