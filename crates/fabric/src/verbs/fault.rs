//! Why a connection over a device has ended.

use std::ffi::c_int;

use super::abi::*;
use super::resources::Resources;
use crate::contract::{Error, Provider};
use crate::region::RegionNumber;

/// The cause for a device that is off, cut off, or has forgotten the connection.
pub const SILENT: &str = "its device does not answer any more";

/// The cause of an operation that the peer's device refused.
const UNEXPOSED: &str = "it exposes its memory no more";

/// The cause on the side that has revoked a region without a window.
pub const STOPPED: &str =
    "this side has revoked a region, and its device can only end the whole connection for that";

/// The cause if nothing more is known.
pub const ENDED: &str = "the connection has ended";

/// The cause that is remembered, for every call after the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The peer, or the way to it, is gone.
    PeerGone(&'static str),
    /// The peer has revoked the region that an operation named.
    Revoked(RegionNumber),
    /// The peer broke the protocol.
    Protocol(&'static str),
    /// The device reports a failure.
    Device(String),
}

impl Fault {
    /// Returns the fault of a completion with an error. The first one counts: later ones are only flushed.
    pub fn of_completion(resources: &Resources, status: c_int) -> Self {
        match status {
            IBV_WC_RETRY_EXC_ERR => Self::PeerGone(SILENT),
            IBV_WC_RNR_RETRY_EXC_ERR => Self::PeerGone("it takes nothing any more"),
            IBV_WC_WR_FLUSH_ERR => match resources.trouble() {
                Some((event, text)) => Self::of_event(event, text),
                None => Self::PeerGone(ENDED),
            },
            // This side never posts an operation outside the exposed part: the peer has begun to end.
            IBV_WC_REM_ACCESS_ERR => Self::PeerGone(UNEXPOSED),
            // siw reports this for a request that its TCP connection does not take any more (siw_qp_tx.c, Linux 6.1).
            IBV_WC_LOC_QP_OP_ERR if resources.managed().is_some() => Self::PeerGone(ENDED),
            status => Self::Device(format!("work failed: {}", resources.status_text(status))),
        }
    }

    /// Returns the fault of an operation on a borrowed region.
    pub fn about(self, region: Option<RegionNumber>) -> Self {
        match (self, region) {
            (Self::PeerGone(UNEXPOSED), Some(number)) => Self::Revoked(number),
            (other, _) => other,
        }
    }

    /// Returns the fault of a receive that ended while nothing of this side had failed. Only the peer's requests can
    /// have ended the queue pair, or a connection manager if there is one. Not every device raises an event then.
    pub fn of_receive(resources: &Resources, status: c_int) -> Self {
        match Self::of_completion(resources, status) {
            Self::PeerGone(_) if resources.managed().is_none() => {
                Self::Protocol("it asked for what it may not have, and was stopped")
            }
            fault => fault,
        }
    }

    /// Returns the fault of an event that the device raised.
    pub fn of_event(event: c_int, text: &'static str) -> Self {
        match event {
            IBV_EVENT_QP_ACCESS_ERR => {
                Self::Protocol("it tried to reach memory that is not exposed to it, and was stopped")
            }
            IBV_EVENT_QP_REQ_ERR => Self::Protocol("its device sent a request that makes no sense"),
            _ => Self::Device(format!("the device reported: {text}")),
        }
    }

    /// Returns the error for the user.
    pub fn error(&self, device: &str) -> Error {
        match self {
            Self::PeerGone(why) => Error::PeerGone(Provider::Rdma, why),
            Self::Revoked(number) => Error::Revoked(Provider::Rdma, *number),
            Self::Protocol(what) => Error::Protocol(Provider::Rdma, (*what).to_owned()),
            Self::Device(what) => Error::Device { device: device.to_owned(), what: what.clone() },
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::PeerGone(_, why) => Self::PeerGone(why),
            Error::Device { what, .. } => Self::Device(what),
            other => Self::Device(other.to_string()),
        }
    }
}
