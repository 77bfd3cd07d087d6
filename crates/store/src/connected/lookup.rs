//! The lookup of one key by one-sided reads: what to read next, and what the bytes prove. No link.
//!
//! | after | the bytes | then |
//! |---|---|---|
//! | nothing | | the object at the remembered address, or else the home bucket and the next one |
//! | buckets | are for other hashes, or no slot has the key's tag | ask |
//! | buckets | have slots with the tag | read the first one's object |
//! | object | prove the key: unlocked, right incarnation, checksum, class of the block, key | found; with an expiry: ask |
//! | object | are of another state | the next slot; without one: ask |
//!
//! Nothing is ordered between the bytes of one read, so an object counts by its checksum alone. A block that has had
//! one class since before the read holds a header where an object starts, never bytes of users; the word of
//! the class is read after the object. That a key is absent is asked of the server.

use crate::calls::FoundKey;
use crate::commit::{ReadRecord, UnitKind};
use crate::connected::places::KnownPlaces;
use crate::entry::{EntryHead, KeyVersion, ObjectAddress};
use crate::faults::{PlantedFault, is_planted};
use crate::layout::{BUCKET_BYTES, HEADER_BYTES, LONG_KEY, ObjectShape, version};
use crate::limits;
use crate::table::{BucketWord, SLOTS, SLOTS_FROM, TableSlot, tag};

/// A one-sided read that a lookup needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedRead {
    pub(crate) place: u64,
    pub(crate) bytes: usize,
    /// The place of a word to be read after the bytes.
    pub(crate) then: Option<u64>,
}

/// What a lookup does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LookupStep {
    Read(PlannedRead),
    Found(FoundKey),
    /// Only the server knows.
    Ask,
}

/// A lookup under way.
#[derive(Debug)]
pub(crate) struct KeyLookup {
    pub(crate) hash: u64,
    key: Vec<u8>,
    /// The object that is being read, and the class word that its block had before.
    object: Option<(ObjectAddress, u64)>,
    /// Objects to read next.
    candidates: Vec<ObjectAddress>,
    reads: u32,
}

