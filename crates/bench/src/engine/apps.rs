//! The apps that only this benchmark has: a source and a sink that touch as many bytes as they are told, an app that
//! holds packets, and one that looks for gaps.

use std::cell::Cell;

use caravan_engine::limits::PULL_PACKETS;
use caravan_engine::{App, AppError, Io, Named, Packet, Registry};
use serde::{Deserialize, Serialize};

use crate::engine::case::HEADER_BYTES;

/// Returns all app kinds: those of the engine, and those of this file.
pub fn registry() -> Registry {
    let mut registry = Registry::standard();
    registry.add::<StampSource>("bench-source").add::<StampSink>("bench-sink");
    registry.add::<Hold>("bench-hold").add::<Gap>("bench-gap");
    registry
}

/// What the two apps of a link do with a packet's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TouchWork {
    /// They touch no bytes.
    None,
    /// The source writes the first [`HEADER_BYTES`], the sink reads them.
    Header,
    /// Both apps read all bytes.
    Read,
    /// The source writes all bytes, the sink reads them.
    Touch,
}

/// The configuration of both apps.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TouchConfig {
    pub size: usize,
    pub work: TouchWork,
}

impl TouchConfig {
    fn touched(&self) -> usize {
        match self.work {
            TouchWork::None => 0,
            TouchWork::Header => self.size.min(HEADER_BYTES),
            TouchWork::Read | TouchWork::Touch => self.size,
        }
    }
}

/// Makes packets, and writes or reads the first bytes of each.
#[derive(Debug)]
struct StampSource {
    size: usize,
    touched: usize,
    reads: bool,
    number: u64,
    sum: u64,
}

impl App for StampSource {
    type Config = TouchConfig;
    const INPUTS: Named = Named::Only(&[]);

    fn start(config: TouchConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        let (touched, reads) = (config.touched(), config.work == TouchWork::Read);
        Ok(Self { size: config.size, touched, reads, number: 0, sum: 0 })
    }

    fn pull(&mut self, io: &mut Io) {
        for _ in 0..io.room(0).min(PULL_PACKETS) {
            let Some(mut packet) = io.allocate() else { return };
            let Some(data) = packet.resize(self.size) else { return };
            if self.reads {
                self.sum = self.sum.wrapping_add(sum(data));
            } else {
                stamp(&mut data[..self.touched], self.number);
                self.number += 1;
            }
            io.transmit(0, packet);
        }
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        // The report contains the sum, so that no compiler leaves it out.
        vec![("sum", self.sum)]
    }
}

/// Reads the first bytes of each packet, and frees it.
#[derive(Debug)]
struct StampSink {
    touched: usize,
    /// True if the bytes must be those that a source stamped.
    stamped: bool,
    sum: u64,
    wrong: u64,
}

impl App for StampSink {
    type Config = TouchConfig;
    const INPUTS: Named = Named::Any;
    const OUTPUTS: Named = Named::Only(&[]);

    fn start(config: TouchConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        let stamped = !matches!(config.work, TouchWork::None | TouchWork::Read);
        Ok(Self { touched: config.touched(), stamped, sum: 0, wrong: 0 })
    }

    fn push(&mut self, io: &mut Io) {
        for input in 0..io.inputs() {
            while let Some(packet) = io.receive(input) {
                let data = &packet.data()[..self.touched.min(packet.length())];
                let found = sum(data);
                self.sum = self.sum.wrapping_add(found);
                self.wrong += u64::from(self.stamped && found != stamped_sum(data));
                io.free(packet);
            }
        }
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("wrong", self.wrong), ("sum", self.sum)]
    }
}

/// Writes `number`, `number + 1`, ... as words of 8 bytes; bytes after the last whole word stay.
#[inline]
fn stamp(data: &mut [u8], number: u64) {
    for (place, word) in data.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&number.wrapping_add(place as u64).to_le_bytes());
    }
}

/// Returns the sum of the words.
#[inline]
fn sum(data: &[u8]) -> u64 {
    let words = data.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    words.fold(0, u64::wrapping_add)
}

/// Returns the sum of words that count up from the first.
#[inline]
fn stamped_sum(data: &[u8]) -> u64 {
    let Some(first) = data.first_chunk() else { return 0 };
    let count = (data.len() / 8) as u64;
    u64::from_le_bytes(*first).wrapping_mul(count).wrapping_add(count * count.saturating_sub(1) / 2)
}

/// The number of packets that an app is to hold.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldConfig {
    pub packets: usize,
}

