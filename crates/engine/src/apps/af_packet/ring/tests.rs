//! The ring against memory that is filled as the kernel fills it, and as it never should.

use super::*;
use crate::app::{App, AppError};
use crate::io::Io;
use crate::testing::AppBench;

const RING_BLOCKS: usize = 2;
const FIRST: usize = BLOCK_HEADER_BYTES;
/// Where a frame starts behind its header, as the kernel places it.
const START: usize = 96;
const STEP: usize = 256;

struct Taker(PacketRing);

impl App for Taker {
    type Config = ();

    fn start((): (), _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Mapping::anonymous(RING_BLOCKS * BLOCK_BYTES)
            .map(|memory| Self(PacketRing::new(memory)))
            .map_err(AppError::new)
    }

    fn pull(&mut self, io: &mut Io) {
        while let Some(frame) = self.0.peek() {
            let Some(mut packet) = io.allocate() else { return };
            match self.0.take(&frame, &mut packet) {
                Ok(()) => io.transmit(0, packet),
                Err(why) => io.discard(packet, why),
            }
        }
    }
}

fn bench() -> AppBench<Taker> {
    AppBench::new((), &[], &["output"], 64).expect("a ring")
}

impl AppBench<Taker> {
    fn set(&self, at: usize, words: &[u32]) {
        for (place, word) in words.iter().enumerate() {
            assert!(self.app.0.memory.copy_in(at + 4 * place, &word.to_ne_bytes()));
        }
    }

    fn status(&self, block: usize) -> u32 {
        u32::from_ne_bytes(self.app.0.memory.array(block * BLOCK_BYTES + BLOCK_STATUS_AT).expect("a word"))
    }

    /// Hands over a block of `frames` frames, the first one's header at `first`.
    fn hand_over(&self, block: usize, frames: u32, first: usize) {
        self.set(block * BLOCK_BYTES + BLOCK_STATUS_AT, &[STATUS_USER, frames, first as u32]);
    }

    /// Writes a frame's header and its data.
    fn frame(&self, at: usize, next: usize, data: &[u8], status: u32) {
        let length = data.len() as u32;
        self.set(at, &[next as u32, 0, 0, length, length, status]);
        self.app.0.memory.copy_in(at + 24, &(START as u16).to_ne_bytes());
        self.app.0.memory.copy_in(at + START - OFFLOADS_BYTES, &[0; OFFLOADS_BYTES]);
        self.app.0.memory.copy_in(at + START, data);
    }
}

/// Writes what the kernel never would.
type Spoil = fn(&AppBench<Taker>);

fn data(number: u8) -> Vec<u8> {
    (0..60).map(|i| i ^ number).collect()
}

#[test]
fn frames_come_in_order_and_blocks_go_back() {
    let mut bench = bench();
    bench.pull();
    assert_eq!(bench.sent("output"), Vec::<Vec<u8>>::new());
    for turn in 0..5 {
        let block = turn % RING_BLOCKS;
        let start = block * BLOCK_BYTES + FIRST;
        (0..3).for_each(|i| bench.frame(start + i * STEP, STEP, &data((3 * turn + i) as u8), 0));
        bench.hand_over(block, 3, FIRST);
        bench.pull();
        let expected: Vec<_> = (0..3).map(|i| data((3 * turn + i) as u8)).collect();
        assert_eq!((bench.sent("output"), bench.status(block)), (expected, STATUS_KERNEL));
    }
    bench.hand_over(1, 0, FIRST);
    bench.pull();
    assert_eq!((bench.status(1), bench.app.0.take_broken(), bench.free()), (STATUS_KERNEL, 0, 64));
}

#[test]
fn a_block_stays_ours_until_its_last_frame_is_taken() {
    let mut bench = bench();
    bench.frame(FIRST, STEP, &data(1), 0);
    bench.frame(FIRST + STEP, 0, &data(2), 0);
    bench.hand_over(0, 2, FIRST);
    let first = bench.app.0.peek().expect("a frame");
    assert_eq!((first.length, bench.status(0)), (60, STATUS_USER));
    bench.pull();
    assert_eq!((bench.sent("output"), bench.status(0)), (vec![data(1), data(2)], STATUS_KERNEL));
}

#[test]
fn a_tag_is_put_back() {
    let mut bench = bench();
    for (status, kind) in [(STATUS_VLAN, 0x8100_u16), (STATUS_VLAN | STATUS_VLAN_TYPE, 0x88a8)] {
        let start = bench.app.0.block + FIRST;
        bench.frame(start, 0, &data(0), status);
        bench.set(start + 32, &[0x2064]);
        bench.app.0.memory.copy_in(start + 36, &kind.to_ne_bytes());
        bench.hand_over(bench.app.0.block / BLOCK_BYTES, 1, FIRST);
        bench.pull();
        let tag = [(kind >> 8) as u8, kind as u8, 0x20, 0x64];
        let expected = [&data(0)[..12], &tag, &data(0)[12..]].concat();
        assert_eq!(bench.sent("output"), [expected]);
    }
}

