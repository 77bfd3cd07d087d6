//! A copy of a store's memory: the side that keeps it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use caravan_fabric::Region;
use caravan_segment::{Pages, Segment, SharedSlice};

use crate::blocks::store_word;
use crate::copies::format::{
    ArrivedRecord, COPY_WORDS_PLACE, OWNER_WORDS_BYTES, StreamBegin, StreamKind, read_record,
};
use crate::copies::send::{raise_clock, store_committed};
use crate::copies::{StreamBefore, StreamEnd};
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::layout::{MAGIC, StoreLayout, word};
use crate::limits::RING_COPY_BYTES_MIN;
use crate::log;
use crate::memory;
use crate::options::StoreOptions;
use crate::protocol::set;
use crate::store::Store;
use crate::structure::StructureChange;
use crate::view::StoreView;
use crate::words::StoreWords;

/// A copy of the memory of a store that another process owns, maybe on another host; and its ring, into which the owner writes all
/// that changes the store.
///
/// Memory and ring may outlive the process that keeps the copy; another one then opens the copy again, and it goes on where it
/// was. Nobody reads the memory before the copy has become a store.
///
/// ```
/// use std::time::Duration;
/// use caravan_store::{MappedRing, Store, StoreCopy, StoreOptions};
///
/// let options = StoreOptions::new(16 << 20);
/// let store = Store::embedded(options.clone())?;
/// store.put(b"colour", b"blue")?;
///
/// // The keeper of the copy.
/// let (memory, ring) = (Store::new_memory("copy")?, StoreCopy::new_ring("ring", 1 << 20)?);
/// let mut copy = StoreCopy::open(memory, ring.try_clone()?, options)?;
/// // The owner.
/// let id = store.add_copy(Box::new(MappedRing::open(ring, 1 << 20)?))?;
/// std::thread::scope(|scope| {
///     let owner = scope.spawn(|| {
///         store.fill_copies(Duration::ZERO)?;
///         store.put(b"shape", b"round")
///     });
///     while !owner.is_finished() {
///         copy.apply(1000)?;
///     }
///     owner.join().unwrap()
/// })?;
/// assert!(store.copies()[0].is_complete);
///
/// // The owner is gone; the copy has all that it has answered.
/// drop(store);
/// let store = copy.promote()?;
/// assert_eq!(store.get(b"colour")?.as_deref(), Some(&b"blue"[..]));
/// assert_eq!(store.get(b"shape")?.as_deref(), Some(&b"round"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StoreCopy {
    memory: OwnedFd,
    segment: Arc<Segment>,
    view: StoreView,
    ring: SharedSlice,
    options: StoreOptions,
    /// The stream that it follows; 0: none yet.
    identity: u64,
    position: u64,
    is_complete: bool,
    /// Memory to reuse.
    bytes: Vec<u8>,
    body: Vec<u64>,
    applied_records: u64,
    is_second_applied: bool,
    /// Keeps others from owning the memory.
    _ownership: OwnedFd,
}

impl StoreCopy {
    /// Makes the memory of a ring with `bytes` bytes: at least [`limits::RING_COPY_BYTES_MIN`](crate::limits::RING_COPY_BYTES_MIN). If it
    /// is full, commits wait until the copy has applied some of it.
    pub fn new_ring(name: &str, bytes: u64) -> Result<OwnedFd, StoreError> {
        if bytes < RING_COPY_BYTES_MIN || bytes % 8 != 0 {
            let text = format!(
                "the ring of a copy would have {bytes} bytes; it takes a multiple of 8 from {RING_COPY_BYTES_MIN} on"
            );
            return Err(StoreError::Options(text));
        }
        let segment = Segment::create(name, bytes, Pages::Small)?;
        segment.grow(bytes)?;
        let file = std::os::fd::AsFd::as_fd(&segment).try_clone_to_owned();
        file.map_err(|error| StoreError::system("dup", error))
    }

    /// Makes the memory of a ring for a memory that is a complete copy at `end` of a stream: that of an owner that has
    /// [left](Store::leave), or of [a copy](Self::end) whose owner is another one now.
    pub fn new_ring_at(name: &str, bytes: u64, end: StreamEnd) -> Result<OwnedFd, StoreError> {
        let ring = Self::new_ring(name, bytes)?;
        let words = shared_ring(ring.try_clone().map_err(|error| StoreError::system("dup", error))?)?;
        for (index, value) in [(1, end.position), (2, 1), (0, end.identity)] {
            copy_word(&words, index).store(value, Ordering::Release);
        }
        Ok(ring)
    }

