//! The counters of each link, for `caravan_dist:info` and `caravan top`.

use std::sync::OnceLock;

use caravan_segment::counters::{CounterRow, CounterTable, Label, TableKind};

/// Declares the counters of a row, in their order, each with its name as users see it.
macro_rules! counters {
    ($($counter:ident = $name:literal,)*) => {
        /// The counters of a row, in their order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[allow(missing_docs, reason = "NAMES says the same")]
        pub enum Counter {
            $($counter,)*
        }

        /// The names of the counters, as users see them.
        pub const NAMES: &[&str] = &[$($name),*];
    };
}

counters! {
    SentBytes = "sent_bytes",
    ReceivedBytes = "received_bytes",
    SentMessages = "sent_messages",
    ReceivedMessages = "received_messages",
    RingBytes = "ring_bytes",
    OutboundUsedBytes = "outbound_used_bytes",
    InboundUsedBytes = "inbound_used_bytes",
    QueuedBytes = "queued_bytes",
    WakeupsSent = "wakeups_sent",
    WakeupsReceived = "wakeups_received",
    Polls = "polls",
    Spins = "spins",
    SpinHits = "spin_hits",
    BusyCount = "busy_count",
    BusyNs = "busy_ns",
    Reassembled = "reassembled_messages",
    Doorbells = "doorbells",
    Completions = "completions",
    RegisteredBytes = "registered_bytes",
}

/// Adds a row to this process's table, for one connection.
pub fn row(local: &str, peer: &str) -> Result<CounterRow, caravan_segment::Error> {
    static TABLE: OnceLock<CounterTable> = OnceLock::new();
    let table = match TABLE.get() {
        Some(table) => table,
        None => {
            // Two threads may both make a table; the second one is dropped.
            let made = CounterTable::create(TableKind::Links, local, NAMES)?;
            TABLE.get_or_init(|| made)
        }
    };
    table.set_process_label(local);
    table.row([(Label::Local, local), (Label::Peer, peer), (Label::Transport, ""), (Label::Reason, "")])
}
