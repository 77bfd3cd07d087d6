//! A queue of blocks between the reader of the inlet and the threads of several outlets: every block goes to each.
//!
//! ```text
//! first <= next of each open outlet <= first + blocks.len()
//! bytes == sum of the memory of blocks
//! ```
//!
//! A block leaves the queue when the last open outlet has taken it. No thread sleeps on a lock: a thread that finds
//! nothing to do sets a flag and waits for a wake event, so that it can wait for other things as well.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::frame::Block;
use super::payload::Total;
use super::wait::{WaitSet, WakeEvent, Woken};
use crate::cancel::Cancel;
use crate::{Error, lock};

/// The least number of blocks in the queue: with fewer, the threads would go in step.
const BLOCKS_MIN: usize = 4;
/// The most free blocks that are kept for reuse.
const SPARE_MAX: usize = 8;
/// The rough cost of a queued block beside its payload.
const OVERHEAD_BYTES: usize = 256;
/// A block that is filled by less than one part in this many is copied into one that fits its payload.
const SHRINK_BELOW: usize = 4;

/// A queue of blocks.
pub(super) struct BlockQueue {
    state: Mutex<QueueState>,
    bytes_max: usize,
    block_bytes: usize,
    /// Rung when there is room, if the inlet waits for it.
    room: WakeEvent,
    outlets: Vec<OutletSignals>,
}

/// What wakes an outlet's thread.
pub(super) struct OutletSignals {
    /// Rung when there is something to take.
    pub news: WakeEvent,
    /// Fired when the outlet is to end.
    pub halt: Cancel,
}

struct QueueState {
    blocks: VecDeque<Arc<Block>>,
    /// The number of the first block.
    first: u64,
    bytes: usize,
    outlets: Vec<OutletProgress>,
    end: Option<Arc<Total>>,
    inlet_sleeps: bool,
    spare: Vec<Block>,
}

/// The progress of an outlet.
#[derive(Clone, Copy, Debug)]
struct OutletProgress {
    /// The number of the next block that the outlet takes.
    next: u64,
    is_open: bool,
    sleeps: bool,
    /// Since when the outlet has kept the queue full.
    lags_since: Option<Instant>,
    was_too_slow: bool,
}

/// What an outlet finds in the queue.
pub(super) enum NextBlock {
    Block(Arc<Block>),
    End(Arc<Total>),
    Nothing,
}

