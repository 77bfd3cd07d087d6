//! A mover takes bytes from one inlet and puts them into its outlets, until the end of the stream.
//!
//! The two ends of a hop are `sender` and `receiver`; they exchange `frame`s over a `wire`. Pipes, files, sockets
//! and terminals are `descriptor`s; `ends` joins both kinds for a mover. A mover with one outlet and no buffer has
//! one thread (`single`); any other mover has a thread for each outlet and a `queue` (`several`).

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

/// The most bytes of a block: this bounds what a peer can make this side allocate.
pub const BLOCK_BYTES_MAX: u32 = 4 << 20;

/// The options that both ends of a hop must agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopOptions {
    /// The digest that the end of the stream carries beside its length.
    pub digest: DigestKind,
    /// Whether everything on the connection is encrypted and authenticated (AES-256-GCM).
    pub sealed: bool,
    /// How blocks are compressed, if at all.
    pub compression: Option<Compression>,
    /// The most bytes of a block.
    pub block_bytes: u32,
    /// The time without a message after which the other end is dead. `None` where something else notices that the
    /// other end is gone, and its user may stop it for any time.
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
    /// XXH3, 128 bits: finds every accidental change.
    Xxh3,
    /// SHA-256: finds all damage; only encryption finds forgery.
    Sha256,
    /// No digest: the length alone.
    Off,
}

impl DigestKind {
    /// Returns the name that options use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xxh3 => "xxh3",
            Self::Sha256 => "sha256",
            Self::Off => "off",
        }
    }
}

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compression {
    /// Zstandard.
    Zstd,
    /// LZ4.
    Lz4,
}

/// The options that one end of a hop decides alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverOptions {
    /// The most bytes a second.
    pub rate: Option<u64>,
    /// The number of bytes that may wait between reading and writing. 0: one block, which one thread reads and
    /// writes.
    pub buffer_bytes: u64,
    /// What happens to an outlet that slows down the others.
    pub on_slow: SlowOutlet,
    /// What happens when one of several outlets fails.
    pub on_dead: DeadOutlet,
}

/// What happens to an outlet that slows down the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SlowOutlet {
    /// All outlets go at its pace.
    #[default]
    Wait,
    /// The outlet is cut off once it has kept the buffer full for a second.
    Drop,
}

/// What happens when one of several outlets fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeadOutlet {
    /// All outlets fail.
    #[default]
    Fail,
    /// The other outlets get the whole stream.
    Continue,
}

/// Where bytes come from.
#[derive(Debug)]
pub enum MoverInlet {
    /// A pipe, a file, a socket or a terminal, which is read until its end.
    Descriptor(OwnedFd),
    /// The receiving end of a hop.
    Hop(Box<DataConnection>, HopOptions),
}

/// Where bytes go.
#[derive(Debug)]
pub enum MoverOutlet {
    /// A pipe, a file, a socket or a terminal.
    Descriptor(OwnedFd),
    /// Whole lines, each behind a prefix, to a file that others write to as well.
    Lines {
        /// The text in front of each line.
        prefix: String,
        /// The file, locked for each run of whole lines.
        to: Arc<Mutex<File>>,
    },
    /// The sending end of a hop.
    Hop(Box<DataConnection>, HopOptions),
}

/// The counters of a running mover, which other threads read.
#[derive(Debug, Default)]
pub struct Gauge {
    /// Bytes moved: taken in and put out.
    pub bytes: AtomicU64,
    /// Bytes on the wire, which differ from `bytes` with compression.
    pub wire_bytes: AtomicU64,
    /// Nanoseconds that the mover waited for its inlet.
    pub inlet_wait_ns: AtomicU64,
    /// Nanoseconds that the mover waited for its outlets.
    pub outlet_wait_ns: AtomicU64,
    /// Nanoseconds of processor time of the threads that the mover started and that have ended. It leaves out the
    /// time of the calling thread.
    pub threads_cpu_ns: AtomicU64,
    /// Bit n (below 64) is set once outlet n has closed before the stream's end while others go on.
    pub stopped_outlets: AtomicU64,
    /// Bit n (below 64) is set once outlet n has failed or was dropped while others go on.
    pub failed_outlets: AtomicU64,
}

/// The values of a [`Gauge`] at one moment.
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
        // The figures are for people: they need no order.
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        MoverFigures {
            bytes: read(&self.bytes),
            wire_bytes: read(&self.wire_bytes),
            inlet_wait_ns: read(&self.inlet_wait_ns),
            outlet_wait_ns: read(&self.outlet_wait_ns),
        }
    }
}

/// The result of a mover.
#[derive(Debug)]
pub struct MoverOutcome {
    /// The number of bytes taken in.
    pub bytes: u64,
    /// The digest of the stream in hexadecimal, if the whole stream came and a digest was wanted.
    pub digest: Option<String>,
    /// How the inlet ended; [`Error::Cancelled`] if only something else failed.
    pub inlet: Result<InletEnd, Error>,
    /// How each outlet ended, in the outlets' order; [`Error::Cancelled`] if only something else failed.
    pub outlets: Vec<Result<OutletEnd, Error>>,
    /// Descriptors of outlets that did not get the whole stream. Their readers must not take the close for the end
    /// of the stream: kill the readers before this is dropped.
    pub unfinished: Vec<OwnedFd>,
}

/// How an inlet ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InletEnd {
    /// The whole stream came.
    Complete,
    /// Every outlet stopped before the end of the stream.
    Unread,
}

/// How an outlet ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutletEnd {
    /// The outlet took the whole stream; the other end of a hop has confirmed it.
    Complete,
    /// The outlet's reader has closed, such as `head -1` after the first line.
    Stopped,
}

/// Moves bytes until the inlet ends, all outlets have stopped, something fails, or `cancel` is fired. Blocks the
/// calling thread, which should do nothing else.
pub fn run(
    inlet: MoverInlet,
    outlets: Vec<MoverOutlet>,
    options: &MoverOptions,
    gauge: &Gauge,
    cancel: &Cancel,
) -> MoverOutcome {
    run_timed(inlet, outlets, options, gauge, cancel, MoverTiming::default())
}

/// What a mover needs to know about its ends.
struct MoverShape {
    pub block_bytes: usize,
    /// The digests that the ends need.
    pub digests: Vec<DigestKind>,
    /// The digest that is reported.
    pub digest: Option<DigestKind>,
    /// Whether some outlet is a hop.
    pub sends: bool,
    pub rate: Option<u64>,
}

/// Like [`run`](run), with the caller's durations.
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

/// Returns the outcome of a mover that could not start, because one of its ends failed.
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

/// Returns the wire of a hop, and a second handle to it if it is made of streams, for a thread that watches them.
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

/// Returns the bytes of a block of a hop. Both ends have the same options, and so the same block size.
fn block_bytes(options: &HopOptions) -> usize {
    options.block_bytes.clamp(1, BLOCK_BYTES_MAX) as usize
}

/// Starts a thread with a name.
fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>, Error> {
    std::thread::Builder::new().name(name.into()).spawn(run).map_err(Error::system("a new thread"))
}

#[cfg(test)]
mod tests;
