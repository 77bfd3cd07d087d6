//! How long and how finely a run measures, and where it tells of its progress.

use std::time::Duration;

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::BenchProgress;

/// The blocks of memory that a quick run reads; `--full` reads every power of two between them.
const BLOCKS: [u64; 6] = [64, 512, 4 << 10, 32 << 10, 256 << 10, 4 << 20];

/// The blocks that a quick run reads of a disk behind its sector, and the depths.
const DISK_BLOCKS: [u64; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];
const DEPTHS: [u32; 4] = [1, 8, 64, 256];
const DEPTHS_FULL: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// The pace of a run.
#[derive(Debug)]
pub struct Pace {
    pub is_full: bool,
    /// How long one point is measured.
    pub cell: Duration,
    /// The same of a disk, which may be slow.
    pub disk_cell: Duration,
    pub interrupt: Interrupt,
    pub progress: BenchProgress,
    blocks: Vec<u64>,
}

impl Pace {
    /// A quick run has some hundred points in its 20 seconds.
    pub fn new(is_full: bool, interrupt: Interrupt, progress: BenchProgress) -> Self {
        let cell = Duration::from_millis(if is_full { 500 } else { 60 });
        let blocks = match is_full {
            true => (6..=22).map(|power| 1 << power).collect(),
            false => BLOCKS.to_vec(),
        };
        let disk_cell = Duration::from_millis(if is_full { 1000 } else { 150 });
        Self { is_full, cell, disk_cell, interrupt, progress, blocks }
    }

    /// Begins a step.
    pub fn step(&self, title: &str) -> Result<(), Error> {
        self.progress.step(title);
        self.interrupt.check()
    }

    pub fn memory_blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// Returns the blocks to read of a disk with such sectors.
    pub fn disk_blocks(&self, sector: u64) -> Vec<u64> {
        match self.is_full {
            true => (9..=23).map(|power| 1 << power).filter(|&block| block >= sector).collect(),
            false => {
                let behind = DISK_BLOCKS.into_iter().filter(|&block| block > sector);
                [sector].into_iter().chain(behind).collect()
            }
        }
    }

    pub fn depths(&self) -> &'static [u32] {
        if self.is_full { &DEPTHS_FULL } else { &DEPTHS }
    }

    /// Returns the numbers of cores above one with which to measure: all of them, and with `--full` every power of two
    /// on the way.
    pub fn core_counts(&self, cores: &[usize]) -> Vec<usize> {
        let on_the_way = (1..10).map(|power| 1 << power).filter(|&count| self.is_full && count < cores.len());
        on_the_way.chain((cores.len() > 1).then_some(cores.len())).collect()
    }
}
