//! A mover: takes bytes from one inlet and puts them into its outlets, until the end of the stream.
//!
//! A hop's two ends are `sender` and `receiver`; they exchange `frame`s over a `wire`. Pipes, files, sockets
//! and terminals are `descriptor`s; `ends` are both, as a mover uses them. A mover with one outlet and no buffer
//! has one thread (`single`); any other has a thread for each outlet and a `queue` (`several`).

mod backward;
mod descriptor;
mod ends;
mod frame;
mod payload;
mod queue;
mod receiver;
mod seal;
mod sender;
mod several;
mod single;
mod wait;
mod wire;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::ends::{InletReader, OutletWriter};
use self::wait::{MoverTiming, WaitSet};
use self::wire::{HopWire, LinkWire, Streams};
use crate::Error;
use crate::cancel::Cancel;
use crate::connect::{DataChannel, DataConnection, tcp};
use crate::limits::BLOCK_BYTES;

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

impl Default for HopOptions {
    fn default() -> Self {
        Self {
            digest: DigestKind::Xxh3,
            sealed: false,
            compression: None,
            block_bytes: BLOCK_BYTES,
            silence: None,
        }
    }
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
    pub on_slow: SlowOutlet,
    /// What happens when an outlet fails while others are there.
    pub on_dead: DeadOutlet,
}

/// What happens to an outlet that holds up the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlowOutlet {
    /// All go at its pace.
    #[default]
    Wait,
    /// It is cut off once the buffer has been full of what it has not taken for a second.
    Drop,
}

/// What happens when an outlet fails while others are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeadOutlet {
    /// All fail.
    #[default]
    Fail,
    /// The others get the whole stream.
    Continue,
}

/// Where bytes come from.
#[derive(Debug)]
pub enum MoverInlet {
    /// A pipe, a file, a socket, a terminal: read until its end.
    Descriptor(OwnedFd),
    /// The receiving end of a hop.
    Hop(Box<DataConnection>, HopOptions),
}

/// Where bytes go.
#[derive(Debug)]
pub enum MoverOutlet {
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
    Hop(Box<DataConnection>, HopOptions),
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
    /// Bit n (below 64) is set once outlet n has failed or was dropped while others go on.
    pub failed_outlets: AtomicU64,
}

/// What a [`Gauge`] shows at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverFigures {
    /// Bytes moved: taken in and put out.
    pub bytes: u64,
    /// Bytes on the wire.
    pub wire_bytes: u64,
    /// Nanoseconds waited for the inlet.
    pub inlet_wait_ns: u64,
    /// Nanoseconds waited for the outlets.
    pub outlet_wait_ns: u64,
}

impl Gauge {
    /// Reads the figures, from any thread, while the mover runs.
    pub fn read(&self) -> MoverFigures {
        // Figures for people: nothing hangs on their order.
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        MoverFigures {
            bytes: read(&self.bytes),
            wire_bytes: read(&self.wire_bytes),
            inlet_wait_ns: read(&self.inlet_wait_ns),
            outlet_wait_ns: read(&self.outlet_wait_ns),
        }
    }
}

/// What became of a mover.
#[derive(Debug)]
pub struct MoverOutcome {
    /// Bytes taken in.
    pub bytes: u64,
    /// Their digest in hexadecimal, if all came and one was wanted.
    pub digest: Option<String>,
    /// How the inlet ended; [`Error::Cancelled`] if nothing is wrong with it but something else failed.
    pub inlet: Result<InletEnd, Error>,
    /// How each outlet ended, in their order; [`Error::Cancelled`] if only something else failed.
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
    inlet: MoverInlet,
    outlets: Vec<MoverOutlet>,
    options: &MoverOptions,
    gauge: &Gauge,
    cancel: &Cancel,
) -> MoverOutcome {
    run_timed(inlet, outlets, options, gauge, cancel, MoverTiming::default())
}

