//! The record of a commit, or of a change of the structure: what it will store, complete in shared memory before it stores
//! the first word of it. If the owner dies in between, the next one reads the record and does it again.
//!
//! Each commit has a **lane** to itself, 4 KiB of the region, which keeps one record: that of the commit under
//! way. What does not fit lies in **pieces**, which are free places of objects that the commit reserves.
//!
//! | word of a lane | contents |
//! |---|---|
//! | 0 | the time of the commit if the record is complete and not done with, or 0 |
//! | 1 | XXH3-64 of word 0, word 2 and the body |
//! | 2 | kind 16, number of the lane 16, words of the body 32 |
//! | 3 | place of the first piece, or 0 |
//! | 4 to 511 | the body; the rest of it is in the pieces |
//!
//! A piece begins with the place of the next one, and its number of words. The body of a [change of the
//! structure](crate::structure) is its words. The body of a commit is a list of units; the words of each follow it, as
//! runs of words that lie together:
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
use crate::copies::format::StreamRecord;
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::image::ObjectImage;
use crate::layout::{HEADER_BYTES, LANE_BYTES, version, word};
use crate::limits::{LANES, OBJECT_BYTES_MAX, RECORD_BUFFER_BYTES_MAX};
use crate::protocol::{UnitWords, set, unlock};
use crate::structure::StructureChange;
use crate::view::StoreView;

const LANE_WORDS: usize = LANE_BYTES as usize / 8;
/// The words of a lane before the body.
const LANE_HEAD_WORDS: usize = 4;
/// The words of a piece before its part of the body.
const PIECE_HEAD_WORDS: usize = 2;
/// The most words of the body in one piece.
const PIECE_WORDS_MAX: usize = OBJECT_BYTES_MAX / 8 - PIECE_HEAD_WORDS;
/// The bits of a number of runs or words beside a place.
pub(crate) const COUNT_BITS: u32 = 24;

/// What a record is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RecordKind {
    #[default]
    Commit,
    Structure,
}

/// A record while it is put together, in private memory: words 0 and 2 of the lane, then the body.
#[derive(Debug, Default)]
pub(crate) struct RecordBuffer {
    bytes: Vec<u8>,
    pub(crate) kind: RecordKind,
    /// Where the rest of the body is that does not fit in the lane, once that is written; or 0.
    pub(crate) first_piece: u64,
    /// The same for copies.
    pub(crate) stream: StreamRecord,
    /// Where the last unit's number of runs is.
    unit_at: usize,
}

impl RecordBuffer {
    fn push(&mut self, word: u64) {
        self.bytes.extend_from_slice(&word.to_ne_bytes());
    }

    /// Begins the record of a commit.
    pub(crate) fn begin(&mut self, time: u64) {
        self.begin_kind(RecordKind::Commit, time);
    }

    fn begin_kind(&mut self, kind: RecordKind, time: u64) {
        self.kind = kind;
        self.bytes.clear();
        self.push(time);
        self.push(0);
    }

    /// Puts the record of a change of the structure together.
    pub(crate) fn structure(&mut self, time: u64, change: &StructureChange) {
        self.begin_kind(RecordKind::Structure, time);
        change.to_words().into_iter().for_each(|word| self.push(word));
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

    /// Returns the part of the body that lies in the lane.
    pub(crate) fn body_in_lane(&self) -> &[u8] {
        &self.body()[..self.body().len().min(LANE_BYTES as usize - 8 * LANE_HEAD_WORDS)]
    }

    /// Returns the number of words of the body.
    pub(crate) fn body_words(&self) -> u64 {
        self.body().len() as u64 / 8
    }

    /// Returns the time of the commit.
    pub(crate) fn time(&self) -> u64 {
        self.bytes.first_chunk().map_or(0, |time| u64::from_ne_bytes(*time))
    }

    /// Writes the record into a lane. `pieces` gets the places of the pieces, which the caller gives back after
    /// [`release`]. The caller stores what the record says only after this.
    #[inline(always)]
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
        let head = (self.kind as u64) << 48 | (lane as u64) << 32 | (self.body().len() / 8) as u64;
        self.bytes[8..16].copy_from_slice(&head.to_ne_bytes());
        let words = lane_words(view, lane)?;
        let (inside, rest) = self.body().split_at(self.body_in_lane().len());
        let first_piece = write_pieces(view, blocks, rest, pieces)?;
        words.store(1, checksum(&self.bytes));
        words.store(2, head);
        words.store(3, first_piece);
        bytes::copy_in(&words[LANE_HEAD_WORDS..], inside);
        // Only now is it a record. Who dies has stored all before a store, and nothing after it, in the order
        // that the compiler was told to keep.
        words.publish(self.time());
        words.fence_release();
        self.first_piece = first_piece;
        Ok(())
    }

