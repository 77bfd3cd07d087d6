//! Links, stores and streams of frames as rates, computed from two samples of their counters.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use caravan_segment::counters::{ProcessCounters, RowCounters, TableKind};
use caravan_segment::printable;
use serde::Serialize;

/// All counters at one moment.
pub struct CountersSample {
    pub at: Instant,
    pub processes: Vec<ProcessCounters>,
}

/// One refresh; as JSON it is one line.
#[derive(Clone, Debug, Serialize)]
pub struct CountersView {
    pub unix_time: f64,
    /// The seconds over which the rates are taken.
    pub interval_seconds: f64,
    /// Sorted by node and peer.
    pub links: Vec<LinkRow>,
    /// Sorted by name.
    pub stores: Vec<StoreRow>,
    /// Sorted by the name of the stream, its producer after its consumers.
    pub frames: Vec<FramesRow>,
}

/// One end of a link. Rates are `None` in its first refresh.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinkRow {
    pub pid: u32,
    pub node: String,
    pub peer: String,
    pub transport: String,
    /// Why this transport and not a better one.
    pub reason: String,
    pub messages_sent_per_s: Option<f64>,
    pub messages_received_per_s: Option<f64>,
    pub bytes_sent_per_s: Option<f64>,
    pub bytes_received_per_s: Option<f64>,
    pub wakeups_sent_per_s: Option<f64>,
    pub wakeups_received_per_s: Option<f64>,
    pub spins_per_s: Option<f64>,
    pub spin_hits_per_s: Option<f64>,
    /// The share of time in which senders were suspended.
    pub busy_part: Option<f64>,
    pub ring_bytes: u64,
    pub outbound_used_bytes: u64,
    pub inbound_used_bytes: u64,
    pub queued_bytes: u64,
    /// All counters with their raw values, including those that this version does not know.
    pub counters: BTreeMap<String, u64>,
}

/// A store that a process serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StoreRow {
    /// The process that serves it.
    pub pid: u32,
    pub store: String,
    /// The path of its socket.
    pub socket: String,
    /// Commands and calls of clients. `None` in the first refresh. What readers read by themselves is not counted.
    pub operations_per_s: Option<f64>,
    pub clients: u64,
    /// Those of the clients whose connection has become a link.
    pub links: u64,
    /// Those of the links whose client has got the memory, and reads it by itself.
    pub readers: u64,
    pub keys: u64,
    pub used_memory_bytes: u64,
    pub memory_limit_bytes: u64,
    /// All counters with their raw values, including those that this version does not know.
    pub counters: BTreeMap<String, u64>,
}

/// One side of a stream of frames. Rates are `None` in its first refresh.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FramesRow {
    pub pid: u32,
    pub stream: String,
    /// `send` or `recv`.
    pub side: String,
    /// Size, pixel format and rate.
    pub picture: String,
    /// How frames are delivered: `newest`, `every`, `lossless`.
    pub delivery: String,
    pub frames_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
    /// Frames that are lost to a consumer, as newer ones were there before it came to them.
    pub dropped: u64,
    /// Frames that were overwritten while a consumer read them, which it has thrown away.
    pub overwritten: u64,
    /// Of the producer.
    pub consumers: u64,
    /// How old the last frame was when the consumer found it, in milliseconds.
    pub latency_ms: f64,
    /// All counters with their raw values, including those that this version does not know.
    pub counters: BTreeMap<String, u64>,
}

impl CountersView {
    pub fn between(before: &CountersSample, now: &CountersSample) -> Self {
        let seconds = (now.at - before.at).as_secs_f64();
        let (mut links, mut stores, mut frames) = (Vec::new(), Vec::new(), Vec::new());
        for process in &now.processes {
            let earlier =
                before.processes.iter().find(|other| (other.pid, other.kind) == (process.pid, process.kind));
            for row in &process.rows {
                // This is the same row, not given to another link since.
                let earlier = earlier.and_then(|process| {
                    let same =
                        |other: &&RowCounters| (other.index, other.generation) == (row.index, row.generation);
                    process.rows.iter().find(same)
                });
                match process.kind {
                    TableKind::Links => links.push(link(process, row, earlier, seconds)),
                    TableKind::Stores => stores.push(store(process, row, earlier)),
                    TableKind::Frames => frames.push(side(process, row, earlier, seconds)),
                }
            }
        }
        links.sort_by(|a: &LinkRow, b| (&a.node, &a.peer, a.pid).cmp(&(&b.node, &b.peer, b.pid)));
        stores.sort_by(|a: &StoreRow, b| (&a.store, a.pid).cmp(&(&b.store, b.pid)));
        frames.sort_by(|a: &FramesRow, b| (&a.stream, &a.side, a.pid).cmp(&(&b.stream, &b.side, b.pid)));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { unix_time: now.as_secs_f64(), interval_seconds: seconds, links, stores, frames }
    }
}