/// What a mover needs to know of its ends.
struct MoverShape {
    pub block_bytes: usize,
    /// All that some end wants.
    pub digests: Vec<DigestKind>,
    /// The one that is reported.
    pub digest: Option<DigestKind>,
    /// Some outlet is a hop.
    pub sends: bool,
    pub rate: Option<u64>,
}

/// [`run`](run), with durations of the caller's.
fn run_timed(
    inlet: MoverInlet,
    outlets: Vec<MoverOutlet>,
    options: &MoverOptions,
    gauge: &Gauge,
    cancel: &Cancel,
    timing: MoverTiming,
) -> MoverOutcome {
    let mut digests: Vec<_> = outlets.iter().filter_map(OutletWriter::digest).collect();
    if let MoverInlet::Hop(_, options) = &inlet {
        digests.insert(0, options.digest);
    }
    let shape = MoverShape {
        block_bytes: InletReader::block_bytes(&inlet, &outlets),
        digest: digests.first().copied(),
        sends: outlets.iter().any(|outlet| matches!(outlet, MoverOutlet::Hop(..))),
        digests,
        rate: options.rate,
    };
    let waits = WaitSet::new(cancel);
    let source = InletReader::new(inlet, timing);
    let sinks: Vec<_> = outlets.into_iter().map(|outlet| OutletWriter::new(outlet, timing)).collect();
    let source = match source {
        Ok(source) if sinks.iter().all(Result::is_ok) => source,
        source => return unstarted(source, sinks, waits),
    };
    let mut sinks: Vec<_> = sinks.into_iter().flatten().collect();
    if options.buffer_bytes == 0 && sinks.len() == 1 {
        if let Some(sink) = sinks.pop() {
            return single::run(source, sink, &shape, gauge, waits);
        }
    }
    match several::run(source, sinks, options, &shape, gauge, timing, waits) {
        Ok(outcome) => outcome,
        Err((error, source, sinks)) => {
            let mut outcome = unstarted(Ok(source), sinks.into_iter().map(Ok).collect(), waits);
            outcome.inlet = Err(error);
            outcome
        }
    }
}

/// One of the ends could not even begin.
fn unstarted(
    source: Result<InletReader, Error>,
    sinks: Vec<Result<OutletWriter, Error>>,
    waits: WaitSet,
) -> MoverOutcome {
    let failed = sinks.iter().find_map(|sink| sink.as_ref().err()).or(source.as_ref().err());
    let why = failed.map(Error::to_string);
    let mut unfinished = Vec::new();
    let outlets = sinks.into_iter().map(|sink| {
        unfinished.extend(sink?.fail(why.as_deref(), &waits));
        Err(Error::Cancelled)
    });
    let outlets = outlets.collect();
    let inlet = source.and_then(|source| {
        source.fail(&why.unwrap_or_default(), &waits);
        Err(Error::Cancelled)
    });
    MoverOutcome { bytes: 0, digest: None, inlet, outlets, unfinished }
}

/// What carries a hop, and the same again if it is streams, for a thread that looks after them.
fn wire_of(
    channel: DataChannel,
    silence: Option<Duration>,
) -> Result<(Box<dyn HopWire>, Option<Streams>), Error> {
    match channel {
        DataChannel::Streams(streams) => {
            if let Some(silence) = silence {
                streams.iter().for_each(|stream| tcp::keep_alive(stream, silence));
            }
            let streams = Streams::new(streams)?;
            Ok((Box::new(streams.clone()), Some(streams)))
        }
        DataChannel::Link(link) => Ok((Box::new(LinkWire::new(*link)), None)),
    }
}

/// Bytes of a block of a hop. Both ends have the same options and so come to the same.
fn block_bytes(options: &HopOptions) -> usize {
    options.block_bytes.clamp(1, BLOCK_BYTES_MAX) as usize
}

/// A thread with a name.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>, Error> {
    std::thread::Builder::new().name(name.into()).spawn(run).map_err(Error::system("a new thread"))
}

#[cfg(test)]
mod tests;
