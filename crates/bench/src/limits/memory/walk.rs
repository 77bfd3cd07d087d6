//! Walks through memory: one that waits for each load before it knows the next address, and one in order.

use std::hint::black_box;
use std::io;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::super::model::RequestLatency;
use super::super::raw::{Area, sum};
use crate::error::Error;
use crate::placement::pin_self;

/// The bytes that the processor loads at a time.
pub const LINE_BYTES: usize = 64;
/// The least time between two looks at the clock, of which each takes some tens of nanoseconds.
const BATCH: Duration = Duration::from_micros(20);
/// The bytes of a step of a walk in order.
const PASS_BYTES: usize = 1 << 20;

/// A working set with a ring of blocks through it. The first word of a block is the index of the next block, and the
/// others are zero: the sum of a block is the address of the next one, which therefore waits for all of the block.
#[derive(Debug)]
pub struct WorkingSet {
    area: Area,
    /// The words of the set, a power of two.
    words: usize,
    /// The words from one block to its neighbour.
    stride: usize,
    block_words: usize,
}

impl WorkingSet {
    /// Takes memory for a set of so many bytes, a power of two, and one of every smaller size.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let area = Area::new(bytes).map_err(Error::memory(bytes))?;
        Ok(Self { area, words: 0, stride: 0, block_words: 0 })
    }

    /// Lays a ring of blocks through the first `bytes` bytes, in an order that no prefetcher foresees.
    pub fn lay(&mut self, bytes: usize, block_bytes: usize) {
        self.words = bytes / 8;
        self.stride = block_bytes.max(LINE_BYTES) / 8;
        self.block_words = block_bytes / 8;
        let (stride, count) = (self.stride, self.words / self.stride);
        let bits = count.ilog2();
        let words = &mut self.area.words_mut()[..bytes / 8];
        words.fill(0);
        let mut at = scattered(0, bits);
        for place in 0..count {
            let next = scattered((place + 1) % count, bits);
            words[at * stride] = (next * stride) as u64;
            at = next;
        }
    }

    /// Returns the bytes of the whole area that are on huge pages.
    pub fn huge_bytes(&self) -> u64 {
        self.area.huge_bytes()
    }

    fn words(&self) -> &[u64] {
        &self.area.words()[..self.words]
    }

    /// Returns the index of the block at a share of the ring: chains begin far from each other.
    fn start(&self, chain: usize, chains: usize) -> usize {
        let count = self.words / self.stride;
        scattered(count / chains * chain % count, count.ilog2()) * self.stride
    }

    /// Follows one chain. Returns the mean seconds of a load in each batch.
    pub fn latencies(&self, run: Duration) -> Vec<f64> {
        self.chase::<1>(0, 1, run)
    }

    /// Follows `N` of `chains` chains, from number `first` on.
    fn chase<const N: usize>(&self, first: usize, chains: usize, run: Duration) -> Vec<f64> {
        let mut at = std::array::from_fn::<_, N, _>(|chain| self.start(first + chain, chains));
        let times = batches(run, |loads| follow(self.words(), &mut at, loads));
        black_box(at);
        times
    }

    /// Follows a chain of blocks, and reads all of each.
    fn read_blocks(&self, first: usize, chains: usize, run: Duration) -> Vec<f64> {
        let words = self.words();
        let mut at = self.start(first, chains);
        let times = batches(run, |blocks| {
            for _ in 0..blocks {
                at = sum(&words[at..at + self.block_words]) as usize;
            }
        });
        black_box(at);
        times
    }

    /// Reads the set in order, again and again, [`PASS_BYTES`] or less at a time.
    fn stream(&self, first: usize, walkers: usize, run: Duration) -> Vec<f64> {
        let words = self.words();
        let pass = self.pass_words();
        let (mut at, mut total) = (words.len() / walkers * first / pass * pass, 0_u64);
        let times = batches(run, |passes| {
            for _ in 0..passes {
                total = total.wrapping_add(sum(black_box(&words[at..at + pass])));
                at = (at + pass) % words.len();
            }
        });
        black_box(total);
        times
    }

    fn pass_words(&self) -> usize {
        (PASS_BYTES / 8).min(self.words)
    }
}

/// Does something again and again, in batches of at least [`BATCH`]. Returns the mean seconds of each batch. What other
/// programs and the host of a virtual machine take away makes some batches long, and leaves their median as it is.
fn batches(run: Duration, mut work: impl FnMut(usize)) -> Vec<f64> {
    let mut count = 1;
    let begun = Instant::now();
    loop {
        let before = Instant::now();
        work(count);
        if before.elapsed() >= BATCH || begun.elapsed() >= run {
            break;
        }
        count *= 2;
    }
    let mut means = Vec::new();
    let (begun, mut before) = (Instant::now(), Instant::now());
    while means.is_empty() || begun.elapsed() < run {
        work(count);
        let now = Instant::now();
        means.push((now - before).as_secs_f64() / count as f64);
        before = now;
    }
    means
}

