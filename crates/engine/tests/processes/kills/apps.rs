//! Apps whose packets show whether they are lost, changed or delivered twice.
//!
//! Each stream has a number, each packet of it a sequence number, and the rest of the packet follows
//! from these two. The counts of apps are in memory of the test's own, which outlives them.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use caravan_engine::layout::DropReason;
use caravan_engine::{App, AppError, Io, Named, Packet, Registry};
use caravan_segment::{Pages, Segment, SharedSlice};
use serde::Deserialize;

/// Streams of packets: one for each output of a stamper.
pub const STREAMS: usize = 8;
/// Apps that check the packets that arrive.
pub const CHECKERS: usize = 4;
/// Sequence numbers behind the newest that a checker remembers one by one.
const REMEMBERED: u64 = 1 << 16;

/// The result of checking a packet.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Count {
    /// The packet arrived, for the first time.
    Delivered,
    /// The packet is not as it was sent.
    Corrupt,
    /// The packet arrived before.
    Duplicate,
    /// The packet arrived behind a younger one.
    Late,
}

const SENT_AT: usize = 64;
const CHECKS_AT: usize = 4096;
const NEWEST: usize = 32;
const BITS: usize = 64;
const CHECK_BYTES: usize = BITS + REMEMBERED as usize / 8;
const BYTES: u64 = (CHECKS_AT + CHECKERS * STREAMS * CHECK_BYTES) as u64;

thread_local! {
    static BOARD: RefCell<Option<Board>> = const { RefCell::new(None) };
}

/// Memory that the test and all workers share.
#[derive(Clone, Debug)]
pub struct Board(SharedSlice);

impl Board {
    /// Makes the memory, for this process and those that it forks from here on.
    pub fn create() -> Self {
        let segment = Segment::create("caravan-test-board", BYTES, Pages::Small).unwrap();
        segment.grow(BYTES).unwrap();
        let board = Self(Arc::new(segment).slice(0, BYTES).unwrap());
        BOARD.set(Some(board.clone()));
        board
    }

    fn of_this_process() -> Self {
        BOARD.with_borrow(Clone::clone).expect("a board that the test made")
    }

    /// Returns the number of packets sent in a stream.
    pub fn sent(&self, stream: usize) -> u64 {
        self.0.word(SENT_AT + 8 * stream).load(Ordering::Acquire)
    }

    /// Returns a checker's count for a stream.
    pub fn count(&self, checker: usize, stream: usize, count: Count) -> u64 {
        self.0.word(check_at(checker, stream) + 8 * count as usize).load(Ordering::Acquire)
    }

    /// Returns a checker's count for all streams.
    pub fn total(&self, checker: usize, count: Count) -> u64 {
        (0..STREAMS).map(|stream| self.count(checker, stream, count)).sum()
    }

    fn add(&self, checker: usize, stream: usize, count: Count) {
        self.0.word(check_at(checker, stream) + 8 * count as usize).fetch_add(1, Ordering::Relaxed);
    }

    fn next(&self, stream: usize) -> u64 {
        self.0.word(SENT_AT + 8 * stream).fetch_add(1, Ordering::Relaxed)
    }

    /// Records a packet. After each step, the next process of this checker can go on.
    fn seen(&self, checker: usize, stream: usize, sequence: u64) {
        let at = check_at(checker, stream);
        let newest = self.0.word(at + NEWEST);
        let bit = |sequence: u64| {
            let bit = sequence % REMEMBERED;
            (self.0.word(at + BITS + 8 * (bit / 64) as usize), 1u64 << (bit % 64))
        };
        // One more than the newest sequence number so far.
        let before = newest.load(Ordering::Relaxed);
        if sequence >= before {
            for passed in before.max(sequence.saturating_sub(REMEMBERED - 1))..=sequence {
                let (word, mask) = bit(passed);
                word.fetch_and(!mask, Ordering::Relaxed);
            }
            newest.store(sequence + 1, Ordering::Relaxed);
        } else if before - sequence > REMEMBERED {
            return self.add(checker, stream, Count::Late);
        }
        let (word, mask) = bit(sequence);
        if word.fetch_or(mask, Ordering::Relaxed) & mask != 0 {
            return self.add(checker, stream, Count::Duplicate);
        }
        if sequence < before {
            self.add(checker, stream, Count::Late);
        }
        self.add(checker, stream, Count::Delivered);
    }
}

fn check_at(checker: usize, stream: usize) -> usize {
    CHECKS_AT + (checker * STREAMS + stream) * CHECK_BYTES
}

fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 7
}

/// Returns the number of 8-byte words after the first two: few, and sometimes nearly as many as fit.
fn words(stream: u64, sequence: u64) -> u64 {
    match mix(stream << 56 ^ sequence) {
        one if one % 32 == 0 => 220,
        one => 5 + one % 12,
    }
}

fn word(stream: u64, sequence: u64, place: u64) -> u64 {
    mix(stream << 56 ^ sequence << 8 ^ place)
}

