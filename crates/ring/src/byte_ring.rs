//! A ring that carries a stream of bytes.

use crate::cursor::{ConsumerCursor, Corrupt, ProducerCursor, Span, Spans, Wake};
use crate::memory::{Cursors, RingBytes};

/// How far ahead of its writes a producer asks for cache lines. The consumer read those lines
/// last; fetching one takes as long as writing several records, and a fence waits for all of it.
/// All values from 256 on are equally good; at 0, 64-byte records took three times as long.
const AHEAD_BYTES: u64 = 512;
/// A cache line.
const LINE_BYTES: u64 = 64;
/// The largest number of lines asked for at once: for longer writes the processor prefetches by itself.
const LINES_MAX: u64 = 4;

/// The writing side of a byte ring: claim, fill, commit, publish.
#[derive(Debug)]
pub struct ByteProducer<C, B> {
    cursor: ProducerCursor<C>,
    bytes: B,
}

impl<C: Cursors, B: RingBytes> ByteProducer<C, B> {
    /// Makes the producer of an empty ring.
    pub fn new(cursors: C, bytes: B) -> Self {
        Self { cursor: ProducerCursor::new(cursors, bytes.capacity()), bytes }
    }

    /// Makes the producer of a ring that another process has filled so far, which has ended or hands it over.
    /// Bytes that it had not published are not in the ring.
    pub fn resume(cursors: C, bytes: B) -> Result<Self, Corrupt> {
        Ok(Self { cursor: ProducerCursor::resume(cursors, bytes.capacity())?, bytes })
    }

    /// Returns the cursor.
    pub fn cursor(&mut self) -> &mut ProducerCursor<C> {
        &mut self.cursor
    }

    /// Returns the cursor, for reading only.
    pub fn position(&self) -> &ProducerCursor<C> {
        &self.cursor
    }

    /// Returns the buffer, for a system call that reads into a claim.
    pub fn bytes(&self) -> &B {
        &self.bytes
    }

    /// Claims room for up to `length` bytes, to be filled in place (`readv(2)`) and then committed.
    #[inline]
    pub fn claim(&mut self, length: usize) -> Result<Spans, Corrupt> {
        self.cursor.claim(length as u64)
    }

    /// Copies as many bytes of `from` as fit after the committed ones, and commits them.
    /// Returns their number.
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

    /// Copies all of `parts` after the committed bytes, one after the other, and commits them; does
    /// nothing if they do not all fit. Returns whether they fit. Parts that fit the ring anyway, as
    /// small records do, are not put together in a buffer first.
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

    /// After `length` bytes were written: asks for the lines that are now within
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

    /// Commits the first `length` bytes of the last claim, which the caller has filled.
    #[inline]
    pub fn commit(&mut self, length: usize) {
        self.cursor.commit(length as u64);
    }

    /// Makes all committed bytes visible to the consumer.
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
    /// The number of available bytes that [`read`](Self::read) has already copied.
    read: u64,
}

impl<C: Cursors, B: RingBytes> ByteConsumer<C, B> {
    /// Makes the consumer of an empty ring.
    pub fn new(cursors: C, bytes: B) -> Self {
        Self { cursor: ConsumerCursor::new(cursors, bytes.capacity()), bytes, read: 0 }
    }

    /// Returns the cursor.
    pub fn cursor(&mut self) -> &mut ConsumerCursor<C> {
        &mut self.cursor
    }

    /// Returns the cursor, for reading only.
    pub fn position(&self) -> &ConsumerCursor<C> {
        &self.cursor
    }

    /// Returns the buffer, for a system call that writes directly from a polled span.
    pub fn bytes(&self) -> &B {
        &self.bytes
    }

    /// Returns the number of bytes that can be read now without looking at the producer again.
    #[inline]
    pub fn unread(&self) -> usize {
        (self.cursor.available() - self.read) as usize
    }

    /// Looks whether the producer has published more; returns the number of bytes that can be read.
    #[inline]
    pub fn refresh(&mut self) -> Result<usize, Corrupt> {
        self.cursor.refresh()?;
        Ok(self.unread())
    }

    /// Returns the spans that can be read in place: of at least `length` bytes if that many are there.
    #[inline]
    pub fn poll(&mut self, length: usize) -> Result<Spans, Corrupt> {
        let spans = self.cursor.poll((length as u64).saturating_add(self.read))?;
        Ok(skip(spans, self.read as usize))
    }

    /// Copies as many unread bytes to `to` as it holds, without releasing them: many
    /// small reads cost one release. Returns their number.
    #[inline]
    pub fn read(&mut self, to: &mut [u8]) -> usize {
        let length = to.len().min(self.unread());
        self.copy_unread(&mut to[..length]);
        self.read += length as u64;
        length
    }

    /// Counts `length` bytes of the last poll, which the caller has read in place, as read.
    #[inline]
    pub fn skip(&mut self, length: usize) {
        assert!(length <= self.unread(), "{length} skipped where only {} were there", self.unread());
        self.read += length as u64;
    }

    /// Fills `to` from the first unread bytes; there must be enough.
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

    /// Releases all bytes that have been read.
    #[inline]
    pub fn release(&mut self) -> Wake {
        let read = std::mem::take(&mut self.read);
        if read == 0 {
            return Wake::Quiet;
        }
        self.cursor.release(read)
    }

    /// Returns the number of bytes read and not yet released.
    pub fn unreleased(&self) -> usize {
        self.read as usize
    }
}

/// Returns `spans` without their first `length` bytes.
fn skip(spans: Spans, length: usize) -> Spans {
    let behind =
        |span: Span, length: usize| Span { offset: span.offset + length, length: span.length - length };
    if length < spans.first.length {
        Spans { first: behind(spans.first, length), second: spans.second }
    } else {
        Spans { first: behind(spans.second, length - spans.first.length), second: Span::default() }
    }
}
