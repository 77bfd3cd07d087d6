//! Labelled 64-bit counters in shared memory: one process writes them, any process of the same user reads them.
//!
//! Each process has at most one [`CounterTable`], a memfd whose name tells the [`TableKind`]. Readers find it as
//! a link in `/proc/PID/fd`, which the kernel opens for the same user only: no file is left
//! behind, and no process registers. It contains the names of its
//! counters, so that a reader of another version can still print them.
//!
//! | kind | a row is | local label | peer label | transport and reason |
//! |---|---|---|---|---|
//! | [`TableKind::Links`] | one end of a link | the name of this end (a node's name) | the name of the other end | of the link |
//! | [`TableKind::Stores`] | a store that the process serves | its name | the path of its socket | empty |
//! | [`TableKind::Frames`] | a side of a stream of frames | its name | `send` or `recv` | the picture; how frames are delivered |
//!
//! Layout, all numbers in the host's byte order:
//!
//! | offset | holds |
//! |---|---|
//! | 0 | magic |
//! | 8 | rows ever used; those past it have never been written |
//! | 16 | number of counters in a row |
//! | 64 | the process's label, [`LABEL_BYTES`] |
//! | 1024 | names of the counters, [`NAME_BYTES`] each |
//! | 4096 + n * [`ROW_BYTES`] | row n |
//!
//! A row: a generation, then four labels, then the counters. Bit 0 of the generation is set while
//! the labels are being written, bit 1 while the row is in use; the rest counts. Every counter has one writer at a time, so counting is a plain load
//! and store, without a locked instruction.

mod read;

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Error, Pages, Segment, SharedSlice};

pub use read::{ProcessCounters, RowCounters, read_all, read_process};

/// The largest number of rows of a table of links; further ones count in memory that no other process sees.
pub const ROWS_MAX: usize = 1024;
/// The same for a table of stores: a server has one store, and a test a few servers.
pub const STORE_ROWS_MAX: usize = 16;
/// The same for a table of streams of frames.
pub const FRAMES_ROWS_MAX: usize = 64;
/// The largest number of counters of a row.
pub const COUNTERS_MAX: usize = 32;
/// The number of bytes of a label: longer ones are cut.
pub const LABEL_BYTES: usize = 256;
/// The number of bytes of a counter's name.
pub const NAME_BYTES: usize = 32;
/// The number of bytes of a row.
pub const ROW_BYTES: usize = 2048;

const MAGIC: u64 = u64::from_le_bytes(*b"caravan1");
const ROWS_USED_AT: usize = 8;
const COUNTER_COUNT_AT: usize = 16;
const PROCESS_LABEL_AT: usize = 64;
const NAMES_AT: usize = 1024;
const ROWS_AT: usize = 4096;
const ROW_LABELS_AT: usize = 64;
const ROW_COUNTERS_AT: usize = ROW_LABELS_AT + 4 * LABEL_BYTES;
/// The bits of a row's generation.
const WRITING: u64 = 1;
const IN_USE: u64 = 2;

const _: () = assert!(ROW_COUNTERS_AT + COUNTERS_MAX * 8 <= ROW_BYTES);
const _: () = assert!(NAMES_AT + COUNTERS_MAX * NAME_BYTES <= ROWS_AT);

/// What the rows of a table are. Each kind has memfds of its own name, so that a reader that does not know a kind
/// does not see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// Ends of links.
    Links,
    /// Stores that a process serves.
    Stores,
    /// Sides of streams of frames.
    Frames,
}

impl TableKind {
    const ALL: [Self; 3] = [Self::Links, Self::Stores, Self::Frames];

    fn segment_name(self) -> &'static str {
        match self {
            Self::Links => "caravan-counters",
            Self::Stores => "caravan-store-counters",
            Self::Frames => "caravan-frames-counters",
        }
    }

    fn rows_max(self) -> usize {
        match self {
            Self::Links => ROWS_MAX,
            Self::Stores => STORE_ROWS_MAX,
            Self::Frames => FRAMES_ROWS_MAX,
        }
    }
}

/// A property of a row; the table at the top says what it is for which [`TableKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// The name that the face gives this end of the link, or the store.
    Local = 0,
    /// The name of the other end, or of the socket.
    Peer = 1,
    /// The transport of the link: `shm`, `tcp`.
    Transport = 2,
    /// Why the link has that transport, and no better one.
    Reason = 3,
}

/// The writing side of one process's table. Any thread may add rows.
///
/// ```
/// use caravan_segment::counters::{self, CounterTable, Label, TableKind};
///
/// let table = CounterTable::create(TableKind::Links, "me@host", &["sent_bytes"])?;
/// let labels =
///     [(Label::Local, "me@host"), (Label::Peer, "you@host"), (Label::Transport, "shm"), (Label::Reason, "")];
/// let row = table.row(labels)?;
/// row.add(0, 42);
/// // Any process of the same user can read it.
/// let seen = counters::read_process(std::process::id());
/// assert_eq!(seen[0].rows[0].counter("sent_bytes"), Some(42));
/// # Ok::<(), caravan_segment::Error>(())
/// ```
#[derive(Debug)]
pub struct CounterTable {
    slice: SharedSlice,
    counter_count: usize,
    free: Arc<Mutex<Vec<usize>>>,
}

