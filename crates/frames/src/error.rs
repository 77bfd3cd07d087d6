use std::io;

use crate::limits;

/// What can go wrong with a stream of frames.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that no stream can have.
    #[error(
        "`{0}` cannot be the name of a stream: it takes 1 to {max} letters, digits, dots, dashes and underscores",
        max = limits::NAME_BYTES_MAX
    )]
    Name(String),
    /// A picture that no stream can carry, with the reason.
    #[error("the picture is not possible: {0}")]
    Picture(String),
    /// A number of slots outside the limits.
    #[error("a stream has {min} to {max} slots, not {0}", min = limits::SLOTS_MIN, max = limits::SLOTS_MAX)]
    Slots(u32),
    /// Another process sends the stream.
    #[error(
        "a process of this host already sends the stream `{0}`: choose another name, or stop that process"
    )]
    Taken(String),
    /// Nobody sends the stream.
    #[error(
        "no process of this host and network namespace sends the stream `{0}`: `caravan frames top` lists those that are there"
    )]
    NoSender(String),
    /// The process that has the name belongs to another user.
    #[error(
        "the process that sends the stream `{name}` belongs to user {theirs}, and this one to user {ours}"
    )]
    OtherUser {
        /// The name of the stream.
        name: String,
        /// The user of the other process.
        theirs: u32,
        /// The user of this process.
        ours: u32,
    },
    /// The producer refuses this consumer.
    #[error("the stream has as many consumers as it takes ({max}): stop one of them", max = limits::CONSUMERS_MAX)]
    Full,
    /// The producer did not answer in time.
    #[error("the process that sends the stream does not answer: it is stopped, or hangs")]
    NoAnswer,
    /// The other side is of another version, or its memory is not what it should be.
    #[error("the other side of the stream is not usable: {0}")]
    Protocol(&'static str),
    /// This consumer was so slow that the lossless producer gave it up.
    #[error(
        "the producer no longer waits for this consumer, which took longer for a frame than the producer allows: raise its --patience"
    )]
    CutOff,
    /// The bytes of a frame do not have the digest that its producer computed.
    #[error("frame {sequence} does not have the digest that its producer computed")]
    Digest {
        /// The number of the frame.
        sequence: u64,
    },
    /// A y4m stream that cannot be read.
    #[error("the input is not y4m that can be read: {0}")]
    Y4m(String),
    /// Shared memory.
    #[error("{0}")]
    Segment(#[from] caravan_segment::Error),
    /// A failure of a system call.
    #[error("{call}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
}

/// Names the system call in an error: `.map_err(system("bind"))`.
pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::System { call, source: source.into() }
}
