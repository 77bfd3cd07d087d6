//! Makes a data connection between two agents: each proves to the other that it knows the hop's key.

pub mod fabric;
mod side_channel;
pub mod tcp;

use std::fmt;
use std::os::fd::OwnedFd;

use aead::hkdf;
use caravan_fabric::Link;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

pub use self::side_channel::{Incoming, SideChannel};
use crate::Error;

/// An authenticated data connection.
#[derive(Debug)]
pub struct DataConnection {
    /// What carries the bytes.
    pub channel: DataChannel,
    /// The secret that sealing keys are derived from.
    pub secret: Secret,
    /// What users see of the connection: `TCP 10.0.0.1:40112`, `RDMA mlx5_0/1`, `ssh`.
    pub description: String,
}

/// What carries a data connection.
#[derive(Debug)]
pub enum DataChannel {
    /// One or more blocking stream sockets, in the same order on both sides. Blocks go to them in turn.
    Streams(Vec<OwnedFd>),
    /// A link of a fabric.
    Link(Box<Link>),
}

/// An end of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopSide {
    /// The end that sends the data.
    Sender,
    /// The end that receives the data.
    Receiver,
}

/// 256 bits that both ends derive from the key and from what is fresh in this connection.
#[derive(Clone)]
pub struct Secret(pub(crate) [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Derives a secret from the key, what is fresh in this connection, and the purpose (RFC 5869).
    pub(crate) fn derive(key: &PipeKey, salt: &[u8], label: &[u8]) -> Result<Self, Error> {
        let mut secret = [0; 32];
        hkdf::Salt::new(hkdf::HKDF_SHA256, salt)
            .extract(key.bytes())
            .expand(&[label], hkdf::HKDF_SHA256)
            .and_then(|material| material.fill(&mut secret))
            .map_err(|_| Error::Protocol("gives no secret".to_owned()))?;
        Ok(Self(secret))
    }

    /// Returns the secret of a connection that is never sealed, such as one over ssh.
    pub fn none() -> Self {
        Self([0; 32])
    }
}

/// The ports for listening: the system's choice, or a range that a firewall lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange {
    /// The first port of the range.
    pub first: u16,
    /// The last port of the range.
    pub last: u16,
}

/// 128 random bits, fresh for each hop. They travel only over control channels (ssh): never in an argument, an
/// environment or a log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipeKey([u8; Self::BYTES]);

impl PipeKey {
    /// The length of a key.
    pub const BYTES: usize = 16;

    /// Returns a new key, from getrandom(2).
    pub fn random() -> Result<Self, Error> {
        let mut bytes = [0; Self::BYTES];
        // getrandom(2) returns up to 256 bytes at once.
        getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| Error::Random(error.into()))?;
        Ok(Self(bytes))
    }

    /// Returns the bytes, to derive other keys from.
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Returns the key with these bytes.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for PipeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PipeKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_do_not_show() {
        let (a, b) = (PipeKey::random().expect("random"), PipeKey::random().expect("random"));
        assert_ne!(a, b);
        assert_eq!(format!("{a:?}"), "PipeKey");
    }
}
