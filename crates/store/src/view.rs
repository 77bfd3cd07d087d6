//! What a reader sees of a store: objects and the table, read by the protocol. The owner reads the same way.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use crate::bytes;
use crate::commit::UnitKind;
use crate::entry::{EntryHead, KeyVersion, ObjectAddress};
use crate::error::StoreError;
use crate::layout::{self, BlockClass, BlockWord, CLASS_BYTES, HEADER_BYTES, HEADER_WORDS, LONG_KEY};
use crate::layout::{BUCKET_BYTES, ObjectShape, SHARD_BYTES, StoreLayout, version, word};
use crate::limits;
use crate::protocol::{self, UnitWords, Unsettled};
use crate::table::BUCKET_WORDS;
use crate::words::StoreWords;

/// The memory of a store and its layout.
#[derive(Debug)]
pub(crate) struct StoreView {
    pub(crate) words: StoreWords,
    pub(crate) layout: StoreLayout,
    pub(crate) hash_seed: u64,
    lock_wait_ns: AtomicU64,
}

/// An object as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectHead {
    pub(crate) version: u64,
    pub(crate) shape: ObjectShape,
    pub(crate) expires_at_ms: Option<u64>,
}

impl ObjectHead {
    pub(crate) fn entry(&self) -> EntryHead {
        EntryHead { version: KeyVersion(self.version), expires_at_ms: self.expires_at_ms }
    }

    /// Tells whether the value is all in this object, and never expires.
    #[inline]
    pub(crate) fn has_plain_value(&self) -> bool {
        self.expires_at_ms.is_none() && !self.shape.has(ObjectShape::LONG_VALUE)
    }

    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_some_and(|at| at <= now_ms)
    }
}

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtPlace<T> {
    /// An object.
    Object(T),
    /// Memory of an object class that holds none, with the version and the incarnation of the next one.
    Free { version: u64, incarnation: u16 },
    /// No object can be there.
    Nothing,
}

/// The words of an object's payload during a read: they may be torn until the read is done.
#[derive(Clone, Copy)]
pub(crate) struct ObjectPayload<'w> {
    words: &'w [AtomicU64],
    shape: ObjectShape,
}

impl ObjectPayload<'_> {
    pub(crate) fn expires_at_ms(&self) -> Option<u64> {
        self.shape
            .has(ObjectShape::EXPIRES)
            .then(|| self.words.first().map_or(0, |word| word.load(Ordering::Relaxed)))
    }

    /// Returns where the key starts, where the value starts, and where it ends.
    fn bounds(&self) -> (usize, usize, usize) {
        let end = self.shape.size as usize;
        let mut start = if self.shape.has(ObjectShape::EXPIRES) { 8 } else { 0 };
        let mut key = usize::from(self.shape.key);
        if self.shape.key == LONG_KEY {
            key = self.words.get(start / 8).map_or(0, |word| word.load(Ordering::Relaxed)) as usize;
            start += 8;
        }
        let start = start.min(end);
        (start, start + key.min(end - start), end)
    }

    #[inline]
    pub(crate) fn has_key(&self, key: &[u8]) -> bool {
        let (start, value, _) = self.bounds();
        value - start == key.len() && bytes::equal(self.words, start, key)
    }

    pub(crate) fn copy_key(&self, to: &mut Vec<u8>) {
        let (start, value, _) = self.bounds();
        bytes::copy_out(self.words, start, value - start, to);
    }

    #[inline]
    pub(crate) fn copy_value(&self, to: &mut Vec<u8>) {
        let (_, value, end) = self.bounds();
        bytes::copy_out(self.words, value, end - value, to);
    }

    /// Copies the bytes `range` of the value, as far as there are any.
    pub(crate) fn copy_value_part(&self, range: Range<usize>, to: &mut Vec<u8>) {
        let (_, value, end) = self.bounds();
        let range = within(range, end - value);
        bytes::copy_out(self.words, value + range.start, range.len(), to);
    }

    /// Tells whether the value is the list of its sections.
    pub(crate) fn is_long_value(&self) -> bool {
        self.shape.has(ObjectShape::LONG_VALUE)
    }

    /// Returns the number of bytes of the value.
    pub(crate) fn value_bytes(&self) -> usize {
        let (_, value, end) = self.bounds();
        if self.is_long_value() {
            return crate::sections::SectionList::from_bytes(&self.part(|_| 0..8)).value_bytes as usize;
        }
        end - value
    }

    /// Copies the part of the value that `part` chooses by the number of bytes; what is beyond the end is left
    /// out.
    pub(crate) fn part(&self, part: impl Fn(usize) -> Range<usize>) -> Vec<u8> {
        let (_, value, end) = self.bounds();
        let part = part(end - value);
        let mut copied = Vec::new();
        self.copy_value_part(part, &mut copied);
        copied
    }

    /// Copies the bytes `range` of the payload, as far as there are any.
    pub(crate) fn copy_part(&self, range: Range<usize>, to: &mut Vec<u8>) {
        let end = range.end.min(self.shape.size as usize);
        bytes::copy_out(self.words, range.start, end.saturating_sub(range.start), to);
    }

    /// Returns word `index` of the payload, 0 outside.
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Copies the whole payload.
    pub(crate) fn copy(&self, to: &mut Vec<u8>) {
        bytes::copy_out(self.words, 0, self.shape.size as usize, to);
    }
}

