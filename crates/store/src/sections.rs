//! Long values: a value that does not fit in one object lies in several, its sections.
//!
//! The object of the key holds the number of bytes of the value and the addresses of the sections, a word each.
//! Invariants: a section is never written again; it comes and goes with the object that lists it, in the same
//! commit. So the version of that object is the version of the whole value, and whoever finds all sections at their
//! addresses has read the value as it was then. A section holds the key, too, so that an eviction finds it.

use std::sync::atomic::AtomicU64;

use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::layout::ObjectShape;
use crate::limits::VALUE_BYTES_MAX;
use crate::protocol::Unsettled;
use crate::table::LocatedKey;
use crate::view::{AtPlace, ObjectHead, StoreView};

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
        let list = SectionList::from_bytes(list);
        let old = value.len();
        value.reserve(list.value_bytes.min(VALUE_BYTES_MAX as u64) as usize);
        for section in list.sections {
            let from = value.len();
            let found = self.object_at(section, |payload| {
                value.truncate(from);
                payload.copy_value(value);
            })?;
            // The key has another value meanwhile.
            let (head, ()) = found.ok_or(Unsettled)?;
            if !head.shape.has(ObjectShape::SECTION) {
                return Err(Unsettled);
            }
        }
        if (value.len() - old) as u64 == list.value_bytes { Ok(()) } else { Err(Unsettled) }
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
