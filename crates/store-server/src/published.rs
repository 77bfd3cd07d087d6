//! The counters of a store where `caravan top` reads them: a row of shared memory, which one thread sets again and again.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use caravan_segment::counters::{CounterRow, CounterTable, Label, TableKind};

use crate::state::ServerState;

/// The counters, in their order.
const NAMES: [&str; 8] = [
    // The time since the server began, at which all others were set.
    "uptime_ms",
    "operations",
    "clients",
    "links",
    "readers",
    "keys",
    "used_memory_bytes",
    "memory_limit_bytes",
];

/// The row of a server. It is free again once this is dropped.
#[derive(Debug)]
pub(crate) struct PublishedCounters(CounterRow);

impl PublishedCounters {
    /// Takes a row of this process's table.
    pub(crate) fn begin(state: &ServerState) -> Result<Self, caravan_segment::Error> {
        static TABLE: OnceLock<CounterTable> = OnceLock::new();
        let table = match TABLE.get() {
            Some(table) => table,
            None => {
                // Two threads may both make a table; the second one is dropped.
                let made = CounterTable::create(TableKind::Stores, "caravan store", &NAMES)?;
                TABLE.get_or_init(|| made)
            }
        };
        let (name, socket) = (&state.facts.name[..], &state.facts.socket[..]);
        let labels =
            [(Label::Local, name), (Label::Peer, socket), (Label::Transport, ""), (Label::Reason, "")];
        Ok(Self(table.row(labels)?))
    }

    /// Sets all counters.
    pub(crate) fn set(&self, state: &ServerState, uptime: Duration) {
        let (counts, clients) = (state.parts.table().counts(), state.client_counts());
        let values = [
            uptime.as_millis() as u64,
            state.counters.commands.load(Ordering::Relaxed),
            clients.all,
            clients.links,
            clients.readers,
            counts.keys,
            counts.used_bytes,
            counts.memory_bytes,
        ];
        values.into_iter().enumerate().for_each(|(index, value)| self.0.set(index, value));
    }
}
