//! A mover with one outlet and no buffer: one thread reads a block and writes it.
//!
//! Where nothing has to look at the bytes (no digest, not sealed, not compressed), splice(2) moves them from a
//! descriptor to a stream, through a pipe of the mover's own.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::descriptor::IoOutcome;
use super::ends::{Halt, InletReader, OutletWriter};
use super::frame::{Block, OutletPiece};
use super::payload::Digests;
use super::receiver::Filled;
use super::wait::{MoverRate, WaitSet, Woken};
use super::{DigestKind, Gauge, InletEnd, MoverOutcome, MoverShape, OutletEnd};
use crate::Error;
use crate::limits::PIPE_BYTES;

/// The end that stopped the mover.
enum EndedBy {
    Inlet(Error),
    Outlet(Halt),
}

/// Moves the whole stream.
pub(super) fn run(
    mut source: InletReader,
    mut sink: OutletWriter,
    shape: &MoverShape,
    gauge: &Gauge,
    waits: WaitSet,
) -> MoverOutcome {
    let mut digests = Digests::new(shape.digests.iter().copied());
    let mut splice = Splice::between(&source, &sink, shape);
    let moved = move_all(&mut source, &mut sink, (&mut splice, &mut digests), shape, gauge, waits);
    let bytes = digests.bytes();
    let total = digests.finish();
    let verified = moved.and_then(|()| source.verify(&total).map_err(EndedBy::Inlet));
    let outlet_waits = waits.counted(&gauge.outlet_wait_ns);
    let ended = match verified {
        Ok(()) => match sink.finish(&total, &outlet_waits) {
            Ok(()) => {
                // The descriptor is closed before the sender is told that the stream was delivered.
                drop(sink);
                let digest = shape.digest.and_then(|kind| total.hex(kind));
                source.done(&waits);
                let inlet = Ok(InletEnd::Complete);
                let outlets = vec![Ok(OutletEnd::Complete)];
                return MoverOutcome { bytes, digest, inlet, outlets, unfinished: Vec::new() };
            }
            Err(halt) => EndedBy::Outlet(halt),
        },
        Err(ended) => ended,
    };
    let mut unfinished = Vec::new();
    let (inlet, outlet) = match ended {
        EndedBy::Outlet(Halt::Stopped) => {
            source.stop(&waits);
            (Ok(InletEnd::Unread), Ok(OutletEnd::Stopped))
        }
        EndedBy::Outlet(halt) => {
            let outlet = halt.into_end();
            unfinished.extend(sink.fail(None, &waits));
            if let Err(why) = &outlet {
                source.fail(&why.to_string(), &waits);
            }
            (Err(Error::Cancelled), outlet)
        }
        EndedBy::Inlet(error) => {
            source.refuse(&error, &waits);
            unfinished.extend(sink.fail(Some(&error.to_string()), &waits));
            (Err(error), Err(Error::Cancelled))
        }
    };
    MoverOutcome { bytes, digest: None, inlet, outlets: vec![outlet], unfinished }
}

