//! Tables of keys and values of fixed sizes, which lie inline: one read of two neighbouring buckets finds a key.
//!
//! Chained associative hopscotch with H = 8 (FaRM, NSDI 2014, section 6.2). A bucket is an object with four slots,
//! and the buckets of a shard lie next to each other in memory. Invariants: a key is in its home bucket, the next
//! one, or the chain of its home; it has one slot; everything changes by transactions alone.
//!
//! **Joint versions.** A read of two buckets may see them at two moments: each is whole, as its version or its
//! checksum says, but a key that a transaction moved from one to the other meanwhile could be in neither. So each
//! bucket counts the moves of the keys whose home it is, and the next bucket and the objects of its chain repeat
//! that count. A move writes all of them in one transaction, the count only grows, and a key that does not move is
//! in one place: whoever reads equal counts everywhere and no key has looked at that place at some moment between
//! its first and its last read, and so the key was absent at that moment. A deletion and a new insertion within one
//! transaction count as a move. A shard that is split is freed as a whole, so a reader with an old directory finds
//! no objects there, and reads the directory again.

mod edit;
mod form;
mod objects;
mod probe;
mod source;
mod split;

use std::time::Instant;

pub use probe::FixedProbe;
pub use source::ObjectSource;
pub(crate) use source::{part_of, wait_to_settle};

use crate::entry::{ObjectAddress, ScanCursor};
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::limits::{CHAIN_BUCKETS_MAX, FIXED_DEPTH_MAX};
use crate::protocol::Unsettled;
use crate::transaction::Transaction;
use edit::ShardEditor;
use form::{BUCKET_SLOTS, CHAIN_OBJECT_SLOTS, FixedBucket, FixedHead, FixedShard, HEAD_BYTES, PairForm};

/// The bits of a scan's cursor that say the bucket.
const LINE_BITS: u32 = 24;

/// A table of keys and values of fixed sizes within a store, with transactions as for everything else there.
///
/// Keys and values lie inline in the buckets, so that a lookup takes one read of memory, also from another host.
/// A table is known by its address, which stays the same until it is freed. It has no relation to the keys of the
/// store, but one of those may hold its address. This is a handle: threads and processes have one each.
///
/// A table starts small, and doubles by parts as it grows. It does not shrink: keys that go leave room for others.
///
/// ```
/// use caravan_store::{FixedTable, ObjectAddress, Reader, Store, StoreError, StoreOptions};
///
/// let store = Store::embedded(StoreOptions::new(16 << 20))?;
/// // Keys of 8 bytes, values of 4.
/// let table = store.transaction(|tx| FixedTable::create(tx, 8, 4))?;
/// store.transaction(|tx| table.put(tx, b"account1", &100_u32.to_ne_bytes()))?;
/// assert_eq!(table.get(&store, b"account1")?, Some(100_u32.to_ne_bytes().to_vec()));
///
/// // In another process, which was handed the descriptor and the two numbers of the address:
/// let reader = Reader::open(store.reader_descriptor()?)?;
/// let (place, incarnation) = table.address().to_parts();
/// let table = FixedTable::open(&reader, ObjectAddress::from_parts(place, incarnation))?;
/// assert_eq!(table.get(&reader, b"account2")?, None);
///
/// // Reads and writes of both kinds of keys in one transaction:
/// store.transaction(|tx| {
///     let amount = table.get(&mut *tx, b"account1")?.unwrap_or_default();
///     table.delete(tx, b"account1")?;
///     tx.put(b"closed", &amount)
/// })?;
/// assert_eq!(table.get(&store, b"account1")?, None);
/// # Ok::<(), StoreError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedTable {
    address: ObjectAddress,
    form: PairForm,
}

impl FixedTable {
    /// Makes an empty table of keys of `key_bytes` bytes and values of `value_bytes` bytes, in the transaction
    /// `tx`. Fails with [`StoreError::FixedSizes`] if a pair is empty or too large
    /// ([`limits::FIXED_PAIR_BYTES_MAX`](crate::limits::FIXED_PAIR_BYTES_MAX)).
    pub fn create(
        tx: &mut Transaction<'_>,
        key_bytes: usize,
        value_bytes: usize,
    ) -> Result<Self, StoreError> {
        let form = PairForm::new(key_bytes, value_bytes)?;
        Ok(Self { address: split::create(tx, form)?, form })
    }

