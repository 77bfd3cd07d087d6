//! The owner's allocator: which places are in use. It lives in private memory of the owner; readers see only
//! the class of each block.
//!
//! Invariants: a place that is in use lies in a block of objects, at a multiple of its class's size;
//! `used_count` of a block is the number of bits set in `used`; a block is in `partial` of its class if it
//! has a free place, and maybe if it has none; a block changes its class only when nothing in it is in use.
//! A block that is not restored yet after the end of another owner counts as full, and nothing is reserved in it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use caravan_fabric::Region;
use caravan_segment::{HostMemory, JOINED_PAGE_BYTES, Segment};

use crate::copies::CopyStream;
use crate::entry::{ClassCounts, MemoryCounts, ObjectAddress};
use crate::error::StoreError;
use crate::host_room::HostRoom;
use crate::layout::{BLOCK_BYTES, BlockClass, BlockWord, CLASS_BYTES, CLASSES, SHARD_BYTES};
use crate::layout::{HEADER_BYTES, ObjectShape, class_for, version, word};
use crate::protocol::UnitWords;
use crate::structure::StructureChange;
use crate::view::StoreView;

/// The memory of a store and what is in use of it.
#[derive(Debug)]
pub(crate) struct Blocks {
    segment: Arc<Segment>,
    memory_bytes: u64,
    copies: Arc<CopyStream>,
    state: Mutex<BlocksState>,
}

#[derive(Debug)]
struct BlocksState {
    blocks: Vec<MemoryBlock>,
    /// For each class, the blocks that may have a free place.
    partial: Vec<Vec<u32>>,
    free_shards: Vec<u64>,
    /// The bytes of private memory that the fields above take, and what else the store takes privately.
    private_bytes: u64,
    /// The bytes of the largest ring of a copy, which has as much memory as this store.
    ring_bytes: u64,
    host_room: HostRoom,
}

#[derive(Debug)]
struct MemoryBlock {
    class: BlockClass,
    slots: u32,
    used_count: u32,
    is_partial: bool,
    is_restored: bool,
    /// Where the search for a free place goes on.
    hint: u32,
    used: Vec<u64>,
}

impl MemoryBlock {
    fn new(class: BlockClass) -> Self {
        let slots = match class {
            BlockClass::Shards => 0,
            BlockClass::Objects(class) => BLOCK_BYTES as u32 / CLASS_BYTES[usize::from(class)],
        };
        let used = vec![0; slots.div_ceil(64) as usize];
        Self { class, slots, used_count: 0, is_partial: false, is_restored: true, hint: 0, used }
    }

    /// Returns a block of another owner, of which nobody has looked yet what is in use.
    fn unrestored(class: BlockClass) -> Self {
        let mut block = Self::new(class);
        block.used.fill(u64::MAX);
        Self { used_count: block.slots, is_restored: false, ..block }
    }

    fn is_used(&self, slot: u32) -> bool {
        self.used.get(slot as usize / 64).is_some_and(|bits| bits >> (slot % 64) & 1 != 0)
    }

    fn take(&mut self) -> Option<u32> {
        if self.used_count == self.slots {
            return None;
        }
        let words = self.used.len() as u32;
        for step in 0..words {
            let index = (self.hint + step) % words;
            let bits = self.used[index as usize];
            let slot = 64 * index + (!bits).trailing_zeros();
            if bits != u64::MAX && slot < self.slots {
                self.used[index as usize] |= 1 << (slot % 64);
                (self.used_count, self.hint) = (self.used_count + 1, index);
                return Some(slot);
            }
        }
        None
    }

    /// Takes `count` neighbouring slots.
    fn take_run(&mut self, count: u32) -> Option<u32> {
        let mut free = 0;
        for slot in 0..self.slots {
            free = if self.is_used(slot) { 0 } else { free + 1 };
            if free == count {
                let first = slot + 1 - count;
                (first..=slot).for_each(|slot| self.used[slot as usize / 64] |= 1 << (slot % 64));
                self.used_count += count;
                return Some(first);
            }
        }
        None
    }

