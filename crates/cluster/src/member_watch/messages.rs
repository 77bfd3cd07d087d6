//! What members say to each other, and what a `MemberWatch` says to its user.

use serde::{Deserialize, Serialize};

use crate::configuration::{Configuration, MemberIdentity, PartId};
use crate::lease::ProcessNumber;
use crate::placement::Change;
use crate::register::{Revision, StoredConfiguration};

/// What members say to each other. Each message travels with the identity and
/// the process of its sender; it may be lost, late or repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberMessage {
    /// Asks for a lease.
    Request {
        /// The sender's epoch.
        epoch: u64,
        /// Which request it is.
        number: u64,
        /// Whether the sender has acknowledged its epoch.
        acknowledged: bool,
    },
    /// Grants the lease that was asked for.
    Grant {
        /// The sender's epoch.
        epoch: u64,
        /// Which request it answers.
        number: u64,
        /// The newest epoch that the sender knows to be unblocked.
        unblocked: u64,
    },
    /// Asks whether the receiver lives.
    Probe {
        /// The sender's epoch.
        epoch: u64,
        /// Which probe it is.
        number: u64,
    },
    /// The receiver of a probe lives.
    Alive {
        /// The sender's epoch.
        epoch: u64,
        /// Which probe it answers.
        number: u64,
        /// How long the streams of its copies are.
        positions: Vec<(PartId, u64)>,
    },
    /// An epoch is unblocked.
    Unblocked {
        /// The epoch.
        epoch: u64,
    },
    /// A newer configuration than the receiver's, as the register has it.
    Configuration(Box<StoredConfiguration>),
    /// Asks for the configuration of a newer epoch than `epoch`.
    AskConfiguration {
        /// The sender's epoch.
        epoch: u64,
    },
    /// The manager does not reach the register: the receiver, who may, shall expel who is gone, and be the manager.
    TakeOver {
        /// The sender's epoch.
        epoch: u64,
    },
    /// The sender suspects a member; for the manager.
    Suspect(MemberIdentity),
    /// A keeper has testified that a member has ended.
    Testimony(MemberIdentity),
    /// A process of a member has ended: it has no lease any more.
    Ended {
        /// The member.
        member: MemberIdentity,
        /// Its process.
        process: ProcessNumber,
        /// Whether its keeper has ended as well, or ends now: then no other process follows.
        is_last: bool,
    },
    /// Asks the manager for a change.
    Propose(Change),
}

/// What the user of a [`MemberWatch`](super::MemberWatch) has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberAction {
    /// Send a message. If it cannot be sent at once, drop it.
    Send {
        /// To whom. Its address is in the configuration.
        to: MemberIdentity,
        /// What.
        message: MemberMessage,
    },
    /// Swap the register's configuration, in another thread, and hand the outcome to [`swapped`](super::MemberWatch::swapped).
    Swap {
        /// The revision that it should have.
        expected: Revision,
        /// What to write.
        next: Box<Configuration>,
    },
    /// Read the register, in another thread, and hand the result to [`learn`](super::MemberWatch::learn).
    Read,
    /// A new epoch: stop what this member no longer serves, close the rings of the old one, let the commits that are
    /// between the check of the lease and their end run out, and call [`closed`](super::MemberWatch::closed).
    Adopt(Box<StoredConfiguration>),
    /// The epoch is unblocked: drain the rings, promote the copies whose primary this member has become, and serve.
    Unblocked(u64),
    /// This server is no member any more: its copies are worth nothing, except those of lost parts.
    Expelled,
}

impl MemberMessage {
    /// Returns the epoch of the sender, if the message says it.
    pub(super) fn epoch(&self) -> Option<u64> {
        match self {
            Self::Request { epoch, .. }
            | Self::Grant { epoch, .. }
            | Self::Probe { epoch, .. }
            | Self::Alive { epoch, .. }
            | Self::Unblocked { epoch }
            | Self::TakeOver { epoch }
            | Self::AskConfiguration { epoch } => Some(*epoch),
            _ => None,
        }
    }
}
