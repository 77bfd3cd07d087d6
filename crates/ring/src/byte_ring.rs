//! A stream of bytes on the cursors.

use crate::cursor::{ConsumerCursor, Corrupt, ProducerCursor, Span, Spans, Wake};
use crate::memory::{Bytes, Cursors};

/// How far ahead of what it writes a producer asks for cache lines. They are where the consumer read
/// last; fetching one takes as long as writing several records, and a fence waits for all of it.
/// From 256 on it makes no difference which; at 0, 64-byte records took three times as long.
const AHEAD_BYTES: u64 = 512;
/// A cache line.
const LINE_BYTES: u64 = 64;
/// Lines asked for at once at most: where more are written the processor sees it coming by itself.
const LINES_MAX: u64 = 4;

/// The writing side of a byte ring: claim, fill, commit, publish.
#[derive(Debug)]
pub struct ByteProducer<C, B> {
    cursor: ProducerCursor<C>,
    bytes: B,
}

impl<C: Cursors, B: Bytes> ByteProducer<C, B> {
    /// The producer of an empty ring.
    pub fn new(cursors: C, bytes: B) -> Self {
        Self { cursor: ProducerCursor::new(cursors, bytes.capacity()), bytes }
    }

    /// The positions.
    pub fn cursor(&mut self) -> &mut ProducerCursor<C> {
        &mut self.cursor
    }

    /// The positions, to look at.
    pub fn position(&self) -> &ProducerCursor<C> {
        &self.cursor
    }

    /// The buffer, for a system call that reads into a claim.
    pub fn bytes(&self) -> &B {
        &self.bytes
    }

    /// Room for up to `length` bytes, to be filled in place (`readv(2)`) and then committed.
    #[inline]
    pub fn claim(&mut self, length: usize) -> Result<Spans, Corrupt> {
        self.cursor.claim(length as u64)
    }

    /// Copies as much of `from` as there is room for behind what is committed, and commits it.
    /// Returns how much that was.
    #[inline]
    pub fn append(&mut self, from: &[u8]) -> Result<usize, Corrupt> {
        let spans = self.cursor.claim(from.len() as u64)?;
        let (first, second) = from[..spans.length()].split_at(spans.first.length);
        self.bytes.copy_in(spans.first.offset, first);
        if !second.is_empty() {
            self.bytes.copy_in(spans.second.offset, second);
        }
        self.cursor.commit(spans.length() as u64);
        self.expect_writes(spans.length() as u64);
        Ok(spans.length())
    }

    /// After `length` bytes were written: asks for the lines that this brought within
    /// [`AHEAD_BYTES`], unless the consumer may be reading there.
    #[inline]
    fn expect_writes(&self, length: u64) {
        let capacity = self.cursor.capacity();
        if self.cursor.used() + AHEAD_BYTES + LINE_BYTES > capacity {
            return;
        }
        let end = (self.cursor.committed_position() + AHEAD_BYTES) / LINE_BYTES;
        let before = (self.cursor.committed_position() + AHEAD_BYTES - length) / LINE_BYTES;
        for line in before.max(end.saturating_sub(LINES_MAX))..end {
            self.bytes.expect_write((((line + 1) * LINE_BYTES) & (capacity - 1)) as usize);
        }
    }

    /// Says that the first `length` bytes of the last claim are filled.
    #[inline]
    pub fn commit(&mut self, length: usize) {
        self.cursor.commit(length as u64);
    }

    /// Makes everything committed visible.
    #[inline]
    pub fn publish(&mut self) -> Wake {
        self.cursor.publish()
    }
}

/// The reading side of a byte ring: poll, copy out or read in place, release.
#[derive(Debug)]
pub struct ByteConsumer<C, B> {
    cursor: ConsumerCursor<C>,
    bytes: B,
    /// Of what is available, the bytes already copied out by [`read`](Self::read).
    read: u64,
}

impl<C: Cursors, B: Bytes> ByteConsumer<C, B> {
    /// The consumer of an empty ring.
    pub fn new(cursors: C, bytes: B) -> Self {
        Self { cursor: ConsumerCursor::new(cursors, bytes.capacity()), bytes, read: 0 }
    }

    /// The positions.
    pub fn cursor(&mut self) -> &mut ConsumerCursor<C> {
        &mut self.cursor
    }

