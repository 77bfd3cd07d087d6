//! INFO.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use caravan_segment::process::ProcessStat;
use caravan_store::ClassCounts;

use crate::commands::connection::REDIS_VERSION;
use crate::commands::settings::policy;
use crate::dialogue::Dialogue;
use crate::error::CommandError;
use crate::resp::words::CommandWords;
use crate::slots::{ClusterPlace, host_and_port};
use crate::state::ServerState;
use crate::tally::percentile_ns;

/// A section of INFO: its name, whether INFO shows it unasked, and its lines as names and values.
type InfoSection = (&'static str, SectionKind, fn(&ServerState, u64) -> InfoLines);
type InfoLines = Vec<(String, String)>;

/// When INFO shows a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SectionKind {
    /// Without arguments, too.
    Usual,
    /// With `all` and `everything`.
    Long,
    /// By its name only.
    Named,
}

/// The sections, in their order.
static SECTIONS: [InfoSection; 12] = [
    ("Server", SectionKind::Usual, server),
    ("Clients", SectionKind::Usual, clients),
    ("Memory", SectionKind::Usual, memory),
    ("Stats", SectionKind::Usual, stats),
    ("Replication", SectionKind::Usual, replication),
    ("CPU", SectionKind::Usual, processor),
    ("Commandstats", SectionKind::Long, command_stats),
    ("Latencystats", SectionKind::Long, latency_stats),
    ("Errorstats", SectionKind::Usual, error_stats),
    ("Cluster", SectionKind::Usual, cluster),
    ("Keyspace", SectionKind::Usual, keyspace),
    ("Times", SectionKind::Named, times),
];

pub(crate) fn info(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let asks = |names: &[&str]| (1..words.len()).any(|at| names.iter().any(|name| words.is(at, name)));
    let is_usual = words.len() == 1 || asks(&["default"]);
    let is_long = asks(&["all", "everything"]);
    let mut text = String::new();
    for (name, kind, lines) in &SECTIONS {
        let is_asked = match kind {
            SectionKind::Usual => is_usual || is_long,
            SectionKind::Long => is_long,
            SectionKind::Named => false,
        };
        if is_asked || asks(&[name]) {
            let separator = if text.is_empty() { "" } else { "\r\n" };
            // Writing to a String cannot fail.
            let _ = write!(text, "{separator}# {name}\r\n");
            for (name, value) in lines(&dialogue.state, dialogue.now_ms) {
                let _ = write!(text, "{name}:{value}\r\n");
            }
        }
    }
    dialogue.reply.verbatim(&text);
    Ok(())
}

fn line(name: impl Into<String>, value: impl ToString) -> (String, String) {
    (name.into(), value.to_string())
}

fn server(state: &ServerState, now_ms: u64) -> InfoLines {
    let facts = &state.facts;
    let uptime_s = now_ms.saturating_sub(facts.started_ms) / 1000;
    vec![
        line("redis_version", REDIS_VERSION),
        line("redis_mode", state.parts.table().mode()),
        line("server_name", "caravan"),
        line("caravan_version", env!("CARGO_PKG_VERSION")),
        line("caravan_store", &facts.name),
        line("process_id", std::process::id()),
        line("tcp_port", facts.port),
        line("uptime_in_seconds", uptime_s),
        line("uptime_in_days", uptime_s / 86_400),
    ]
}

fn clients(state: &ServerState, _: u64) -> InfoLines {
    let clients = state.client_counts();
    vec![
        line("connected_clients", clients.all),
        line("connected_links", clients.links),
        line("connected_readers", clients.readers),
        line("maxclients", state.clients_max()),
    ]
}

fn memory(state: &ServerState, _: u64) -> InfoLines {
    let parts = state.parts.table();
    let (counts, memory) = (parts.counts(), parts.memory_counts());
    let mut lines = vec![
        line("used_memory", counts.used_bytes),
        line("used_memory_human", human(counts.used_bytes)),
        line("used_memory_rss", resident_bytes().unwrap_or(counts.used_bytes)),
        line("maxmemory", counts.memory_bytes),
        line("maxmemory_human", human(counts.memory_bytes)),
        line("maxmemory_policy", String::from_utf8_lossy(&policy(state))),
        line("memory_table_bytes", memory.table_blocks * memory.block_bytes),
        line(
            "memory_object_bytes",
            memory.classes.iter().map(|class| class.blocks * memory.block_bytes).sum::<u64>(),
        ),
        line("memory_fragmented_bytes", memory.classes.iter().map(free_bytes).sum::<u64>()),
    ];
    lines.extend(memory.classes.iter().map(|class| {
        let (blocks, places, used) = (class.blocks, class.places, class.used_places);
        let name = format!("memory_class_{}", class.place_bytes);
        line(name, format!("blocks={blocks},places={places},used={used}"))
    }));
    lines
}

/// Returns the bytes of places that no object is in.
fn free_bytes(class: &ClassCounts) -> u64 {
    (class.places - class.used_places) * class.place_bytes
}

/// Writes a number of bytes as Redis does, such as `1.50M`.
fn human(bytes: u64) -> String {
    let units = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes >> shift != 0);
    unit.map_or_else(
        || format!("{bytes}B"),
        |(unit, shift)| format!("{:.2}{unit}", bytes as f64 / (1_u64 << shift) as f64),
    )
}

/// Returns the bytes of this process that are in the machine's memory, the store's own included.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(1024 * kilobytes.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?)
}

