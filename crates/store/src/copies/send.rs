//! What an owner puts into its stream: commits, changes of the structure, new blocks, and its whole memory for new copies.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::blocks::store_word;
use crate::copies::format::{DATA_WORDS_MAX, StreamKind, StreamRecord};
use crate::copies::{CopyId, CopyStream, CopyWriter, StreamEnd};
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::image::ObjectImage;
use crate::layout::{BLOCK_BYTES, HEADER_WORDS, SHARD_BYTES, word};
use crate::limits::{FILL_STEP_RECORDS, INLINE_IMAGE_BYTES_MAX};
use crate::log::{self, RecordBuffer, RecordKind, RedoneRecord};
use crate::owner::StoreCore;
use crate::structure::StructureChange;
use crate::table::CHAIN_PAYLOAD;
use crate::view::StoreView;

impl StoreCore {
    /// Adds a copy, which begins with the next record.
    pub(crate) fn add_copy(&self, writer: Box<dyn CopyWriter>) -> Result<CopyId, StoreError> {
        // No lock of an owner before may get into the copy.
        self.restore(None)?;
        let _alone = self.gate.alone();
        let ring_bytes = writer.ring_bytes();
        self.blocks.while_no_block_comes(ring_bytes, || {
            let id = self.copies.join(writer, &self.view)?;
            let mut record = StreamRecord::new(StreamKind::Grow);
            record.push(self.view.load(word::COMMITTED));
            self.copies.append(&mut record);
            Ok(id)
        })
    }

    /// Goes on with a copy of the same memory, which follows the stream of the owner before.
    pub(crate) fn resume_copy(&self, writer: Box<dyn CopyWriter>) -> Result<CopyId, StoreError> {
        let _alone = self.gate.alone();
        let redone = self.redone.lock().unwrap_or_else(PoisonError::into_inner);
        // What does not fit in one record of the stream could arrive in part.
        let is_whole = |record: &RedoneRecord| {
            let is_deletion = matches!(record.change(), Some(StructureChange::DeleteKeys { .. }));
            record.is_in_lane() && !is_deletion
        };
        if !redone.iter().all(is_whole) {
            return Err(StoreError::OtherStream);
        }
        let before = self.stream_before();
        let before = before.as_ref().ok_or(StoreError::OtherStream)?;
        let ring_bytes = writer.ring_bytes();
        let (id, end) = self.blocks.while_no_block_comes(ring_bytes, || {
            let id = self.copies.resume(writer, before, &self.view)?;
            let mut record = StreamRecord::new(StreamKind::Grow);
            let committed = self.view.load(word::COMMITTED);
            record.push(committed);
            self.copies.append(&mut record);
            let layout = &self.view.layout;
            let blocks = (committed - layout.blocks_place) / BLOCK_BYTES;
            self.copies.send_memory(&self.view, layout.classes_place, blocks as usize)?;
            let mut end = self.copies.position();
            for record in redone.iter() {
                end = self.send_again(record)?;
            }
            Ok((id, end))
        })?;
        self.copies.wait(end)?;
        Ok(id)
    }

    /// Waits for commits under way, and ends the lease if all that has happened to the memory is in the stream, and the other way
    /// round.
    pub(crate) fn leave(&self) -> Option<StreamEnd> {
        self.restore(None).ok()?;
        let _alone = self.gate.alone();
        // A record that is left in a lane is of a commit that may not have been applied, and may have arrived.
        if !log::are_lanes_empty(&self.view) {
            return None;
        }
        self.blocks.while_no_block_comes(0, || Ok(self.copies.end_at_rest())).ok()?
    }

    /// Sends a record that the owner before may not have sent, and returns the position after it.
    fn send_again(&self, redone: &RedoneRecord) -> Result<u64, StoreError> {
        let kind = match redone.kind {
            RecordKind::Commit => StreamKind::Commit,
            RecordKind::Structure => StreamKind::Structure,
        };
        let mut memory: Vec<(u64, usize)> = Vec::new();
        if let Some(StructureChange::SwingShard(swing)) = redone.change() {
            memory.extend(swing.halves.map(|half| (half, SHARD_BYTES as usize / 8)));
            memory.extend(swing.new_chains.iter().map(|chain| (*chain, HEADER_WORDS + CHAIN_PAYLOAD / 8)));
        }
        if redone.kind == RecordKind::Commit {
            let objects = redone.new_objects(&self.view);
            memory.extend(
                objects.into_iter().map(|place| (place + 8, self.blocks.capacity(&self.view, place) / 8 - 1)),
            );
        }
        for (place, words) in memory {
            self.copies.send_memory(&self.view, place, words)?;
        }
        let mut record = StreamRecord::new(kind);
        [redone.time, 0, 0, redone.body.len() as u64].into_iter().for_each(|word| record.push(word));
        redone.body.iter().for_each(|word| record.push(*word));
        Ok(self.copies.append(&mut record))
    }