fn link(
    process: &ProcessCounters,
    row: &RowCounters,
    earlier: Option<&RowCounters>,
    seconds: f64,
) -> LinkRow {
    let gauge = |name| row.counter(name).unwrap_or(0);
    let rate = |name| {
        let (before, now) = (earlier?.counter(name)?, row.counter(name)?);
        // The owner writes without locks: a value that seems to fall counts as no change.
        (seconds > 0.0).then(|| now.saturating_sub(before) as f64 / seconds)
    };
    let node = if row.local.is_empty() { &process.label } else { &row.local };
    LinkRow {
        pid: process.pid,
        node: printable(node),
        peer: printable(&row.peer),
        transport: printable(&row.transport),
        reason: printable(&row.reason),
        messages_sent_per_s: rate("sent_messages"),
        messages_received_per_s: rate("received_messages"),
        bytes_sent_per_s: rate("sent_bytes"),
        bytes_received_per_s: rate("received_bytes"),
        wakeups_sent_per_s: rate("wakeups_sent"),
        wakeups_received_per_s: rate("wakeups_received"),
        spins_per_s: rate("spins"),
        spin_hits_per_s: rate("spin_hits"),
        busy_part: rate("busy_ns").map(|ns| ns / 1e9),
        ring_bytes: gauge("ring_bytes"),
        outbound_used_bytes: gauge("outbound_used_bytes"),
        inbound_used_bytes: gauge("inbound_used_bytes"),
        queued_bytes: gauge("queued_bytes"),
        counters: raw(row),
    }
}

fn store(process: &ProcessCounters, row: &RowCounters, earlier: Option<&RowCounters>) -> StoreRow {
    let gauge = |name| row.counter(name).unwrap_or(0);
    let growth = |name| Some(row.counter(name)?.saturating_sub(earlier?.counter(name)?));
    // The server sets its counters from time to time, and says when: the rate is over the time between.
    let rate = growth("operations").zip(growth("uptime_ms")).filter(|(_, ms)| *ms > 0);
    StoreRow {
        pid: process.pid,
        store: printable(&row.local),
        socket: printable(&row.peer),
        operations_per_s: rate.map(|(operations, ms)| operations as f64 * 1000.0 / ms as f64),
        clients: gauge("clients"),
        links: gauge("links"),
        readers: gauge("readers"),
        keys: gauge("keys"),
        used_memory_bytes: gauge("used_memory_bytes"),
        memory_limit_bytes: gauge("memory_limit_bytes"),
        counters: raw(row),
    }
}

/// Returns a side of a stream of frames.
fn side(
    process: &ProcessCounters,
    row: &RowCounters,
    earlier: Option<&RowCounters>,
    seconds: f64,
) -> FramesRow {
    let gauge = |name| row.counter(name).unwrap_or(0);
    let growth = earlier
        .and_then(|earlier| earlier.counter("frames"))
        .map(|before| gauge("frames").saturating_sub(before));
    let frames_per_s = growth.filter(|_| seconds > 0.0).map(|frames| frames as f64 / seconds);
    FramesRow {
        pid: process.pid,
        stream: printable(&row.local),
        side: printable(&row.peer),
        picture: printable(&row.transport),
        delivery: printable(&row.reason),
        frames_per_s,
        bytes_per_s: frames_per_s.map(|rate| rate * gauge("frame_bytes") as f64),
        dropped: gauge("dropped"),
        overwritten: gauge("overwritten"),
        consumers: gauge("consumers"),
        latency_ms: gauge("latency_ns") as f64 / 1e6,
        counters: raw(row),
    }
}

