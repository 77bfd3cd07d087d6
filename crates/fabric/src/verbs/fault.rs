//! Why a connection over a device has ended.

use std::ffi::c_int;

use super::abi::*;
use super::resources::Resources;
use crate::contract::{Error, Provider};

/// What is said of a device that is off, cut off, or has forgotten the connection.
pub const SILENT: &str = "its device does not answer any more";

/// What is said where nobody tells more.
pub const ENDED: &str = "the connection has ended";

/// What is remembered of it, for every call after the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The peer, or the way to it, is gone.
    PeerGone(&'static str),
    /// The peer did what it may not.
    Protocol(&'static str),
    /// The device says so.
    Device(String),
}

impl Fault {
    /// Of a completion that is not a success. The first one counts: those after it are only flushed.
    pub fn of_completion(resources: &Resources, status: c_int) -> Self {
        match status {
            IBV_WC_RETRY_EXC_ERR => Self::PeerGone(SILENT),
            IBV_WC_RNR_RETRY_EXC_ERR => Self::PeerGone("it takes nothing any more"),
            IBV_WC_WR_FLUSH_ERR => match resources.trouble() {
                Some((event, text)) => Self::of_event(event, text),
                None => Self::PeerGone(ENDED),
            },
            // Nothing outside is ever posted: the peer has begun to end.
            IBV_WC_REM_ACCESS_ERR => Self::PeerGone("it exposes its memory no more"),
            // So says siw of what its TCP connection does not take any more (siw_qp_tx.c, Linux 6.1).
            IBV_WC_LOC_QP_OP_ERR if resources.managed().is_some() => Self::PeerGone(ENDED),
            status => Self::Device(format!("work failed: {}", resources.status_text(status))),
        }
    }

    /// Of a receive that ended while nothing of this side's had failed. Only the peer's requests can have
    /// ended the queue pair, unless a connection manager could, too. Not every device raises an event then.
    pub fn of_receive(resources: &Resources, status: c_int) -> Self {
        match Self::of_completion(resources, status) {
            Self::PeerGone(_) if resources.managed().is_none() => {
                Self::Protocol("it asked for what it may not have, and was stopped")
            }
            fault => fault,
        }
    }

    /// Of an event that the device raised.
    pub fn of_event(event: c_int, text: &'static str) -> Self {
        match event {
            IBV_EVENT_QP_ACCESS_ERR => {
                Self::Protocol("it tried to reach memory that is not exposed to it, and was stopped")
            }
            IBV_EVENT_QP_REQ_ERR => Self::Protocol("its device sent a request that makes no sense"),
            _ => Self::Device(format!("the device reported: {text}")),
        }
    }

    /// For the user.
    pub fn error(&self, device: &str) -> Error {
        match self {
            Self::PeerGone(why) => Error::PeerGone(Provider::Rdma, why),
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