    /// Sends the whole memory to the copies that do not have it; pauses after each step.
    pub(crate) fn fill_copies(&self, pause: Duration) -> Result<(), StoreError> {
        self.restore(None)?;
        loop {
            let alone = (!is_planted(PlantedFault::FillBesideCommits)).then(|| self.gate.alone());
            let sent = self.blocks.while_no_block_comes(0, || Ok(self.copies.fill_step(&self.view)))?;
            drop(alone);
            let Some(position) = sent else { return Ok(()) };
            self.copies.wait(position)?;
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
    }

    /// Sends the record that a lane has. `pieces` are the places of its pieces; `new` are the objects to which nothing leads
    /// yet. An error means that this owner may neither do what the record says, nor take it back.
    pub(crate) fn send_record<'i>(
        &self,
        record: &mut RecordBuffer,
        pieces: &[u64],
        new: impl Iterator<Item = (u64, &'i ObjectImage)> + Clone,
    ) -> Result<(), StoreError> {
        for place in pieces {
            self.copies.send_piece(&self.view, *place)?;
        }
        let bytes: usize = new.clone().map(|(_, image)| image.object_bytes()).sum();
        let is_inline = bytes <= INLINE_IMAGE_BYTES_MAX;
        if !is_inline && !is_planted(PlantedFault::NoNewBytes) {
            for (place, image) in new.clone() {
                self.copies.send_memory(&self.view, place + 8, image.words() - 1)?;
            }
        }
        let kind = match record.kind {
            RecordKind::Commit => StreamKind::Commit,
            RecordKind::Structure => StreamKind::Structure,
        };
        let mut stream = std::mem::take(&mut record.stream);
        stream.begin(kind);
        stream.push(record.time());
        let count_at = stream.words();
        stream.push(0);
        if is_inline && !is_planted(PlantedFault::NoNewBytes) {
            new.for_each(|(place, image)| stream.image(place, image));
        }
        stream.set(count_at, (stream.words() - count_at - 1) as u64);
        stream.push(record.first_piece);
        stream.push(record.body_words());
        stream.push_bytes(record.body_in_lane());
        let sent = self.copies.send(&mut stream);
        record.stream = stream;
        sent
    }
}

impl CopyStream {
    /// Sends words of the memory to which nothing leads.
    pub(crate) fn send_memory(
        &self,
        view: &StoreView,
        mut place: u64,
        mut words: usize,
    ) -> Result<(), StoreError> {
        while words > 0 {
            let count = words.min(DATA_WORDS_MAX);
            let mut record = StreamRecord::new(StreamKind::Data);
            record.memory(view, place, count);
            self.append_slowly(&mut record)?;
            (place, words) = (place + 8 * count as u64, words - count);
        }
        Ok(())
    }

    /// Sends a piece of a long record, which lies in the free place of an object.
    fn send_piece(&self, view: &StoreView, place: u64) -> Result<(), StoreError> {
        let (piece, words) = crate::log::piece_of(view, place);
        self.send_memory(view, piece, words)
    }

    /// Says that another block is about to be in use. It is harmless if it never is. Does not wait.
    pub(crate) fn send_block(&self, committed_bytes: u64, class_place: u64, class_word: u64) {
        let mut record = StreamRecord::new(StreamKind::Grow);
        [committed_bytes, class_place, class_word].into_iter().for_each(|word| record.push(word));
        self.append(&mut record);
    }

    /// Begins to fill copies again, if any is being filled.
    pub(crate) fn fill_again(&self) {
        let mut state = self.state();
        if state.filled_to.is_some() {
            state.filled_to = Some(0);
        }
    }

    /// Sends the next words of the memory, and returns the position after them; `None` if no copy lacks them. The caller excludes
    /// all commits and new blocks.
    fn fill_step(&self, view: &StoreView) -> Option<u64> {
        let mut state = self.state();
        let mut place = state.filled_to?;
        let layout = &view.layout;
        let committed = view.load(word::COMMITTED);
        let mut position = state.position;
        for _ in 0..FILL_STEP_RECORDS {
            // No record of this owner's lanes is one of the copy's.
            if (layout.lanes_place..layout.blocks_place).contains(&place) {
                place = layout.blocks_place;
            }
            let end = if place < layout.lanes_place { layout.lanes_place } else { committed };
            if place >= end {
                state.filled_to = None;
                position = self.append_to(&mut state, &mut StreamRecord::new(StreamKind::Complete));
                state.copies.iter_mut().for_each(|copy| copy.complete_at = Some(position));
                return Some(position);
            }
            let words = ((end - place) / 8).min(DATA_WORDS_MAX as u64);
            let mut record = StreamRecord::new(StreamKind::Data);
            record.memory(view, place, words as usize);
            position = self.append_to(&mut state, &mut record);
            place += 8 * words;
            state.filled_to = Some(place);
        }
        Some(position)
    }
}

/// Raises the clock of a memory to `time`.
pub(crate) fn raise_clock(view: &StoreView, time: u64) {
    if let Some([clock]) = view.unit(word::TIME, 1) {
        clock.fetch_max(time, Ordering::AcqRel);
    }
}

/// Says that a memory has so many bytes in use.
pub(crate) fn store_committed(view: &StoreView, bytes: u64) {
    view.words.set_committed(bytes);
    if view.load(word::COMMITTED) < bytes {
        store_word(view, word::COMMITTED, bytes);
    }
}
