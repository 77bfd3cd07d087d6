/// Why a connection cannot be made, or cannot go on. The text goes to the node's log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The transport failed.
    #[error(transparent)]
    Fabric(#[from] caravan_fabric::Error),
    /// The peer announced a message that is too long.
    #[error(transparent)]
    TooLong(#[from] caravan_ring::record::TooLong),
    /// The link cannot be sealed, or a record cannot be opened.
    #[error(transparent)]
    Seal(#[from] crate::seal::Error),
    /// The peer's fragments do not follow each other.
    #[error("the peer sent fragment {found} of sequence {sequence} where {expected} was due")]
    Fragment {
        /// The sequence number of the message.
        sequence: u64,
        /// The fragment that came.
        found: u64,
        /// The fragment that was due.
        expected: u64,
    },
    /// A fragmented message is larger than its first fragment promised, and than the limit.
    #[error(
        "the peer's fragmented message of sequence {sequence} grew to {bytes} bytes, of which its first fragment said nothing"
    )]
    TooMuchHeld {
        /// The sequence number of the message.
        sequence: u64,
        /// The number of its bytes so far.
        bytes: usize,
    },
    /// A distribution header is malformed.
    #[error("the peer sent a malformed distribution header")]
    Header,
    /// The emulator has no memory for a message.
    #[error("no memory for a message of {bytes} bytes")]
    NoMemory {
        /// The size of the message.
        bytes: usize,
    },
    /// A link needs a descriptor, but the node has reached its limit.
    #[error("{node} cannot open another file descriptor ({source}): raise its `ulimit -n`")]
    NoDescriptor {
        /// The name of the node.
        node: String,
        /// The error of the kernel.
        source: std::io::Error,
    },
    /// The control connection ended.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The control connection carried data, which it never does after the hand-over.
    #[error("the peer sent data on the control connection after the hand-over")]
    LifelineData,
    /// A control call is wrong.
    #[error("control operation {operation}: {what}")]
    Control {
        /// The number of the operation.
        operation: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// A bug in the carrier.
    #[error("internal error of the carrier; please report it with the node's log")]
    Panicked,
}

impl Error {
    /// Returns the exit reason of the port, which is the reason in `nodedown`.
    pub fn exit_reason(&self) -> &'static std::ffi::CStr {
        match self {
            Self::PeerClosed => c"connection_closed",
            // The emulator uses this reason, too, when it finds the peer's messages malformed.
            Self::Fragment { .. } | Self::TooMuchHeld { .. } | Self::Header => c"killed",
            _ => c"caravan_link_failed",
        }
    }
}

impl From<caravan_ring::Corrupt> for Error {
    fn from(corrupt: caravan_ring::Corrupt) -> Self {
        Self::Fabric(corrupt.into())
    }
}
