//! A mover: takes bytes from one place and puts them into others, until their end.
//!
//! | file | holds |
//! |---|---|
//! | `frame.rs` | what two ends of a hop say to each other |
//! | `seal.rs`, `digest.rs`, `compress.rs` | what is done to it on the way |
//! | `wire.rs`, `link.rs` | what carries it |
//! | `receiver.rs`, `sender.rs` | the two ends of a hop |
//! | `forward.rs`, `backward.rs` | what each has said and heard |
//! | `listener.rs`, `pulse.rs` | the threads that keep a hop alive |
//! | `descriptor.rs`, `lines.rs` | what is not a hop |
//! | `inlet.rs`, `outlet.rs` | both, as a mover sees them |
//! | `start.rs` | which mover it takes |
//! | `single.rs`, `splice.rs` | a mover of one thread, and how it copies nothing where it need not |
//! | `several.rs`, `queue.rs` | a mover with a buffer, or with several outlets |
//! | `wait.rs`, `bell.rs`, `pace.rs`, `block.rs` | waiting, waking, rates, memory |

mod backward;
mod bell;
mod block;
mod compress;
mod descriptor;
mod digest;
mod forward;
mod frame;
mod inlet;
mod lines;
mod link;
mod listener;
mod outlet;
mod pace;
mod pulse;
mod queue;
mod receiver;
mod seal;
mod sender;
mod several;
mod single;
mod splice;
mod start;
mod wait;
mod wire;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::cancel::Cancel;
use crate::connect::Connection;

use wait::Timing;

/// Bytes of a block at most: what a peer may make this side allocate.
pub const BLOCK_BYTES_MAX: u32 = 4 << 20;

/// What both ends of a hop must agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopOptions {
    /// What the end of the stream carries beside its length.
    pub digest: DigestKind,
    /// Whether everything on the connection is encrypted and authenticated (AES-256-GCM).
    pub sealed: bool,
    /// Whether blocks are compressed.
    pub compression: Option<Compression>,
    /// Bytes of a block at most.
    pub block_bytes: u32,
    /// After how long without a word the other end is dead. `None` where something else notices that it is
    /// gone, and an end may be stopped for as long as its user likes.
    pub silence: Option<Duration>,
}

/// A digest of a whole stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DigestKind {
    /// XXH3, 128 bits: finds every accident.
    Xxh3,
    /// SHA-256: finds damage; only encryption finds forgery.
    Sha256,
    /// The length alone.
    Off,
}

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compression {
    /// Zstandard.
    Zstd,
    /// LZ4.
    Lz4,
}

/// What one end alone decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverOptions {
    /// Bytes a second at most.
    pub rate: Option<u64>,
    /// Bytes that may wait between reading and writing. 0: one block, read and written by one thread.
    pub buffer_bytes: u64,
    /// What happens to an outlet that holds up the others.
    pub on_slow: OnSlow,
    /// What happens when an outlet fails while others are there.
    pub on_dead: OnDead,
}

/// What happens to an outlet that holds up the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnSlow {
    /// All go at its pace.
    #[default]
    Wait,
    /// It is cut off once the buffer has been full of what it has not taken for a second.
    Drop,
}

/// What happens when an outlet fails while others are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDead {
    /// All fail.
    #[default]
    Fail,
    /// The others get the whole stream.
    Continue,
}

/// Where bytes come from.
#[derive(Debug)]
pub enum Inlet {
    /// A pipe, a file, a socket, a terminal: read until its end.
    Descriptor(OwnedFd),
    /// The receiving end of a hop.
    Hop(Box<Connection>, HopOptions),
}

/// Where bytes go.
#[derive(Debug)]
pub enum Outlet {
    /// A pipe, a file, a socket, a terminal.
    Descriptor(OwnedFd),
    /// Whole lines, each behind a prefix, to what others write to as well.
    Lines {
        /// In front of each.
        prefix: String,
        /// Locked for each run of whole lines.
        to: Arc<Mutex<File>>,
    },
    /// The sending end of a hop.
    Hop(Box<Connection>, HopOptions),
}

/// What a mover counts while it runs; others read it.
#[derive(Debug, Default)]
pub struct Gauge {
    /// Bytes moved: taken in and put out.
    pub bytes: AtomicU64,
    /// Bytes on the wire, where compression makes that another number.
    pub wire_bytes: AtomicU64,
    /// Nanoseconds it waited for its inlet.
    pub inlet_wait_ns: AtomicU64,
    /// Nanoseconds it waited for its outlets.
    pub outlet_wait_ns: AtomicU64,
    /// Nanoseconds of processor time of threads that it has started and that have ended; what the
    /// calling thread has used is the caller's to ask.
    pub threads_cpu_ns: AtomicU64,
    /// Bit n (below 64) is set once outlet n has closed before the stream's end while others go on.
    pub stopped_outlets: AtomicU64,
    /// The same for outlets that have failed or were dropped.
    pub failed_outlets: AtomicU64,
}

impl Gauge {
    /// The first four, in the order of their fields.
    pub fn read(&self) -> [u64; 4] {
        [&self.bytes, &self.wire_bytes, &self.inlet_wait_ns, &self.outlet_wait_ns]
            // Figures for people: nothing hangs on their order.
            .map(|figure| figure.load(Ordering::Relaxed))
    }
}

/// What became of a mover.
#[derive(Debug)]
pub struct Outcome {
    /// Bytes taken in.
    pub bytes: u64,
    /// Their digest in hexadecimal, if all came and one was wanted.
    pub digest: Option<String>,
    /// How the inlet ended; [`Error::Cancelled`] if nothing is wrong with it but something else failed.
    pub inlet: Result<InletEnd, Error>,
    /// How each outlet ended, in their order; [`Error::Cancelled`] as above.
    pub outlets: Vec<Result<OutletEnd, Error>>,
    /// Descriptors of outlets that were not given all of the stream. Their readers must not take a close
    /// for its end: kill them before this is dropped.
    pub unfinished: Vec<OwnedFd>,
}

/// How an inlet ended, if not by failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InletEnd {
    /// All of it came.
    Complete,
    /// Nobody wanted the rest: every outlet stopped.
    Unread,
}

/// How an outlet ended, if not by failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutletEnd {
    /// It took all of the stream; for a hop, the other end has said so.
    Complete,
    /// Its reader has closed: `head -1` has seen enough.
    Stopped,
}

/// Moves until the end of the inlet, or all outlets have stopped, or something fails, or `cancel` is
/// fired. Blocks the calling thread, which is a mover's own.
pub fn run(
    inlet: Inlet,
    outlets: Vec<Outlet>,
    options: &MoverOptions,
    gauge: &Gauge,
    cancel: &Cancel,
) -> Outcome {
    start::run_timed(inlet, outlets, options, gauge, cancel, Timing::default())
}

#[cfg(test)]
mod tests;