/// Returns the part of a range that lies within so many bytes.
pub(crate) fn within(part: Range<usize>, bytes: usize) -> Range<usize> {
    let start = part.start.min(bytes);
    start..part.end.clamp(start, bytes)
}

impl StoreView {
    pub(crate) fn new(words: StoreWords) -> Result<Self, StoreError> {
        let layout = layout::read_layout(&words)?;
        Self::with_layout(words, layout)
    }

    /// Addresses a memory whose layout is known, and whose own words are there.
    pub(crate) fn with_layout(words: StoreWords, layout: StoreLayout) -> Result<Self, StoreError> {
        let lock_wait_ns = AtomicU64::new(limits::READ_WAIT.as_nanos() as u64);
        let mut view = Self { words, layout, hash_seed: 0, lock_wait_ns };
        view.words.set_committed(view.load(word::COMMITTED));
        if view.words.words(0, layout.blocks_place as usize / 8).is_none() {
            return Err(StoreError::NotAStore("not all of it is backed by memory"));
        }
        view.hash_seed = view.load(word::HASH_SEED);
        Ok(view)
    }

    /// Loads a word of the store's own; relaxed.
    #[inline]
    pub(crate) fn load(&self, place: u64) -> u64 {
        self.words.words(place, 1).map_or(0, |word| word.load(0))
    }

    #[inline]
    pub(crate) fn now_ms(&self) -> u64 {
        self.load(word::NOW_MS)
    }

    /// Returns the time of the newest commit: all commits up to it hold their locks, or are done.
    pub(crate) fn time(&self) -> u64 {
        let time = self.load(word::TIME);
        // Pairs with the release in `StoreCore::next_time`.
        fence(Ordering::Acquire);
        time
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        twox_hash::XxHash3_64::oneshot_with_seed(self.hash_seed, key)
    }

    /// Returns `count` words from `place` on. A reader asks the owner's word again how much memory there is.
    #[inline]
    pub(crate) fn unit(&self, place: u64, count: usize) -> Option<&[AtomicU64]> {
        self.words.words(place, count).or_else(|| {
            self.words.set_committed(self.load(word::COMMITTED));
            self.words.words(place, count)
        })
    }

    /// Returns the class word of the block of `place`, and the words of the object that would be at `place`.
    #[inline]
    pub(crate) fn slot(&self, place: u64) -> Option<(&[AtomicU64], &AtomicU64, u64)> {
        let (block, offset) = self.layout.block_of(place)?;
        let class_word = self.unit(self.layout.class_place(block), 1)?.first()?;
        let found = class_word.load(Ordering::Relaxed);
        let Some(BlockClass::Objects(class)) = BlockWord::from_word(found).class else { return None };
        let size = *CLASS_BYTES.get(usize::from(class))?;
        // Only the start of an object begins with a header: elsewhere are bytes of users, who may imitate
        // one.
        if offset % size != 0 || u64::from(offset) + u64::from(size) > layout::BLOCK_BYTES {
            return None;
        }
        Some((self.unit(place, size as usize / 8)?, class_word, found))
    }

