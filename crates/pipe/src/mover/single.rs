//! One outlet and no buffer: one thread reads a block and writes it.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::block::{Block, Piece};
use super::descriptor::Did;
use super::digest::Digests;
use super::inlet::Source;
use super::outlet::{Halt, Sink};
use super::pace::Pace;
use super::receiver::Got;
use super::splice::Splice;
use super::start::Shape;
use super::wait::{Waits, Woken};
use super::{Gauge, InletEnd, Outcome, OutletEnd};
use crate::Error;

/// Who has ended it.
enum Ended {
    Inlet(Error),
    Outlet(Halt),
}

/// Moves all of it.
pub(super) fn run(mut source: Source, mut sink: Sink, shape: &Shape, gauge: &Gauge, waits: Waits) -> Outcome {
    let mut digests = Digests::new(shape.digests.iter().copied());
    let mut splice = Splice::between(&source, &sink, shape);
    let moved = move_all(&mut source, &mut sink, (&mut splice, &mut digests), shape, gauge, waits);
    let bytes = digests.bytes();
    let total = digests.finish();
    let verified = moved.and_then(|()| source.verify(&total).map_err(Ended::Inlet));
    let outlet_waits = waits.counted(&gauge.outlet_wait_ns);
    let ended = match verified {
        Ok(()) => match sink.finish(&total, &outlet_waits) {
            Ok(()) => {
                // Closed before the sender hears that all of it is where it belongs.
                drop(sink);
                let digest = shape.digest.and_then(|kind| total.hex(kind));
                source.done(&waits);
                let inlet = Ok(InletEnd::Complete);
                let outlets = vec![Ok(OutletEnd::Complete)];
                return Outcome { bytes, digest, inlet, outlets, unfinished: Vec::new() };
            }
            Err(halt) => Ended::Outlet(halt),
        },
        Err(ended) => ended,
    };
    let mut unfinished = Vec::new();
    let (inlet, outlet) = match ended {
        Ended::Outlet(Halt::Stopped) => {
            source.stop(&waits);
            (Ok(InletEnd::Unread), Ok(OutletEnd::Stopped))
        }
        Ended::Outlet(halt) => {
            let outlet = halt.into_end();
            unfinished.extend(sink.fail(None, &waits));
            if let Err(why) = &outlet {
                source.fail(&why.to_string(), &waits);
            }
            (Err(Error::Cancelled), outlet)
        }
        Ended::Inlet(error) => {
            source.refuse(&error, &waits);
            unfinished.extend(sink.fail(Some(&error.to_string()), &waits));
            (Err(error), Err(Error::Cancelled))
        }
    };
    Outcome { bytes, digest: None, inlet, outlets: vec![outlet], unfinished }
}

fn move_all(
    source: &mut Source,
    sink: &mut Sink,
    (splice, digests): (&mut Option<Splice>, &mut Digests),
    shape: &Shape,
    gauge: &Gauge,
    waits: Waits,
) -> Result<(), Ended> {
    let inlet_waits = waits.counted(&gauge.inlet_wait_ns);
    let outlet_waits = waits.counted(&gauge.outlet_wait_ns);
    let mut block = Block::new(shape.block_bytes);
    let mut pace = shape.rate.map(|rate| Pace::new(rate, Instant::now()));
    let most = pace.map_or(usize::MAX, |pace| pace.piece_bytes());
    loop {
        // Where neither end ever waits, nobody else would notice.
        waits.check().map_err(Ended::Inlet)?;
        let did = splice.as_mut().map(|splice| splice.fill(source, digests, most)).transpose();
        let (got, piped) = match did.map_err(Ended::Inlet)?.flatten() {
            Some(Did::Bytes(0) | Did::Closed) => (Got::End, None),
            Some(Did::Bytes(bytes)) => (Got::Data, Some(bytes)),
            Some(Did::Nothing) => (Got::Nothing, None),
            None => (source.fill(&mut block, most).map_err(Ended::Inlet)?, None),
        };
        match got {
            Got::End => return Ok(()),
            Got::Nothing => {
                let other = sink.watch().map_err(Ended::Outlet)?;
                source.wait(other, &inlet_waits).map_err(Ended::Inlet)?;
                sink.look().map_err(Ended::Outlet)?;
                continue;
            }
            Got::Data => {}
        }
        let put_waits = outlet_waits.with_source(source.hung_up());
        let (bytes, put) = match (piped, &splice, &mut *sink) {
            (Some(bytes), Some(splice), Sink::Hop(sender)) => {
                (bytes, sender.put_pipe(splice.pipe(), bytes, &put_waits))
            }
            (_, _, sink) => {
                digests.update(block.payload());
                (block.payload().len(), sink.put(Piece::Own(block.payload_mut()), &put_waits))
            }
        };
        put.map_err(|halt| match source.check() {
            Err(error) if matches!(halt, Halt::Failed(Error::Cancelled)) => Ended::Inlet(error),
            _ => Ended::Outlet(halt),
        })?;
        // Figures for people: nothing hangs on their order.
        gauge.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(wire_bytes) = sink.wire_bytes().or_else(|| source.wire_bytes()) {
            gauge.wire_bytes.store(wire_bytes, Ordering::Relaxed);
        }
        if let Some(pace) = &mut pace {
            let next = pace.take(bytes, Instant::now());
            loop {
                let other = sink.watch().map_err(Ended::Outlet)?;
                if waits.wait(None, other, Some(next)).map_err(Ended::Inlet)? == Woken::Late {
                    break;
                }
                sink.look().map_err(Ended::Outlet)?;
            }
        }
    }
}