impl KeyLookup {
    pub(crate) fn new(hash: u64, key: &[u8]) -> Self {
        Self { hash, key: key.to_vec(), object: None, candidates: Vec::new(), reads: 0 }
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the first step.
    pub(crate) fn begin(&mut self, places: &KnownPlaces) -> LookupStep {
        if let Some(address) = places.address(self.hash) {
            self.candidates.push(address);
            return self.next(places);
        }
        self.read_buckets(places)
    }

    fn read_buckets(&mut self, places: &KnownPlaces) -> LookupStep {
        let Some(home) = places.home(self.hash) else { return LookupStep::Ask };
        self.reads += 1;
        LookupStep::Read(PlannedRead { place: home, bytes: 2 * BUCKET_BYTES as usize, then: None })
    }

    /// Takes the bytes of the last planned read and the word after them, and returns the next step.
    pub(crate) fn step(&mut self, bytes: &mut [u8], then: u64, places: &mut KnownPlaces) -> LookupStep {
        if self.reads > limits::READ_ATTEMPTS {
            return LookupStep::Ask;
        }
        let Some((address, class_word)) = self.object.take() else { return self.buckets(bytes, places) };
        if then != class_word {
            places.forget_class(address.place);
            return LookupStep::Ask;
        }
        match proven_entry(bytes, address, &self.key) {
            Proof::Entry(head, _) if head.expires_at_ms.is_some() => LookupStep::Ask,
            Proof::LongValue => LookupStep::Ask,
            Proof::Entry(head, value) => {
                places.remember(self.hash, address);
                let read =
                    ReadRecord { place: address.place, version: head.version.0, kind: UnitKind::Object };
                LookupStep::Found(FoundKey { read, entry: Some((head, value)), hint: None })
            }
            // A writer is at work: again.
            Proof::Torn => {
                self.candidates.push(address);
                self.next(places)
            }
            Proof::Other => {
                places.forget(self.hash);
                // The remembered address was wrong, so the table comes next.
                if self.reads == 1 { self.read_buckets(places) } else { self.next(places) }
            }
        }
    }

    fn buckets(&mut self, bytes: &[u8], places: &KnownPlaces) -> LookupStep {
        let word = |index: usize| {
            let word = bytes.get(8 * index..).and_then(|bytes| bytes.first_chunk::<8>());
            word.map_or(0, |word| u64::from_ne_bytes(*word))
        };
        if !BucketWord::from_word(word(1)).is_for(self.hash) {
            return LookupStep::Ask;
        }
        let wanted = tag(self.hash);
        let slots = (SLOTS_FROM..SLOTS_FROM + SLOTS).chain(8 + SLOTS_FROM..8 + SLOTS_FROM + SLOTS).map(word);
        let candidates = slots.filter(|slot| *slot != 0 && slot >> 56 == wanted);
        self.candidates = candidates.map(|slot| TableSlot(slot).address()).collect();
        self.candidates.reverse();
        self.next(places)
    }

    /// Reads the next candidate.
    fn next(&mut self, places: &KnownPlaces) -> LookupStep {
        let Some(address) = self.candidates.pop() else { return LookupStep::Ask };
        let Some((bytes, class_place, class_word)) = places.class_at(address.place) else {
            return LookupStep::Ask;
        };
        if bytes > limits::ONE_SIDED_BYTES_MAX {
            return LookupStep::Ask;
        }
        self.object = Some((address, class_word));
        self.reads += 1;
        LookupStep::Read(PlannedRead { place: address.place, bytes, then: Some(class_place) })
    }
}

/// What the bytes of an object prove.
#[derive(Debug, PartialEq, Eq)]
enum Proof {
    /// The key has this value.
    Entry(EntryHead, Vec<u8>),
    /// The key has a value that lies in several objects.
    LongValue,
    /// They are of several states of the object, or of one that is being written.
    Torn,
    /// The object is not the key's.
    Other,
}

/// Looks what the bytes from the start of an object on prove. Changes their order.
fn proven_entry(bytes: &mut [u8], address: ObjectAddress, key: &[u8]) -> Proof {
    let word = |bytes: &[u8], index: usize| {
        let word = bytes.get(8 * index..).and_then(|bytes| bytes.first_chunk::<8>());
        word.map_or(0, |word| u64::from_ne_bytes(*word))
    };
    let (object_version, shape_word, checksum) = (word(bytes, 0), word(bytes, 1), word(bytes, 2));
    let shape = ObjectShape::from_word(shape_word);
    let is_trusting = is_planted(PlantedFault::TornRead);
    if object_version & version::LOCKED != 0 && !is_trusting {
        return Proof::Torn;
    }
    if !version::is_allocated(object_version)
        || shape.incarnation != address.incarnation
        || !shape.has(ObjectShape::KEYED)
    {
        return Proof::Other;
    }
    let end = HEADER_BYTES + shape.size as usize;
    if end > bytes.len() {
        return Proof::Torn;
    }
    // The checksum covers the version, the shape and the payload, so these are brought together.
    bytes.copy_within(..16, 8);
    let is_whole = twox_hash::XxHash3_64::oneshot(&bytes[8..end]) == checksum;
    if !is_whole && !is_trusting {
        return Proof::Torn;
    }
    let payload = &bytes[HEADER_BYTES..end];
    let mut start = 0;
    let expires_at_ms = shape.has(ObjectShape::EXPIRES).then(|| word(payload, 0));
    start += if expires_at_ms.is_some() { 8 } else { 0 };
    let mut key_bytes = usize::from(shape.key);
    if shape.key == LONG_KEY {
        key_bytes = word(payload, start / 8) as usize;
        start += 8;
    }
    match payload.get(start..).and_then(|rest| rest.split_at_checked(key_bytes)) {
        Some((found, _)) if found == key && shape.has(ObjectShape::LONG_VALUE) => Proof::LongValue,
        Some((found, value)) if found == key => {
            Proof::Entry(EntryHead { version: KeyVersion(object_version), expires_at_ms }, value.to_vec())
        }
        _ => Proof::Other,
    }
}