    /// Reads what is at `place` once; `body` sees the payload of an object, which may be torn until this
    /// returns.
    #[inline]
    pub(crate) fn object<R>(
        &self,
        place: u64,
        body: impl FnOnce(ObjectPayload<'_>) -> R,
    ) -> Result<AtPlace<(ObjectHead, R)>, Unsettled> {
        let Some((unit, class_word, class)) = self.slot(place) else { return Ok(AtPlace::Nothing) };
        let read = protocol::read(unit, |version| {
            let shape = ObjectShape::from_word(unit.load(1));
            if !version::is_allocated(version) {
                return Some(AtPlace::Free { version, incarnation: shape.incarnation });
            }
            let payload = ObjectPayload { words: &unit[HEADER_WORDS..], shape };
            if shape.size as usize > unit.len() * 8 - HEADER_BYTES {
                return None;
            }
            let expires_at_ms = payload.expires_at_ms();
            Some(AtPlace::Object((ObjectHead { version, shape, expires_at_ms }, body(payload))))
        });
        // The block had one class all the while. Pairs with the release fence of `Blocks::set_class`, by
        // the acquire fence in `protocol::read`.
        let same_class = class_word.load(Ordering::Relaxed) == class;
        match read {
            Ok((_, Some(at))) if same_class => Ok(at),
            _ => Err(Unsettled),
        }
    }

    /// Appends the value in the object at `place`, which the caller has locked or nobody writes.
    pub(crate) fn locked_value(&self, place: u64, to: &mut Vec<u8>) {
        let Some((unit, ..)) = self.slot(place) else { return };
        let shape = ObjectShape::from_word(unit.load(1));
        if shape.has(ObjectShape::LONG_VALUE) {
            ObjectPayload { words: &unit[HEADER_WORDS..], shape }.copy_value(to);
        }
    }

    /// Reads the object at `address` once.
    pub(crate) fn object_at<R>(
        &self,
        address: ObjectAddress,
        body: impl FnOnce(ObjectPayload<'_>) -> R,
    ) -> Result<Option<(ObjectHead, R)>, Unsettled> {
        Ok(match self.object(address.place, body)? {
            AtPlace::Object((head, result)) if head.shape.incarnation == address.incarnation => {
                Some((head, result))
            }
            _ => None,
        })
    }

    /// Returns the words of a unit; `None` if none begins at `place`, where a client says that there is one.
    pub(crate) fn unit_of(&self, place: u64, kind: UnitKind) -> Option<&[AtomicU64]> {
        match kind {
            UnitKind::Object => self.slot(place).map(|(unit, ..)| unit),
            UnitKind::Bucket => {
                let (block, offset) = self.layout.block_of(place)?;
                let class = BlockWord::from_word(self.load(self.layout.class_place(block))).class;
                let in_shard = u64::from(offset) % SHARD_BYTES;
                // The first line of a shard counts its keys.
                let is_bucket =
                    class == Some(BlockClass::Shards) && in_shard % BUCKET_BYTES == 0 && in_shard > 0;
                self.unit(place, BUCKET_WORDS).filter(|_| is_bucket)
            }
        }
    }

    /// Returns the version of a unit now, or `None` if it is locked or gone.
    pub(crate) fn version_of(&self, place: u64, kind: UnitKind) -> Option<u64> {
        match kind {
            UnitKind::Bucket => {
                let version = self.load(place);
                (version & version::LOCKED == 0).then_some(version)
            }
            UnitKind::Object => match self.object(place, |_| ()) {
                Ok(AtPlace::Object((head, ()))) => Some(head.version),
                _ => None,
            },
        }
    }

    /// Repeats `attempt` until it has read something settled: eight times at once, then with the processor
    /// left to others, for at most [`limits::READ_WAIT`] unless [`set_lock_wait`](Self::set_lock_wait) has said otherwise.
    #[inline]
    pub(crate) fn settle<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, Unsettled>,
    ) -> Result<T, StoreError> {
        for _ in 0..limits::READ_ATTEMPTS {
            if let Ok(value) = attempt() {
                return Ok(value);
            }
            std::hint::spin_loop();
        }
        self.settle_slowly(attempt)
    }

    #[cold]
    fn settle_slowly<T>(&self, mut attempt: impl FnMut() -> Result<T, Unsettled>) -> Result<T, StoreError> {
        let begin = Instant::now();
        let mut pause = Duration::ZERO;
        let wait = self.lock_wait();
        while begin.elapsed() < wait {
            // The writer may need this very core to get on.
            if pause.is_zero() {
                std::thread::yield_now()
            } else {
                std::thread::sleep(pause)
            }
            for _ in 0..limits::READ_ATTEMPTS {
                if let Ok(value) = attempt() {
                    return Ok(value);
                }
            }
            if begin.elapsed() > limits::READ_YIELD {
                pause = (pause * 2).clamp(limits::READ_PAUSE_MIN, limits::READ_PAUSE_MAX);
            }
        }
        Err(if wait < limits::READ_WAIT { StoreError::Undecided } else { StoreError::Contended })
    }

    /// Sets for how long reads wait for what is locked, and transactions for what a branch has locked.
    pub(crate) fn set_lock_wait(&self, wait: Duration) {
        self.lock_wait_ns.store(wait.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn lock_wait(&self) -> Duration {
        Duration::from_nanos(self.lock_wait_ns.load(Ordering::Relaxed))
    }

    /// Orders what was stored before this before what is stored after it.
    pub(crate) fn fence_release(&self) {
        fence(Ordering::Release);
    }

    /// Orders what was read before this before what is read after it.
    #[inline]
    pub(crate) fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }
}