    fn put_back(&mut self, slot: u32) {
        debug_assert!(self.is_used(slot));
        self.used[slot as usize / 64] &= !(1 << (slot % 64));
        (self.used_count, self.hint) = (self.used_count - 1, slot / 64);
    }

    fn private_bytes(&self) -> u64 {
        (size_of::<Self>() + 8 * self.used.len() + 4) as u64
    }
}

impl Blocks {
    /// Returns the allocator of a memory, which knows of no block yet.
    pub(crate) fn new(
        segment: Arc<Segment>,
        memory_bytes: u64,
        private_bytes: u64,
        copies: Arc<CopyStream>,
    ) -> Self {
        let state = BlocksState {
            blocks: Vec::new(),
            partial: vec![Vec::new(); CLASSES],
            free_shards: Vec::new(),
            private_bytes,
            ring_bytes: 0,
            host_room: HostRoom::default(),
        };
        Self { segment, memory_bytes, copies, state: Mutex::new(state) }
    }

    /// Returns a descriptor of the memory without the right to write.
    pub(crate) fn reader_descriptor(&self) -> Result<OwnedFd, StoreError> {
        Ok(self.segment.read_only_descriptor()?)
    }

    /// Returns the memory from `from` on that the store has by now.
    pub(crate) fn extent_from(&self, from: u64) -> Result<Option<Region>, StoreError> {
        let bytes = self.segment.committed_bytes().saturating_sub(from);
        if bytes == 0 {
            return Ok(None);
        }
        Ok(Some(Region::of_memory(self.segment.slice(from, bytes)?)))
    }

