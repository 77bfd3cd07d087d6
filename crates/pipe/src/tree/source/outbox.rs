//! Frames to the sink, and the sink's answers.
//!
//! The frames of several readers are put into the order of their batches, with a bound on how far ahead a reader
//! may be.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::Read;
use std::sync::{Condvar, Mutex, MutexGuard};

use crate::tree::format;
use crate::tree::format::{TreeFrameKind, nonsense};
use crate::tree::records::{RecordParser, SinkHas};
use crate::{Error, lock};

/// The number of frames of one batch that may wait to be written.
const FRAMES_MAX: usize = 3;
/// How many batches, for each reader, may be ahead of the one that is being written.
const AHEAD: u64 = 2;

/// The copy has ended: frames are no longer taken.
#[derive(Debug)]
pub struct Closed;

/// The queue between the readers and the writing thread.
#[derive(Debug)]
pub struct FrameOutbox {
    state: Mutex<OutboxState>,
    /// Signals the readers.
    room: Condvar,
    /// Signals the writing thread.
    frames: Condvar,
    window: u64,
}

#[derive(Debug, Default)]
struct OutboxState {
    /// The number of the batch that is being written.
    current: u64,
    /// The number of batches, once it is known.
    total: Option<u64>,
    slots: BTreeMap<u64, BatchFrames>,
    /// Frames that go before all others.
    urgent: VecDeque<Vec<u8>>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct BatchFrames {
    frames: VecDeque<Vec<u8>>,
    is_finished: bool,
}

impl FrameOutbox {
    /// Returns an outbox for so many readers.
    pub fn new(readers: usize) -> Self {
        let window = readers as u64 * AHEAD;
        Self { state: Mutex::default(), room: Condvar::new(), frames: Condvar::new(), window }
    }

    /// Waits until this batch may be read.
    pub fn begin(&self, batch: u64) -> Result<(), Closed> {
        self.wait(|state| batch < state.current + self.window).map(|_| ())
    }

    /// Appends a frame to a batch.
    pub fn push(&self, batch: u64, frame: Vec<u8>) -> Result<(), Closed> {
        let mut state =
            self.wait(|state| state.slots.get(&batch).is_none_or(|slot| slot.frames.len() < FRAMES_MAX))?;
        state.slots.entry(batch).or_default().frames.push_back(frame);
        if state.current == batch {
            self.frames.notify_one();
        }
        Ok(())
    }

    /// Marks a batch as complete.
    pub fn finish(&self, batch: u64) {
        let mut state = self.lock();
        state.slots.entry(batch).or_default().is_finished = true;
        if state.current == batch {
            self.frames.notify_one();
        }
    }

    /// Waits until all batches before this one are written.
    pub fn wait_turn(&self, batch: u64) -> Result<(), Closed> {
        self.wait(|state| state.current == batch).map(|_| ())
    }

    /// Queues a frame before all others. Each reader has at most one at a time.
    pub fn push_urgent(&self, frame: Vec<u8>) {
        self.lock().urgent.push_back(frame);
        self.frames.notify_one();
    }

    /// Sets the number of batches.
    pub fn set_total(&self, batches: u64) {
        self.lock().total = Some(batches);
        self.frames.notify_one();
    }

    /// Closes the outbox: it takes nothing more.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.room.notify_all();
        self.frames.notify_all();
    }

    /// True if the outbox takes no more frames.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Returns the next frame to write; `None` once all are written, or the outbox is closed.
    pub fn next(&self) -> Option<Vec<u8>> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(frame) = state.urgent.pop_front() {
                return Some(frame);
            }
            let current = state.current;
            if let Some(slot) = state.slots.get_mut(&current) {
                if let Some(frame) = slot.frames.pop_front() {
                    // Readers wait for different things, so each one checks whether its turn has come.
                    self.room.notify_all();
                    return Some(frame);
                }
                if slot.is_finished {
                    state.slots.remove(&current);
                    state.current += 1;
                    self.room.notify_all();
                    continue;
                }
            }
            if state.total == Some(current) {
                return None;
            }
            state = self.frames.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// True if all batches were taken.
    pub fn is_complete(&self) -> bool {
        let state = self.lock();
        state.total == Some(state.current)
    }