    /// Opens a copy: a new one with an empty `memory` from [`Store::new_memory`] and a `ring` from [`new_ring`](Self::new_ring), or
    /// the one that is in both. The options are those of the owner, with the same `memory_bytes`; that number counts the
    /// ring, too.
    pub fn open(memory: OwnedFd, ring: OwnedFd, options: StoreOptions) -> Result<Self, StoreError> {
        options.check()?;
        let ring = shared_ring(ring)?;
        let load = |index: u64| copy_word(&ring, index).load(Ordering::Acquire);
        let (identity, position, is_complete) = (load(0), load(1), load(2) == 1);
        let ownership = memory::own(&memory)?;
        let layout = StoreLayout::of(options.memory_bytes);
        let keep = memory.try_clone().map_err(|error| StoreError::system("dup", error))?;
        let committed = memory::page_word(&memory, word::COMMITTED)?;
        if identity == 0 && memory::page_word(&memory, word::MAGIC)? != 0 {
            return Err(StoreError::NotAStore("the memory is a store, and its ring is empty"));
        }
        let committed = committed.clamp(layout.blocks_place, layout.region_bytes());
        let segment = Arc::new(Segment::adopt(memory, layout.region_bytes(), 0)?);
        segment.grow(committed)?;
        let view = StoreView::with_layout(StoreWords::of_owner(&segment)?, layout)?;
        Ok(Self {
            memory: keep,
            segment,
            view,
            ring,
            options,
            identity,
            position,
            is_complete,
            bytes: Vec::new(),
            body: Vec::new(),
            applied_records: 0,
            is_second_applied: false,
            _ownership: ownership,
        })
    }

    /// Returns the ring as a region, to be lent to the owner for writing ([`FabricRing`](crate::FabricRing)).
    pub fn ring_region(&self) -> Result<Region, StoreError> {
        Ok(Region::of_segment(self.ring.segment())?)
    }

    /// Returns the position of the stream up to which the copy has applied it.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Tells whether the copy has the whole memory, so that it can take over.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns up to where the memory has the whole stream; `None` before it is complete.
    pub fn end(&self) -> Option<StreamEnd> {
        self.is_complete.then_some(StreamEnd { identity: self.identity, position: self.position })
    }

    /// Returns the bytes that the copy takes.
    pub fn used_bytes(&self) -> u64 {
        self.segment.committed_bytes() + self.ring.bytes()
    }

    /// Applies at most `records` records that have arrived, and returns how many it has applied. Never waits: nothing tells a copy
    /// that a record has arrived, so its keeper calls this again and again, with pauses in which the ring does not fill up.
    ///
    /// An error says that the stream and the memory do not fit together, or that this host has no memory left. The copy is
    /// then of no use; its owner waits until it is removed.
    pub fn apply(&mut self, records: usize) -> Result<usize, StoreError> {
        for applied in 0..records {
            if !self.apply_next()? && !self.follow()? {
                return Ok(applied);
            }
        }
        Ok(records)
    }

    /// Applies everything that has arrived, and opens the memory as a store, as [`Store::take_over`] does. The caller has made
    /// sure that the owner before answers nobody any more, and that nobody else was or will be promoted. Other copies can
    /// [go on](Store::resume_copy) with it.
    pub fn promote(mut self) -> Result<Store, StoreError> {
        while self.apply(usize::MAX)? > 0 {}
        if !self.is_complete {
            return Err(StoreError::IncompleteCopy);
        }
        let Self { memory, options, segment, view, ring, identity, position, _ownership, .. } = self;
        // Whoever takes over after this owner cannot know how far copies have come, before one goes on with this owner.
        store_word(&view, word::STREAM, 0);
        drop((view, segment, _ownership));
        let store = Store::take_over(memory, options)?;
        let end = StreamEnd { identity, position };
        *store.core().stream_before() = Some(StreamBefore::Copy { end, ring });
        Ok(store)
    }

    /// Looks whether the owner has begun a new stream, and follows that: then the copy is a new one.
    fn follow(&mut self) -> Result<bool, StoreError> {
        let mut bytes = [0; OWNER_WORDS_BYTES];
        self.ring.copy_out(0, &mut bytes);
        // One that was removed from the same stream lacks what came until it was added again.
        let is_new = |begin: &StreamBegin| begin.identity != self.identity || begin.position > self.position;
        let Some(begin) = StreamBegin::from_bytes(&bytes).filter(is_new) else { return Ok(false) };
        // What came before the words did is there now, even if it was not a moment ago.
        fence(Ordering::Acquire);
        if self.apply_next()? {
            return Ok(true);
        }
        // Whoever has opened the copy after the first of the words below was said follows again: the stream before has never been
        // at this position.
        let is_at_end = [0, self.position].contains(&begin.continues_at)
            || begin.position == self.position
            || is_planted(PlantedFault::ForeignRecords);
        if self.is_complete && begin.continues == self.identity && is_at_end {
            (self.identity, self.position) = (begin.identity, begin.position);
            self.say(1, begin.position);
            self.say(0, begin.identity);
            return Ok(true);
        }
        (self.identity, self.position, self.is_complete) = (begin.identity, begin.position, false);
        // Whoever opens the copy in between finds an incomplete one, which follows again.
        self.say(2, 0);
        self.say(0, 0);
        store_word(&self.view, word::MAGIC, 0);
        self.say(1, begin.position);
        self.say(0, begin.identity);
        Ok(true)
    }

    fn say(&self, index: u64, value: u64) {
        copy_word(&self.ring, index).store(value, Ordering::Release);
    }