    /// Gives memory back after a long record.
    pub(crate) fn shrink(&mut self) {
        if self.bytes.capacity() > RECORD_BUFFER_BYTES_MAX {
            self.bytes = Vec::new();
            self.stream = StreamRecord::default();
        }
    }
}

/// Says that the record of a lane is done with.
pub(crate) fn release(view: &StoreView, lane: usize) {
    if let Ok(words) = lane_words(view, lane) {
        words.publish(0);
    }
}

/// Tells whether no lane has a record.
pub(crate) fn are_lanes_empty(view: &StoreView) -> bool {
    (0..LANES).all(|lane| lane_words(view, lane).is_ok_and(|words| words.load(0) == 0))
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

/// A record that was found in a lane, and done.
#[derive(Debug)]
pub(crate) struct RedoneRecord {
    pub(crate) kind: RecordKind,
    pub(crate) time: u64,
    pub(crate) body: Vec<u64>,
}

impl RedoneRecord {
    /// Tells whether all of the record was in its lane.
    pub(crate) fn is_in_lane(&self) -> bool {
        self.body.len() <= LANE_WORDS - LANE_HEAD_WORDS
    }

    /// Returns the change of the structure, if the record is of one.
    pub(crate) fn change(&self) -> Option<StructureChange> {
        StructureChange::from_words(&self.body).filter(|_| self.kind == RecordKind::Structure)
    }

    /// Returns the places of the units that became objects.
    pub(crate) fn new_objects(&self, view: &StoreView) -> Vec<u64> {
        let units = parse(view, &self.body).unwrap_or_default();
        let is_new = |unit: &&RecordedUnit<'_>| {
            !version::is_allocated(unit.before) && version::is_allocated(unit.after)
        };
        units.iter().filter(is_new).map(|unit| view.words.place_of(&unit.unit[0])).collect()
    }
}

/// Does what the records in the lanes say, as far as it was not done, and returns those of which nothing was done: the owner before
/// may not have sent them to its copies.
pub(crate) fn redo(view: &StoreView) -> Result<Vec<RedoneRecord>, StoreError> {
    let mut redone = Vec::new();
    if is_planted(PlantedFault::NoRedo) {
        return Ok(redone);
    }
    for lane in 0..LANES {
        let time = lane_words(view, lane)?.load(0);
        let Some((kind, body)) = read(view, lane)? else { continue };
        let outside = || StoreError::Damaged(format!("the record in lane {lane} leads outside"));
        if kind == RecordKind::Structure {
            StructureChange::from_words(&body).ok_or_else(outside)?.make(view, |_| ());
            release(view, lane);
            redone.push(RedoneRecord { kind, time, body });
            continue;
        }
        let units = parse(view, &body).ok_or_else(outside)?;
        // Nobody applies what has not arrived everywhere; and what others have written since must not be sent again.
        let is_begun = !units.iter().all(RecordedUnit::is_pending);
        // As in a commit, all that lies in other units comes before the first version.
        for unit in units.iter().filter(|unit| unit.is_pending()) {
            // The owner before locked the unit: pairs with the second acquire fence in `protocol::read`.
            unit.unit.fence_release();
            unit.words.iter().for_each(|(cell, value)| set(cell, *value));
        }
        units.iter().filter(|unit| unit.is_pending()).for_each(|unit| unlock(unit.unit, unit.after));
        drop(units);
        release(view, lane);
        if !is_begun {
            redone.push(RedoneRecord { kind, time, body });
        }
    }
    Ok(redone)
}