fn raw(row: &RowCounters) -> BTreeMap<String, u64> {
    row.counters.iter().map(|(name, value)| (printable(name), *value)).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::time::Duration;

    pub fn process(pid: u32, generation: u64, counters: &[(&str, u64)]) -> ProcessCounters {
        let row = RowCounters {
            index: 0,
            generation,
            local: "a@host".into(),
            peer: format!("b{pid}@host"),
            transport: "shm".into(),
            reason: "same host\u{1b}[2J and user".into(),
            counters: counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        };
        ProcessCounters { pid, kind: TableKind::Links, label: "a@host".into(), rows: vec![row] }
    }

    fn view(before: Vec<ProcessCounters>, now: Vec<ProcessCounters>) -> CountersView {
        let at = Instant::now();
        CountersView::between(
            &CountersSample { at, processes: before },
            &CountersSample { at: at + Duration::from_secs(2), processes: now },
        )
    }

    #[test]
    fn rates_are_growth_over_the_time_between() {
        let before = process(7, 2, &[("sent_messages", 100), ("busy_ns", 0), ("spins", 9)]);
        let now = process(
            7,
            2,
            &[("sent_messages", 300), ("busy_ns", 1_000_000_000), ("spins", 5), ("ring_bytes", 64)],
        );
        let view = view(vec![before], vec![now]);
        let link = &view.links[0];
        assert_eq!(link.messages_sent_per_s, Some(100.0));
        assert_eq!(link.busy_part, Some(0.5));
        assert_eq!(link.spins_per_s, Some(0.0));
        assert_eq!(link.messages_received_per_s, None);
        assert_eq!(link.ring_bytes, 64);
    }

    #[test]
    fn the_rate_of_a_store_is_over_the_time_between_its_own_counts() {
        let store = |counters: &[(&str, u64)]| {
            let ProcessCounters { pid, label, rows, .. } = process(7, 2, counters);
            ProcessCounters { pid, kind: TableKind::Stores, label, rows }
        };
        let before = store(&[("operations", 100), ("uptime_ms", 1000)]);
        let now = store(&[("operations", 350), ("uptime_ms", 1500), ("keys", 9)]);
        let rows = view(vec![before.clone()], vec![now.clone()]).stores;
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((&row.store[..], row.operations_per_s, row.keys), ("a@host", Some(500.0), 9));
        // It has not counted since, or not been there before.
        assert_eq!(view(vec![now.clone()], vec![now.clone()]).stores[0].operations_per_s, None);
        assert_eq!(view(Vec::new(), vec![now]).stores[0].operations_per_s, None);
        assert!(view(vec![before.clone()], vec![before]).links.is_empty());
    }

    #[test]
    fn a_side_of_a_stream_has_its_rate_in_bytes_too() {
        let side = |frames| {
            let ProcessCounters { pid, label, rows, .. } =
                process(7, 2, &[("frames", frames), ("frame_bytes", 1000), ("latency_ns", 1_500_000)]);
            ProcessCounters { pid, kind: TableKind::Frames, label, rows }
        };
        let rows = view(vec![side(100)], vec![side(220)]).frames;
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((row.frames_per_s, row.bytes_per_s, row.latency_ms), (Some(60.0), Some(60_000.0), 1.5));
        assert_eq!(view(Vec::new(), vec![side(220)]).frames[0].frames_per_s, None);
    }

    #[test]
    fn another_link_in_the_same_row_has_no_rate_yet() {
        let before = process(7, 2, &[("sent_messages", 100)]);
        let now = process(7, 4, &[("sent_messages", 300)]);
        assert_eq!(view(vec![before], vec![now]).links[0].messages_sent_per_s, None);
    }

    #[test]
    fn links_are_sorted_and_their_text_is_harmless() {
        let view = view(Vec::new(), vec![process(9, 2, &[]), process(7, 2, &[])]);
        let peers: Vec<_> = view.links.iter().map(|link| link.peer.as_str()).collect();
        assert_eq!(peers, ["b7@host", "b9@host"]);
        assert_eq!(view.links[0].reason, r"same host\u{1b}[2J and user");
    }

    #[test]
    fn json_names_every_rate_and_keeps_unknown_counters() {
        let now = process(7, 2, &[("sent_messages", 3), ("new_counter", 5)]);
        let json = serde_json::to_value(view(Vec::new(), vec![now])).expect("JSON");
        let link = &json["links"][0];
        assert_eq!(link["transport"], "shm");
        assert!(link["messages_sent_per_s"].is_null());
        assert_eq!(link["counters"]["new_counter"], 5);
        assert_eq!(json["interval_seconds"], 2.0);
    }
}