fn write(packet: &mut Packet, stream: u64, sequence: u64) {
    let words = words(stream, sequence);
    let Some(data) = packet.resize(16 + 8 * words as usize) else { return };
    let values = [stream, sequence].into_iter().chain((0..words).map(|place| word(stream, sequence, place)));
    data.chunks_exact_mut(8).zip(values).for_each(|(to, value)| to.copy_from_slice(&value.to_le_bytes()));
}

/// Returns the stream and the sequence number of a packet that is as it was sent.
fn read(data: &[u8]) -> Option<(usize, u64)> {
    let mut values =
        data.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
    let (stream, sequence) = (values.next()?, values.next()?);
    let known = stream < STREAMS as u64 && data.len() == 16 + 8 * words(stream, sequence) as usize;
    let whole = known && values.zip(0..).all(|(value, place)| value == word(stream, sequence, place));
    whole.then_some((stream as usize, sequence))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Number {
    number: usize,
}

/// Sends a stream to each output: `s0`, `s1` and so on, counted from the app's own number.
pub struct Stamper {
    board: Board,
    first: usize,
}

/// The number of packets of each stream in a pull.
const PULL: usize = 32;

impl App for Stamper {
    type Config = Number;
    const INPUTS: Named = Named::Only(&[]);
    const OUTPUTS: Named = Named::Any;

    fn start(config: Number, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self { board: Board::of_this_process(), first: config.number })
    }

    fn pull(&mut self, io: &mut Io) {
        for output in 0..io.outputs() {
            let Some(place) =
                io.output_name(output).strip_prefix('s').and_then(|place| place.parse::<usize>().ok())
            else {
                continue;
            };
            let stream = self.first + place;
            for _ in 0..io.room(output).min(PULL) {
                let Some(mut packet) = io.allocate() else { return };
                write(&mut packet, stream as u64, self.board.next(stream));
                io.transmit(output, packet);
            }
        }
    }
}

/// Passes each input on to the output of the same name, and copies of some packets to `side`.
pub struct Relay {
    board: Board,
    number: usize,
}

impl App for Relay {
    type Config = Number;
    const INPUTS: Named = Named::Any;
    const OUTPUTS: Named = Named::Any;

    fn start(config: Number, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self { board: Board::of_this_process(), number: config.number })
    }

    fn push(&mut self, io: &mut Io) {
        let side = io.output("side");
        for input in 0..io.inputs() {
            let output = io.output(io.input_name(input));
            let count = output.map_or(usize::MAX, |output| io.room(output));
            for _ in 0..count.min(io.waiting(input)) {
                let Some(packet) = io.receive(input) else { break };
                let Some((_, sequence)) = read(packet.data()) else {
                    self.board.add(self.number, 0, Count::Corrupt);
                    io.discard(packet, DropReason::Malformed);
                    continue;
                };
                if let Some(side) = side.filter(|side| sequence % 8 == 0 && io.room(*side) > 0) {
                    if let Some(copy) = io.copy(&packet) {
                        io.transmit(side, copy);
                    }
                }
                match output {
                    Some(output) => io.transmit(output, packet),
                    None => io.discard(packet, DropReason::Unlinked),
                }
            }
        }
    }
}

/// Checks every packet, and frees it.
pub struct Checker {
    board: Board,
    number: usize,
}

impl App for Checker {
    type Config = Number;
    const INPUTS: Named = Named::Any;
    const OUTPUTS: Named = Named::Only(&[]);

    fn start(config: Number, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self { board: Board::of_this_process(), number: config.number })
    }

    fn push(&mut self, io: &mut Io) {
        for input in 0..io.inputs() {
            while let Some(packet) = io.receive(input) {
                match read(packet.data()) {
                    Some((stream, sequence)) => self.board.seen(self.number, stream, sequence),
                    None => self.board.add(self.number, 0, Count::Corrupt),
                }
                io.free(packet);
            }
        }
    }
}

/// Keeps packets until it has `number` of them, and frees them: its worker alternately runs out of packets
/// and has too many.
pub struct Hoarder {
    held: Vec<Packet>,
    limit: usize,
}

impl App for Hoarder {
    type Config = Number;
    const INPUTS: Named = Named::Only(&[]);
    const OUTPUTS: Named = Named::Only(&[]);

    fn start(config: Number, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self { held: Vec::new(), limit: config.number })
    }

    fn pull(&mut self, io: &mut Io) {
        for _ in 0..256 {
            match io.allocate() {
                Some(packet) => self.held.push(packet),
                None => return,
            }
        }
        if self.held.len() > self.limit {
            self.held.drain(..).for_each(|packet| io.free(packet));
        }
    }

    fn wake_ns(&self) -> Option<u64> {
        Some(0)
    }
}

/// Makes a registry of all apps here.
pub fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.add::<Stamper>("stamper").add::<Relay>("relay").add::<Checker>("checker");
    registry.add::<Hoarder>("hoarder");
    registry
}
