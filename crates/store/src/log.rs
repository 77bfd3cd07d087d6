//! The record of a commit: what it will store, complete in shared memory before it stores the first word of it.
//! If the owner dies in between, the next one reads the record and does it again.
//!
//! Each commit has a **lane** to itself, 4 KiB of the region, which keeps one record: that of the commit under
//! way. What does not fit lies in **pieces**, which are free places of objects that the commit reserves.
//!
//! | word of a lane | contents |
//! |---|---|
//! | 0 | the time of the commit if the record is complete and not done with, or 0 |
//! | 1 | XXH3-64 of word 0, word 2 and the body |
//! | 2 | number of the lane 32, words of the body 32 |
//! | 3 | place of the first piece, or 0 |
//! | 4 to 511 | the body; the rest of it is in the pieces |
//!
//! A piece begins with the place of the next one, and its number of words. The body is a list of units; the
//! words of each follow it, as runs of words that lie together:
//!
//! | words | contents |
//! |---|---|
//! | place of the unit 40, number of runs 24; version before; version after | for each unit |
//! | place of the run 40, number of words 24; the words | for each run |
//!
//! **Why doing it again is safe.** A unit that is still locked at the version before cannot have been written by
//! anybody else since. Any other version is a later one, and versions never come back: then the commit was done
//! with this unit. So a record may be done again any number of times, whatever came after it.
//!
//! **Why the checksum covers the lane and the time.** No other record ever has both, so what is left of an older
//! record cannot complete a newer one.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::blocks::Blocks;
use crate::bytes;
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::image::ObjectImage;
use crate::layout::{HEADER_BYTES, LANE_BYTES, version, word};
use crate::limits::{LANES, OBJECT_BYTES_MAX, RECORD_BUFFER_BYTES_MAX};
use crate::protocol::{UnitWords, unlock};
use crate::view::StoreView;

const LANE_WORDS: usize = LANE_BYTES as usize / 8;
/// The words of a lane before the body.
const LANE_HEAD_WORDS: usize = 4;
/// The words of a piece before its part of the body.
const PIECE_HEAD_WORDS: usize = 2;
/// The most words of the body in one piece.
const PIECE_WORDS_MAX: usize = OBJECT_BYTES_MAX / 8 - PIECE_HEAD_WORDS;
/// The bits of a number of runs or words beside a place.
const COUNT_BITS: u32 = 24;

/// A record while it is put together, in private memory: words 0 and 2 of the lane, then the body.
#[derive(Debug, Default)]
pub(crate) struct RecordBuffer {
    bytes: Vec<u8>,
    /// Where the last unit's number of runs is.
    unit_at: usize,
}

impl RecordBuffer {
    fn push(&mut self, word: u64) {
        self.bytes.extend_from_slice(&word.to_ne_bytes());
    }

    /// Begins the record of a commit.
    pub(crate) fn begin(&mut self, time: u64) {
        self.bytes.clear();
        self.push(time);
        self.push(0);
    }

    /// Adds a unit; its runs follow.
    pub(crate) fn unit(&mut self, place: u64, before: u64, after: u64) {
        self.unit_at = self.bytes.len();
        self.push(place << COUNT_BITS);
        self.push(before);
        self.push(after);
    }

    fn run_head(&mut self, place: u64, words: usize) {
        // The number of runs is in the lowest bits.
        let head = &mut self.bytes[self.unit_at..self.unit_at + 8];
        let mut count = [0; 8];
        count.copy_from_slice(head);
        head.copy_from_slice(&(u64::from_ne_bytes(count) + 1).to_ne_bytes());
        self.push(place << COUNT_BITS | words as u64);
    }

    /// Adds a run of words.
    pub(crate) fn words(&mut self, place: u64, words: &[u64]) {
        self.run_head(place, words.len());
        words.iter().for_each(|word| self.push(*word));
    }

