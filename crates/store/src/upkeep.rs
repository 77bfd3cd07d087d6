//! What the owner does now and then: room for new objects, expiry, eviction, the scrubber, the audit.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::commit::{ReadRecord, UnitKind, WriteSet};
use crate::entry::{ObjectAddress, StoreCounts};
use crate::error::StoreError;
use crate::image;
use crate::layout::{BUCKET_BYTES, HEADER_BYTES, ObjectShape, class_for, version};
use crate::limits::{EVICTION_ROUNDS_MAX, ROOM_ATTEMPTS_MAX, ROOM_ATTEMPTS_WITHOUT_EVICTION};
use crate::owner::{StoreCore, SweepHand, count};
use crate::protocol::{UnitWords, lock};
use crate::structure::StructureChange;
use crate::table::{BucketWord, LocatedKey, TableSlot, home_line};
use crate::view::{AtPlace, ObjectHead};
use crate::writes::KeyWrite;

impl StoreCore {
    /// Makes room for an object of `bytes` bytes, header included: by giving its class an empty block, or by
    /// eviction. The caller does not hold the gate. What is freed may be gone again when the caller tries, so
    /// it calls this again, and counts its calls in `attempt`: two classes that need the same block would take
    /// it from each other for ever.
    pub(crate) fn make_room(&self, bytes: u64, attempt: u32) -> Result<(), StoreError> {
        let object_bytes = bytes as usize;
        // What is not restored counts as full.
        if self.is_restoring() {
            return self.restore(None);
        }
        if attempt >= ROOM_ATTEMPTS_WITHOUT_EVICTION && self.touched.is_enabled() {
            self.evict(object_bytes);
        }
        if attempt < ROOM_ATTEMPTS_MAX && self.blocks.has_empty_block(&self.view, object_bytes) {
            let mut alone = self.gate.alone();
            if let Some((block, change)) = self.blocks.begin_change(&self.view, object_bytes) {
                self.change_structure(&mut alone, &change, |_| ())?;
                self.blocks.end_change(block);
                return Ok(());
            }
        }
        if self.touched.is_enabled() && self.evict(object_bytes) {
            return Ok(());
        }
        Err(self.blocks.full(bytes))
    }

    /// Removes a key of the same class that has not been touched since the last visit, or, if the class has
    /// none, all keys of a block. Returns whether anything was removed.
    fn evict(&self, object_bytes: usize) -> bool {
        let class = class_for(object_bytes).filter(|_| self.blocks.has_class(object_bytes));
        self.evict_from(class) || class.is_some() && self.evict_from(None)
    }

    fn evict_from(&self, class: Option<u8>) -> bool {
        let mut block = None;
        let mut is_removed = false;
        let (mut before, mut rounds) = (0, 0);
        while rounds < EVICTION_ROUNDS_MAX {
            let Some((place, at)) = self.next_place(&self.hands.evict, class) else { break };
            rounds += u32::from(place <= before);
            before = place;
            // Without a class: all of one block.
            if class.is_none() && is_removed && block != Some(at) {
                return true;
            }
            block = Some(at);
            let owner = self.key_at(place).map(|(key, head)| (key, place, head));
            let owner = owner.or_else(|| self.view.owner_of_section(place));
            let Some((key, place, head)) = owner else { continue };
            let is_expired = head.is_expired(self.view.now_ms());
            if class.is_some() && self.touched.clear(place) && !is_expired {
                continue;
            }
            if self.remove_version(key, place, head.version) {
                count(if is_expired { &self.tallies.expired } else { &self.tallies.evicted }, 1);
                is_removed = true;
                if class.is_some() {
                    return true;
                }
            }
        }
        is_removed
    }

    /// Moves a hand to the next place in use, from the last one to the first; returns the place and its
    /// block, `None` if there is no place in use.
    fn next_place(&self, hand: &SweepHand, class: Option<u8>) -> Option<(u64, u32)> {
        let mut hand = hand.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.blocks.next_used(&self.view, hand.0, hand.1, class);
        let (place, block, slot) = next.or_else(|| self.blocks.next_used(&self.view, 0, 0, class))?;
        *hand = (block, slot);
        Some((place, block))
    }

    /// Returns the key of the object at a place, if it has one and is not being written.
    fn key_at(&self, place: u64) -> Option<(Vec<u8>, ObjectHead)> {
        let mut key = Vec::new();
        match self.view.object(place, |payload| payload.copy_key(&mut key)) {
            Ok(AtPlace::Object((head, ()))) if head.shape.has(ObjectShape::KEYED) => Some((key, head)),
            _ => None,
        }
    }

    /// Deletes a key if its object is still this one.
    pub(crate) fn remove_version(&self, key: Vec<u8>, place: u64, version: u64) -> bool {
        self.changed.wait_for_room();
        let mut lane = self.gate.beside_others();
        let read = ReadRecord { place, version, kind: UnitKind::Object };
        let mut writes = WriteSet::default();
        writes.keys.insert(KeyWrite::Delete(key));
        self.commit(&mut lane, &[read], writes).is_ok()
    }

