//! Data connections over a fabric: RDMA devices of both hosts.

use std::time::Duration;

use super::Connection;
use crate::{Error, Key};

/// What this host has, for the other side; an error says in a sentence why there is nothing.
pub fn offer() -> Result<Vec<u8>, Error> {
    Err(Error::Unreachable("RDMA is not there yet".to_owned()))
}

/// Half of a connection.
#[derive(Debug)]
pub struct Half {}

/// Makes this side's half towards what has made that offer, and what the other side is to accept.
pub fn initiate(offer: &[u8]) -> Result<(Half, Vec<u8>), Error> {
    let _ = offer;
    Err(Error::Cancelled)
}

/// Makes the other half, and what the initiating side is to finish with.
pub fn accept(request: &[u8]) -> Result<(Half, Vec<u8>), Error> {
    let _ = request;
    Err(Error::Cancelled)
}

impl Half {
    /// Both sides, at once: the initiating one with the other's answer, the other one with nothing.
    pub fn finish(self, answer: &[u8], key: &Key, limit: Duration) -> Result<Connection, Error> {
        let _ = (answer, key, limit);
        Err(Error::Cancelled)
    }
}
