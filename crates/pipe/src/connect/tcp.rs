//! Data connections over TCP.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::{Connection, Ports};
use crate::cancel::Cancel;
use crate::{Error, Key};

/// A listening socket on all addresses, for one connection that knows the key.
#[derive(Debug)]
pub struct Listener {}

impl Listener {
    /// Listens on a port of the system's choice, or the first free one of `ports`.
    pub fn open(ports: Option<Ports>) -> Result<Self, Error> {
        let _ = ports;
        Err(Error::Cancelled)
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        0
    }

    /// Takes `streams` connections of one peer that knows the key; strangers are turned away and do not
    /// keep it from the next.
    pub fn accept(
        self,
        key: &Key,
        streams: u32,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<Connection, Error> {
        let _ = (key, streams, limit, cancel);
        Err(Error::Cancelled)
    }
}

/// Tries all addresses, a moment apart, and takes the first that knows the key.
pub fn connect(
    addresses: &[SocketAddr],
    key: &Key,
    streams: u32,
    limit: Duration,
    cancel: &Cancel,
) -> Result<Connection, Error> {
    let _ = (addresses, key, streams, limit, cancel);
    Err(Error::Cancelled)
}

/// Addresses of this host that another one may reach: up, not loopback, not link-local.
pub fn addresses() -> Result<Vec<IpAddr>, Error> {
    Ok(Vec::new())
}

/// Addresses of these names, as far as they can be found in that time.
pub fn resolve(names: &[(String, u16)], limit: Duration) -> Vec<SocketAddr> {
    let _ = (names, limit);
    Vec::new()
}
