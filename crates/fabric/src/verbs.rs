//! RDMA devices, through rdma-core: InfiniBand, RoCE and iWARP.

mod obstacle;

use std::time::Duration;

pub use obstacle::Obstacle;

use crate::contract::{Endpoint, Error, Exposure};

/// The accepting side's usable ports, for the peer, over a channel that has authenticated it.
pub fn offer() -> Result<Vec<u8>, Error> {
    Err(Obstacle::NoDevice.into())
}

/// The initiating side: chooses a pair of ports, and makes its half. The bytes are for the peer.
pub fn connect(_offer: &[u8], _exposure: &Exposure) -> Result<(Pending, Vec<u8>), Error> {
    Err(Obstacle::NoDevice.into())
}

/// The accepting side, with what the initiating side said. The bytes are for the peer.
pub fn accept(_message: &[u8], _exposure: &Exposure) -> Result<(Pending, Vec<u8>), Error> {
    Err(Obstacle::NoDevice.into())
}

/// Half of a connection. Dropping it gives everything back.
#[derive(Debug)]
pub struct Pending {}

impl Pending {
    /// The initiating side passes what the accepting side said last, the accepting side nothing.
    /// Blocks until the peer's device has answered, for `limit` at most.
    pub fn finish(self, _message: &[u8], _limit: Duration) -> Result<Box<dyn Endpoint>, Error> {
        Err(Obstacle::NoDevice.into())
    }
}
