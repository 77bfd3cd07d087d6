//! A stream of bytes on the cursors.

use crate::cursor::{ConsumerCursor, Corrupt, ProducerCursor, Span, Spans, Wake};
use crate::memory::{Cursors, RingBytes};

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

impl<C: Cursors, B: RingBytes> ByteProducer<C, B> {
    /// The producer of an empty ring.
    pub fn new(cursors: C, bytes: B) -> Self {
        Self { cursor: ProducerCursor::new(cursors, bytes.capacity()), bytes }
    }

    /// The producer of a ring that another process has filled so far: it has ended, or hands over.
    /// What it had not published is not in the ring.
    pub fn resume(cursors: C, bytes: B) -> Result<Self, Corrupt> {
        Ok(Self { cursor: ProducerCursor::resume(cursors, bytes.capacity())?, bytes })
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

    /// Copies all of `parts` behind what is committed, one after the other, and commits them; or does
    /// nothing if there is no room for all. Returns whether it did. What fits the ring anyway, as
    /// small records do, is not put together in a buffer first.
    #[inline]
    pub fn append_whole<const N: usize>(&mut self, parts: [&[u8]; N]) -> Result<bool, Corrupt> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let spans = self.cursor.claim(length as u64)?;
        if spans.length() < length {
            return Ok(false);
        }
        let mut offset = spans.first.offset;
        for part in parts {
            let before_end = self.cursor.capacity() as usize - offset;
            if part.len() < before_end {
                self.bytes.copy_in(offset, part);
                offset += part.len();
            } else {
                let (first, second) = part.split_at(before_end);
                self.bytes.copy_in(offset, first);
                self.bytes.copy_in(0, second);
                offset = second.len();
            }
        }
        self.cursor.commit(length as u64);
        self.expect_writes(length as u64);
        Ok(true)
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

impl<C: Cursors, B: RingBytes> ByteConsumer<C, B> {
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
