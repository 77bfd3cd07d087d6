//! The form of a stream, as bytes: its records, and the ring in which a copy keeps those that it has not applied.
//!
//! | bytes of a ring | contents |
//! |---|---|
//! | 0 .. 48 | words of the owner: format, identity of the stream, position at which it begins here, identity of the stream that it continues or 0, position at which that ended or 0 for any, checksum of these |
//! | 64 .. 88 | words of the copy: the identity of the stream that it follows, the position up to which it has applied it, 1 if it is complete |
//! | 4096 .. | the records; the byte of position p is at `p % capacity` |
//!
//! | word of a record | contents |
//! |---|---|
//! | 0 | its position |
//! | 1 | checksum of the identity of the stream, the position, word 2 and the body |
//! | 2 | kind 8, number of words 56 |
//! | 3 .. | the body |
//!
//! A reader knows the position of the next record. It is there once its checksum is right: no tail is published, so a record
//! that has arrived is never lost with whoever would have published it. What a lap before has left has another position, and
//! what another owner has written another identity.
//!
//! | kind | body |
//! |---|---|
//! | commit, structure | time; number of words of data; the data; place of the first piece; number of words of the record; those within the lane ([`crate::log`]) |
//! | data | runs of words: place 40, number of words 24; the words |
//! | grow | bytes of the memory that are in use from now on; place and word of the new block's class, or nothing |
//! | complete | nothing: the whole memory has been sent |

use caravan_segment::SharedSlice;

use crate::faults::{PlantedFault, is_planted};
use crate::image::ObjectImage;
use crate::log::COUNT_BITS;
use crate::view::StoreView;

/// The bytes of a ring before its records.
pub(crate) const RING_HEAD_BYTES: u64 = 4096;
/// The place of the copy's words in a ring.
pub(crate) const COPY_WORDS_PLACE: u64 = 64;
/// The bytes of the owner's words.
pub(crate) const OWNER_WORDS_BYTES: usize = 48;
/// The bytes of the copy's words.
pub(crate) const COPY_WORDS_BYTES: usize = 24;
/// The words of a record before its body.
pub(crate) const HEAD_WORDS: usize = 3;
/// The most words of a record: 32 KiB of data, a lane, and the words around them, with room to spare.
pub(crate) const RECORD_WORDS_MAX: usize = 8 << 10;
/// The most words of memory in one record.
pub(crate) const DATA_WORDS_MAX: usize = 4 << 10;

/// "CaraRng2" in the order of the machine's bytes.
const RING_FORMAT: u64 = u64::from_be_bytes(*b"CaraRng2");

/// What a record of a stream is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    Commit = 1,
    Structure = 2,
    Data = 3,
    Grow = 4,
    Complete = 5,
}

impl StreamKind {
    fn from_number(number: u64) -> Option<Self> {
        [Self::Commit, Self::Structure, Self::Data, Self::Grow, Self::Complete]
            .into_iter()
            .find(|kind| *kind as u64 == number)
    }
}

/// A record while it is put together, in private memory.
#[derive(Debug, Default)]
pub(crate) struct StreamRecord {
    bytes: Vec<u8>,
    kind: u64,
    /// The checksum of all but identity and position.
    sum: u64,
}

impl StreamRecord {
    pub(crate) fn new(kind: StreamKind) -> Self {
        let mut record = Self::default();
        record.begin(kind);
        record
    }

    pub(crate) fn begin(&mut self, kind: StreamKind) {
        self.bytes.clear();
        self.bytes.resize(8 * HEAD_WORDS, 0);
        self.kind = kind as u64;
    }

    pub(crate) fn push(&mut self, word: u64) {
        self.bytes.extend_from_slice(&word.to_ne_bytes());
    }

    /// Appends whole words.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends the words of a stamped object at `place`, all but its version.
    pub(crate) fn image(&mut self, place: u64, image: &ObjectImage) {
        self.push((place + 8) << COUNT_BITS | (image.words() as u64 - 1));
        image.append_to(&mut self.bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    /// Appends `count` words of the memory from `place` on, if they are there.
    pub(crate) fn memory(&mut self, view: &StoreView, place: u64, count: usize) {
        let Some(words) = view.unit(place, count) else { return };
        self.push(place << COUNT_BITS | count as u64);
        words.iter().for_each(|word| self.push(word.load(std::sync::atomic::Ordering::Relaxed)));
    }

    /// Returns the number of words so far.
    pub(crate) fn words(&self) -> usize {
        self.bytes.len() / 8
    }

    /// Replaces a word.
    pub(crate) fn set(&mut self, index: usize, word: u64) {
        self.bytes[8 * index..8 * index + 8].copy_from_slice(&word.to_ne_bytes());
    }

    /// Says how long the record is. It has its place only then, so most of its checksum needs no lock.
    pub(crate) fn finish(&mut self) {
        self.set(2, self.kind << 56 | self.words() as u64);
        self.sum = twox_hash::XxHash3_64::oneshot(&self.bytes[16..]);
    }

    /// Returns the bytes of a finished record at this position of a stream.
    pub(crate) fn at(&mut self, identity: u64, position: u64) -> &[u8] {
        let sum = placed_sum(self.sum, identity, position);
        self.set(0, position);
        self.set(1, sum);
        &self.bytes
    }
}

/// Makes the checksum of a record one of its position in its stream.
fn placed_sum(sum: u64, identity: u64, position: u64) -> u64 {
    let position = if is_planted(PlantedFault::RecordOfAnyLap) { 0 } else { position };
    // As in splitmix64: each bit of the sum depends on each bit of these.
    let mut z = identity ^ position.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    sum ^ z ^ z >> 31
}

/// The body of a record that has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivedRecord<'b> {
    pub(crate) kind: StreamKind,
    pub(crate) body: &'b [u64],
}

impl ArrivedRecord<'_> {
    /// Returns the number of bytes of the record in its ring.
    pub(crate) fn bytes(&self) -> u64 {
        8 * (HEAD_WORDS + self.body.len()) as u64
    }
}

