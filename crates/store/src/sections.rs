//! Long values: a value that does not fit in one object lies in several, its sections.
//!
//! The object of the key holds the number of bytes of the value and the addresses of the sections, a word each.
//! Invariants: all sections but the last have [`OBJECT_BYTES_MAX`] bytes of the value. A section is never written
//! again; it comes and goes with the object that lists it, in the same commit. So the version of that object is the
//! version of the whole value, and whoever finds sections at their addresses has read this part of the value as it
//! was then. A section holds the key, too, so that an eviction finds it.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use crate::commit::ObjectWrite;
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::image::{ObjectImage, check_key};
use crate::layout::{LONG_KEY, ObjectShape};
use crate::limits::{OBJECT_BYTES_MAX, VALUE_BYTES_MAX};
use crate::protocol::Unsettled;
use crate::table::LocatedKey;
use crate::transaction::{RetryCause, Transaction};
use crate::view::{AtPlace, ObjectHead, StoreView, within};
use crate::writes::KeyWrite;

/// The list of the sections of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SectionList {
    pub(crate) value_bytes: u64,
    pub(crate) sections: Vec<ObjectAddress>,
}

impl SectionList {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let mut words =
            bytes.chunks_exact(8).map(|word| word.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word)));
        let value_bytes = words.next().unwrap_or(0);
        Self { value_bytes, sections: words.map(ObjectAddress::from_word).collect() }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let sections = self.sections.iter().map(|section| section.to_word());
        std::iter::once(self.value_bytes).chain(sections).flat_map(u64::to_ne_bytes).collect()
    }
}

impl StoreView {
    /// Appends the value whose sections the bytes `list` name to `value`.
    pub(crate) fn copy_sections(&self, list: &[u8], value: &mut Vec<u8>) -> Result<(), Unsettled> {
        self.copy_sections_part(list, |bytes| 0..bytes, value)
    }

    /// Appends the part of this value that `part` chooses by the number of bytes; reads only the sections that have
    /// some of it.
    pub(crate) fn copy_sections_part(
        &self,
        list: &[u8],
        part: impl Fn(usize) -> Range<usize>,
        value: &mut Vec<u8>,
    ) -> Result<(), Unsettled> {
        let list = SectionList::from_bytes(list);
        let bytes = list.value_bytes.min(VALUE_BYTES_MAX as u64) as usize;
        let part = within(part(bytes), bytes);
        let end = value.len() + part.len();
        value.reserve(part.len());
        let sections = (0..).step_by(OBJECT_BYTES_MAX).zip(list.sections);
        for (start, section) in sections.filter(|(start, _)| {
            *start < part.end && part.start < start + OBJECT_BYTES_MAX && !part.is_empty()
        }) {
            let wanted = part.start.saturating_sub(start)..part.end - start;
            let from = value.len();
            let found = self.object_at(section, |payload| {
                value.truncate(from);
                payload.copy_value_part(wanted.clone(), value);
            })?;
            // The key has another value meanwhile.
            let (head, ()) = found.ok_or(Unsettled)?;
            if !head.shape.has(ObjectShape::SECTION) {
                return Err(Unsettled);
            }
        }
        if value.len() == end { Ok(()) } else { Err(Unsettled) }
    }

    /// Returns the sections that the object at `place` lists, if it has this version.
    pub(crate) fn sections_of(
        &self,
        place: u64,
        head: &ObjectHead,
    ) -> Result<Vec<ObjectAddress>, StoreError> {
        if !head.shape.has(ObjectShape::LONG_VALUE) {
            return Ok(Vec::new());
        }
        let mut list = Vec::new();
        match self.object(place, |payload| payload.copy_value(&mut list)) {
            Ok(AtPlace::Object((found, ()))) if found.version == head.version => {
                Ok(SectionList::from_bytes(&list).sections)
            }
            _ => Err(StoreError::Conflict),
        }
    }

