//! What is known of the stream's leg.

use std::time::Duration;

use super::super::HopFigures;
use super::Conductor;
use crate::mover::DigestKind;
use crate::plan::{self, HopCarrier};

impl Conductor<'_> {
    pub(super) fn hop_figures(&self) -> Vec<HopFigures> {
        // Before that there is none to tell of.
        let Some(started) = self.started else { return Vec::new() };
        let elapsed = started.elapsed().as_secs_f64();
        self.plan.legs.iter().map(|leg| self.figures_of(leg, elapsed)).collect()
    }

    pub(super) fn figures_of(&self, leg: &plan::StreamLeg, elapsed: f64) -> HopFigures {
        let seconds = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64();
        let sender = leg.sender.map(|(mover, _)| mover).filter(|mover| self.movers.contains_key(mover));
        let receiver = leg.receiver.filter(|mover| self.movers.contains_key(mover));
        let live = |mover: Option<u32>| {
            mover.and_then(|mover| self.figures.get(&mover)).copied().unwrap_or_default()
        };
        let done = |mover: Option<u32>| mover.and_then(|mover| self.moved.get(&mover));
        let (transport, digest_kind) = match leg.hop.and_then(|hop| self.joined.get(&hop)) {
            Some((HopCarrier::Connection(options), text)) => (text.clone(), options.digest),
            Some((HopCarrier::Pipe, text)) => (text.clone(), DigestKind::Off),
            None if sender.is_some() => ("here".to_owned(), DigestKind::Off),
            None => ("pipe".to_owned(), DigestKind::Off),
        };
        let first = sender.or(receiver);
        let [bytes, _, reader, network] = live(first);
        // A mover that sends counts what it sends, over all of its outlets; one that only receives, what it receives.
        let sends = |mover: u32| {
            let is_its = |leg: &plan::StreamLeg| {
                leg.hop.is_some() && leg.sender.is_some_and(|(sender, _)| sender == mover)
            };
            self.plan.legs.iter().any(is_its)
        };
        let counts_wire = receiver.filter(|receiver| !sends(*receiver)).or(first);
        let mut figures = HopFigures {
            from: self.plan.name(leg.from).to_owned(),
            to: self.plan.name(leg.to).to_owned(),
            transport,
            is_measured: first.is_some(),
            bytes,
            wire_bytes: done(counts_wire).map_or(live(counts_wire)[1], |result| result.wire_bytes),
            seconds: elapsed,
            reader_wait: seconds(reader),
            network_wait: seconds(network),
            writer_wait: seconds(live(receiver)[3]),
            cpu: 0.0,
            total: leg.file.and_then(|job| self.lengths.get(&job)).copied(),
            digest: None,
        };
        if let Some(result) = done(first) {
            figures.bytes = result.bytes;
            figures.seconds = seconds(result.took_ns);
            figures.reader_wait = seconds(result.waited_ns.0);
            figures.network_wait = seconds(result.waited_ns.1);
            figures.digest = result.digest.clone().map(|digest| (digest_kind, digest));
        }
        figures.writer_wait =
            done(receiver).map_or(figures.writer_wait, |result| seconds(result.waited_ns.1));
        let ends = [sender, receiver].into_iter().filter_map(done);
        // A sum of nothing would be a negative zero.
        figures.cpu = ends.fold(0.0, |sum, result| sum + seconds(result.cpu_ns));
        figures
    }
}