    /// The positions, to look at.
    pub fn position(&self) -> &ConsumerCursor<C> {
        &self.cursor
    }

    /// The buffer, for a system call that writes straight out of what was polled.
    pub fn bytes(&self) -> &B {
        &self.bytes
    }

    /// Bytes that can be read now without looking at the producer again.
    #[inline]
    pub fn unread(&self) -> usize {
        (self.cursor.available() - self.read) as usize
    }

    /// Looks whether the producer has published more; returns what can be read.
    #[inline]
    pub fn refresh(&mut self) -> Result<usize, Corrupt> {
        self.cursor.refresh()?;
        Ok(self.unread())
    }

    /// What can be read in place: at least `length` bytes if they are there.
    #[inline]
    pub fn poll(&mut self, length: usize) -> Result<Spans, Corrupt> {
        let spans = self.cursor.poll((length as u64).saturating_add(self.read))?;
        Ok(skip(spans, self.read as usize))
    }

    /// Copies as many unread bytes as there are and as `to` holds, without releasing them: many
    /// small reads cost one release. Returns how many.
    #[inline]
    pub fn read(&mut self, to: &mut [u8]) -> usize {
        let length = to.len().min(self.unread());
        self.copy_unread(&mut to[..length]);
        self.read += length as u64;
        length
    }

    /// Copies the first unread bytes to `to` without counting them as read. False, and nothing
    /// copied, if there are fewer than `to` holds.
    #[inline]
    pub fn peek(&self, to: &mut [u8]) -> bool {
        if to.len() > self.unread() {
            return false;
        }
        self.copy_unread(to);
        true
    }

    /// Counts `length` bytes of the last poll as read, when they were read in place.
    #[inline]
    pub fn skip(&mut self, length: usize) {
        assert!(length <= self.unread(), "{length} skipped where only {} were there", self.unread());
        self.read += length as u64;
    }

    /// Fills `to` from the first unread bytes, of which there are enough.
    #[inline]
    fn copy_unread(&self, to: &mut [u8]) {
        let position = self.cursor.head_position() + self.read;
        let offset = (position & (self.cursor.capacity() - 1)) as usize;
        let before_end = to.len().min(self.cursor.capacity() as usize - offset);
        let (first, second) = to.split_at_mut(before_end);
        self.bytes.copy_out(offset, first);
        if !second.is_empty() {
            self.bytes.copy_out(0, second);
        }
    }

    /// Gives all that has been read back to the producer.
    #[inline]
    pub fn release(&mut self) -> Wake {
        let read = std::mem::take(&mut self.read);
        if read == 0 {
            return Wake::Quiet;
        }
        self.cursor.release(read)
    }

    /// Bytes read and not yet released.
    pub fn unreleased(&self) -> usize {
        self.read as usize
    }
}