    /// Returns the table at `address`. Fails with [`StoreError::NoObject`] if nothing is there, and with
    /// [`StoreError::NotAFixedTable`] if that is another object.
    pub fn open(mut source: impl ObjectSource, address: ObjectAddress) -> Result<Self, StoreError> {
        let mut bytes = Vec::new();
        if !source.part(address, 0..HEAD_BYTES, &mut bytes)? {
            return Err(StoreError::NoObject(address));
        }
        let head = FixedHead::parse(&bytes).ok_or(StoreError::NotAFixedTable(address))?;
        Ok(Self { address, form: head.form })
    }

    /// Returns the address by which the table is found again.
    pub fn address(&self) -> ObjectAddress {
        self.address
    }

    /// Returns the number of bytes of each key.
    pub fn key_bytes(&self) -> usize {
        self.form.key_bytes
    }

    /// Returns the number of bytes of each value.
    pub fn value_bytes(&self) -> usize {
        self.form.value_bytes
    }

    /// Returns the value of `key`. The source is `&Store`, `&Reader`, `&ConnectedStore`, `&mut Transaction` or `&mut
    /// ReadTransaction` of the store that the table is in.
    pub fn get(&self, source: impl ObjectSource, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.form.check_key(key)?;
        self.settled(source, |source| {
            let head = self.head(source)?;
            let hash = head.hash(key);
            let Some(shard) = shard_of(&head, head.entry(hash), source)? else { return Ok(Err(Unsettled)) };
            let home = head.home(hash);
            let mut both = Vec::with_capacity(2 * self.form.bucket_bytes(BUCKET_SLOTS));
            for line in [home, home + 1] {
                if !source.part(
                    head.bucket(shard, line),
                    0..self.form.bucket_bytes(BUCKET_SLOTS),
                    &mut both,
                )? {
                    return Ok(Err(Unsettled));
                }
            }
            let chain_bytes = 0..self.form.bucket_bytes(CHAIN_OBJECT_SLOTS);
            find(&head, hash, key, &both, |at, to| source.part(at, chain_bytes.clone(), to))
        })
    }

    /// Sets the value of `key`. Fails with [`StoreError::FixedKey`] or [`StoreError::FixedValue`] if one has
    /// another size than the table's.
    pub fn put(&self, tx: &mut Transaction<'_>, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.check(key, Some(value))?;
        loop {
            let mut editor = ShardEditor::new(self, tx, key)?;
            let is_there = editor.replace(key, value)?;
            if is_there || editor.insert(key, value)? {
                return editor.finish();
            }
            if !editor.is_too_full()? {
                editor.insert_in_chain(key, value)?;
                return editor.finish();
            }
            editor.split(self.address)?;
        }
    }

    /// Checks the sizes of the keys and values of a new table.
    pub(crate) fn check_sizes(key_bytes: usize, value_bytes: usize) -> Result<(), StoreError> {
        PairForm::new(key_bytes, value_bytes).map(drop)
    }

    /// Checks the sizes of a key and a value.
    pub(crate) fn check(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), StoreError> {
        self.form.check_key(key)?;
        value.map_or(Ok(()), |value| self.form.check_value(value))
    }

    /// Deletes `key`, and returns whether it existed.
    pub fn delete(&self, tx: &mut Transaction<'_>, key: &[u8]) -> Result<bool, StoreError> {
        self.form.check_key(key)?;
        let mut editor = ShardEditor::new(self, tx, key)?;
        let existed = editor.delete(key)?;
        editor.finish()?;
        Ok(existed)
    }

