//! This side's operations: posted, sent, answered, polled. No clock, no socket.
//!
//! `started <= queue.len()`; only the first of `queue` may be sent in part; `awaited` are in the order of sending,
//! which is the order of the answers.
//!
//! | who | change | why |
//! |---|---|---|
//! | user | posted | there is room: it is the last of `queue` |
//! | user | started | a doorbell |
//! | connection | sent | all of it is in a record: it is the last of `awaited` |
//! | peer | answered | it was the first of `awaited`: it is the last of `done` |
//! | user | polled | it was the first of `done` |

use std::collections::VecDeque;

use caravan_segment::SharedSlice;

use super::fault::TcpFault;
use super::frame::{TcpFrame, fitting, write_head};
use super::limits::{IMMEDIATES_MAX, QUEUE_DEPTH};
use crate::contract::{Completion, Event, Local, Operation};
use crate::region;

/// The operations of one side.
#[derive(Debug, Default)]
pub struct TcpRequests {
    queue: VecDeque<Operation>,
    started: usize,
    /// The number of bytes of the first write of `queue` that have been sent.
    sent_bytes: u32,
    awaited: VecDeque<AwaitedAnswer>,
    done: VecDeque<Completion>,
    /// The number of immediates that the peer has not taken, as far as this side knows.
    untaken: usize,
}

/// An operation that the peer has, or will have.
#[derive(Clone, Copy, Debug)]
struct AwaitedAnswer {
    context: u64,
    kind: AwaitedKind,
    place: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AwaitedKind {
    Write,
    /// The rest of the read's destination.
    Read(Local),
    Swap,
}

impl TcpRequests {
    /// True if an operation, with an immediate or without, can be posted.
    pub fn has_room(&self, immediate: bool) -> bool {
        let under_way = self.queue.len() + self.awaited.len() + self.done.len();
        under_way < QUEUE_DEPTH && (!immediate || self.untaken < IMMEDIATES_MAX)
    }

    /// Queues an operation, for which there is room.
    pub fn post(&mut self, operation: Operation) {
        self.untaken += usize::from(matches!(operation, Operation::Write { immediate: Some(_), .. }));
        self.queue.push_back(operation);
    }

    /// Starts everything that was posted.
    pub fn start(&mut self) {
        self.started = self.queue.len();
    }

    /// Appends what fits of the started operations to a body of at most `limit` bytes.
    pub fn fill(&mut self, arena: &SharedSlice, body: &mut Vec<u8>, limit: usize) {
        while self.started > 0 {
            let Some(&operation) = self.queue.front() else { return };
            let left = match operation {
                Operation::Write { from, .. } => from.bytes - self.sent_bytes,
                Operation::Read { .. } | Operation::CompareAndSwap { .. } => 0,
            };
            let Some(bytes) = fitting(body, limit, left) else { return };
            let (place, _) = region::target(&operation);
            match operation {
                Operation::Write { from, immediate, .. } => {
                    let ends = bytes == left;
                    write_head(body, place + u64::from(self.sent_bytes), bytes, ends, immediate);
                    let at = body.len();
                    body.resize(at + bytes as usize, 0);
                    arena.copy_out((from.offset + u64::from(self.sent_bytes)) as usize, &mut body[at..]);
                    self.sent_bytes += bytes;
                    if !ends {
                        return;
                    }
                }
                Operation::Read { into, .. } => {
                    TcpFrame::Read { place, bytes: into.bytes }.append_to(body);
                }
                Operation::CompareAndSwap { expected, desired, .. } => {
                    TcpFrame::Swap { place, expected, desired }.append_to(body);
                }
            }
            self.sent(operation, place);
        }
    }

    /// Moves the first operation on, all of which has been sent.
    fn sent(&mut self, operation: Operation, place: u64) {
        let (context, kind) = match operation {
            Operation::Write { context, .. } => (context, AwaitedKind::Write),
            Operation::Read { into, context, .. } => (context, AwaitedKind::Read(into)),
            Operation::CompareAndSwap { context, .. } => (context, AwaitedKind::Swap),
        };
        self.queue.pop_front();
        self.awaited.push_back(AwaitedAnswer { context, kind, place });
        (self.started, self.sent_bytes) = (self.started - 1, 0);
    }

    /// True if something can be sent.
    pub fn has_output(&self) -> bool {
        self.started > 0
    }

    /// Takes the peer's word that `count` writes are done.
    pub fn written(&mut self, count: u32) -> Result<(), TcpFault> {
        for _ in 0..count {
            match self.awaited.pop_front() {
                Some(AwaitedAnswer { context, kind: AwaitedKind::Write, .. }) => {
                    self.done.push_back(Completion { context, found: None });
                }
                _ => return Err(TcpFault::Protocol("it answered writes that were never sent")),
            }
        }
        Ok(())
    }

    /// Takes a piece of what the first operation reads.
    pub fn read(&mut self, arena: &SharedSlice, bytes: &[u8], ends: bool) -> Result<(), TcpFault> {
        const WRONG: TcpFault = TcpFault::Protocol("it sent other bytes than a read asked for");
        let Some(AwaitedAnswer { context, kind: AwaitedKind::Read(into), .. }) = self.awaited.front_mut()
        else {
            return Err(WRONG);
        };
        let length = u32::try_from(bytes.len()).ok().filter(|&length| length <= into.bytes).ok_or(WRONG)?;
        arena.copy_in(into.offset as usize, bytes);
        *into = Local { offset: into.offset + u64::from(length), bytes: into.bytes - length };
        if ends != (into.bytes == 0) {
            return Err(WRONG);
        }
        if ends {
            self.done.push_back(Completion { context: *context, found: None });
            self.awaited.pop_front();
        }
        Ok(())
    }

    /// Takes the word that the first operation found.
    pub fn found(&mut self, word: u64) -> Result<(), TcpFault> {
        match self.awaited.pop_front() {
            Some(AwaitedAnswer { context, kind: AwaitedKind::Swap, .. }) => {
                self.done.push_back(Completion { context, found: Some(word) });
                Ok(())
            }
            _ => Err(TcpFault::Protocol("it answered a compare-and-swap that was never sent")),
        }
    }

    /// Returns the end that the peer's refusal means. It may come before all of a write has been sent.
    pub fn revoked(&self, place: u64) -> TcpFault {
        let sent = self.awaited.front().map(|awaited| awaited.place);
        let first = sent.or_else(|| self.queue.front().map(|operation| region::target(operation).0));
        let number = |place| region::split(place).map(|(number, _)| number);
        match (number(place), first.and_then(number)) {
            (Some(refused), Some(asked)) if refused == asked => TcpFault::Revoked(asked),
            _ => TcpFault::Protocol("it refused what was never asked for"),
        }
    }

    /// Takes the peer's word that it has taken `count` immediates.
    pub fn taken(&mut self, count: u32) -> Result<(), TcpFault> {
        let left = self.untaken.checked_sub(count as usize);
        self.untaken = left.ok_or(TcpFault::Protocol("it took immediates that were never sent"))?;
        Ok(())
    }

    /// True if there is a completion to poll.
    pub fn has_events(&self) -> bool {
        !self.done.is_empty()
    }

    /// Moves at most `limit` completions to `events`, and returns their number.
    pub fn poll(&mut self, events: &mut Vec<Event>, limit: usize) -> usize {
        let count = self.done.len().min(limit);
        events.extend(self.done.drain(..count).map(Event::Done));
        count
    }
}