/// Returns how many bytes of records fit in a ring of so many bytes.
pub(crate) fn capacity(ring_bytes: u64) -> u64 {
    ring_bytes.saturating_sub(RING_HEAD_BYTES) / 8 * 8
}

/// Returns the parts of a ring with so much capacity in which the bytes from `position` on lie: place and number of bytes.
pub(crate) fn parts(capacity: u64, position: u64, bytes: u64) -> [(u64, u64); 2] {
    let offset = position % capacity;
    let first = bytes.min(capacity - offset);
    [(RING_HEAD_BYTES + offset, first), (RING_HEAD_BYTES, bytes - first)]
}

/// Reads the record at `position`, if it has arrived; `words` is memory to reuse.
pub(crate) fn read_record<'b>(
    ring: &SharedSlice,
    identity: u64,
    position: u64,
    words: &'b mut Vec<u8>,
    body: &'b mut Vec<u64>,
) -> Option<ArrivedRecord<'b>> {
    let capacity = capacity(ring.bytes());
    let word_at = |position: u64| {
        ring.word(parts(capacity, position, 8)[0].0 as usize).load(std::sync::atomic::Ordering::Relaxed)
    };
    if word_at(position) != position && !is_planted(PlantedFault::RecordOfAnyLap) {
        return None;
    }
    let head = word_at(position + 16);
    let count = (head & ((1 << 56) - 1)) as usize;
    let kind = StreamKind::from_number(head >> 56)?;
    if !(HEAD_WORDS..=RECORD_WORDS_MAX).contains(&count) || 8 * count as u64 > capacity {
        return None;
    }
    words.clear();
    words.resize(8 * count, 0);
    let [first, second] = parts(capacity, position, 8 * count as u64);
    let (one, two) = words.split_at_mut(first.1 as usize);
    ring.copy_out(first.0 as usize, one);
    ring.copy_out(second.0 as usize, two);
    let word = |index: usize| {
        words[8 * index..].first_chunk().map_or(0, |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes))
    };
    let sum = twox_hash::XxHash3_64::oneshot(&words[16..]);
    if word(1) != placed_sum(sum, identity, position) || word(2) != head {
        return None;
    }
    body.clear();
    body.extend((HEAD_WORDS..count).map(word));
    Some(ArrivedRecord { kind, body })
}

/// Returns the bytes of the whole records from one position to another, if the ring has them still.
pub(crate) fn record_bytes(ring: &SharedSlice, identity: u64, from: u64, to: u64) -> Option<Vec<u8>> {
    let (mut all, mut bytes, mut body) = (Vec::new(), Vec::new(), Vec::new());
    let mut position = from;
    while position < to {
        position += read_record(ring, identity, position, &mut bytes, &mut body)?.bytes();
        all.extend_from_slice(&bytes);
    }
    (position == to).then_some(all)
}

/// Which stream a ring is for, as its owner has written it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamBegin {
    pub(crate) identity: u64,
    pub(crate) position: u64,
    /// The stream that goes on as this one, of the same memory with another owner; 0 for none.
    pub(crate) continues: u64,
    /// The position that a copy must have reached in that stream, and not passed: all that the new owner has applied of it. 0 if the
    /// new owner has all that was ever sent.
    pub(crate) continues_at: u64,
}

impl StreamBegin {
    pub(crate) fn to_bytes(self) -> [u8; OWNER_WORDS_BYTES] {
        let mut bytes = [0; OWNER_WORDS_BYTES];
        let words =
            [RING_FORMAT, self.identity, self.position, self.continues, self.continues_at, self.sum()];
        for (index, word) in words.into_iter().enumerate() {
            bytes[8 * index..8 * index + 8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Returns what a ring says, if anybody has written to it.
    pub(crate) fn from_bytes(bytes: &[u8; OWNER_WORDS_BYTES]) -> Option<Self> {
        let word = |index: usize| {
            bytes[8 * index..].first_chunk().map_or(0, |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes))
        };
        let begin = Self { identity: word(1), position: word(2), continues: word(3), continues_at: word(4) };
        (word(0) == RING_FORMAT && word(5) == begin.sum()).then_some(begin)
    }

    fn sum(self) -> u64 {
        placed_sum(
            RING_FORMAT ^ self.continues ^ self.continues_at.rotate_left(32),
            self.identity,
            self.position.wrapping_add(1),
        )
    }
}

/// What a copy says in its ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyWords {
    /// The stream that it follows.
    pub(crate) identity: u64,
    /// The position up to which it has applied it.
    pub(crate) applied: u64,
    pub(crate) is_complete: bool,
}

impl CopyWords {
    pub(crate) fn from_bytes(bytes: &[u8; COPY_WORDS_BYTES]) -> Self {
        let word = |index: usize| {
            bytes[8 * index..].first_chunk().map_or(0, |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes))
        };
        Self { identity: word(0), applied: word(1), is_complete: word(2) == 1 }
    }
}