    fn state(&self) -> MutexGuard<'_, BlocksState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes in use: blocks, the words before them, and private memory.
    pub(crate) fn used_bytes(&self) -> u64 {
        let state = self.state();
        self.segment.committed_bytes() + state.private_bytes + state.ring_bytes
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Reserves a place for an object with `payload` bytes, in the block of `near` if its class suits and it
    /// has room. Returns the place with the incarnation that the object there will have.
    pub(crate) fn reserve(
        &self,
        view: &StoreView,
        payload: usize,
        near: Option<ObjectAddress>,
    ) -> Result<ObjectAddress, StoreError> {
        let bytes = HEADER_BYTES + payload;
        let class = class_for(bytes).ok_or(StoreError::ObjectTooLong { bytes: payload })?;
        let mut state = self.state();
        let near = near.and_then(|near| view.layout.block_of(near.place));
        if let Some(place) = near.and_then(|(block, _)| state.take_in(view, block as u32, class)) {
            return Ok(address(view, place));
        }
        if let Some(place) = state.take(view, usize::from(class)) {
            return Ok(address(view, place));
        }
        if let Some(block) = self.new_block(&mut state, view, BlockClass::Objects(class))? {
            state.offer(block);
        } else if state.empty_block(view, class).is_some() {
            // `StoreCore::make_room` gives it this class.
            return Err(self.full_with(&state, bytes as u64));
        }
        // Where there is no block left, an object may lie in a larger class's.
        let place = (usize::from(class)..CLASSES).find_map(|class| state.take(view, class));
        place.map(|place| address(view, place)).ok_or_else(|| self.full_with(&state, bytes as u64))
    }

    /// Reserves neighbouring places for `count` objects with `payload` bytes each, all with one incarnation, and
    /// returns the address of the first.
    pub(crate) fn reserve_run(
        &self,
        view: &StoreView,
        payload: usize,
        count: u32,
    ) -> Result<ObjectAddress, StoreError> {
        let bytes = HEADER_BYTES + payload;
        let class = class_for(bytes).ok_or(StoreError::ObjectTooLong { bytes: payload })?;
        let stride = u64::from(CLASS_BYTES[usize::from(class)]);
        let mut state = self.state();
        let mut run = state.take_run(class, count);
        if run.is_none() {
            if let Some(block) = self.new_block(&mut state, view, BlockClass::Objects(class))? {
                state.offer(block);
                run = state.take_run(class, count);
            }
        }
        let (block, slot) = run.ok_or_else(|| self.full_with(&state, bytes as u64))?;
        let first = view.layout.block_place(block.into()) + u64::from(slot) * stride;
        let places = (0..u64::from(count)).map(|step| first + step * stride);
        let shapes = places.clone().map(|place| ObjectShape::from_word(view.load(place + 8)));
        let incarnation = shapes.map(|shape| shape.incarnation).max().unwrap_or(0);
        let shape = ObjectShape { incarnation, ..ObjectShape::default() }.to_word();
        places.for_each(|place| store_word(view, place + 8, shape));
        Ok(ObjectAddress { place: first, incarnation })
    }

    /// Returns the error that there is no room.
    pub(crate) fn full(&self, needed_bytes: u64) -> StoreError {
        self.full_with(&self.state(), needed_bytes)
    }

    fn full_with(&self, state: &BlocksState, needed_bytes: u64) -> StoreError {
        let used_bytes = self.segment.committed_bytes() + state.private_bytes + state.ring_bytes;
        StoreError::Full { needed_bytes, used_bytes, memory_bytes: self.memory_bytes }
    }

    /// Tells whether [`begin_change`](Self::begin_change) would find a block.
    pub(crate) fn has_empty_block(&self, view: &StoreView, bytes: usize) -> bool {
        class_for(bytes).is_some_and(|class| self.state().empty_block(view, class).is_some())
    }

    /// Takes an empty block of another class for the class of objects with `bytes` bytes, header included, if there is
    /// one, and returns it with the change to make. The caller then calls [`end_change`](Self::end_change), and excludes all
    /// commits meanwhile: one of them could be about to lock an object that was in the block.
    pub(crate) fn begin_change(&self, view: &StoreView, bytes: usize) -> Option<(u64, StructureChange)> {
        let mut state = self.state();
        let class = class_for(bytes)?;
        let block = state.empty_block(view, class)?;
        Some((block.into(), state.begin_change(view, block, class)))
    }

    /// Gives out the places of a block whose class has changed.
    pub(crate) fn end_change(&self, block: u64) {
        let mut state = self.state();
        if let Some(found) = state.blocks.get_mut(block as usize) {
            *found = MemoryBlock::new(found.class);
            state.offer(block as u32);
        }
    }

    /// Tells whether an object of the class for `bytes` bytes, header included, is in use.
    pub(crate) fn has_class(&self, bytes: usize) -> bool {
        let Some(class) = class_for(bytes) else { return false };
        let state = self.state();
        state.blocks.iter().any(|block| block.class == BlockClass::Objects(class) && block.used_count > 0)
    }

    /// Returns the block and the slot of a place in use, each as likely as any other if `random` is a random number.
    pub(crate) fn random_used(&self, random: u64) -> (u32, u32) {
        let state = self.state();
        let used: u64 = state.blocks.iter().map(|block| u64::from(block.used_count)).sum();
        let mut left = random % used.max(1);
        for (index, block) in (0..).zip(&state.blocks) {
            let used = u64::from(block.used_count);
            if left < used {
                let mut used = (0..block.slots).filter(|slot| block.is_used(*slot));
                return (index, used.nth(left as usize).unwrap_or(0));
            }
            left -= used;
        }
        (0, 0)
    }

    /// Returns the number of places in use.
    pub(crate) fn used_places(&self) -> u64 {
        self.state().blocks.iter().map(|block| u64::from(block.used_count)).sum()
    }

    /// Returns what the blocks are used for.
    pub(crate) fn memory_counts(&self) -> MemoryCounts {
        let place_bytes = CLASS_BYTES.map(u64::from);
        let mut classes =
            place_bytes.map(|place_bytes| ClassCounts { place_bytes, ..ClassCounts::default() });
        let mut table_blocks = 0;
        for block in &self.state().blocks {
            match block.class {
                BlockClass::Shards => table_blocks += 1,
                BlockClass::Objects(class) => {
                    let class = &mut classes[usize::from(class)];
                    class.blocks += 1;
                    class.places += u64::from(block.slots);
                    class.used_places += u64::from(block.used_count);
                }
            }
        }
        let classes = classes.into_iter().filter(|class| class.blocks > 0).collect();
        MemoryCounts { block_bytes: BLOCK_BYTES, table_blocks, classes }
    }

    /// Backs another block with memory, if the limit allows one, and the host has it.
    fn new_block(
        &self,
        state: &mut BlocksState,
        view: &StoreView,
        class: BlockClass,
    ) -> Result<Option<u32>, StoreError> {
        let index = state.blocks.len() as u64;
        let end = view.layout.block_place(index + 1);
        let block = MemoryBlock::new(class);
        let private_bytes = state.private_bytes + block.private_bytes();
        let beside = private_bytes + state.ring_bytes;
        let backed = end.max(self.segment.committed_bytes());
        if index == view.layout.blocks_max || backed + beside > self.memory_bytes {
            return Ok(None);
        }
        // Who has no memory evicts, or refuses, as at the store's own limit; the kernel would end the process.
        let left = || HostMemory::read().map(|host| host.available_bytes);
        if !state.host_room.take(BLOCK_BYTES, Instant::now(), left) {
            return Ok(None);
        }
        // Whole joined pages at once: the kernel has to copy nothing then.
        let whole = end.next_multiple_of(JOINED_PAGE_BYTES).min(view.layout.region_bytes());
        let grown = if whole + beside <= self.memory_bytes { whole } else { end };
        match self.segment.grow(grown) {
            Err(caravan_segment::Error::OutOfMemory { .. }) => return Ok(None),
            grown => grown?,
        }
        view.words.set_committed(end);
        // The class first: every block has one as soon as it exists.
        let (class_place, word) =
            (view.layout.class_place(index), BlockWord { changes: 1, class: Some(class) });
        if self.copies.is_active() {
            self.copies.send_block(end, class_place, word.to_word());
        }
        store_word(view, class_place, word.to_word());
        store_word(view, word::COMMITTED, end);
        state.private_bytes = private_bytes;
        state.blocks.push(block);
        Ok(Some(index as u32))
    }

    /// Runs `body` while no block comes, as all copies have rings of at most so many bytes.
    pub(crate) fn while_no_block_comes<T>(
        &self,
        ring_bytes: u64,
        body: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut state = self.state();
        let result = body()?;
        state.ring_bytes = state.ring_bytes.max(ring_bytes);
        Ok(result)
    }

    /// Adds the next block of a memory that is taken over.
    pub(crate) fn add_unrestored(&self, class: BlockClass) {
        let mut state = self.state();
        let block = MemoryBlock::unrestored(class);
        state.private_bytes += block.private_bytes();
        state.blocks.push(block);
    }

    /// Finds out what is in use of a block, unless that is known: the slots for which `is_used` says so, which is
    /// called for each, with its place. The caller excludes all commits, so that none is about to give back a place
    /// that its header says already to be free.
    pub(crate) fn restore_block(
        &self,
        view: &StoreView,
        index: u32,
        mut is_used: impl FnMut(u64) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let mut state = self.state();
        let Some(found) = state.blocks.get_mut(index as usize) else { return Ok(()) };
        if found.is_restored {
            return Ok(());
        }
        let mut block = MemoryBlock::new(found.class);
        if let BlockClass::Objects(class) = block.class {
            for (slot, offset) in (0..block.slots).zip(slot_offsets(class)) {
                if is_used(view.layout.block_place(index.into()) + offset)? {
                    block.used[slot as usize / 64] |= 1 << (slot % 64);
                    block.used_count += 1;
                }
            }
        }
        let has_room = block.used_count < block.slots;
        *found = block;
        if has_room {
            state.offer(index);
        }
        Ok(())
    }

    /// Returns the first of some places at which no object that is in use begins.
    pub(crate) fn first_unused(&self, view: &StoreView, places: &[u64]) -> Option<u64> {
        let state = self.state();
        let is_used = |place: u64| {
            let (block, offset) = view.layout.block_of(place)?;
            let found = state.blocks.get(block as usize)?;
            let BlockClass::Objects(class) = found.class else { return None };
            let bytes = CLASS_BYTES[usize::from(class)];
            Some(offset % bytes == 0 && found.is_used(offset / bytes))
        };
        places.iter().copied().find(|place| is_used(*place) != Some(true))
    }

    /// Gives the place of an object back. Its header says already that it is free.
    pub(crate) fn give_back(&self, view: &StoreView, place: u64) {
        let Some((block, offset)) = view.layout.block_of(place) else { return };
        let mut state = self.state();
        let Some(found) = state.blocks.get_mut(block as usize) else { return };
        if let BlockClass::Objects(class) = found.class {
            found.put_back(offset / CLASS_BYTES[usize::from(class)]);
            state.offer(block as u32);
        }
    }

    /// Reserves a shard of the table.
    pub(crate) fn reserve_shard(&self, view: &StoreView) -> Result<u64, StoreError> {
        let mut state = self.state();
        if state.free_shards.is_empty() {
            let block = self.new_block(&mut state, view, BlockClass::Shards)?;
            let block = block.ok_or_else(|| self.full_with(&state, SHARD_BYTES))?;
            let place = view.layout.block_place(u64::from(block));
            state
                .free_shards
                .extend((0..BLOCK_BYTES / SHARD_BYTES).rev().map(|shard| place + shard * SHARD_BYTES));
        }
        state.free_shards.pop().ok_or_else(|| self.full_with(&state, SHARD_BYTES))
    }

    /// Gives a shard back, whose buckets all say that their keys are elsewhere.
    pub(crate) fn give_back_shard(&self, place: u64) {
        self.state().free_shards.push(place);
    }

    /// Returns the place in use at or after slot `slot` of block `block`, of class `only` if that is given,
    /// and the slot after it; goes on in the next block, and returns `None` after the last one.
    pub(crate) fn next_used(
        &self,
        view: &StoreView,
        mut block: u32,
        mut slot: u32,
        only: Option<u8>,
    ) -> Option<(u64, u32, u32)> {
        let state = self.state();
        loop {
            let found = state.blocks.get(block as usize)?;
            let class = match found.class {
                BlockClass::Objects(class) if only.is_none_or(|only| only == class) => Some(class),
                _ => None,
            };
            if let Some(class) = class {
                while slot < found.slots {
                    if found.is_used(slot) {
                        let offset = slot * CLASS_BYTES[usize::from(class)];
                        return Some((
                            view.layout.block_place(block.into()) + u64::from(offset),
                            block,
                            slot + 1,
                        ));
                    }
                    slot += 1;
                }
            }
            (block, slot) = (block + 1, 0);
        }
    }

    /// Returns the bytes that the object at `place` can have, header included.
    pub(crate) fn capacity(&self, view: &StoreView, place: u64) -> usize {
        view.slot(place).map_or(0, |(unit, _, _)| 8 * unit.len())
    }
}

impl BlocksState {
    fn take(&mut self, view: &StoreView, class: usize) -> Option<u64> {
        while let Some(block) = self.partial[class].last().copied() {
            if let Some(place) = self.take_in(view, block, class as u8) {
                return Some(place);
            }
            self.partial[class].pop();
            self.blocks[block as usize].is_partial = false;
        }
        None
    }

