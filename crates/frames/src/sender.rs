//! The producer of a stream: it makes the memory, fills slots in place, and publishes them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_segment::SharedSlice;
use caravan_segment::counters::CounterRow;
use twox_hash::XxHash3_64;

use crate::audience::Audience;
use crate::clock::monotonic_ns;
use crate::counters;
use crate::error::Error;
use crate::layout::{self, StreamLayout};
use crate::limits::{LOOK, PATIENCE, SLOTS_DEFAULT};
use crate::picture::Picture;
use crate::pixels::StreamMemory;
use crate::protocol::{SenderWords, SlotWriter};
use crate::service::{self, Service};

/// What happens when a consumer is slower than the producer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameDelivery {
    /// The oldest frames are overwritten: no consumer holds anybody up.
    #[default]
    Newest,
    /// The producer waits for every consumer that takes every frame, as long as its patience lasts.
    Lossless,
}

impl FrameDelivery {
    fn word(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Lossless => "lossless",
        }
    }
}

/// How a stream is made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamOptions {
    /// The form of the frames.
    pub picture: Picture,
    /// What happens when a consumer is slower than the producer.
    pub delivery: FrameDelivery,
    /// The number of frame slots.
    pub slots: u32,
    /// Whether each frame gets a digest, which costs the producer one pass over its bytes.
    pub has_digest: bool,
    /// How long a lossless producer waits for one frame to be released before it cuts the consumer off.
    pub patience: Duration,
}

impl StreamOptions {
    /// Returns the options of a stream that delivers newest first.
    pub fn new(picture: Picture) -> Self {
        Self {
            picture,
            delivery: FrameDelivery::Newest,
            slots: SLOTS_DEFAULT,
            has_digest: false,
            patience: PATIENCE,
        }
    }

    /// Sets what happens when a consumer is slower.
    pub fn delivery(mut self, delivery: FrameDelivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Sets the number of slots.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Sets whether each frame gets a digest.
    pub fn digest(mut self, has_digest: bool) -> Self {
        self.has_digest = has_digest;
        self
    }

    /// Sets how long a lossless producer waits for one frame to be released.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// The words of a stream's memory, as its producer reaches them.
#[derive(Debug)]
struct MappedWords {
    words: SharedSlice,
    layout: StreamLayout,
}

impl SenderWords for MappedWords {
    fn slots(&self) -> u64 {
        self.layout.slots.into()
    }
    fn set_version(&self, slot: usize, version: u64) {
        // pairs with the acquire fence in SlotReader::is_complete
        self.words.word(self.layout.words_at(slot)).store(version, Ordering::Release);
    }
    fn advance(&self, head: u64) {
        // pairs with the acquire fence in SlotReader::find
        self.words.word(layout::HEAD_AT).store(head, Ordering::Release);
        self.words.wake_all(layout::HEAD_HALF_AT);
    }
    fn release_fence(&self) {
        std::sync::atomic::fence(Ordering::Release);
    }
}

/// The producer of a stream, which ends when this value is dropped. Consumers still read the last frames then.
#[derive(Debug)]
pub struct FrameSender {
    words: MappedWords,
    bytes: StreamMemory,
    writer: SlotWriter,
    options: StreamOptions,
    audience: Arc<Audience>,
    /// The consumer that a lossless producer waits for, what it has released, and since when that has not changed.
    waiting: Option<(u64, u32, Instant)>,
    row: CounterRow,
    _service: Service,
}

impl FrameSender {
    /// Makes the stream `name` of this host and user.
    pub fn create(name: &str, options: &StreamOptions) -> Result<Self, Error> {
        let layout = StreamLayout::new(options.picture, options.slots)?;
        let listener = service::listen(name)?;
        let (bytes, words, descriptor) = StreamMemory::create(&layout)?;
        let memory_bytes = layout.memory_bytes();
        let Picture { width, height, format, rate } = options.picture;
        for (at, value) in [
            (layout::MEMORY_BYTES_AT, memory_bytes),
            (layout::SLOTS_AT, layout.slots.into()),
            (layout::WIDTH_AT, width.into()),
            (layout::HEIGHT_AT, height.into()),
            (layout::FORMAT_AT, format.code()),
            (layout::RATE_FRAMES_AT, rate.frames.into()),
            (layout::RATE_SECONDS_AT, rate.seconds.into()),
            (layout::DELIVERY_AT, u64::from(options.delivery == FrameDelivery::Lossless)),
        ] {
            words.word(at).store(value, Ordering::Relaxed);
        }
        // Complete before any consumer gets the memory.
        words.word(0).store(layout::MAGIC, Ordering::Release);
        let audience = Arc::new(Audience::default());
        let row = counters::row(name, "send", options.picture, options.delivery.word())?;
        let has_seats = options.delivery == FrameDelivery::Lossless;
        let service = Service::start(listener, descriptor, memory_bytes, has_seats, Arc::clone(&audience))?;
        let words = MappedWords { words, layout };
        let writer = SlotWriter::new();
        Ok(Self {
            words,
            bytes,
            writer,
            options: options.clone(),
            audience,
            waiting: None,
            row,
            _service: service,
        })
    }

    /// Returns the form of the frames.
    pub fn picture(&self) -> Picture {
        self.options.picture
    }

    /// Returns the number of consumers.
    pub fn consumers(&self) -> usize {
        self.audience.count()
    }

    /// Waits until there are so many consumers; false if they are not there within the limit.
    pub fn wait_for_consumers(&self, count: usize, limit: Duration) -> bool {
        let are_there = self.audience.wait_for(count, limit);
        self.row.set(counters::CONSUMERS, self.consumers() as u64);
        are_there
    }

    /// Returns the slot of the next frame. A lossless producer waits for room in it, and gets `None` if there is none within
    /// the limit; otherwise there always is room.
    pub fn next(&mut self, limit: Duration) -> Result<Option<FrameSlot<'_>>, Error> {
        if self.options.delivery == FrameDelivery::Lossless && !self.wait_for_room(limit) {
            return Ok(None);
        }
        let sequence = self.writer.begin(&self.words);
        Ok(Some(FrameSlot { sequence, sender: self }))
    }

    /// Waits until all seats have released the frame that is overwritten next. Cuts off a consumer that has released nothing for
    /// as long as the patience lasts; time that was waited in earlier calls counts.
    fn wait_for_room(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let slow = self.audience.lock().iter().find_map(|consumer| {
                let seat = consumer.seat.clone()?;
                let released = seat.released();
                let has_room = self.writer.has_room(&self.words, released);
                (has_room != Some(true)).then_some((consumer.number, seat, released, has_room))
            });
            let Some((number, seat, released, has_room)) = slow else { return true };
            let now = Instant::now();
            let since = match &self.waiting {
                Some(waiting) if (waiting.0, waiting.1) == (number, released) => waiting.2,
                _ => self.waiting.insert((number, released, now)).2,
            };
            if has_room.is_none() || now.duration_since(since) >= self.options.patience {
                self.audience.cut_off(number);
                continue;
            }
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() {
                return false;
            }
            seat.sleep_while(released, left.min(LOOK));
        }
    }
}