    /// Calls `each` with some keys and their values, and returns where to go on: about `count` of them, more
    /// where many lie together. A key that exists from the start of a scan to its end is returned at least once,
    /// whatever else changes; a key may be returned twice.
    ///
    /// ```
    /// # use caravan_store::{FixedTable, ScanCursor, Store, StoreError, StoreOptions};
    /// # let store = Store::embedded(StoreOptions::new(16 << 20))?;
    /// let table = store.transaction(|tx| FixedTable::create(tx, 1, 1))?;
    /// store.transaction(|tx| table.put(tx, b"a", b"1"))?;
    /// let mut pairs = Vec::new();
    /// let mut cursor = ScanCursor::START;
    /// loop {
    ///     cursor = table.scan(&store, cursor, 100, |key, value| pairs.push((key.to_vec(), value.to_vec())))?;
    ///     if cursor == ScanCursor::START {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(pairs, [(b"a".to_vec(), b"1".to_vec())]);
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn scan(
        &self,
        mut source: impl ObjectSource,
        cursor: ScanCursor,
        count: usize,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<ScanCursor, StoreError> {
        let mut range = (cursor.0 >> LINE_BITS) & ((1 << FIXED_DEPTH_MAX) - 1);
        let mut line = cursor.0 & ((1 << LINE_BITS) - 1);
        let mut seen = 0;
        while seen < count.max(1) {
            let (head, shard, pairs) =
                self.settled(&mut source, |source| self.pairs_at(source, range, line))?;
            pairs.iter().for_each(|(key, value)| each(key, value));
            // A line without keys counts, too, so that one call looks at a limited part of the table.
            seen += pairs.len().max(1);
            line += 1;
            if line >= head.buckets - 1 {
                let width = 1 << FIXED_DEPTH_MAX.saturating_sub(shard.depth);
                (range, line) = ((range / width + 1) * width, 0);
                if range >> FIXED_DEPTH_MAX != 0 {
                    return Ok(ScanCursor::START);
                }
            }
        }
        Ok(ScanCursor(range << LINE_BITS | line))
    }

    /// Frees the table with all that is in it. Its address then leads to nothing. A table of millions of keys
    /// has more parts than a transaction may write ([`StoreError::TransactionTooLarge`]).
    pub fn free(self, tx: &mut Transaction<'_>) -> Result<(), StoreError> {
        split::free(&self, tx)
    }

    /// Returns the pairs whose home is a line of a shard, as of one moment.
    fn pairs_at<S: ObjectSource>(&self, source: &mut S, range: u64, line: u64) -> Attempt<LinePairs> {
        let head = self.head(source)?;
        let Some(shard) = shard_of(&head, range >> (FIXED_DEPTH_MAX - head.depth), source)? else {
            return Ok(Err(Unsettled));
        };
        let mut pairs = Vec::new();
        if line >= head.buckets - 1 {
            return Ok(Ok((head, shard, pairs)));
        }
        let mut moves = None;
        let mut next = Some(head.bucket(shard, line));
        for step in 0..CHAIN_BUCKETS_MAX + 2 {
            // The home, the next bucket, then the chain of the home.
            let is_next = step == 1;
            let address = if is_next { Some(head.bucket(shard, line + 1)) } else { next };
            let Some(address) = address else { return Ok(Ok((head, shard, pairs))) };
            let slots = if step < 2 { BUCKET_SLOTS } else { CHAIN_OBJECT_SLOTS };
            let mut bytes = Vec::new();
            let is_there = source.part(address, 0..self.form.bucket_bytes(slots), &mut bytes)?;
            let bucket = FixedBucket::new(self.form, slots, bytes).filter(|_| is_there);
            let Some(bucket) = bucket else { return Ok(Err(Unsettled)) };
            let is_here = |key: &[u8]| head.home(head.hash(key)) == line;
            pairs.extend(
                bucket
                    .pairs()
                    .filter(|(_, key, _)| is_here(key))
                    .map(|(_, key, value)| (key.to_vec(), value.to_vec())),
            );
            let counted = if is_next { bucket.moves_before() } else { bucket.moves() };
            if *moves.get_or_insert(counted) != counted {
                return Ok(Err(Unsettled));
            }
            if !is_next {
                next = bucket.chain();
            }
        }
        Ok(Err(Unsettled))
    }

    fn head(&self, source: &mut impl ObjectSource) -> Result<FixedHead, StoreError> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        if !source.part(self.address, 0..HEAD_BYTES, &mut bytes)? {
            return Err(StoreError::NoObject(self.address));
        }
        let head = FixedHead::parse(&bytes).filter(|head| head.form == self.form);
        head.ok_or(StoreError::NotAFixedTable(self.address))
    }