fn move_all(
    source: &mut InletReader,
    sink: &mut OutletWriter,
    (splice, digests): (&mut Option<Splice>, &mut Digests),
    shape: &MoverShape,
    gauge: &Gauge,
    waits: WaitSet,
) -> Result<(), EndedBy> {
    let inlet_waits = waits.counted(&gauge.inlet_wait_ns);
    let outlet_waits = waits.counted(&gauge.outlet_wait_ns);
    let mut block = Block::new(shape.block_bytes);
    let mut pace = shape.rate.map(|rate| MoverRate::new(rate, Instant::now()));
    let most = pace.map_or(usize::MAX, |pace| pace.piece_bytes());
    loop {
        // If neither end ever waits, nothing else checks.
        waits.check().map_err(EndedBy::Inlet)?;
        let did = splice.as_mut().map(|splice| splice.fill(source, digests, most)).transpose();
        let (got, piped) = match did.map_err(EndedBy::Inlet)?.flatten() {
            Some(IoOutcome::Bytes(0) | IoOutcome::Closed) => (Filled::End, None),
            Some(IoOutcome::Bytes(bytes)) => (Filled::Data, Some(bytes)),
            Some(IoOutcome::Nothing) => (Filled::Nothing, None),
            None => (source.fill(&mut block, most).map_err(EndedBy::Inlet)?, None),
        };
        match got {
            // An abort kills the writer after it has cancelled: that end is none of the stream.
            Filled::End => return waits.check().map_err(EndedBy::Inlet),
            Filled::Nothing => {
                let other = sink.watch().map_err(EndedBy::Outlet)?;
                source.wait(other, &inlet_waits).map_err(EndedBy::Inlet)?;
                sink.look().map_err(EndedBy::Outlet)?;
                continue;
            }
            Filled::Data => {}
        }
        let put_waits = outlet_waits.with_source(source.hung_up());
        let (bytes, put) = match (piped, &splice, &mut *sink) {
            (Some(bytes), Some(splice), OutletWriter::Hop(sender)) => {
                (bytes, sender.put_pipe(splice.pipe(), bytes, &put_waits))
            }
            (_, _, sink) => {
                digests.update(block.payload());
                (block.payload().len(), sink.put(OutletPiece::Own(block.payload_mut()), &put_waits))
            }
        };
        put.map_err(|halt| match source.check() {
            Err(error) if matches!(halt, Halt::Failed(Error::Cancelled)) => EndedBy::Inlet(error),
            _ => EndedBy::Outlet(halt),
        })?;
        // The figures are for people: they need no order.
        gauge.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(wire_bytes) = sink.wire_bytes().or_else(|| source.wire_bytes()) {
            gauge.wire_bytes.store(wire_bytes, Ordering::Relaxed);
        }
        if let Some(pace) = &mut pace {
            let next = pace.take(bytes, Instant::now());
            loop {
                let other = sink.watch().map_err(EndedBy::Outlet)?;
                if waits.wait(None, other, Some(next)).map_err(EndedBy::Inlet)? == Woken::Late {
                    break;
                }
                sink.look().map_err(EndedBy::Outlet)?;
            }
        }
    }
}

/// The pipe between source and sink; it is empty after each piece.
pub(super) struct Splice {
    reading: OwnedFd,
    writing: OwnedFd,
    block_bytes: usize,
    /// Whether the source cannot be spliced any further: its rest is copied.
    is_over: bool,
}

impl Splice {
    /// Returns `None` if the source's bytes must be seen, or either end cannot be spliced.
    pub fn between(source: &InletReader, sink: &OutletWriter, shape: &MoverShape) -> Option<Self> {
        let (InletReader::Descriptor(descriptor), OutletWriter::Hop(sender)) = (source, sink) else {
            return None;
        };
        let is_digested = shape.digests.iter().any(|digest| *digest != DigestKind::Off);
        if is_digested || !descriptor.splices() || !sender.takes_pipes() {
            return None;
        }
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // A smaller pipe only makes smaller pieces.
        let _ = fcntl_setpipe_size(&writing, PIPE_BYTES);
        Some(Self { reading, writing, block_bytes: shape.block_bytes, is_over: false })
    }

    /// Moves the next piece of the source, up to `most` bytes, into the pipe and counts it. Returns `None` if the rest
    /// has to be copied.
    pub fn fill(
        &mut self,
        source: &InletReader,
        digests: &mut Digests,
        most: usize,
    ) -> Result<Option<IoOutcome>, Error> {
        let InletReader::Descriptor(descriptor) = source else { return Ok(None) };
        if self.is_over {
            return Ok(None);
        }
        let did = descriptor.splice(&self.writing, most.min(self.block_bytes))?;
        if let Some(IoOutcome::Bytes(bytes)) = &did {
            digests.count(*bytes);
        }
        self.is_over = did.is_none();
        Ok(did)
    }

    /// Returns the end of the pipe from which the piece is read.
    pub fn pipe(&self) -> &OwnedFd {
        &self.reading
    }
}
