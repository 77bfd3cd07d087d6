//! Lookups of keys and objects that wait until they have read something settled.

use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::image::check_key;
use crate::layout::{BUCKET_BYTES, ObjectShape};
use crate::limits::LOOKUPS_UNDER_WAY;
use crate::table::{LocatedKey, TableSlot};
use crate::view::{ObjectPayload, StoreView};

/// Looks a key up; appends its value to `value`. Returns `None` for a key that is absent or has expired.
#[inline]
pub(crate) fn one(
    view: &StoreView,
    key: &[u8],
    value: Option<&mut Vec<u8>>,
) -> Result<Option<LocatedKey>, StoreError> {
    check_key(key)?;
    hashed(view, view.hash(key), key, value)
}

#[inline]
fn hashed(
    view: &StoreView,
    hash: u64,
    key: &[u8],
    mut value: Option<&mut Vec<u8>>,
) -> Result<Option<LocatedKey>, StoreError> {
    let old = value.as_ref().map_or(0, |value| value.len());
    let located = view.settle(|| {
        if let Some(value) = value.as_deref_mut() {
            let found = view.lookup(hash, key, |payload| {
                value.truncate(old);
                payload.copy_value(value);
            })?;
            if matches!(found.0, LocatedKey::Present { head, .. } if head.shape.has(ObjectShape::LONG_VALUE))
            {
                let list = value.split_off(old);
                view.copy_sections(&list, value)?;
            }
            return Ok(found);
        }
        view.lookup(hash, key, |_| ())
    });
    let is_there = match &located {
        Ok((LocatedKey::Present { head, .. }, _)) => {
            head.expires_at_ms.is_none() || !head.is_expired(view.now_ms())
        }
        _ => false,
    };
    if let Some(value) = value.filter(|_| !is_there) {
        value.truncate(old);
    }
    Ok(Some(located?.0).filter(|_| is_there))
}

/// Asks for the buckets, and then for the objects, of keys that will be looked up one after the other.
pub(crate) fn ask_for<'k>(view: &StoreView, keys: impl IntoIterator<Item = &'k [u8]>) {
    let mut buckets = [(0, 0); LOOKUPS_UNDER_WAY];
    let mut count = 0;
    for (key, bucket) in keys.into_iter().zip(&mut buckets) {
        let hash = view.hash(key);
        *bucket = (hash, ask_for_buckets(view, hash));
        count += 1;
    }
    for (hash, home) in &buckets[..count] {
        view.expect_object(*hash, *home);
    }
}

/// Asks for the buckets of a hash, and returns the place of the first one.
#[inline]
fn ask_for_buckets(view: &StoreView, hash: u64) -> u64 {
    let home = view.home(hash);
    view.words.prefetch(home);
    view.words.prefetch(home + BUCKET_BYTES);
    home
}

/// Looks keys up, several at a time: first all their buckets are asked for, then their objects, and then they
/// are read. Returns how many were found.
pub(crate) fn many<K: AsRef<[u8]>>(
    view: &StoreView,
    keys: &[K],
    touch: impl Fn(u64),
    mut each: impl FnMut(usize, Option<&[u8]>),
) -> Result<u64, StoreError> {
    let mut value = Vec::new();
    let mut hits = 0;
    for (batch, keys) in keys.chunks(LOOKUPS_UNDER_WAY).enumerate() {
        let mut hashes = [0; LOOKUPS_UNDER_WAY];
        let mut homes = [0; LOOKUPS_UNDER_WAY];
        for ((key, hash), home) in keys.iter().zip(&mut hashes).zip(&mut homes) {
            check_key(key.as_ref())?;
            *hash = view.hash(key.as_ref());
            *home = ask_for_buckets(view, *hash);
        }
        let mut slots = [None; LOOKUPS_UNDER_WAY];
        for ((hash, home), slot) in hashes.iter().zip(&homes).zip(&mut slots).take(keys.len()) {
            *slot = view.expect_object(*hash, *home);
        }
        for (index, (key, (hash, slot))) in keys.iter().zip(hashes.iter().zip(slots)).enumerate() {
            let place = expected(view, slot, key.as_ref(), &mut value);
            let place = match place {
                Some(place) => Some(place),
                None => {
                    value.clear();
                    match hashed(view, *hash, key.as_ref(), Some(&mut value))? {
                        Some(LocatedKey::Present { address, .. }) => Some(address.place),
                        _ => None,
                    }
                }
            };
            if let Some(place) = place {
                hits += 1;
                touch(place);
            }
            each(batch * LOOKUPS_UNDER_WAY + index, place.map(|_| &value[..]));
        }
    }
    Ok(hits)
}

/// Reads the value of a key by a slot that most likely leads to it. Returns the place of its object, or
/// `None` if that must be looked for.
#[inline]
fn expected(view: &StoreView, slot: Option<TableSlot>, key: &[u8], value: &mut Vec<u8>) -> Option<u64> {
    let mut copy = |payload: ObjectPayload<'_>| {
        value.clear();
        payload.copy_value(value);
    };
    match view.follow(slot?, key, &mut copy) {
        Ok(Some((address, head, ()))) if head.has_plain_value() => Some(address.place),
        _ => None,
    }
}

/// Reads the object at an address.
pub(crate) fn object(view: &StoreView, address: ObjectAddress) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    let found = view.settle(|| {
        bytes.clear();
        view.object_at(address, |payload| payload.copy(&mut bytes))
    })?;
    found.map(|_| bytes).ok_or(StoreError::NoObject(address))
}