    /// Repeats `attempt` until what it has read belongs together.
    fn settled<S: ObjectSource, T>(
        &self,
        mut source: S,
        mut attempt: impl FnMut(&mut S) -> Attempt<T>,
    ) -> Result<T, StoreError> {
        if let Ok(found) = attempt(&mut source)? {
            return Ok(found);
        }
        let begin = Instant::now();
        for number in 0.. {
            source.again(number, begin)?;
            if let Ok(found) = attempt(&mut source)? {
                return Ok(found);
            }
        }
        Err(StoreError::Contended)
    }
}

/// What an attempt to read returns: its result, or that what it has read does not belong together, or an error.
type Attempt<T, E = StoreError> = Result<Result<T, Unsettled>, E>;

/// The pairs whose home is one bucket, and where that is.
type LinePairs = (FixedHead, FixedShard, Vec<(Vec<u8>, Vec<u8>)>);

/// Reads an entry of the directory; `None` if the directory has moved.
fn shard_of(
    head: &FixedHead,
    entry: u64,
    source: &mut impl ObjectSource,
) -> Result<Option<FixedShard>, StoreError> {
    let mut bytes = Vec::with_capacity(8);
    let at = 8 * entry as usize;
    let is_there = source.part(head.directory, at..at + 8, &mut bytes)?;
    let word = bytes.first_chunk().filter(|_| is_there);
    Ok(word.map(|word| FixedShard::from_word(u64::from_ne_bytes(*word))))
}

/// Looks for a key in the payloads of its home and the next bucket, one after the other in `both`, and then in the
/// chain, of which `object` appends a payload to the bytes that it gets, or returns that no object is there.
fn find<E>(
    head: &FixedHead,
    hash: u64,
    key: &[u8],
    both: &[u8],
    mut object: impl FnMut(ObjectAddress, &mut Vec<u8>) -> Result<bool, E>,
) -> Attempt<Option<Vec<u8>>, E> {
    let bytes = head.form.bucket_bytes(BUCKET_SLOTS);
    let (Some(first), Some(second)) = (both.get(..bytes), both.get(bytes..)) else {
        return Ok(Err(Unsettled));
    };
    let bucket = |bytes| FixedBucket::new(head.form, BUCKET_SLOTS, bytes);
    let (Some(first), Some(second)) = (bucket(first), bucket(second)) else { return Ok(Err(Unsettled)) };
    if let Some((_, value)) = first.find(key).or_else(|| second.find(key)) {
        // What is there is there, whatever else moves.
        return Ok(Ok(Some(value.to_vec())));
    }
    let are_joined = |other: u32| first.moves() == other || is_planted(PlantedFault::UnjoinedBuckets);
    if !are_joined(second.moves_before()) {
        return Ok(Err(Unsettled));
    }
    let mut chain = first.chain().filter(|_| first.chain_may_hold(hash));
    for _ in 0..CHAIN_BUCKETS_MAX {
        let Some(address) = chain else { return Ok(Ok(None)) };
        let mut bytes = Vec::with_capacity(head.form.bucket_bytes(CHAIN_OBJECT_SLOTS));
        if !object(address, &mut bytes)? {
            return Ok(Err(Unsettled));
        }
        let Some(next) = FixedBucket::new(head.form, CHAIN_OBJECT_SLOTS, bytes) else {
            return Ok(Err(Unsettled));
        };
        if let Some((_, value)) = next.find(key) {
            return Ok(Ok(Some(value.to_vec())));
        }
        if !are_joined(next.moves()) {
            return Ok(Err(Unsettled));
        }
        chain = next.chain();
    }
    Ok(Err(Unsettled))
}
