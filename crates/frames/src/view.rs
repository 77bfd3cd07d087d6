//! A frame as a consumer reads it: in place, and checked afterwards.

use std::hash::Hasher;

use caravan_segment::SegmentView;
use twox_hash::XxHash3_64;

use crate::error::Error;
use crate::layout::{self, StreamLayout};
use crate::protocol::{ReceiverWords, SlotReader};
use crate::receiver::FrameReceiver;

/// The bytes that are copied at once while a digest is checked: they stay in the processor's cache.
const PIECE_BYTES: usize = 64 << 10;

/// The producer wrote the slot again while its frame was read. What was read is of no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frame was overwritten while it was read")]
pub struct Overwritten;

/// The words of a stream's memory, as a consumer reaches them.
#[derive(Debug)]
pub(crate) struct ViewedWords {
    pub memory: SegmentView,
    pub layout: StreamLayout,
}

impl ReceiverWords for ViewedWords {
    fn slots(&self) -> u64 {
        self.layout.slots.into()
    }
    fn version(&self, slot: usize) -> u64 {
        self.memory.load(self.layout.words_at(slot))
    }
    fn head(&self) -> u64 {
        self.memory.load(layout::HEAD_AT)
    }
    fn acquire_fence(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
    }
}

/// A frame in its slot. It does not keep the producer from writing the slot again, unless the stream is lossless and the consumer
/// takes every frame: then the slot is kept until this value is dropped.
#[derive(Debug)]
pub struct FrameView<'a> {
    receiver: &'a FrameReceiver,
    /// The number of the frame.
    sequence: u64,
    dropped: u64,
    words: FrameWords,
}

/// What the words of a slot say of its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameWords {
    pub captured_ns: u64,
    digest: Option<u64>,
}

impl FrameWords {
    /// Reads the words of a frame that was found; `None` if it is overwritten already.
    pub fn read(words: &ViewedWords, sequence: u64) -> Option<Self> {
        let at = words.layout.words_at(words.layout.slot_of(sequence));
        let load = |offset| words.memory.load(at + offset);
        let digest = (load(layout::HAS_DIGEST) == 1).then(|| load(layout::DIGEST));
        let found = Self { captured_ns: load(layout::CAPTURED), digest };
        SlotReader::is_good(words, sequence).then_some(found)
    }
}

/// The bytes of a frame while [`FrameView::read`] reads them. They may change at any time, so they are copied out, in pieces as
/// small as the caller likes, and never borrowed.
#[derive(Debug)]
pub struct PixelReader<'a> {
    memory: &'a SegmentView,
    at: usize,
    bytes: usize,
}

impl PixelReader<'_> {
    /// Returns the bytes of the frame.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies the bytes at `offset` to `to`. Panics if they are outside the frame.
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        assert!(
            offset <= self.bytes && to.len() <= self.bytes - offset,
            "bytes {offset}..{offset}+{} are outside a frame of {}",
            to.len(),
            self.bytes
        );
        self.memory.copy_out(self.at + offset, to);
    }

    /// Returns the address of the first byte, for a foreign function that reads the frame in place, such as one that uploads it
    /// to a graphics processor. It is valid inside [`FrameView::read`].
    pub fn address(&self) -> *const u8 {
        self.memory.address().wrapping_add(self.at)
    }
}

impl<'a> FrameView<'a> {
    pub(crate) fn new(receiver: &'a FrameReceiver, sequence: u64, dropped: u64, words: FrameWords) -> Self {
        Self { receiver, sequence, dropped, words }
    }

    /// Returns the number of the frame; the first one of a stream is 1.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns how many frames between the one before and this one are lost to this consumer.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns when the frame was captured, in nanoseconds of [`monotonic_ns`](crate::clock::monotonic_ns).
    pub fn captured_ns(&self) -> u64 {
        self.words.captured_ns
    }

    /// Returns the digest that the producer has computed, if it does that.
    pub fn digest(&self) -> Option<u64> {
        self.words.digest
    }

    /// Reads the frame in place: calls `body` with its bytes, and returns what it returns if the bytes have been those of this
    /// frame all the time. Otherwise what `body` has seen is worth nothing, and is thrown away.
    pub fn read<T>(&self, body: impl FnOnce(&PixelReader<'_>) -> T) -> Result<T, Overwritten> {
        let words = &self.receiver.words;
        let at = words.layout.bytes_at(words.layout.slot_of(self.sequence));
        let value = body(&PixelReader { memory: &words.memory, at, bytes: words.layout.frame_bytes() });
        if SlotReader::is_good(words, self.sequence) {
            return Ok(value);
        }
        self.receiver.count_overwritten();
        Err(Overwritten)
    }

    /// Copies the whole frame to `to`, which must have as many bytes.
    pub fn copy_out(&self, to: &mut [u8]) -> Result<(), Overwritten> {
        self.read(|pixels| pixels.copy_out(0, to))
    }

    /// Reads the frame, and compares it with its digest, if it has one.
    pub fn check_digest(&self) -> Result<Result<(), Error>, Overwritten> {
        let Some(wanted) = self.words.digest else { return Ok(Ok(())) };
        let found = self.read(|pixels| {
            let mut digest = XxHash3_64::new();
            let mut piece = vec![0; PIECE_BYTES];
            for offset in (0..pixels.bytes()).step_by(PIECE_BYTES) {
                let piece = &mut piece[..PIECE_BYTES.min(pixels.bytes() - offset)];
                pixels.copy_out(offset, piece);
                digest.write(piece);
            }
            digest.finish()
        })?;
        Ok(if found == wanted { Ok(()) } else { Err(Error::Digest { sequence: self.sequence }) })
    }
}

impl Drop for FrameView<'_> {
    fn drop(&mut self) {
        self.receiver.release(self.sequence);
    }
}