    fn apply_next(&mut self) -> Result<bool, StoreError> {
        if self.identity == 0 {
            return Ok(false);
        }
        if is_planted(PlantedFault::OutOfOrder) && self.applied_records % 16 == 15 {
            self.apply_second()?;
        }
        let (mut bytes, mut body) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.body));
        let record = read_record(&self.ring, self.identity, self.position, &mut bytes, &mut body);
        let applied = match record {
            None => Ok(false),
            Some(record) => self.apply_record(record).map(|()| true),
        };
        let record_bytes = record.map_or(0, |record| record.bytes());
        (self.bytes, self.body) = (bytes, body);
        if matches!(applied, Ok(true)) {
            self.position += record_bytes;
            self.applied_records += 1;
            self.say(1, self.position);
        }
        applied
    }

    /// Applies the record after the next one; for a planted fault.
    fn apply_second(&mut self) -> Result<(), StoreError> {
        let (mut bytes, mut body) = (Vec::new(), Vec::new());
        let first = read_record(&self.ring, self.identity, self.position, &mut bytes, &mut body);
        let Some(next) = first.map(|first| self.position + first.bytes()) else { return Ok(()) };
        let (mut bytes, mut body) = (Vec::new(), Vec::new());
        let second = read_record(&self.ring, self.identity, next, &mut bytes, &mut body);
        if let Some(second) = second.filter(|second| second.kind == StreamKind::Commit) {
            self.apply_change(second)?;
            self.is_second_applied = true;
        }
        Ok(())
    }

    fn apply_record(&mut self, record: ArrivedRecord<'_>) -> Result<(), StoreError> {
        let ArrivedRecord { kind, body } = record;
        let is_left_out = match self.applied_records % 16 {
            0 => {
                is_planted(PlantedFault::SkippedRecord) && self.is_complete
                    || std::mem::take(&mut self.is_second_applied)
            }
            _ => false,
        };
        if is_left_out {
            return Ok(());
        }
        match kind {
            StreamKind::Data => self.apply_data(body).ok_or_else(|| self.outside())?,
            StreamKind::Grow => {
                let (committed, class) = body.split_first().ok_or_else(|| self.outside())?;
                self.segment.grow(*committed)?;
                store_committed(&self.view, *committed);
                if let [place, class] = *class {
                    store_word(&self.view, place, class);
                }
            }
            StreamKind::Complete => {
                store_word(&self.view, word::MAGIC, MAGIC);
                self.is_complete = true;
                self.say(2, 1);
            }
            StreamKind::Commit | StreamKind::Structure => self.apply_change(record)?,
        }
        Ok(())
    }

    fn outside(&self) -> StoreError {
        StoreError::Damaged(format!("the record at {} of the stream leads outside", self.position))
    }

    /// Applies a commit or a change of the structure.
    fn apply_change(&self, record: ArrivedRecord<'_>) -> Result<(), StoreError> {
        let outside = || self.outside();
        let [time, data_words, rest @ ..] = record.body else { return Err(outside()) };
        let data_words = usize::try_from(*data_words).map_err(|_| outside())?;
        let (data, rest) = rest.split_at_checked(data_words).ok_or_else(outside)?;
        self.apply_data(data).ok_or_else(outside)?;
        let [first_piece, words, inside @ ..] = rest else { return Err(outside()) };
        let whole = log::gather(&self.view, inside, *words, *first_piece).ok_or_else(outside)?;
        raise_clock(&self.view, *time);
        if record.kind == StreamKind::Commit {
            log::store_units(&self.view, &whole).ok_or_else(outside)?;
        } else {
            self.make(&StructureChange::from_words(&whole).ok_or_else(outside)?);
        }
        Ok(())
    }

    fn make(&self, change: &StructureChange) {
        // It follows from the memory, which is not all here: it will be sent again.
        if self.is_complete || !matches!(change, StructureChange::DeleteKeys { .. }) {
            change.make(&self.view, |_| ());
        }
    }

    /// Stores runs of words.
    fn apply_data(&self, data: &[u64]) -> Option<()> {
        let mut rest = data;
        while let Some((head, after)) = rest.split_first() {
            let (place, count) = log::split_head(*head);
            let (words, after) = after.split_at_checked(count as usize)?;
            let cells = self.view.unit(place, count as usize)?;
            // The memory is a store only when it is complete.
            let skip = usize::from(place == word::MAGIC);
            cells.iter().zip(words).skip(skip).for_each(|(cell, word)| set(cell, *word));
            rest = after;
        }
        Some(())
    }
}

/// Maps a ring.
fn shared_ring(ring: OwnedFd) -> Result<SharedSlice, StoreError> {
    let status = rustix::fs::fstat(&ring).map_err(|error| StoreError::system("fstat", error))?;
    let ring = Arc::new(Segment::attach(ring, u64::try_from(status.st_size).unwrap_or(0))?);
    Ok(ring.slice(0, ring.maximum_bytes())?)
}

/// Returns a word of the copy in its ring.
fn copy_word(ring: &SharedSlice, index: u64) -> &AtomicU64 {
    ring.word((COPY_WORDS_PLACE + 8 * index) as usize)
}