fn stats(state: &ServerState, _: u64) -> InfoLines {
    let (counts, counters) = (state.parts.table().counts(), &state.counters);
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    vec![
        line("total_connections_received", read(&counters.connections)),
        line("total_commands_processed", read(&counters.commands)),
        line("total_net_input_bytes", read(&counters.input_bytes)),
        line("total_net_output_bytes", read(&counters.output_bytes)),
        line("rejected_connections", read(&counters.refused)),
        line("client_output_stalled_disconnections", read(&counters.stalled)),
        line("total_error_replies", read(&counters.errors)),
        line("expired_keys", counts.expired),
        line("evicted_keys", counts.evicted),
        line("keyspace_hits", counts.hits),
        line("keyspace_misses", counts.misses),
        line("transaction_commits", counts.commits),
        line("transaction_conflicts", counts.conflicts),
        line("request_sessions", counts.sessions),
    ]
}

/// A server is always the master of what it serves; a replica is a server that has copies of that.
fn replication(state: &ServerState, _: u64) -> InfoLines {
    let parts = state.parts.table();
    let holders = parts.cluster.as_deref().map_or_else(Vec::new, ClusterPlace::copy_holders);
    let mut lines = vec![line("role", "master"), line("connected_slaves", holders.len())];
    lines.extend(holders.iter().enumerate().map(|(number, member)| {
        let (host, port) = host_and_port(&member.client_address);
        line(format!("slave{number}"), format!("ip={host},port={port},state=online,offset=0,lag=0"))
    }));
    lines.push(line("master_repl_offset", 0));
    lines
}

fn cluster(state: &ServerState, _: u64) -> InfoLines {
    vec![line("cluster_enabled", u8::from(state.parts.table().cluster.is_some()))]
}

fn processor(_: &ServerState, _: u64) -> InfoLines {
    let stat = ProcessStat::of(std::process::id() as i32).ok();
    let seconds = |ticks: fn(&ProcessStat) -> u64| {
        format!("{:.6}", stat.as_ref().map_or(0.0, |stat| ticks(stat) as f64 / 100.0))
    };
    vec![
        line("used_cpu_sys", seconds(|stat| stat.system_ticks)),
        line("used_cpu_user", seconds(|stat| stat.user_ticks)),
        line("used_cpu_sys_children", seconds(|_| 0)),
        line("used_cpu_user_children", seconds(|stat| stat.waited_for_ticks)),
    ]
}

/// The time of all calls is that of those that were timed, as if the others had taken as long.
fn command_stats(state: &ServerState, _: u64) -> InfoLines {
    let mut lines = Vec::new();
    for (spec, tally) in state.tallies.all() {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        if !tally.is_used() {
            continue;
        }
        let (calls, rejected, failed) = (read(&tally.calls), read(&tally.rejected), read(&tally.failed));
        let timed: u64 = tally.times.times().iter().map(|(_, count)| count).sum();
        let us_per_call = tally.times.sum_ns() as f64 / 1000.0 / timed.max(1) as f64;
        lines.push(line(
            format!("cmdstat_{}", spec.name),
            format!(
                "calls={calls},usec={:.0},usec_per_call={us_per_call:.2},rejected_calls={rejected},failed_calls={failed}",
                us_per_call * calls as f64,
            ),
        ));
    }
    // Calls over links are not timed: to read the clock takes as long as some of them.
    lines.extend(state.tallies.calls().map(|(name, calls)| {
        let text = format!("calls={calls},usec=0,usec_per_call=0.00,rejected_calls=0,failed_calls=0");
        line(format!("cmdstat_{name}"), text)
    }));
    lines
}

fn latency_stats(state: &ServerState, _: u64) -> InfoLines {
    let percentiles = state.tallies.percentiles();
    let mut lines = Vec::new();
    if !state.tallies.is_timing() {
        return lines;
    }
    for (spec, tally) in state.tallies.all() {
        let times = tally.times.times();
        if !times.is_empty() {
            let figures = percentiles.iter().filter_map(|percentage| {
                let us = percentile_ns(&times, *percentage)? as f64 / 1000.0;
                Some(format!("p{percentage}={us:.3}"))
            });
            let figures: Vec<String> = figures.collect();
            lines.push(line(format!("latency_percentiles_usec_{}", spec.name), figures.join(",")));
        }
    }
    lines
}

fn error_stats(state: &ServerState, _: u64) -> InfoLines {
    let errors = state.tallies.errors();
    let shown = |(code, count): (Vec<u8>, u64)| {
        line(format!("errorstat_{}", String::from_utf8_lossy(&code)), format!("count={count}"))
    };
    errors.into_iter().map(shown).collect()
}

fn keyspace(state: &ServerState, _: u64) -> InfoLines {
    let counts = state.parts.table().counts();
    match counts.keys {
        0 => Vec::new(),
        // Clients of Redis expect all three. No time to live is sampled, which Redis also tells as 0.
        keys => vec![line("db0", format!("keys={keys},expires={},avg_ttl=0", counts.expiring))],
    }
}

/// How long commands took, for `caravan store top`: nanoseconds, and how many commands took about as long.
fn times(state: &ServerState, _: u64) -> InfoLines {
    let mut lines = Vec::new();
    for (spec, tally) in state.tallies.all() {
        let times: Vec<String> =
            tally.times.times().iter().map(|(ns, count)| format!("{ns}={count}")).collect();
        if !times.is_empty() {
            lines.push(line(format!("times_ns_{}", spec.name), times.join(",")));
        }
    }
    lines
}
