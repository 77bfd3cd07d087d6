//! How copies of a memory join the stream of its owner, go on with another owner, are mended and leave, and where a stream ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use caravan_segment::SharedSlice;

use super::{CopyCounts, CopyId, CopyLink, CopyStream, CopyWriter, KnownCopy};
use crate::blocks::store_word;
use crate::copies::format::{
    COPY_WORDS_BYTES, COPY_WORDS_PLACE, CopyWords, StreamBegin, capacity, parts, record_bytes,
};
use crate::error::StoreError;
use crate::layout::word;
use crate::limits::{COPIES_MAX, COPY_RESUME_WAIT, COPY_ROOM_PAUSE_MIN, COPY_SILENCE, RING_COPY_BYTES_MIN};
use crate::view::StoreView;

/// Where a stream has ended: the whole of it up to here is in a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEnd {
    pub(crate) identity: u64,
    pub(crate) position: u64,
}

impl StreamEnd {
    /// That of a memory of which nobody knows how much of any stream it has: no other copy goes on with it.
    pub const UNKNOWN: Self = Self { identity: u64::MAX, position: 0 };
}

/// The stream before this owner's, which copies of its memory follow.
#[derive(Debug)]
pub(crate) enum StreamBefore {
    /// This owner has all that was ever sent: it is of the memory of the owner before.
    OwnMemory { identity: u64 },
    /// This owner was a copy, and this is its ring.
    Copy { end: StreamEnd, ring: SharedSlice },
}

impl StreamBefore {
    fn identity(&self) -> u64 {
        match self {
            Self::OwnMemory { identity } => *identity,
            Self::Copy { end, .. } => end.identity,
        }
    }
}

impl CopyStream {
    /// Adds a copy that begins with the next record. The caller excludes all commits and all new blocks, and appends what
    /// the copy needs first.
    pub(super) fn join(&self, writer: Box<dyn CopyWriter>, view: &StoreView) -> Result<CopyId, StoreError> {
        let mut state = self.state();
        if state.copies.len() == COPIES_MAX {
            return Err(StoreError::TooManyCopies);
        }
        state.identify()?;
        let id = CopyId(state.next_id);
        let is_removed = Arc::new(AtomicBool::new(false));
        let position = state.position;
        let mut link = CopyLink {
            id,
            capacity: checked_capacity(&*writer)?,
            writer,
            identity: state.identity,
            arrived: position,
            applied: position,
            is_removed: Arc::clone(&is_removed),
        };
        let begin = StreamBegin { identity: state.identity, position, continues: 0, continues_at: 0 };
        store_word(view, word::STREAM, state.identity);
        link.writer.write(0, &begin.to_bytes())?;
        let counts = CopyCounts { id, arrived: position, behind_bytes: 0, is_complete: false, broken: None };
        state.next_id += 1;
        state.copies.push(KnownCopy { counts, link: Some(link), is_removed, begin, complete_at: None });
        state.filled_to = Some(0);
        self.is_active.store(true, Ordering::Relaxed);
        Ok(id)
    }

    /// Goes on with a copy that follows the stream `before`, whose owner has ended. The caller excludes all commits and all new
    /// blocks, and then sends what that owner may not have sent.
    pub(super) fn resume(
        &self,
        mut writer: Box<dyn CopyWriter>,
        before: &StreamBefore,
        view: &StoreView,
    ) -> Result<CopyId, StoreError> {
        let capacity = checked_capacity(&*writer)?;
        let continues = before.identity();
        let is_ready = |words: &CopyWords| words.identity == continues && words.is_complete;
        let mut words = words_when(&mut *writer, continues, is_ready)?;
        let mut continues_at = 0;
        if let StreamBefore::Copy { end, ring } = before {
            let lacks = end.position.checked_sub(words.applied).ok_or(StoreError::OtherStream)?;
            let bytes =
                (lacks <= capacity).then(|| record_bytes(ring, continues, words.applied, end.position));
            let bytes = bytes.flatten().ok_or(StoreError::OtherStream)?;
            let mut rest = &bytes[..];
            for (place, count) in parts(capacity, words.applied, lacks) {
                let (part, after) = rest.split_at(count as usize);
                if !part.is_empty() {
                    writer.write(place, part)?;
                }
                rest = after;
            }
            (words.applied, continues_at) = (end.position, end.position);
        }
        let mut state = self.state();
        if state.copies.len() == COPIES_MAX {
            return Err(StoreError::TooManyCopies);
        }
        state.identify()?;
        // Beyond all that the owner before can have written.
        let least = words.applied.saturating_add(2 * capacity).next_multiple_of(8);
        if state.copies.is_empty() {
            state.position = state.position.max(least);
            state.pending_from = state.position;
        }
        let (identity, position) = (state.identity, state.position);
        if position < words.applied.saturating_add(capacity) {
            return Err(StoreError::OtherStream);
        }
        let id = CopyId(state.next_id);
        let is_removed = Arc::new(AtomicBool::new(false));
        // A later owner of this memory goes on with this stream, or with the one before.
        let begin = StreamBegin { identity, position, continues, continues_at };
        writer.write(0, &begin.to_bytes())?;
        if !writer.has_arrived(COPY_SILENCE)? {
            return Err(StoreError::CopySilent { wait: COPY_SILENCE });
        }
        // What comes now may lie in the ring where the last records of the stream before do.
        let words = words_when(&mut *writer, continues, |words| words.identity == identity)?;
        if !words.is_complete {
            return Err(StoreError::OtherStream);
        }
        store_word(view, word::STREAM, identity);
        let (arrived, applied) = (position, position);
        let link = CopyLink {
            id,
            writer,
            capacity,
            identity,
            arrived,
            applied,
            is_removed: Arc::clone(&is_removed),
        };
        let counts = CopyCounts { id, arrived, behind_bytes: 0, is_complete: true, broken: None };
        state.next_id += 1;
        let complete_at = Some(position);
        state.copies.push(KnownCopy { counts, link: Some(link), is_removed, begin, complete_at });
        self.is_active.store(true, Ordering::Relaxed);
        Ok(id)
    }