    /// Returns the key of the value whose first section is at `place`, with the place and the head of its object.
    pub(crate) fn owner_of_section(&self, place: u64) -> Option<(Vec<u8>, u64, ObjectHead)> {
        let mut key = Vec::new();
        let found = self.object(place, |payload| payload.copy_key(&mut key));
        let Ok(AtPlace::Object((section, ()))) = found else { return None };
        if !section.shape.has(ObjectShape::SECTION) {
            return None;
        }
        let Ok(LocatedKey::Present { address, head, .. }) = self.locate(self.hash(&key), &key) else {
            return None;
        };
        let sections = self.sections_of(address.place, &head).ok()?;
        let is_first = sections.first()? == &ObjectAddress { place, incarnation: section.shape.incarnation };
        is_first.then_some((key, address.place, head))
    }

    /// Returns the words of the sections that the object at `place` lists; for the owner, who excludes all commits.
    pub(crate) fn section_units(&self, place: u64) -> Vec<(ObjectAddress, &[AtomicU64])> {
        let mut list = Vec::new();
        self.locked_value(place, &mut list);
        let sections = SectionList::from_bytes(&list).sections.into_iter();
        sections.filter_map(|section| Some((section, self.slot(section.place)?.0))).collect()
    }
}

impl Transaction<'_> {
    /// Writes the sections of a long value, and returns the object of its key.
    pub(crate) fn put_sections(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Result<ObjectImage, StoreError> {
        check_key(key)?;
        self.require_room(value.len())?;
        let mut list = SectionList { value_bytes: value.len() as u64, sections: Vec::new() };
        let count = value.len().div_ceil(OBJECT_BYTES_MAX);
        let head_bytes = if key.len() < usize::from(LONG_KEY) { key.len() } else { 8 + key.len() };
        // All places first: to find out that there is no room takes no copies.
        for part in value.chunks(OBJECT_BYTES_MAX) {
            match self.core.blocks.reserve(&self.core.view, head_bytes + part.len(), None) {
                Ok(section) => list.sections.push(section),
                Err(error) => {
                    let objects = count - list.sections.len();
                    let places = list.sections.into_iter().map(|section| section.place);
                    places.for_each(|place| self.core.blocks.give_back(&self.core.view, place));
                    let error = self.noted::<ObjectImage>(Err(error));
                    if let Some(RetryCause::Room { bytes, .. }) = self.retry {
                        self.retry = Some(RetryCause::Room { bytes, objects });
                    }
                    return error;
                }
            }
        }
        self.reserved.extend(list.sections.iter().map(|section| section.place));
        for (section, part) in list.sections.iter().zip(value.chunks(OBJECT_BYTES_MAX)) {
            let image = ObjectImage::of_section(key, part)?;
            self.writes.objects.insert(*section, ObjectWrite::New(image));
        }
        ObjectImage::of_long_value(key, &list.to_bytes(), expires_at_ms)
    }

    /// Fails if a value of so many bytes is too long for this store, before memory is spent on it:
    /// [`StoreError::ValueTooLong`], or [`StoreError::Full`] if it is larger than the store's whole memory.
    pub fn require_room(&self, value_bytes: usize) -> Result<(), StoreError> {
        if value_bytes > VALUE_BYTES_MAX {
            return Err(StoreError::ValueTooLong { bytes: value_bytes });
        }
        if value_bytes as u64 > self.core.blocks.memory_bytes() {
            return Err(self.core.blocks.full(value_bytes as u64));
        }
        Ok(())
    }

    /// Returns a long value that this transaction has put.
    pub(crate) fn own_sections(&self, list: &[u8], key_bytes: usize) -> Vec<u8> {
        let mut value = Vec::new();
        for section in SectionList::from_bytes(list).sections {
            if let Some(ObjectWrite::New(image)) = self.writes.objects.get(&section) {
                value.extend_from_slice(image.value(key_bytes));
            }
        }
        value
    }

    /// Notes what becomes of a key, instead of what was noted before.
    pub(crate) fn write_key(&mut self, write: KeyWrite) {
        let before = self.writes.keys.insert(write).and_then(KeyWrite::into_image);
        let Some(before) = before.filter(ObjectImage::is_long_value) else { return };
        for section in SectionList::from_bytes(before.value(before.key().len())).sections {
            self.writes.objects.remove(&section);
            self.reserved.retain(|place| *place != section.place);
            self.core.blocks.give_back(&self.core.view, section.place);
        }
    }
}