    fn wait(&self, is_ready: impl Fn(&OutboxState) -> bool) -> Result<MutexGuard<'_, OutboxState>, Closed> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return Err(Closed);
            }
            if is_ready(&state) {
                return Ok(state);
            }
            state = self.room.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        lock(&self.state)
    }
}

/// The most files of one offer.
pub const OFFER_FILES_MAX: usize = 512;

/// Passes answers from the thread that reads them to the readers that wait for them.
#[derive(Debug, Default)]
pub struct OfferAnswers {
    state: Mutex<AnswersState>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct AnswersState {
    /// The answers by the number of the offer. Only answers that somebody expects are kept.
    given: HashMap<u64, Option<Vec<SinkHas>>>,
    is_done: bool,
    is_closed: bool,
}

impl OfferAnswers {
    /// Expects an answer. Call this before the offer is sent.
    pub fn expect(&self, offer: u64) {
        self.lock().given.insert(offer, None);
    }

    /// Waits for the answer. Returns `None` if the sink has ended.
    pub fn wait(&self, offer: u64) -> Option<Vec<SinkHas>> {
        let mut state = self.lock();
        loop {
            if let Some(Some(_)) = state.given.get(&offer) {
                return state.given.remove(&offer).flatten();
            }
            if state.is_closed {
                return None;
            }
            state = self.news.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Reads answers until the sink closes. `position` is the number of bytes read before.
    pub fn read(&self, from: &mut impl Read, mut position: u64) -> Result<(), Error> {
        let mut payload = Vec::new();
        let result = loop {
            if let Err(error) = self.read_one(from, &mut payload, &mut position) {
                break error;
            }
            if self.lock().is_done {
                return Ok(());
            }
        };
        self.close();
        Err(result)
    }

    /// Wakes all waiters: no answer will come any more.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.news.notify_all();
    }

    fn read_one(&self, from: &mut impl Read, payload: &mut Vec<u8>, position: &mut u64) -> Result<(), Error> {
        let header = format::read(from, payload, position)?;
        header.check(payload)?;
        match header.kind {
            TreeFrameKind::Done => self.lock().is_done = true,
            TreeFrameKind::Answer => {
                let mut parser = RecordParser(payload);
                let offer = parser.u64()?;
                let mut had = Vec::new();
                while !parser.is_empty() && had.len() <= OFFER_FILES_MAX {
                    had.push(parser.had()?);
                }
                match self.lock().given.get_mut(&offer) {
                    Some(answer) => *answer = Some(had),
                    None => return Err(nonsense("answer")),
                }
                self.news.notify_all();
            }
            _ => return Err(nonsense("answer")),
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, AnswersState> {
        lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_in_the_order_of_their_batches() {
        let outbox = FrameOutbox::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                outbox.begin(1).expect("within the window");
                outbox.push(1, vec![1]).expect("open");
                outbox.finish(1);
            });
            scope.spawn(|| {
                outbox.wait_turn(0).expect("open");
                (0..10).for_each(|_| outbox.push(0, vec![0]).expect("open"));
                outbox.finish(0);
                outbox.set_total(2);
            });
            let mut taken = Vec::new();
            while let Some(frame) = outbox.next() {
                taken.push(frame[0]);
            }
            assert_eq!(taken, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        });
    }

    #[test]
    fn whoever_waits_ends_when_it_is_closed() {
        let outbox = FrameOutbox::new(1);
        std::thread::scope(|scope| {
            let far = scope.spawn(|| outbox.begin(1000).is_err());
            let turn = scope.spawn(|| outbox.wait_turn(5).is_err());
            let full = scope.spawn(|| (0..100).any(|_| outbox.push(7, Vec::new()).is_err()));
            let writer = scope.spawn(|| outbox.next().is_none());
            outbox.close();
            assert!([far, turn, full, writer].into_iter().all(|thread| thread.join().expect("no panic")));
        });
    }
}
