//! The keys that a transaction writes.

use std::collections::BTreeMap;

use crate::image::ObjectImage;

/// What a transaction does with a key.
#[derive(Clone, Debug)]
pub(crate) enum KeyWrite {
    /// It stores a new object, which contains the key.
    Put(ObjectImage),
    /// It deletes the key.
    Delete(Vec<u8>),
}

impl KeyWrite {
    pub(crate) fn key(&self) -> &[u8] {
        match self {
            Self::Put(image) => image.key(),
            Self::Delete(key) => key,
        }
    }

    /// Returns the new object.
    pub(crate) fn image(&self) -> Option<&ObjectImage> {
        match self {
            Self::Put(image) => Some(image),
            Self::Delete(_) => None,
        }
    }

    /// Returns the new object, or `None` for a deletion.
    pub(crate) fn into_image(self) -> Option<ObjectImage> {
        match self {
            Self::Put(image) => Some(image),
            Self::Delete(_) => None,
        }
    }
}

/// How many writes are looked through; more are found by a map.
const FEW: usize = 8;

/// The keys that a transaction writes, each once, in the order of their first writes.
///
/// Most transactions write one key: that takes no map and no copy of the key. A B-tree costs nothing as long as it is empty.
///
/// Invariant: `index` has the place of each key in `writes` if there are more than [`FEW`] of them, and is empty otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyWrites {
    writes: Vec<KeyWrite>,
    index: BTreeMap<Vec<u8>, usize>,
}

impl KeyWrites {
    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&KeyWrite> {
        self.place(key).map(|place| &self.writes[place])
    }

    /// Returns the writes, in order.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, KeyWrite> {
        self.writes.iter()
    }

    fn place(&self, key: &[u8]) -> Option<usize> {
        if self.writes.len() <= FEW {
            return self.writes.iter().position(|write| write.key() == key);
        }
        self.index.get(key).copied()
    }

    /// Adds a write in the place of an earlier one of the same key, which is returned.
    pub(crate) fn insert(&mut self, write: KeyWrite) -> Option<KeyWrite> {
        if let Some(place) = self.place(write.key()) {
            return Some(std::mem::replace(&mut self.writes[place], write));
        }
        self.writes.push(write);
        let last = self.writes.len() - 1;
        if last >= FEW {
            let from = if last == FEW { 0 } else { last };
            self.index.extend((from..=last).map(|place| (self.writes[place].key().to_vec(), place)));
        }
        None
    }
}

impl IntoIterator for KeyWrites {
    type Item = KeyWrite;
    type IntoIter = std::vec::IntoIter<KeyWrite>;

    fn into_iter(self) -> Self::IntoIter {
        self.writes.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_write_of_each_key_counts_among_few_and_many() {
        let mut writes = KeyWrites::default();
        let put = |key: u8, value: u8| {
            KeyWrite::Put(ObjectImage::of_key(&[key], &[value], None).expect("an image"))
        };
        for key in 0..20 {
            writes.insert(put(key, 1));
            writes.insert(if key % 2 == 0 { put(key, 2) } else { KeyWrite::Delete(vec![key]) });
            assert_eq!(writes.len(), usize::from(key) + 1);
            for known in 0..=key {
                let value = writes.get(&[known]).expect("written").image().map(|image| image.value(1));
                assert_eq!(value, (known % 2 == 0).then_some(&[2][..]), "{known} of {key}");
            }
            assert!(writes.get(&[key + 1]).is_none());
        }
        let keys: Vec<u8> = writes.into_iter().map(|write| write.key()[0]).collect();
        assert_eq!(keys, (0..20).collect::<Vec<_>>());
    }
}
