//! How a mover begins.

use std::time::Duration;

use super::inlet::InletReader;
use super::link::LinkWire;
use super::outlet::OutletWriter;
use super::wait::{MoverTiming, WaitSet};
use super::wire::{HopWire, Streams};
use super::{
    BLOCK_BYTES_MAX, DigestKind, Gauge, HopOptions, MoverInlet, MoverOptions, MoverOutcome, MoverOutlet,
    several, single,
};
use crate::Error;
use crate::cancel::Cancel;
use crate::connect::{DataChannel, tcp};

/// What a mover needs to know of its ends.
pub(super) struct MoverShape {
    pub block_bytes: usize,
    /// All that some end wants.
    pub digests: Vec<DigestKind>,
    /// The one that is reported.
    pub digest: Option<DigestKind>,
    /// Some outlet is a hop.
    pub sends: bool,
    pub rate: Option<u64>,
}

/// [`run`](super::run), with durations of the caller's.
pub(super) fn run_timed(
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
pub(super) fn wire_of(
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
pub(super) fn block_bytes(options: &HopOptions) -> usize {
    options.block_bytes.clamp(1, BLOCK_BYTES_MAX) as usize
}

/// A thread with a name.
pub(super) fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<std::thread::JoinHandle<()>, Error> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(run)
        .map_err(|source| Error::System { call: "a new thread", source })
}