/// Takes packets and keeps them.
#[derive(Debug)]
struct Hold {
    wanted: usize,
    held: Vec<Packet>,
}

impl App for Hold {
    type Config = HoldConfig;
    const INPUTS: Named = Named::Only(&[]);
    const OUTPUTS: Named = Named::Only(&[]);

    fn start(config: HoldConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self { wanted: config.packets, held: Vec::with_capacity(config.packets) })
    }

    fn pull(&mut self, io: &mut Io) {
        while self.held.len() < self.wanted {
            let Some(packet) = io.allocate() else { return };
            self.held.push(packet);
        }
    }

    /// The app wakes until it has all packets.
    fn wake_ns(&self) -> Option<u64> {
        (self.held.len() < self.wanted).then_some(0)
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("held", self.held.len() as u64)]
    }
}

/// The configuration of `Gap`, which is empty.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GapConfig {}

/// Frees packets, and records the longest time without one.
#[derive(Debug, Default)]
struct Gap {
    last_ns: u64,
    /// The longest gap since the last report.
    longest_ns: Cell<u64>,
    packets: u64,
}

impl App for Gap {
    type Config = GapConfig;
    const OUTPUTS: Named = Named::Only(&[]);

    fn start(_: GapConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self::default())
    }

    fn push(&mut self, io: &mut Io) {
        if io.waiting(0) == 0 {
            return;
        }
        if self.last_ns > 0 {
            let gap = io.now_ns().saturating_sub(self.last_ns);
            self.longest_ns.set(self.longest_ns.get().max(gap));
        }
        self.last_ns = io.now_ns();
        while let Some(packet) = io.receive(0) {
            self.packets += 1;
            io.free(packet);
        }
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("longest_gap_ns", self.longest_ns.take()), ("packets", self.packets)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use caravan_engine::testing::AppBench;

    fn touch(size: usize, work: TouchWork) -> TouchConfig {
        TouchConfig { size, work }
    }

    fn figure<A: App>(app: &A, name: &str) -> u64 {
        app.report().into_iter().find(|(key, _)| *key == name).expect("a figure").1
    }

    #[test]
    fn what_a_source_stamps_its_sink_finds() {
        for (work, stamped) in [(TouchWork::Touch, 1496), (TouchWork::Header, HEADER_BYTES)] {
            let mut source =
                AppBench::<StampSource>::new(touch(1500, work), &[], &["output"], 256).expect("a source");
            source.pull();
            let sent = source.sent("output");
            assert_eq!(sent.len(), PULL_PACKETS);
            let mut sink =
                AppBench::<StampSink>::new(touch(1500, work), &["input"], &[], 256).expect("a sink");
            for data in &sent {
                assert_eq!(data.len(), 1500);
                sink.put("input", data);
            }
            sink.push();
            assert_eq!((figure(&sink.app, "wrong"), sink.waiting("input")), (0, 0));
            let mut torn = sent[0].clone();
            torn[stamped - 8] ^= 1;
            sink.put("input", &torn);
            sink.push();
            assert_eq!(figure(&sink.app, "wrong"), 1, "{work:?}");
        }
    }

    #[test]
    fn all_is_read_where_all_is_to_be_read() {
        let mut sink =
            AppBench::<StampSink>::new(touch(64, TouchWork::Read), &["input"], &[], 8).expect("a sink");
        let data: Vec<_> = (0..8_u64).flat_map(|n| (n * n).to_le_bytes()).collect();
        sink.put("input", &data);
        sink.push();
        assert_eq!((figure(&sink.app, "sum"), figure(&sink.app, "wrong")), (140, 0));
    }

    #[test]
    fn packets_are_held_until_there_are_as_many_as_wanted() {
        let mut hold = AppBench::<Hold>::new(HoldConfig { packets: 5 }, &[], &[], 8).expect("an app");
        hold.pull();
        hold.pull();
        assert_eq!((figure(&hold.app, "held"), hold.free()), (5, 3));
    }

    #[test]
    fn the_longest_gap_is_told_once() {
        let mut gap = AppBench::<Gap>::new(GapConfig {}, &["input"], &[], 8).expect("an app");
        for (now_ns, came) in [(1_000, true), (1_400, true), (9_000, false), (10_400, true), (10_500, true)] {
            gap.now_ns = now_ns;
            if came {
                gap.put("input", &[0; 60]);
            }
            gap.push();
        }
        assert_eq!(figure(&gap.app, "longest_gap_ns"), 9_000);
        assert_eq!(figure(&gap.app, "longest_gap_ns"), 0);
    }
}