    /// Removes what has expired of about `count` objects.
    pub(crate) fn remove_expired(&self, count_max: usize) -> Result<u64, StoreError> {
        let mut removed = 0;
        let now_ms = self.view.now_ms();
        let objects = self.blocks.used_places() as usize;
        let mut round = self.hands.round.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..count_max.min(objects) {
            let Some((place, _)) = self.next_place(&self.hands.expire, None) else { break };
            if place <= round.place {
                self.tallies.expiring.store(round.expiring, Ordering::Relaxed);
                round.expiring = 0;
            }
            round.place = place;
            let Some((key, head)) = self.key_at(place) else { continue };
            round.expiring += u64::from(head.entry().expires_at_ms.is_some());
            if head.is_expired(now_ms) && self.remove_version(key, place, head.version) {
                removed += 1;
            }
        }
        count(&self.tallies.expired, removed);
        Ok(removed)
    }

    /// Returns the key of a random place; if that has none, because it is a part of the table or was allocated, the next one.
    pub(crate) fn random_key(&self, random: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let (block, slot) = self.blocks.random_used(random);
        let hand = SweepHand::new((block, slot));
        let now_ms = self.view.now_ms();
        for _ in 0..self.blocks.used_places() {
            let Some((place, _)) = self.next_place(&hand, None) else { break };
            if let Some((key, _)) = self.key_at(place).filter(|(_, head)| !head.is_expired(now_ms)) {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// Compares about `count` objects with their checksums.
    pub(crate) fn scrub(
        &self,
        count: usize,
        mut damaged: impl FnMut(ObjectAddress),
    ) -> Result<usize, StoreError> {
        let mut bytes = Vec::new();
        let mut compared = 0;
        while compared < count {
            let (block, slot) = *self.hands.scrub.lock().unwrap_or_else(PoisonError::into_inner);
            let next = self.blocks.next_used(&self.view, block, slot, None);
            let hand = next.map_or((0, 0), |(_, block, slot)| (block, slot));
            *self.hands.scrub.lock().unwrap_or_else(PoisonError::into_inner) = hand;
            let Some((place, ..)) = next else { break };
            let mut sum = 0;
            let at = self.view.settle(|| {
                bytes.clear();
                sum = self.view.load(place + 16);
                self.view.object(place, |payload| {
                    // Within the read: the sum of another version would not fit.
                    sum = self.view.load(place + 16);
                    payload.copy(&mut bytes);
                })
            })?;
            // A bucket of a chain changes under the version of its home, and a session by its words.
            if let AtPlace::Object((ObjectHead { version, shape, .. }, ())) = at {
                if shape.flags & (ObjectShape::CHAIN | ObjectShape::SESSION) == 0 {
                    compared += 1;
                    if image::checksum(version, shape, &bytes) != sum {
                        damaged(ObjectAddress { place, incarnation: shape.incarnation });
                    }
                }
            }
        }
        Ok(compared)
    }

    /// Deletes all keys at one moment: all of them are locked before the first one goes.
    pub(crate) fn clear(&self) -> Result<(), StoreError> {
        self.restore(None)?;
        let mut alone = self.gate.alone();
        if self.ledger.has_parked() {
            return Err(StoreError::Undecided);
        }
        let mut is_locked = true;
        for shard in self.view.shards() {
            for unit in self.view.lines(shard).skip(1) {
                is_locked &= lock(unit, unit.load(0));
            }
            self.view.each_slot(shard, |cell| {
                let place = TableSlot(cell.load(Ordering::Relaxed)).address().place;
                is_locked &= self.view.slot(place).is_some_and(|(unit, ..)| lock(unit, unit.load(0)));
                for (_, section) in self.view.section_units(place) {
                    is_locked &= lock(section, section.load(0));
                }
            });
        }
        debug_assert!(is_locked, "somebody holds a lock while the gate is held alone");
        let change = StructureChange::DeleteKeys { version: version::new(self.next_time(), false) };
        self.change_structure(&mut alone, &change, |place| self.blocks.give_back(&self.view, place))?;
        self.tallies.keys.store(0, Ordering::Relaxed);
        count(&self.tallies.commits, 1);
        self.changed.note_clear();
        Ok(())
    }

    pub(crate) fn counts(&self) -> StoreCounts {
        let load = |tally: &std::sync::atomic::AtomicU64| tally.load(Ordering::Relaxed);
        let tallies = &self.tallies;
        StoreCounts {
            keys: load(&tallies.keys),
            memory_bytes: self.blocks.memory_bytes(),
            used_bytes: self.blocks.used_bytes(),
            hits: load(&tallies.hits),
            misses: load(&tallies.misses),
            commits: load(&tallies.commits),
            conflicts: load(&tallies.conflicts),
            expiring: load(&tallies.expiring).min(load(&tallies.keys)),
            expired: load(&tallies.expired),
            evicted: load(&tallies.evicted),
            sessions: self.sessions.load(Ordering::Relaxed).max(0) as u64,
        }
    }

    /// Checks that what is allocated can be reached, and the reverse.
    pub(crate) fn audit(&self) -> Result<(), StoreError> {
        self.restore(None)?;
        let _alone = self.gate.alone();
        if self.ledger.has_parked() {
            return Err(StoreError::Undecided);
        }
        let damaged = |text: String| Err(StoreError::Damaged(text));
        let mut keys = 0;
        let mut wrong = None;
        let mut chains = 0;
        for shard in self.view.shards() {
            let before = keys;
            self.view.each_slot(shard, |cell| {
                keys += 1;
                let slot = TableSlot(cell.load(Ordering::Relaxed));
                if let Err(text) = self.audit_slot(slot, self.view.words.place_of(cell)) {
                    wrong.get_or_insert(text);
                }
            });
            let counted =
                self.view.shard_keys(shard + BUCKET_BYTES).map_or(0, |keys| keys.load(Ordering::Relaxed));
            if counted != keys - before {
                return damaged(format!("a shard counts {counted} keys and has {}", keys - before));
            }
            for unit in self.view.lines(shard).skip(1) {
                let mut chain = BucketWord::from_word(unit.load(1)).chain;
                while chain != 0 {
                    chains += 1;
                    chain = self.view.load(chain + HEADER_BYTES as u64) << 3;
                }
                if unit.load(0) & version::LOCKED != 0 {
                    return damaged("a bucket is locked, and no commit runs".to_owned());
                }
            }
        }
        if let Some(text) = wrong {
            return damaged(text);
        }
        let counted = self.tallies.keys.load(Ordering::Relaxed);
        if counted != keys {
            return damaged(format!("the store counts {counted} keys and has {keys}"));
        }
        self.audit_places(keys, chains)
    }

    /// Checks that a slot leads to an object whose key leads to the slot.
    fn audit_slot(&self, slot: TableSlot, place: u64) -> Result<(), String> {
        let address = slot.address();
        let Some((key, head)) = self.key_at(address.place) else {
            return Err(format!("a slot leads to {address}, where no key is"));
        };
        let hash = self.view.hash(&key);
        let expected_home = self.view.shard(hash) + BUCKET_BYTES * home_line(hash);
        match self.view.locate(hash, &key) {
            Ok(LocatedKey::Present { address: found, slot_place, home, .. })
                if found == address
                    && slot_place == place
                    && home == expected_home
                    && TableSlot::new(hash, address) == slot
                    && head.shape.incarnation == address.incarnation =>
            {
                Ok(())
            }
            _ => Err(format!("the key of {address} leads elsewhere")),
        }
    }

    /// Checks the sections of a key's value, and returns how many there are.
    fn audit_sections(&self, place: u64, head: &ObjectHead) -> Result<usize, StoreError> {
        let sections = self.view.sections_of(place, head)?;
        for section in &sections {
            let found = self.view.object_at(*section, |_| ());
            if !matches!(found, Ok(Some((head, ()))) if head.shape.has(ObjectShape::SECTION)) {
                return Err(StoreError::Damaged(format!(
                    "a long value lists {section}, where no section is"
                )));
            }
        }
        Ok(sections.len())
    }

    /// Checks that each place in use is that of a key, a bucket of a chain, or an object without a key.
    fn audit_places(&self, keys: u64, chains: u64) -> Result<(), StoreError> {
        let (mut keyed, mut chained) = (0, 0);
        let (mut sections, mut listed) = (0, 0);
        let (mut block, mut slot) = (0, 0);
        while let Some((place, next_block, next_slot)) = self.blocks.next_used(&self.view, block, slot, None)
        {
            (block, slot) = (next_block, next_slot);
            match self.view.object(place, |_| ()) {
                Ok(AtPlace::Object((head, ()))) if head.shape.has(ObjectShape::KEYED) => {
                    keyed += 1;
                    listed += self.audit_sections(place, &head)?;
                }
                Ok(AtPlace::Object((head, ()))) if head.shape.has(ObjectShape::SECTION) => sections += 1,
                Ok(AtPlace::Object((head, ()))) if head.shape.has(ObjectShape::CHAIN) => chained += 1,
                Ok(AtPlace::Object(_)) => {}
                other => {
                    return Err(StoreError::Damaged(format!("{place:#x} is in use and holds {other:?}")));
                }
            }
        }
        if sections != listed {
            let text = format!("{sections} sections of long values are in use, and {listed} are listed");
            return Err(StoreError::Damaged(text));
        }
        if (keyed, chained) != (keys, chains) {
            let text = format!(
                "{keyed} objects have keys and {chained} are in chains; {keys} and {chains} can be reached"
            );
            return Err(StoreError::Damaged(text));
        }
        Ok(())
    }
}
