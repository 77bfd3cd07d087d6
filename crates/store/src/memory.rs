//! How an owner comes to its memory: it makes a store in an empty file, or takes over the store that is there.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use caravan_segment::{JOINED_PAGE_BYTES, Segment};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::blocks::store_word;
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::layout::{
    BLOCK_BYTES, FIRST_PAGE_BYTES, MAGIC, MAGIC_UNFINISHED, StoreLayout, word, words_checksum,
};
use crate::limits::{OWNER_PAUSE, OWNER_WAIT};
use crate::options::StoreOptions;
use crate::protocol::UnitWords;
use crate::view::StoreView;
use crate::words::StoreWords;

/// The memory of a store in the process that owns it.
pub(crate) struct OwnedMemory {
    pub(crate) segment: Arc<Segment>,
    pub(crate) view: StoreView,
    /// Keeps other owners out while it is open.
    pub(crate) ownership: OwnedFd,
    /// There is no store in it yet; [`finish`] says when there is one.
    pub(crate) is_new: bool,
}

impl OwnedMemory {
    pub(crate) fn open(memory: OwnedFd, options: &StoreOptions) -> Result<Self, StoreError> {
        let ownership = own(&memory)?;
        let mut page = [0; FIRST_PAGE_BYTES as usize];
        let length =
            rustix::io::pread(&memory, &mut page, 0).map_err(|error| StoreError::system("pread", error))?;
        let page_word = |place: u64| {
            let bytes = page[place as usize..].first_chunk::<8>().copied();
            u64::from_ne_bytes(bytes.unwrap_or_default())
        };
        let layout = StoreLayout::of(options.memory_bytes);
        let is_new = match page_word(word::MAGIC) {
            MAGIC => false,
            MAGIC_UNFINISHED => true,
            _ if page[..length].iter().all(|byte| *byte == 0) => true,
            _ => return Err(StoreError::NotAStore("it is not empty, and is no store of this version")),
        };
        let checksum = words_checksum(page_word(word::REGION_BYTES), page_word(word::HASH_SEED));
        if !is_new && page_word(word::CHECKSUM) != checksum {
            return Err(StoreError::Damaged("its first words are not what was written".to_owned()));
        }
        if !is_new && page_word(word::REGION_BYTES) != options.memory_bytes {
            return Err(StoreError::Options(format!(
                "memory_bytes is {}, and the store was made with {}: give it that number again",
                options.memory_bytes,
                page_word(word::REGION_BYTES)
            )));
        }
        let committed_bytes = if is_new { 0 } else { page_word(word::COMMITTED) };
        let is_whole = committed_bytes <= layout.region_bytes()
            && committed_bytes.checked_sub(layout.blocks_place).is_some_and(|bytes| bytes % BLOCK_BYTES == 0);
        if !is_new && !is_whole {
            let text = format!("{committed_bytes} bytes are said to be in use");
            return Err(StoreError::Damaged(text));
        }
        let status = rustix::fs::fstat(&memory).map_err(|error| StoreError::system("fstat", error))?;
        // The owner before backed whole joined pages, if the limit allowed that.
        let whole_bytes = committed_bytes.next_multiple_of(JOINED_PAGE_BYTES).min(layout.region_bytes());
        let is_backed = u64::try_from(status.st_blocks).is_ok_and(|blocks| blocks * 512 >= whole_bytes);
        let backed_bytes = if is_backed { whole_bytes } else { committed_bytes };
        let segment = Segment::adopt(memory, layout.region_bytes(), backed_bytes);
        let segment = Arc::new(segment.map_err(|error| match error {
            caravan_segment::Error::Foreign(why) => StoreError::NotAStore(why),
            error => error.into(),
        })?);
        if is_new {
            begin(&segment, &layout, options.memory_bytes)?;
        }
        let view = StoreView::with_layout(StoreWords::of_owner(&segment)?, layout)?;
        Ok(Self { segment, view, ownership, is_new })
    }
}

/// Locks the memory against other owners, for as long as the returned descriptor is open: it was opened anew, so
/// that the lock is not shared with whoever passed `memory` on, and ends with this process.
pub(crate) fn own(memory: &OwnedFd) -> Result<OwnedFd, StoreError> {
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let ownership = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| StoreError::system("open(/proc/self/fd)", error))?;
    let begin = Instant::now();
    loop {
        if is_planted(PlantedFault::UnlockedMemory) {
            return Ok(ownership);
        }
        match rustix::fs::flock(&ownership, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(ownership),
            Err(Errno::WOULDBLOCK) if begin.elapsed() < OWNER_WAIT => std::thread::sleep(OWNER_PAUSE),
            Err(Errno::WOULDBLOCK) => return Err(StoreError::Owned),
            Err(error) => return Err(StoreError::system("flock", error)),
        }
    }
}

/// Reads a word of the first page of a memory that is not mapped; 0 if it is not there.
pub(crate) fn page_word(memory: &OwnedFd, place: u64) -> Result<u64, StoreError> {
    let mut word = [0; 8];
    rustix::io::pread(memory, &mut word, place).map_err(|error| StoreError::system("pread", error))?;
    Ok(u64::from_ne_bytes(word))
}

/// Makes the words of an empty store, without a block. Whoever finds them unfinished begins again.
fn begin(segment: &Arc<Segment>, layout: &StoreLayout, memory_bytes: u64) -> Result<(), StoreError> {
    segment.grow(layout.blocks_place)?;
    let words = StoreWords::of_owner(segment)?;
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| StoreError::system("getrandom", error))?;
    let words = words.words(0, layout.blocks_place as usize / 8);
    let words = words.ok_or(StoreError::NotAStore("it is too small"))?;
    words.publish(MAGIC_UNFINISHED);
    (1..words.len()).for_each(|index| words.store(index, 0));
    words.store(word::REGION_BYTES as usize / 8, memory_bytes);
    let seed = u64::from_ne_bytes(seed);
    words.store(word::HASH_SEED as usize / 8, seed);
    words.store(word::CHECKSUM as usize / 8, words_checksum(memory_bytes, seed));
    words[word::COMMITTED as usize / 8].store(layout.blocks_place, Ordering::Release);
    Ok(())
}

/// Says that the memory holds a store.
pub(crate) fn finish(view: &StoreView) {
    // Pairs with the acquire fence of a lookup's first step, and with the fork or message by which a reader
    // learns of the memory.
    store_word(view, word::MAGIC, MAGIC);
}
