//! The writes of a client's session that have no answer: they are repeated over the next link.

use crate::calls::{RequestKind, append_record};
use crate::limits;

/// A write; the number of its call is `None` once it has an answer.
#[derive(Debug, Default)]
struct KeptWrite {
    call: Option<u32>,
    record: Vec<u8>,
}

/// The writes without an answer.
///
/// Invariants: the write with a number is at that number modulo the length, which is [`limits::SESSION_REPLIES`];
/// `count` of them have no answer, and their records have `bytes` bytes.
#[derive(Debug)]
pub(crate) struct UnansweredWrites {
    writes: Vec<KeptWrite>,
    count: usize,
    bytes: usize,
    /// The number of the next write.
    next: u64,
}

impl UnansweredWrites {
    pub(crate) fn new() -> Self {
        Self { writes: Vec::new(), count: 0, bytes: 0, next: 1 }
    }

    fn at(&mut self, number: u64) -> Option<&mut KeptWrite> {
        self.writes.get_mut(number as usize % limits::SESSION_REPLIES)
    }

    /// Tells whether a further write may start: the session would forget the reply to the one whose place it takes.
    pub(crate) fn has_room(&self) -> bool {
        let before = self.writes.get(self.next as usize % limits::SESSION_REPLIES);
        before.is_none_or(|write| write.call.is_none()) && self.bytes < limits::WRITES_UNANSWERED_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of the next write.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Keeps the next write, if there is room, and returns its record.
    pub(crate) fn add(&mut self, call: u32, kind: RequestKind, body: impl FnOnce(&mut Vec<u8>)) -> &[u8] {
        let number = self.next;
        self.next += 1;
        if self.writes.is_empty() {
            self.writes.resize_with(limits::SESSION_REPLIES, KeptWrite::default);
        }
        let write = &mut self.writes[number as usize % limits::SESSION_REPLIES];
        write.call = Some(call);
        write.record.clear();
        append_record(&mut write.record, call, kind as u16, |to| {
            to.extend_from_slice(&number.to_be_bytes());
            body(to);
        });
        self.count += 1;
        self.bytes += write.record.len();
        &write.record
    }

    /// Says that the write with this number has an answer; without effect for other numbers.
    pub(crate) fn answered(&mut self, number: u64) {
        let Some(write) = self.at(number) else { return };
        if write.call.take().is_some() {
            let bytes = write.record.len();
            if bytes > limits::WRITE_KEPT_BYTES {
                write.record = Vec::new();
            }
            self.count -= 1;
            self.bytes -= bytes;
        }
    }

    /// Returns the numbers of the calls without an answer with their records, in the order of their start.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let numbers = self.next.saturating_sub(self.writes.len() as u64)..self.next;
        let writes = numbers.filter_map(|number| self.writes.get(number as usize % limits::SESSION_REPLIES));
        writes.filter_map(|write| write.call.map(|call| (call, &write.record[..])))
    }

    /// Forgets all writes, and returns the numbers of their calls.
    pub(crate) fn forget(&mut self) -> Vec<u32> {
        let calls = self.iter().map(|(call, _)| call).collect();
        self.writes.clear();
        (self.count, self.bytes) = (0, 0);
        calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(writes: &mut UnansweredWrites, call: u32, bytes: usize) {
        writes.add(call, RequestKind::Put, |to| to.resize(to.len() + bytes, 7));
    }

    #[test]
    fn a_write_waits_for_the_one_whose_place_it_takes() {
        let mut writes = UnansweredWrites::new();
        let kept = limits::SESSION_REPLIES as u32;
        (1..=kept).for_each(|call| add(&mut writes, call, 0));
        assert!(!writes.has_room());
        writes.answered(2);
        assert!(!writes.has_room(), "the first has no answer");
        writes.answered(1);
        writes.answered(1);
        assert!(writes.has_room());
        add(&mut writes, kept + 1, 0);
        assert!(writes.has_room(), "the second has one");
        add(&mut writes, kept + 2, 0);
        assert!(!writes.has_room());
        let calls: Vec<u32> = writes.iter().map(|(call, _)| call).collect();
        assert_eq!(calls, (3..=kept + 2).collect::<Vec<_>>(), "in the order of their start");
        assert_eq!(writes.forget(), calls);
        assert!(writes.is_empty() && writes.has_room());
        assert_eq!(writes.next(), u64::from(kept) + 3, "a number is never used again");
    }

    #[test]
    fn many_bytes_without_an_answer_let_no_further_write_start() {
        let mut writes = UnansweredWrites::new();
        add(&mut writes, 1, limits::WRITES_UNANSWERED_BYTES);
        assert!(!writes.has_room());
        writes.answered(1);
        assert!(writes.has_room());
        assert_eq!(writes.bytes, 0);
        assert_eq!(writes.at(1).map(|write| write.record.capacity()), Some(0), "its memory is given back");
    }
}