/// Returns the checksum of a record: word 0 and word 2 of the lane, and the body.
fn checksum(bytes: &[u8]) -> u64 {
    let covered = if is_planted(PlantedFault::RecordOfAnyTime) { &bytes[8..] } else { bytes };
    twox_hash::XxHash3_64::oneshot(covered)
}

/// Returns the body of the record in a lane, if there is one.
fn read(view: &StoreView, lane: usize) -> Result<Option<(RecordKind, Vec<u64>)>, StoreError> {
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
    let inside: Vec<u64> =
        (LANE_HEAD_WORDS..LANE_HEAD_WORDS + inside).map(|index| words.load(index)).collect();
    let body = gather(view, &inside, count as u64, words.load(3)).ok_or_else(damaged)?;
    let is_own = head >> 32 & 0xffff == lane as u64;
    let kind = if head >> 48 == 0 { RecordKind::Commit } else { RecordKind::Structure };
    let whole: Vec<u8> = [time, head].iter().chain(&body).flat_map(|word| word.to_ne_bytes()).collect();
    let is_right = is_own && words.load(1) == checksum(&whole);
    if is_right { Ok(Some((kind, body))) } else { Err(damaged()) }
}

/// Returns the `count` words of a body, of which `inside` are the first; the rest is in pieces from `place` on. `None` if it is
/// not.
pub(crate) fn gather(view: &StoreView, inside: &[u64], count: u64, mut place: u64) -> Option<Vec<u64>> {
    let mut body = inside.to_vec();
    let count = usize::try_from(count).ok()?;
    while body.len() < count {
        let part = view.unit(place, PIECE_HEAD_WORDS)?.load(1) as usize;
        if part == 0 || part > count - body.len() {
            return None;
        }
        let piece = view.unit(place, PIECE_HEAD_WORDS + part)?;
        body.extend((PIECE_HEAD_WORDS..PIECE_HEAD_WORDS + part).map(|index| piece.load(index)));
        place = piece.load(0);
    }
    (body.len() == count).then_some(body)
}

/// Returns where the piece is that lies in the free place of an object, and its number of words.
pub(crate) fn piece_of(view: &StoreView, place: u64) -> (u64, usize) {
    let piece = place + HEADER_BYTES as u64;
    let words =
        view.unit(piece, PIECE_HEAD_WORDS).map_or(0, |piece| PIECE_HEAD_WORDS + piece.load(1) as usize);
    (piece, words)
}

/// Splits the word before a run, or before a unit: place and number.
pub(crate) fn split_head(head: u64) -> (u64, u64) {
    (head >> COUNT_BITS, head & ((1 << COUNT_BITS) - 1))
}

/// Stores what a commit has stored, whatever is there. Nobody else reads or writes the memory.
pub(crate) fn store_units(view: &StoreView, body: &[u64]) -> Option<()> {
    let units = parse(view, body)?;
    units.iter().flat_map(|unit| &unit.words).for_each(|(cell, value)| set(cell, *value));
    units.iter().for_each(|unit| unit.unit.store(0, unit.after));
    Some(())
}

/// Returns the units of a body, or `None` if it leads outside the memory.
fn parse<'v>(view: &'v StoreView, body: &[u64]) -> Option<Vec<RecordedUnit<'v>>> {
    let mut rest = body.iter().copied();
    let mut units = Vec::new();
    while let Some(head) = rest.next() {
        let (place, runs) = split_head(head);
        let mut unit = RecordedUnit {
            unit: view.unit(place, 1)?,
            before: rest.next()?,
            after: rest.next()?,
            words: Vec::new(),
        };
        for _ in 0..runs {
            let (place, count) = split_head(rest.next()?);
            for cell in view.unit(place, count as usize)? {
                unit.words.push((cell, rest.next()?));
            }
        }
        units.push(unit);
    }
    Some(units)
}
