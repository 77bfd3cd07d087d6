//! The counters of each link, for `caravan_dist:info` and `caravan top`.

use std::sync::OnceLock;

use caravan_segment::counters::{CounterRow, CounterTable, Label};

/// The counters of a row, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs, reason = "NAMES says the same")]
pub enum Counter {
    SentBytes,
    ReceivedBytes,
    SentMessages,
    ReceivedMessages,
    RingBytes,
    OutboundUsedBytes,
    InboundUsedBytes,
    QueuedBytes,
    WakeupsSent,
    WakeupsReceived,
    Polls,
    Spins,
    SpinHits,
    BusyCount,
    BusyNs,
    Reassembled,
    Doorbells,
    Completions,
    RegisteredBytes,
}

/// The names of the counters, as users see them.
pub const NAMES: [&str; 19] = [
    "sent_bytes",
    "received_bytes",
    "sent_messages",
    "received_messages",
    "ring_bytes",
    "outbound_used_bytes",
    "inbound_used_bytes",
    "queued_bytes",
    "wakeups_sent",
    "wakeups_received",
    "polls",
    "spins",
    "spin_hits",
    "busy_count",
    "busy_ns",
    "reassembled_messages",
    "doorbells",
    "completions",
    "registered_bytes",
];

/// Adds a row to this process's table, for one connection.
pub fn row(local: &str, peer: &str) -> Result<CounterRow, caravan_segment::Error> {
    static TABLE: OnceLock<CounterTable> = OnceLock::new();
    let table = match TABLE.get() {
        Some(table) => table,
        None => {
            // Two threads may both make a table; the second one is dropped.
            let made = CounterTable::create(local, &NAMES)?;
            TABLE.get_or_init(|| made)
        }
    };
    table.set_process_label(local);
    table.row([(Label::Local, local), (Label::Peer, peer), (Label::Transport, ""), (Label::Reason, "")])
}
