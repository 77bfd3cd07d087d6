//! An app that sends the packets it was given again and again.

use serde::Deserialize;

use crate::app::{App, AppError};
use crate::io::Io;
use crate::layout::DropReason;
use crate::limits::{PACKET_BYTES_MAX, PULL_PACKETS, STATE_BYTES_MAX};

/// Packets that a repeater keeps, unless the configuration says otherwise.
const PACKETS_DEFAULT: usize = 1024;
/// Bytes in front of each packet in the state.
const LENGTH_BYTES: usize = 2;

/// Keeps the first packets that arrive, and sends copies of them in turn for ever, as fast as the
/// output takes them. Packets beyond those that it keeps are dropped ([`DropReason::Filtered`]).
///
/// The packets that it keeps always fit into an app's state, so that all of them go along when the
/// app moves. They are in the worker's own memory, not in packets.
#[derive(Debug)]
pub struct Repeater {
    packets_max: usize,
    kept: Vec<Vec<u8>>,
    /// The bytes that the kept packets take in the state.
    bytes: usize,
    next: usize,
    sent: u64,
}

/// The configuration of a repeater.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RepeaterConfig {
    /// The number of packets to keep at most.
    pub packets: usize,
}

impl Default for RepeaterConfig {
    fn default() -> Self {
        Self { packets: PACKETS_DEFAULT }
    }
}

const INPUT: usize = 0;
const OUTPUT: usize = 0;

impl App for Repeater {
    type Config = RepeaterConfig;

    fn check(config: &RepeaterConfig) -> Result<(), AppError> {
        match config.packets {
            0 => Err(AppError::new("packets = 0: a repeater that keeps no packet sends none")),
            _ => Ok(()),
        }
    }

    fn start(config: RepeaterConfig, state: Option<Vec<u8>>) -> Result<Self, AppError> {
        let mut repeater = Self { packets_max: config.packets, kept: Vec::new(), bytes: 0, next: 0, sent: 0 };
        for packet in packets_of_state(&state.unwrap_or_default()) {
            repeater.keep(packet);
        }
        Ok(repeater)
    }

    fn pull(&mut self, io: &mut Io) {
        if self.kept.is_empty() {
            return;
        }
        let Self { kept, next, .. } = self;
        let sent = io.generate(OUTPUT, PULL_PACKETS, |packet| {
            *next = if *next < kept.len() { *next } else { 0 };
            // Each came in a packet, so it fits into one.
            packet.fill(&kept[*next]);
            *next += 1;
        });
        self.sent += sent as u64;
    }

    fn push(&mut self, io: &mut Io) {
        while let Some(packet) = io.receive(INPUT) {
            if self.keep(packet.data()) {
                io.free(packet);
            } else {
                io.discard(packet, DropReason::Filtered);
            }
        }
    }

    fn stop(&mut self, _: &mut Io) -> Option<Vec<u8>> {
        let mut state = Vec::with_capacity(self.bytes);
        for packet in &self.kept {
            state.extend_from_slice(&(packet.len() as u16).to_le_bytes());
            state.extend_from_slice(packet);
        }
        Some(state)
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("kept", self.kept.len() as u64), ("packets", self.sent)]
    }
}

impl Repeater {
    /// Keeps a packet. Returns false if there is no room for it.
    fn keep(&mut self, packet: &[u8]) -> bool {
        let bytes = self.bytes + LENGTH_BYTES + packet.len();
        if self.kept.len() == self.packets_max || bytes > STATE_BYTES_MAX || packet.len() > PACKET_BYTES_MAX {
            return false;
        }
        self.kept.push(packet.to_vec());
        self.bytes = bytes;
        true
    }
}

/// Reads lengths of two little-endian bytes, each followed by its packet. Stops where they are invalid.
fn packets_of_state(mut state: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = state.split_first_chunk::<LENGTH_BYTES>()?;
        let (packet, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        state = rest;
        Some(packet)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::QUEUE_PACKETS;
    use crate::testing::AppBench;

    const PACKETS: usize = 2000;

    fn bench(packets: usize) -> AppBench<Repeater> {
        let config = RepeaterConfig { packets };
        AppBench::new(config, &["input"], &["output"], PACKETS as u32).expect("a repeater")
    }

    #[test]
    fn it_sends_what_it_got_for_ever() {
        let mut bench = bench(10);
        bench.pull();
        assert_eq!(bench.sent("output").len(), 0);
        for packet in [&b"one"[..], b"two", b"three"] {
            bench.put("input", packet);
        }
        bench.push();
        assert_eq!(bench.free(), PACKETS, "it holds no packet");
        bench.pull();
        bench.pull();
        let sent = bench.sent("output");
        assert_eq!(sent.len(), 2 * PULL_PACKETS);
        let in_turn = [&b"one"[..], b"two", b"three"].into_iter().cycle();
        assert!(sent.iter().zip(in_turn).all(|(sent, kept)| sent == kept));
        assert_eq!(bench.free(), PACKETS);
    }

    #[test]
    fn it_keeps_so_many_packets_and_drops_the_rest() {
        let mut bench = bench(2);
        for packet in [b"1", b"2", b"3"] {
            bench.put("input", packet);
        }
        bench.push();
        assert_eq!((bench.drops(DropReason::Filtered), bench.free()), (1, PACKETS));
        bench.pull();
        assert_eq!(bench.sent("output")[..3], [b"1", b"2", b"1"]);
    }

    #[test]
    fn it_keeps_no_more_than_can_move() {
        let mut bench = bench(PACKETS);
        for _ in 0..QUEUE_PACKETS {
            bench.put("input", &[1; 1500]);
        }
        bench.push();
        let fits = STATE_BYTES_MAX / (1500 + LENGTH_BYTES);
        assert_eq!(bench.app.report()[0], ("kept", fits as u64));
        assert_eq!(bench.drops(DropReason::Filtered), (QUEUE_PACKETS - fits) as u64);
        assert!(bench.stop().expect("a state").len() <= STATE_BYTES_MAX);
        assert_eq!(bench.free(), PACKETS);
    }

    #[test]
    fn what_it_keeps_moves_along() {
        let mut first = bench(10);
        first.put("input", b"");
        first.put("input", &[9; 1900]);
        first.push();
        let state = first.stop();
        assert_eq!(first.free(), PACKETS);
        let mut second = bench(10);
        second.app = Repeater::start(RepeaterConfig::default(), state).expect("a repeater");
        second.pull();
        assert_eq!(second.sent("output")[..2], [Vec::new(), vec![9; 1900]]);
        assert_eq!(second.free(), PACKETS);
    }

    #[test]
    fn another_kinds_state_does_no_harm() {
        let mut bench = bench(1);
        bench.app =
            Repeater::start(RepeaterConfig::default(), Some(b"{\"source_sent\":1}".to_vec())).expect("one");
        bench.pull();
        assert_eq!(bench.sent("output").len(), 0);
        assert!(Repeater::check(&RepeaterConfig { packets: 0 }).is_err());
    }
}