    /// Goes on with a copy by another writer, at the position up to which everything has arrived.
    pub(crate) fn mend(&self, id: CopyId, writer: Box<dyn CopyWriter>) -> Result<(), StoreError> {
        let mut state = self.wait_for_writers(self.state());
        let identity = state.identity;
        let copy = state.copies.iter_mut().find(|copy| copy.counts.id == id);
        let copy = copy.ok_or(StoreError::NoCopy)?;
        let arrived = copy.counts.arrived;
        let mut link = CopyLink {
            id,
            capacity: checked_capacity(&*writer)?,
            writer,
            identity,
            arrived,
            applied: 0,
            is_removed: Arc::clone(&copy.is_removed),
        };
        // Nobody has waited for it to arrive, so it may be lost with the way before.
        link.writer.write(0, &copy.begin.to_bytes())?;
        link.ask()?;
        copy.link = Some(link);
        copy.counts.broken = None;
        self.moved.notify_all();
        Ok(())
    }

    /// Forgets a copy. Commits do not wait for it any more.
    pub(crate) fn remove(&self, id: CopyId) -> Result<(), StoreError> {
        let mut state = self.state();
        let copy = state.copies.iter().find(|copy| copy.counts.id == id).ok_or(StoreError::NoCopy)?;
        // Whoever waits for it stops.
        copy.is_removed.store(true, Ordering::Release);
        state = self.wait_for_writers(state);
        state.copies.retain(|copy| copy.counts.id != id);
        if state.copies.iter().all(|copy| copy.counts.is_complete) {
            state.filled_to = None;
        }
        self.moved.notify_all();
        Ok(())
    }

    /// Waits until the whole stream has arrived at all copies, ends the lease, and returns where the stream is. The caller excludes all
    /// commits and new blocks.
    pub(crate) fn end_at_rest(&self) -> Option<StreamEnd> {
        self.wait(self.position()).ok()?;
        let state = self.wait_for_writers(self.state());
        let has_arrived = |copy: &KnownCopy| copy.counts.arrived == state.position;
        if self.lease.has_ended() || !state.copies.iter().all(has_arrived) {
            return None;
        }
        let end = StreamEnd { identity: state.identity, position: state.position };
        drop(state);
        self.end_lease();
        (end.identity != 0).then_some(end)
    }
}

/// Returns a random number that is not 0.
pub(crate) fn random_identity() -> Result<u64, StoreError> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| StoreError::system("getrandom", error))?;
    Ok(u64::from_ne_bytes(bytes) | 1)
}

/// Waits until what a copy says that follows the stream `before` is as it should be.
fn words_when(
    writer: &mut dyn CopyWriter,
    before: u64,
    is_right: impl Fn(&CopyWords) -> bool,
) -> Result<CopyWords, StoreError> {
    let begin = Instant::now();
    loop {
        let mut bytes = [0; COPY_WORDS_BYTES];
        writer.read(COPY_WORDS_PLACE, &mut bytes)?;
        let words = CopyWords::from_bytes(&bytes);
        if is_right(&words) {
            return Ok(words);
        }
        if words.identity != before || begin.elapsed() > COPY_RESUME_WAIT {
            return Err(StoreError::OtherStream);
        }
        std::thread::sleep(COPY_ROOM_PAUSE_MIN);
    }
}

/// Returns how many bytes of records fit in the ring of a writer.
fn checked_capacity(writer: &dyn CopyWriter) -> Result<u64, StoreError> {
    let bytes = writer.ring_bytes();
    if bytes < RING_COPY_BYTES_MIN {
        let text = format!("the ring of a copy has {bytes} bytes; it takes at least {RING_COPY_BYTES_MIN}");
        return Err(StoreError::Options(text));
    }
    Ok(capacity(bytes))
}