    /// Adds the words of a stamped object at `place`, all but its version.
    pub(crate) fn image(&mut self, place: u64, image: &ObjectImage) {
        self.run_head(place + 8, image.words() - 1);
        image.append_to(&mut self.bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    fn body(&self) -> &[u8] {
        &self.bytes[16..]
    }

    /// Writes the record into a lane. `pieces` gets the places of the pieces, which the caller gives back after
    /// [`release`]. The caller stores what the record says only after this.
    pub(crate) fn write(
        &mut self,
        view: &StoreView,
        blocks: &Blocks,
        lane: usize,
        pieces: &mut Vec<u64>,
    ) -> Result<(), StoreError> {
        if is_planted(PlantedFault::NoRecord) {
            return Ok(());
        }
        let head = (lane as u64) << 32 | (self.body().len() / 8) as u64;
        self.bytes[8..16].copy_from_slice(&head.to_ne_bytes());
        let words = lane_words(view, lane)?;
        let (inside, rest) = self.body().split_at(self.body().len().min(LANE_BYTES as usize - 32));
        let first_piece = write_pieces(view, blocks, rest, pieces)?;
        words.store(1, checksum(&self.bytes));
        words.store(2, head);
        words.store(3, first_piece);
        bytes::copy_in(&words[LANE_HEAD_WORDS..], inside);
        // Only now is it a record. Who dies has stored all before a store, and nothing after it, in the order
        // that the compiler was told to keep.
        words.publish(u64::from_ne_bytes(self.bytes[..8].try_into().unwrap_or_default()));
        words.fence_release();
        Ok(())
    }

    /// Gives memory back after a long record.
    pub(crate) fn shrink(&mut self) {
        if self.bytes.capacity() > RECORD_BUFFER_BYTES_MAX {
            self.bytes = Vec::new();
        }
    }
}

/// Says that the record of a lane is done with.
pub(crate) fn release(view: &StoreView, lane: usize) {
    if let Ok(words) = lane_words(view, lane) {
        words.publish(0);
    }
}

fn lane_words(view: &StoreView, lane: usize) -> Result<&[AtomicU64], StoreError> {
    let place = view.layout.lanes_place + lane as u64 * LANE_BYTES;
    view.unit(place, LANE_WORDS).ok_or_else(|| StoreError::Damaged(format!("lane {lane} is not there")))
}

/// Writes `rest` into pieces, and returns the place of the first one.
fn write_pieces(
    view: &StoreView,
    blocks: &Blocks,
    rest: &[u8],
    pieces: &mut Vec<u64>,
) -> Result<u64, StoreError> {
    let mut next = 0;
    // The last one first, as each says where the next one is.
    for part in rest.chunks(8 * PIECE_WORDS_MAX).rev() {
        let words = PIECE_HEAD_WORDS + part.len() / 8;
        let address = blocks.reserve(view, 8 * words, None)?;
        pieces.push(address.place);
        let place = address.place + HEADER_BYTES as u64;
        let piece = view.unit(place, words).ok_or(StoreError::NoObject(address))?;
        // Pairs with the second acquire fence in `protocol::read`: who reads an object that was here sees that
        // it has been freed.
        fence(Ordering::Release);
        piece.store(0, next);
        piece.store(1, part.len() as u64 / 8);
        bytes::copy_in(&piece[PIECE_HEAD_WORDS..], part);
        next = place;
    }
    Ok(next)
}

/// A unit of a record that is read.
struct RecordedUnit<'v> {
    unit: &'v [AtomicU64],
    before: u64,
    after: u64,
    /// What belongs where.
    words: Vec<(&'v AtomicU64, u64)>,
}

impl RecordedUnit<'_> {
    /// Tells whether the commit is not done with this unit.
    fn is_pending(&self) -> bool {
        self.unit.load(0) == self.before | version::LOCKED || is_planted(PlantedFault::RedoAlways)
    }
}

/// Does what the records in the lanes say, as far as it was not done.
pub(crate) fn redo(view: &StoreView) -> Result<(), StoreError> {
    if is_planted(PlantedFault::NoRedo) {
        return Ok(());
    }
    for lane in 0..LANES {
        let Some(body) = read(view, lane)? else { continue };
        let units = parse(view, &body)
            .ok_or_else(|| StoreError::Damaged(format!("the record in lane {lane} leads outside")))?;
        // As in a commit, all that lies in other units comes before the first version.
        for unit in units.iter().filter(|unit| unit.is_pending()) {
            // The owner before locked the unit: pairs with the second acquire fence in `protocol::read`.
            unit.unit.fence_release();
            unit.words.iter().for_each(|(cell, value)| crate::protocol::set(cell, *value));
        }
        units.iter().filter(|unit| unit.is_pending()).for_each(|unit| unlock(unit.unit, unit.after));
        release(view, lane);
    }
    Ok(())
}

/// Returns the checksum of a record: word 0 and word 2 of the lane, and the body.
fn checksum(bytes: &[u8]) -> u64 {
    let covered = if is_planted(PlantedFault::RecordOfAnyTime) { &bytes[8..] } else { bytes };
    twox_hash::XxHash3_64::oneshot(covered)
}

/// Returns the body of the record in a lane, if there is one.
fn read(view: &StoreView, lane: usize) -> Result<Option<Vec<u64>>, StoreError> {
    let words = lane_words(view, lane)?;
    let time = words.load(0);
    words.fence_acquire();
    if time == 0 {
        return Ok(None);
    }
    let damaged = || StoreError::Damaged(format!("the record in lane {lane} is not what was written"));
    let head = words.load(2);
    let count = (head & u64::from(u32::MAX)) as usize;
    // More is not in the memory: a damaged number must not make this process ask for it.
    if count as u64 > view.load(word::COMMITTED) / 8 {
        return Err(damaged());
    }
    let inside = count.min(LANE_WORDS - LANE_HEAD_WORDS);
    let mut body: Vec<u64> =
        (LANE_HEAD_WORDS..LANE_HEAD_WORDS + inside).map(|index| words.load(index)).collect();
    let mut place = words.load(3);
    while body.len() < count {
        let piece_head = view.unit(place, PIECE_HEAD_WORDS).ok_or_else(damaged)?;
        let part = piece_head.load(1) as usize;
        if part == 0 || part > count - body.len() {
            return Err(damaged());
        }
        let piece = view.unit(place, PIECE_HEAD_WORDS + part).ok_or_else(damaged)?;
        body.extend((PIECE_HEAD_WORDS..PIECE_HEAD_WORDS + part).map(|index| piece.load(index)));
        place = piece.load(0);
    }
    let is_own = head >> 32 == lane as u64;
    let whole: Vec<u8> = [time, head].iter().chain(&body).flat_map(|word| word.to_ne_bytes()).collect();
    let is_right = is_own && words.load(1) == checksum(&whole);
    if is_right { Ok(Some(body)) } else { Err(damaged()) }
}

/// Returns the units of a body, or `None` if it leads outside the memory.
fn parse<'v>(view: &'v StoreView, body: &[u64]) -> Option<Vec<RecordedUnit<'v>>> {
    let mut rest = body.iter().copied();
    let split = |head: u64| (head >> COUNT_BITS, head & ((1 << COUNT_BITS) - 1));
    let mut units = Vec::new();
    while let Some(head) = rest.next() {
        let (place, runs) = split(head);
        let mut unit = RecordedUnit {
            unit: view.unit(place, 1)?,
            before: rest.next()?,
            after: rest.next()?,
            words: Vec::new(),
        };
        for _ in 0..runs {
            let (place, count) = split(rest.next()?);
            for cell in view.unit(place, count as usize)? {
                unit.words.push((cell, rest.next()?));
            }
        }
        units.push(unit);
    }
    Some(units)
}