/// What is left of `spans` behind its first `length` bytes.
fn skip(spans: Spans, length: usize) -> Spans {
    let behind =
        |span: Span, length: usize| Span { offset: span.offset + length, length: span.length - length };
    if length < spans.first.length {
        Spans { first: behind(spans.first, length), second: spans.second }
    } else {
        Spans { first: behind(spans.second, length - spans.first.length), second: Span::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{HEADER_BYTES, MappedBytes, MappedCursors};
    use crate::record::{LengthReader, prefix};
    use caravan_segment::{Pages, Segment};
    use std::sync::Arc;

    type Producer = ByteProducer<MappedCursors, MappedBytes>;
    type Consumer = ByteConsumer<MappedCursors, MappedBytes>;

    fn ring(capacity: u64) -> (Producer, Consumer) {
        let bytes = HEADER_BYTES as u64 + capacity;
        let segment = Arc::new(Segment::create("caravan-test", bytes, Pages::Small).unwrap());
        segment.grow(bytes).unwrap();
        let window = segment.window(0, bytes).unwrap();
        let cursors = MappedCursors::new(&window).unwrap();
        let data = MappedBytes::new(window.part(HEADER_BYTES as u64, capacity).unwrap()).unwrap();
        (ByteProducer::new(cursors.clone(), data.clone()), ByteConsumer::new(cursors, data))
    }

    #[test]
    fn nothing_is_seen_before_it_is_published() {
        let (mut producer, mut consumer) = ring(64);
        assert_eq!(producer.append(b"first").unwrap(), 5);
        assert_eq!(consumer.refresh().unwrap(), 0);
        assert_eq!(producer.publish(), Wake::Quiet);
        assert_eq!(consumer.refresh().unwrap(), 5);
    }

    #[test]
    fn a_full_ring_takes_what_fits_and_more_after_a_release() {
        let (mut producer, mut consumer) = ring(8);
        assert_eq!(producer.append(b"0123456789").unwrap(), 8);
        assert_eq!(producer.append(b"89").unwrap(), 0);
        assert_eq!(producer.publish(), Wake::Quiet);
        let mut some = [0; 3];
        assert_eq!(consumer.refresh().unwrap(), 8);
        assert_eq!(consumer.read(&mut some), 3);
        assert_eq!(producer.append(b"89").unwrap(), 0, "read is not released");
        assert_eq!(consumer.release(), Wake::Quiet);
        assert_eq!(producer.append(b"89").unwrap(), 2);
        assert_eq!(producer.publish(), Wake::Quiet);
        let mut rest = [0; 8];
        consumer.refresh().unwrap();
        assert_eq!((consumer.read(&mut rest), &rest[..7]), (7, &b"3456789"[..]));
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let (mut producer, mut consumer) = ring(8);
        assert!(consumer.cursor().sleep().unwrap());
        producer.append(b"a").unwrap();
        assert_eq!(producer.publish(), Wake::Bell);
        producer.append(b"b").unwrap();
        assert_eq!(producer.publish(), Wake::Quiet);
        assert!(!consumer.cursor().sleep().unwrap(), "there is something to read");
    }

    #[test]
    fn a_blocked_producer_is_woken_once_there_is_the_room_it_wants() {
        let (mut producer, mut consumer) = ring(8);
        producer.append(b"01234567").unwrap();
        assert_eq!(producer.publish(), Wake::Quiet);
        assert!(producer.cursor().wait_for_room(4).unwrap());
        consumer.refresh().unwrap();
        consumer.skip(3);
        assert_eq!(consumer.release(), Wake::Quiet);
        consumer.skip(1);
        assert_eq!(consumer.release(), Wake::Bell);
        consumer.skip(1);
        assert_eq!(consumer.release(), Wake::Quiet);
        assert!(!producer.cursor().wait_for_room(4).unwrap());
    }

    #[test]
    fn records_larger_than_the_ring_flow_through() {
        let (mut producer, mut consumer) = ring(16);
        let record: Vec<u8> = (0..100).collect();
        let stream = [&prefix(100)[..], &record, &prefix(0), &prefix(1), b"z"].concat();
        let (mut sent, mut seen, mut lengths) = (0, Vec::new(), Vec::new());
        let mut reader = LengthReader::new(100);
        let mut missing = 0;
        while sent < stream.len() || seen.len() < 101 {
            sent += producer.append(&stream[sent..]).unwrap();
            let _ = producer.publish();
            consumer.refresh().unwrap();
            while consumer.unread() > 0 {
                if missing == 0 {
                    if let Some(length) = reader.next(&mut consumer).unwrap() {
                        lengths.push(length);
                        missing = length as usize;
                    }
                } else {
                    let mut piece = vec![0; missing];
                    let got = consumer.read(&mut piece);
                    seen.extend_from_slice(&piece[..got]);
                    missing -= got;
                }
            }
            let _ = consumer.release();
            assert!(producer.position().invariants() && consumer.position().invariants());
        }
        assert_eq!(lengths, [100, 0, 1]);
        assert_eq!(seen, [&record[..], b"z"].concat());
    }

    #[test]
    fn impossible_positions_are_named_and_refused() {
        let (mut producer, mut consumer) = ring(16);
        producer.append(b"0123").unwrap();
        let _ = producer.publish();
        consumer.refresh().unwrap();
        for tail in [3, 17, u64::MAX, 1 << 63] {
            producer.position().shared().tail_position().store(tail, std::sync::atomic::Ordering::Relaxed);
            let error = consumer.refresh().unwrap_err();
            assert_eq!((error.cursor, error.value), ("tail_position", tail));
        }
        for head in [5, u64::MAX] {
            producer.position().shared().head_position().store(head, std::sync::atomic::Ordering::Relaxed);
            let error = producer.claim(16).unwrap_err();
            assert_eq!((error.cursor, error.value), ("head_position", head));
        }
    }
}