/// What a walk does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// Single words, so many chains in one core at a time.
    Words(usize),
    /// Whole blocks, one chain in each core.
    Blocks,
    /// In order.
    Stream,
}

/// Walks on some cores at the same time. Returns the sum of their rates, each by its median batch: loads, blocks or bytes
/// a second.
pub fn walk(set: &WorkingSet, what: Walk, cores: &[usize], run: Duration) -> Result<f64, Error> {
    let ready = &Barrier::new(cores.len());
    std::thread::scope(|scope| {
        let walkers: Vec<_> = (cores.iter().enumerate())
            .map(|(number, &core)| {
                scope.spawn(move || {
                    let pinned = pin_self(core);
                    ready.wait();
                    pinned?;
                    let (units, times) = one(set, what, number, cores.len(), run);
                    Ok(units as f64 / RequestLatency::of(times).p50_s)
                })
            })
            .collect();
        let join = |walker: std::thread::ScopedJoinHandle<'_, _>| {
            walker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        walkers.into_iter().map(join).sum()
    })
}

/// Walks on this core. Returns how much a step moves, and the seconds of the steps.
fn one(set: &WorkingSet, walk: Walk, number: usize, cores: usize, run: Duration) -> (usize, Vec<f64>) {
    match walk {
        Walk::Words(1) => (1, set.chase::<1>(number, cores, run)),
        Walk::Words(2) => (2, set.chase::<2>(number * 2, cores * 2, run)),
        Walk::Words(4) => (4, set.chase::<4>(number * 4, cores * 4, run)),
        Walk::Words(8) => (8, set.chase::<8>(number * 8, cores * 8, run)),
        Walk::Words(_) => (16, set.chase::<16>(number * 16, cores * 16, run)),
        Walk::Blocks => (1, set.read_blocks(number, cores, run)),
        Walk::Stream => (set.pass_words() * 8, set.stream(number, cores, run)),
    }
}

/// Loads the next index of each chain, `loads` times.
#[inline]
fn follow<const N: usize>(words: &[u64], at: &mut [usize; N], loads: usize) {
    let mut now = *at;
    for _ in 0..loads {
        for index in &mut now {
            *index = words[*index] as usize;
        }
    }
    *at = now;
}

/// Maps the numbers below 2^bits onto themselves, neighbours far apart: each step can be undone.
fn scattered(number: usize, bits: u32) -> usize {
    let mask = (1_usize << bits) - 1;
    let shift = bits.div_ceil(2).max(1);
    let mut mixed = number & mask;
    for factor in [0x9e37_79b1_usize, 0x85eb_ca6b, 0xc2b2_ae35] {
        mixed = mixed.wrapping_mul(factor) & mask;
        mixed ^= mixed >> shift;
    }
    mixed
}

impl Error {
    fn memory(bytes: usize) -> impl FnOnce(io::Error) -> Self {
        move |why| {
            let size = crate::number::binary(bytes as u64);
            Self::Sentence(format!(
                "cannot take {size} of memory to measure it: {why}. End other programs first"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_block_is_met_once(bits in 9_u32..15, block in 3_u32..9) {
            let mut set = WorkingSet::new(1 << 16).expect("memory");
            let (bytes, block_bytes) = (1_usize << (bits + 1), 1_usize << block);
            set.lay(bytes, block_bytes);
            let count = bytes / block_bytes.max(LINE_BYTES);
            let mut met = vec![false; count];
            let mut at = [set.start(0, 1)];
            for _ in 0..count {
                let block = at[0] / set.stride;
                prop_assert!(at[0] % set.stride == 0 && !met[block]);
                met[block] = true;
                let all = sum(&set.words()[at[0]..at[0] + set.block_words]) as usize;
                follow(set.words(), &mut at, 1);
                // Reading the whole block leads to the same one.
                prop_assert_eq!(all, at[0]);
            }
            prop_assert_eq!(at[0], set.start(0, 1));
        }
    }

    #[test]
    fn all_walks_move_on_a_busy_machine() {
        let mut set = WorkingSet::new(1 << 16).expect("memory");
        set.lay(1 << 15, 512);
        let cores = crate::placement::cores();
        for walk_of in [Walk::Words(1), Walk::Words(16), Walk::Blocks, Walk::Stream] {
            assert!(walk(&set, walk_of, &cores, Duration::ZERO).expect("walked") > 0.0, "{walk_of:?}");
        }
        assert!(set.latencies(Duration::ZERO)[0] > 0.0);
    }
}