impl CounterTable {
    /// Makes the table, with the names of the counters that every row has.
    pub fn create(kind: TableKind, process_label: &str, counter_names: &[&str]) -> Result<Self, Error> {
        if counter_names.len() > COUNTERS_MAX {
            return Err(Error::Size { bytes: counter_names.len() as u64, maximum: COUNTERS_MAX as u64 });
        }
        let table_bytes = (ROWS_AT + kind.rows_max() * ROW_BYTES) as u64;
        let segment = Arc::new(Segment::create(kind.segment_name(), table_bytes, Pages::Small)?);
        segment.grow(table_bytes)?;
        let slice = segment.slice(0, table_bytes)?;
        write_text(&slice, PROCESS_LABEL_AT, LABEL_BYTES, process_label);
        for (i, name) in counter_names.iter().enumerate() {
            write_text(&slice, NAMES_AT + i * NAME_BYTES, NAME_BYTES, name);
        }
        slice.word(COUNTER_COUNT_AT).store(counter_names.len() as u64, Ordering::Relaxed);
        // pairs with the read in read::Reader::open
        slice.word(0).store(MAGIC, Ordering::Release);
        let free = Arc::new(Mutex::new((0..kind.rows_max()).rev().collect()));
        Ok(Self { slice, counter_count: counter_names.len(), free })
    }

    /// Sets the label of this process (a node's name is known only once the node is distributed).
    pub fn set_process_label(&self, label: &str) {
        write_text(&self.slice, PROCESS_LABEL_AT, LABEL_BYTES, label);
    }

    /// Takes a row with all counters at zero. It is freed when the [`CounterRow`] is dropped.
    pub fn row(&self, labels: [(Label, &str); 4]) -> Result<CounterRow, Error> {
        let taken = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let row = match taken {
            Some(index) => {
                let slice = self.slice.part((ROWS_AT + index * ROW_BYTES) as u64, ROW_BYTES as u64)?;
                self.slice.word(ROWS_USED_AT).fetch_max(index as u64 + 1, Ordering::Relaxed);
                CounterRow {
                    slice,
                    counter_count: self.counter_count,
                    home: Some((index, Arc::clone(&self.free))),
                }
            }
            None => {
                let segment =
                    Arc::new(Segment::create("caravan-counters-unlisted", ROW_BYTES as u64, Pages::Small)?);
                segment.grow(ROW_BYTES as u64)?;
                let slice = segment.slice(0, ROW_BYTES as u64)?;
                CounterRow { slice, counter_count: self.counter_count, home: None }
            }
        };
        row.begin();
        for i in 0..COUNTERS_MAX {
            row.counter(i).store(0, Ordering::Relaxed);
        }
        for (label, text) in labels {
            row.write_label(label, text);
        }
        row.end();
        Ok(row)
    }
}

/// One row of a [`CounterTable`]: one writer at a time.
#[derive(Debug)]
pub struct CounterRow {
    slice: SharedSlice,
    counter_count: usize,
    home: Option<(usize, Arc<Mutex<Vec<usize>>>)>,
}

impl CounterRow {
    fn counter(&self, index: usize) -> &AtomicU64 {
        self.slice.word(ROW_COUNTERS_AT + index * 8)
    }

    /// Adds `n` to counter `index`. Only the row's one writer may call it.
    #[inline]
    pub fn add(&self, index: usize, n: u64) {
        let counter = self.counter(index);
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets counter `index`, for a value that can fall.
    #[inline]
    pub fn set(&self, index: usize, value: u64) {
        self.counter(index).store(value, Ordering::Relaxed);
    }

    /// Returns the value of counter `index`.
    pub fn value(&self, index: usize) -> u64 {
        self.counter(index).load(Ordering::Relaxed)
    }

    /// Returns the number of counters.
    pub fn counter_count(&self) -> usize {
        self.counter_count
    }

    /// Changes one label.
    pub fn set_label(&self, label: Label, text: &str) {
        self.begin();
        self.write_label(label, text);
        self.end();
    }

    fn write_label(&self, label: Label, text: &str) {
        write_text(&self.slice, ROW_LABELS_AT + label as usize * LABEL_BYTES, LABEL_BYTES, text);
    }

    /// Begins a change of the labels: readers try again from here on.
    fn begin(&self) {
        let generation = self.slice.word(0);
        generation.store(generation.load(Ordering::Relaxed) | WRITING, Ordering::Relaxed);
        // pairs with the two reads of the generation in read::Reader::row: they are system calls,
        // which no read of the labels passes
        fence(Ordering::Release);
    }

    /// Ends a change of the labels: they are complete.
    fn end(&self) {
        let generation = self.slice.word(0);
        let counted = (generation.load(Ordering::Relaxed) | WRITING | IN_USE).wrapping_add(IN_USE << 1);
        // pairs as in begin()
        generation.store(counted & !WRITING, Ordering::Release);
    }
}

impl Drop for CounterRow {
    fn drop(&mut self) {
        let generation = self.slice.word(0);
        generation.store(generation.load(Ordering::Relaxed) & !(WRITING | IN_USE), Ordering::Release);
        if let Some((index, free)) = self.home.take() {
            free.lock().unwrap_or_else(PoisonError::into_inner).push(index);
        }
    }
}

/// Writes `text`, cut at a character's border, and fills the rest with zeros.
fn write_text(slice: &SharedSlice, offset: usize, bytes: usize, text: &str) {
    let mut length = text.len().min(bytes - 1);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    let mut padded = [0; LABEL_BYTES];
    padded[..length].copy_from_slice(&text.as_bytes()[..length]);
    slice.copy_in(offset, &padded[..bytes]);
}