impl Drop for FrameSender {
    fn drop(&mut self) {
        self.writer.end(&self.words);
    }
}

/// A slot that the producer fills in place. If it is dropped without [`publish`](Self::publish), no consumer sees it, and the next
/// frame has the same number.
#[derive(Debug)]
pub struct FrameSlot<'a> {
    sequence: u64,
    sender: &'a mut FrameSender,
}

impl FrameSlot<'_> {
    /// Returns the number that the frame will have.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    fn slot(&self) -> usize {
        self.sender.words.layout.slot_of(self.sequence)
    }

    /// Returns the bytes of the frame, which are those of an older frame until they are written. The slot belongs to the producer
    /// until it publishes it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let slot = self.slot();
        self.sender.bytes.slot_mut(slot)
    }

    /// Makes the frame the newest one, captured now.
    pub fn publish(self) {
        self.publish_captured(monotonic_ns());
    }

    /// Makes the frame the newest one, and says when it was captured, in nanoseconds of
    /// [`monotonic_ns`](crate::clock::monotonic_ns).
    pub fn publish_captured(self, captured_ns: u64) {
        let slot = self.slot();
        let bytes = self.sender.bytes.slot(slot);
        let digest = self.sender.options.has_digest.then(|| XxHash3_64::oneshot(bytes));
        let MappedWords { words, layout } = &self.sender.words;
        let at = layout.words_at(slot);
        words.word(at + layout::CAPTURED).store(captured_ns, Ordering::Relaxed);
        words.word(at + layout::DIGEST).store(digest.unwrap_or(0), Ordering::Relaxed);
        words.word(at + layout::HAS_DIGEST).store(u64::from(digest.is_some()), Ordering::Relaxed);
        self.sender.writer.publish(&self.sender.words);
        self.sender.audience.newest.store(self.sequence, Ordering::Relaxed);
        self.sender.row.add(counters::FRAMES, 1);
        self.sender.row.set(counters::CONSUMERS, self.sender.consumers() as u64);
    }
}
