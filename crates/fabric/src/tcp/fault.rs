//! Why a connection over TCP has ended.

use crate::contract::{Error, Provider};
use crate::region::RegionNumber;
use crate::seal::SealError;

/// The cause that is remembered, for every call after the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpFault {
    /// The peer, or the way to it, is gone.
    PeerGone(&'static str),
    /// The peer has revoked the region that an operation named.
    Revoked(RegionNumber),
    /// The peer broke the protocol.
    Protocol(&'static str),
    /// The cryptographic library failed.
    Library(SealError),
}

impl TcpFault {
    /// Returns the error for the user.
    pub fn error(&self) -> Error {
        match self {
            Self::PeerGone(why) => Error::PeerGone(Provider::Tcp, why),
            Self::Revoked(number) => Error::Revoked(Provider::Tcp, *number),
            Self::Protocol(what) => Error::Protocol(Provider::Tcp, (*what).to_owned()),
            Self::Library(error) => Error::System { call: "ring", source: std::io::Error::other(*error) },
        }
    }
}

impl From<SealError> for TcpFault {
    fn from(error: SealError) -> Self {
        match error {
            SealError::Forged => Self::Protocol(
                "what it sent does not open: something on the way changes data, or it has another secret",
            ),
            SealError::Library(_) => Self::Library(error),
        }
    }
}