    fn take_in(&mut self, view: &StoreView, block: u32, class: u8) -> Option<u64> {
        let found = self.blocks.get_mut(block as usize)?;
        if found.class != BlockClass::Objects(class) || !found.is_restored {
            return None;
        }
        let offset = found.take()? * CLASS_BYTES[usize::from(class)];
        Some(view.layout.block_place(u64::from(block)) + u64::from(offset))
    }

    /// Takes `count` neighbouring places, and returns the block and the first slot.
    fn take_run(&mut self, class: u8, count: u32) -> Option<(u32, u32)> {
        let has_room = |block: &MemoryBlock| {
            let is_own = block.class == BlockClass::Objects(class) && block.is_restored;
            is_own && block.slots - block.used_count >= count
        };
        let blocks = self.blocks.iter_mut().enumerate().filter(|(_, block)| has_room(block));
        blocks.into_iter().find_map(|(index, block)| Some((index as u32, block.take_run(count)?)))
    }

    /// Returns a block of another class than `class` in which nothing is in use: the one whose class has changed
    /// least often, so that two classes which both need blocks do not take one from each other.
    fn empty_block(&self, view: &StoreView, class: u8) -> Option<u32> {
        let is_empty = |block: &MemoryBlock| {
            let is_other = !matches!(block.class, BlockClass::Objects(own) if own == class);
            block.used_count == 0 && block.class != BlockClass::Shards && is_other
        };
        let empty = (0..).zip(&self.blocks).filter(|(_, block)| is_empty(block)).map(|(index, _)| index);
        empty.min_by_key(|index| {
            BlockWord::from_word(view.load(view.layout.class_place(u64::from(*index)))).changes
        })
    }