#[test]
fn a_checksum_that_was_left_to_the_device_is_completed() {
    let mut bench = bench();
    let mut expected = data(0);
    assert!(complete_checksum(&mut expected, 34, 16));
    for status in [0, STATUS_CHECKSUM_UNFINISHED] {
        let start = bench.app.0.block + FIRST;
        bench.frame(start, 0, &data(0), status);
        let places = [34_u16.to_ne_bytes(), 16_u16.to_ne_bytes()].concat();
        bench.app.0.memory.copy_in(start + START - 4, &places);
        bench.hand_over(bench.app.0.block / BLOCK_BYTES, 1, FIRST);
        bench.pull();
        let expected = if status == 0 { data(0) } else { expected.clone() };
        assert_eq!(bench.sent("output"), [expected]);
    }
}

#[test]
fn frames_that_no_link_carries_are_counted() {
    let mut bench = bench();
    bench.frame(FIRST, STEP, &data(1), 0);
    bench.app.0.memory.copy_in(FIRST + START - OFFLOADS_BYTES + 1, &[1]);
    bench.frame(FIRST + STEP, 16 * STEP, &[0; 3000], 0);
    bench.frame(FIRST + 17 * STEP, STEP, &data(2), 0);
    bench.set(FIRST + 17 * STEP + 16, &[61]);
    bench.frame(FIRST + 18 * STEP, 0, &data(3), 0);
    bench.hand_over(0, 4, FIRST);
    bench.pull();
    assert_eq!((bench.sent("output"), bench.drops(DropReason::Oversize)), (vec![data(3)], 3));
    assert_eq!((bench.status(0), bench.free()), (STATUS_KERNEL, 64));
}

#[test]
fn words_that_make_no_sense_cost_the_rest_of_their_block() {
    let last = BLOCK_BYTES - FRAME_HEADER_BYTES;
    let breaks: [(&str, Spoil); 8] = [
        ("a frame in the block's header", |bench| bench.hand_over(0, 2, 8)),
        ("a frame behind the block", |bench| bench.hand_over(0, 2, BLOCK_BYTES)),
        ("a frame beyond memory", |bench| bench.hand_over(0, 2, u32::MAX as usize)),
        ("a header across the end", |bench| bench.hand_over(0, 2, BLOCK_BYTES - FRAME_HEADER_BYTES + 4)),
        ("a frame that leads back to itself", |bench| bench.set(FIRST, &[0])),
        ("a frame longer than the block", |bench| bench.set(FIRST + 12, &[BLOCK_BYTES as u32])),
        ("a length without end", |bench| bench.set(FIRST + 12, &[u32::MAX])),
        ("a frame in its own header", |bench| {
            bench.app.0.memory.copy_in(FIRST + 24, &8_u16.to_ne_bytes());
        }),
    ];
    for (what, spoil) in breaks {
        let mut bench = bench();
        bench.frame(FIRST, STEP, &data(1), 0);
        bench.frame(FIRST + STEP, 0, &data(2), 0);
        bench.hand_over(0, 2, FIRST);
        spoil(&bench);
        bench.frame(BLOCK_BYTES + FIRST, 0, &data(3), 0);
        bench.hand_over(1, 1, FIRST);
        bench.pull();
        assert_eq!((bench.sent("output"), bench.app.0.take_broken()), (vec![data(3)], 2), "{what}");
        assert_eq!((bench.status(0), bench.status(1), bench.free()), (STATUS_KERNEL, STATUS_KERNEL, 64));
    }
    let mut bench = bench();
    bench.frame(last, 0, &[], 0);
    bench.app.0.memory.copy_in(last + 24, &(START as u16).to_ne_bytes());
    bench.hand_over(0, 1, last);
    bench.pull();
    assert_eq!((bench.sent("output").len(), bench.app.0.take_broken()), (0, 1), "data behind the end");
}

#[test]
fn the_example_of_rfc_1071_is_summed() {
    let mut frame = [9, 9, 0, 0, 0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert!(complete_checksum(&mut frame, 2, 0));
    assert_eq!(frame[..4], [9, 9, !0xdd, !0xf2]);
    let mut odd = [0, 0, 0x12];
    assert!(complete_checksum(&mut odd, 0, 0));
    assert_eq!(odd, [!0x12, !0, 0x12]);
}

#[test]
fn a_checksum_is_never_zero() {
    let mut frame = [0xff, 0xff, 0, 0];
    assert!(complete_checksum(&mut frame, 0, 2));
    assert_eq!(frame, [0xff; 4]);
}

#[test]
fn a_field_outside_is_refused() {
    let before: Vec<u8> = (0..20).collect();
    let mut frame = before.clone();
    let far = usize::from(u16::MAX);
    for (start, field) in [(19, 0), (20, 0), (21, 0), (0, 19), (far, far)] {
        assert!(!complete_checksum(&mut frame, start, field));
    }
    assert_eq!(frame, before);
    assert!(complete_checksum(&mut frame, 18, 0));
}
