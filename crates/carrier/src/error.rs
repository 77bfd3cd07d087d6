/// Why a connection cannot be, or cannot go on. The text goes to the node's log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The transport failed.
    #[error(transparent)]
    Fabric(#[from] caravan_fabric::Error),
    /// The peer announced a message that is too long.
    #[error(transparent)]
    TooLong(#[from] caravan_ring::record::TooLong),
    /// The link cannot be sealed, or what came not be opened.
    #[error(transparent)]
    Seal(#[from] crate::seal::Error),
    /// The peer's fragments do not follow each other.
    #[error("the peer sent fragment {found} of sequence {sequence} where {expected} was due")]
    Fragment {
        /// Which message.
        sequence: u64,
        /// Which fragment came.
        found: u64,
        /// Which one had to.
        expected: u64,
    },
    /// A fragmented message is larger than its first fragment promised, and than may be held.
    #[error(
        "the peer's fragmented message of sequence {sequence} grew to {bytes} bytes, of which its first fragment said nothing"
    )]
    TooMuchHeld {
        /// Which message.
        sequence: u64,
        /// Its bytes so far.
        bytes: usize,
    },
    /// A distribution header that is not one.
    #[error("the peer sent a malformed distribution header")]
    Header,
    /// The emulator has no memory for a message.
    #[error("no memory for a message of {bytes} bytes")]
    NoMemory {
        /// Its size.
        bytes: usize,
    },
    /// A link needs a descriptor, and the node can have no more.
    #[error("{node} cannot open another file descriptor ({source}): raise its `ulimit -n`")]
    NoDescriptor {
        /// Which node.
        node: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The control connection ended.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The control connection carried data, which it never does after the hand-over.
    #[error("the peer sent data on the control connection after the hand-over")]
    LifelineData,
    /// A control call that does not fit.
    #[error("control operation {operation}: {what}")]
    Control {
        /// Its number.
        operation: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// A bug.
    #[error("internal error of the carrier; please report it with the node's log")]
    Panicked,
}

impl Error {
    /// The exit reason of the port, which is what `nodedown` says of the peer.
    pub fn exit_reason(&self) -> &'static std::ffi::CStr {
        match self {
            Self::PeerClosed => c"connection_closed",
            // What the emulator does when it is the one to find the peer's messages malformed.
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
