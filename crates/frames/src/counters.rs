//! The figures of this process's sides of streams, for `caravan top` and `caravan frames top`.

use std::sync::OnceLock;

use caravan_segment::counters::{CounterRow, CounterTable, Label, TableKind};

use crate::error::Error;
use crate::picture::Picture;

/// The counters of a row, in order.
pub const COUNTER_NAMES: [&str; 6] =
    ["frames", "dropped", "overwritten", "consumers", "latency_ns", "frame_bytes"];
pub(crate) const FRAMES: usize = 0;
pub(crate) const DROPPED: usize = 1;
pub(crate) const OVERWRITTEN: usize = 2;
pub(crate) const CONSUMERS: usize = 3;
pub(crate) const LATENCY_NS: usize = 4;
const FRAME_BYTES: usize = 5;

/// Takes a row for one side (`send` or `recv`) of a stream.
pub(crate) fn row(name: &str, side: &str, picture: Picture, delivery: &str) -> Result<CounterRow, Error> {
    static TABLE: OnceLock<CounterTable> = OnceLock::new();
    let table = match TABLE.get() {
        Some(table) => table,
        None => {
            let made = CounterTable::create(TableKind::Frames, "caravan frames", &COUNTER_NAMES)?;
            TABLE.get_or_init(|| made)
        }
    };
    let shape = picture.to_string();
    let labels =
        [(Label::Local, name), (Label::Peer, side), (Label::Transport, &shape), (Label::Reason, delivery)];
    let row = table.row(labels)?;
    row.set(FRAME_BYTES, picture.frame_bytes());
    Ok(row)
}