    fn offer(&mut self, block: u32) {
        let found = &mut self.blocks[block as usize];
        if let BlockClass::Objects(class) = found.class {
            if !found.is_partial && found.is_restored {
                found.is_partial = true;
                self.partial[usize::from(class)].push(block);
            }
        }
    }

    /// Takes an empty block for another class. Nothing is reserved in it for now, as if it were not restored yet.
    fn begin_change(&mut self, view: &StoreView, index: u32, class: u8) -> StructureChange {
        let block = &mut self.blocks[index as usize];
        let (old, was_partial) = (block.class, block.is_partial);
        let changes = BlockWord::from_word(view.load(view.layout.class_place(index.into()))).changes + 1;
        let mut newest = 0;
        if let BlockClass::Objects(old) = old {
            let place = view.layout.block_place(index.into());
            newest = slot_offsets(old).map(|offset| view.load(place + offset)).max().unwrap_or(0);
            if was_partial {
                self.partial[usize::from(old)].retain(|other| *other != index);
            }
        }
        self.private_bytes -= block.private_bytes();
        *block = MemoryBlock::unrestored(BlockClass::Objects(class));
        self.private_bytes += block.private_bytes();
        let version = version::new(version::time(newest), false);
        StructureChange::FormatBlock { block: index.into(), class, changes, version }
    }
}

/// Returns where in a block of a class its objects begin.
pub(crate) fn slot_offsets(class: u8) -> impl Iterator<Item = u64> {
    let bytes = CLASS_BYTES[usize::from(class)];
    (0..BLOCK_BYTES as u32 / bytes).map(move |slot| u64::from(slot * bytes))
}

/// Returns the address that the object to be at `place` will have.
fn address(view: &StoreView, place: u64) -> ObjectAddress {
    ObjectAddress { place, incarnation: ObjectShape::from_word(view.load(place + 8)).incarnation }
}

/// Stores a word that is read on its own; release.
pub(crate) fn store_word(view: &StoreView, place: u64, value: u64) {
    if let Some(word) = view.unit(place, 1) {
        word.publish(value);
    }
}