impl BlockQueue {
    /// Returns a queue for so many outlets.
    pub fn new(outlets: usize, bytes_max: u64, block_bytes: usize) -> Result<Self, Error> {
        let least = BLOCKS_MIN * (block_bytes + OVERHEAD_BYTES);
        let reader =
            OutletProgress { next: 0, is_open: true, sleeps: false, lags_since: None, was_too_slow: false };
        let signals =
            (0..outlets).map(|_| Ok(OutletSignals { news: WakeEvent::new()?, halt: Cancel::new()? }));
        Ok(Self {
            state: Mutex::new(QueueState {
                blocks: VecDeque::new(),
                first: 0,
                bytes: 0,
                outlets: vec![reader; outlets],
                end: None,
                inlet_sleeps: false,
                spare: Vec::new(),
            }),
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX).max(least),
            block_bytes,
            room: WakeEvent::new()?,
            outlets: signals.collect::<Result<_, Error>>()?,
        })
    }

    // --- the inlet's side -------------------------------------------------------------------

    /// Returns memory for a block.
    pub fn block(&self) -> Block {
        self.lock().spare.pop().unwrap_or_else(|| Block::new(self.block_bytes))
    }

    /// Queues a block once there is room for it. An outlet that keeps the queue full for `drop_after`, while
    /// another outlet would take more, is cut off.
    pub fn push(&self, block: Block, drop_after: Option<Duration>, waits: &WaitSet) -> Result<(), Error> {
        let block = match block.payload().len() < block.payload_max() / SHRINK_BELOW {
            true => {
                let shrunk = block.shrunk();
                self.give_back(block);
                shrunk
            }
            false => block,
        };
        loop {
            let mut state = self.lock();
            if state.blocks.is_empty() || state.bytes + memory_of(&block) <= self.bytes_max {
                state.bytes += memory_of(&block);
                state.blocks.push_back(Arc::new(block));
                state.trim();
                self.wake(&mut state);
                return Ok(());
            }
            let due = drop_after.and_then(|after| state.mark_laggards(after, self.bytes_max));
            let now = Instant::now();
            if let Some(slow) = due.filter(|due| *due <= now).and_then(|_| state.slowest()) {
                self.cut_off(&mut state, slow);
                continue;
            }
            // The other outlets may catch up without a signal, and then the slowest one is in their way.
            let until = due.or(drop_after.map(|after| now + after / 4));
            state.inlet_sleeps = true;
            drop(state);
            if waits.wait(Some(self.room.watch()), None, until)? == Woken::Ready {
                self.room.quiet();
            }
        }
    }

    /// Ends the stream.
    pub fn end(&self, total: Total) {
        let mut state = self.lock();
        state.end = Some(Arc::new(total));
        self.wake(&mut state);
    }

    /// Ends all outlets now.
    pub fn halt(&self) {
        self.outlets.iter().for_each(|signals| signals.halt.fire());
    }

    fn cut_off(&self, state: &mut QueueState, outlet: usize) {
        if let Some(reader) = state.outlets.get_mut(outlet) {
            reader.was_too_slow = true;
            reader.is_open = false;
        }
        state.trim();
        if let Some(signals) = self.outlets.get(outlet) {
            signals.halt.fire();
        }
    }

    fn wake(&self, state: &mut QueueState) {
        for (reader, signals) in state.outlets.iter_mut().zip(&self.outlets) {
            if std::mem::take(&mut reader.sleeps) {
                signals.news.ring();
            }
        }
    }

    // --- an outlet's side -------------------------------------------------------------------

    /// Returns the next block for an outlet. After [`NextBlock::Nothing`], `news` is rung once there is something.
    pub fn take(&self, outlet: usize) -> NextBlock {
        let mut state = self.lock();
        let (first, end) = (state.first, state.end.clone());
        let Some(reader) = state.outlets.get_mut(outlet) else { return NextBlock::Nothing };
        let at = usize::try_from(reader.next.saturating_sub(first)).unwrap_or(usize::MAX);
        let next = reader.next + 1;
        let Some(block) = state.blocks.get(at).cloned() else {
            let Some(end) = end else {
                if let Some(reader) = state.outlets.get_mut(outlet) {
                    reader.sleeps = true;
                }
                return NextBlock::Nothing;
            };
            return NextBlock::End(end);
        };
        if let Some(reader) = state.outlets.get_mut(outlet) {
            reader.next = next;
        }
        self.trimmed(&mut state);
        NextBlock::Block(block)
    }

    /// Takes back a block, whose memory is reused if nobody else needs it.
    pub fn give_back(&self, block: impl Into<Arc<Block>>) {
        if let Ok(block) = Arc::try_unwrap(block.into()) {
            let mut state = self.lock();
            // A block that was shrunk to fit its payload cannot be reused.
            if block.payload_max() == self.block_bytes && state.spare.len() < SPARE_MAX {
                state.spare.push(block);
            }
        }
    }

    /// Returns what wakes that outlet's thread.
    pub fn signals(&self, outlet: usize) -> Option<&OutletSignals> {
        self.outlets.get(outlet)
    }

    /// Closes an outlet that takes no more. Returns true if any open outlet is left.
    pub fn close(&self, outlet: usize) -> bool {
        let mut state = self.lock();
        if let Some(reader) = state.outlets.get_mut(outlet) {
            reader.is_open = false;
        }
        self.trimmed(&mut state);
        state.outlets.iter().any(|reader| reader.is_open)
    }

    /// True if that outlet was cut off.
    pub fn was_too_slow(&self, outlet: usize) -> bool {
        self.lock().outlets.get(outlet).is_some_and(|reader| reader.was_too_slow)
    }

    fn trimmed(&self, state: &mut QueueState) {
        if state.trim() && std::mem::take(&mut state.inlet_sleeps) {
            self.room.ring();
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }
}

impl QueueState {
    /// Drops all blocks that every open outlet has taken. Returns true if there were any.
    fn trim(&mut self) -> bool {
        let ends = self.first + self.blocks.len() as u64;
        let open = self.outlets.iter().filter(|reader| reader.is_open);
        let taken = open.map(|reader| reader.next).min().unwrap_or(ends);
        let before = self.first;
        while self.first < taken {
            let Some(block) = self.blocks.pop_front() else { break };
            self.bytes -= memory_of(&block);
            self.first += 1;
        }
        self.first > before
    }

    /// Notes which outlets keep the queue full. Returns when the slowest will have done so for too long; `None` if
    /// none is in the way of another.
    fn mark_laggards(&mut self, after: Duration, bytes_max: usize) -> Option<Instant> {
        let (first, now) = (self.first, Instant::now());
        let mut is_held_up = false;
        let mut since: Option<Instant> = None;
        // The bytes that are queued from each block on.
        let mut left = self.bytes;
        let mut behind: Vec<_> = self
            .blocks
            .iter()
            .map(|block| {
                let all = left;
                left -= memory_of(block);
                all
            })
            .collect();
        behind.push(0);
        for reader in self.outlets.iter_mut().filter(|reader| reader.is_open) {
            let at = usize::try_from(reader.next.saturating_sub(first)).unwrap_or(usize::MAX);
            let behind = behind.get(at).copied().unwrap_or(0);
            if behind < bytes_max / 2 {
                is_held_up = true;
                reader.lags_since = None;
            } else if at == 0 {
                let lags_since = *reader.lags_since.get_or_insert(now);
                since = Some(since.map_or(lags_since, |since| since.min(lags_since)));
            }
        }
        since.filter(|_| is_held_up).map(|since| since + after)
    }

    /// Returns the outlet that has been in the way for the longest time.
    fn slowest(&self) -> Option<usize> {
        let open = self.outlets.iter().enumerate().filter(|(_, reader)| reader.is_open);
        let lagging = open.filter_map(|(at, reader)| Some((reader.lags_since?, at)));
        lagging.min().map(|(_, at)| at)
    }
}

fn memory_of(block: &Block) -> usize {
    block.payload_max() + OVERHEAD_BYTES
}
