//! `caravan store top`: shows what a store does, from the counters that INFO tells.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use caravan_bench::Error as Shared;
use caravan_bench::interrupt::Interrupt;
use caravan_bench::number::{binary, bytes, number};
use caravan_segment::printable;
use caravan_store_server::{StoreAnswer, percentile_ns};
use serde::Serialize;

use crate::args::StoreTop;
use crate::error::Error;
use crate::store::StoreTalk;
use crate::top::{fit, maybe, show, table, wait, whole};

/// Shows the store until it is interrupted, or once.
pub fn run(args: &StoreTop) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let mut talk = StoreTalk::open(&args.choice)?;
    let mut before = StoreSample::read(&mut talk)?;
    let mut is_first = true;
    loop {
        match wait(args.interval, &interrupt) {
            // Ctrl-C is the normal way to leave this view.
            Err(Error::Shared(Shared::Interrupted)) => return Ok(()),
            other => other?,
        }
        let now = StoreSample::read(&mut talk)?;
        let view = StoreRates::between(&before, &now);
        show(&view, args.choice.json, args.once, is_first, |width, height| text(&view, width, height))?;
        if args.once {
            return Ok(());
        }
        (before, is_first) = (now, false);
    }
}

/// What INFO told at one moment.
struct StoreSample {
    at: Instant,
    lines: BTreeMap<String, String>,
}

impl StoreSample {
    fn read(talk: &mut StoreTalk) -> Result<Self, Error> {
        let StoreAnswer::Bulk(text) = talk.call(&[b"INFO", b"everything", b"times"])? else {
            return Err(talk.unexpected());
        };
        let text = printable_lines(&text);
        let pairs = text.iter().filter_map(|line| line.split_once(':'));
        let lines = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Self { at: Instant::now(), lines })
    }

    fn text(&self, name: &str) -> &str {
        self.lines.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> f64 {
        self.text(name).parse().unwrap_or(0.0)
    }

    /// Returns a part of a line such as `calls=3,failed_calls=0`.
    fn part(&self, name: &str, part: &str) -> f64 {
        parts(self.text(name))
            .find(|(name, _)| *name == part)
            .and_then(|(_, value)| value.parse().ok())
            .unwrap_or(0.0)
    }

    /// Returns the times of a command: nanoseconds, and how many commands took that long.
    fn times(&self, command: &str) -> BTreeMap<u64, u64> {
        let pairs = parts(self.text(&format!("times_ns_{command}")));
        pairs.filter_map(|(ns, count)| Some((ns.parse().ok()?, count.parse().ok()?))).collect()
    }

    /// Returns the rest of each name that begins like this.
    fn names<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines.keys().filter_map(move |name| name.strip_prefix(prefix))
    }
}

/// Returns the lines of INFO, safe for a terminal.
pub(super) fn printable_lines(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text).lines().map(printable).collect()
}

/// Returns the parts of a value such as `calls=3,failed_calls=0`.
pub(super) fn parts(value: &str) -> impl Iterator<Item = (&str, &str)> {
    value.split(',').filter_map(|part| part.split_once('='))
}

/// One refresh; as JSON it is one line. Rates are over the interval.
#[derive(Debug, Serialize)]
struct StoreRates {
    unix_time: f64,
    interval_seconds: f64,
    store: String,
    uptime_seconds: f64,
    clients: f64,
    /// Those of the clients whose connection has become a link.
    links: f64,
    /// Those of the links whose client has got the memory, and reads it by itself.
    readers: f64,
    sessions: f64,
    keys: f64,
    used_memory_bytes: f64,
    memory_limit_bytes: f64,
    /// Memory in blocks of objects that no object uses.
    fragmented_memory_bytes: f64,
    table_memory_bytes: f64,
    processor_part: f64,
    /// Commands, and calls over links.
    operations_per_s: f64,
    hits_per_s: f64,
    misses_per_s: f64,
    commits_per_s: f64,
    conflicts_per_s: f64,
    expired_per_s: f64,
    evicted_per_s: f64,
    errors_per_s: f64,
    input_bytes_per_s: f64,
    output_bytes_per_s: f64,
    /// Those that ran within the interval, the most frequent one first.
    commands: Vec<CommandRow>,
    classes: Vec<ClassRow>,
}

/// One kind of command. Times are those of the interval, in microseconds.
#[derive(Debug, Serialize)]
struct CommandRow {
    command: String,
    per_s: f64,
    failed_per_s: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
}

/// One size class of objects.
#[derive(Debug, Serialize)]
struct ClassRow {
    place_bytes: u64,
    blocks: f64,
    places: f64,
    used_places: f64,
}

impl StoreRates {
    fn between(before: &StoreSample, now: &StoreSample) -> Self {
        let seconds = (now.at - before.at).as_secs_f64();
        // A counter that falls was set back by CONFIG RESETSTAT, or the server is another one.
        let rate = |name: &str| (now.number(name) - before.number(name)).max(0.0) / seconds;
        let keys = now.part("db0", "keys");
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            unix_time: since.as_secs_f64(),
            interval_seconds: seconds,
            store: now.text("caravan_store").to_owned(),
            uptime_seconds: now.number("uptime_in_seconds"),
            clients: now.number("connected_clients"),
            links: now.number("connected_links"),
            readers: now.number("connected_readers"),
            sessions: now.number("request_sessions"),
            keys,
            used_memory_bytes: now.number("used_memory"),
            memory_limit_bytes: now.number("maxmemory"),
            fragmented_memory_bytes: now.number("memory_fragmented_bytes"),
            table_memory_bytes: now.number("memory_table_bytes"),
            processor_part: rate("used_cpu_sys") + rate("used_cpu_user"),
            operations_per_s: rate("total_commands_processed"),
            hits_per_s: rate("keyspace_hits"),
            misses_per_s: rate("keyspace_misses"),
            commits_per_s: rate("transaction_commits"),
            conflicts_per_s: rate("transaction_conflicts"),
            expired_per_s: rate("expired_keys"),
            evicted_per_s: rate("evicted_keys"),
            errors_per_s: rate("total_error_replies"),
            input_bytes_per_s: rate("total_net_input_bytes"),
            output_bytes_per_s: rate("total_net_output_bytes"),
            commands: commands(before, now, seconds),
            classes: classes(now),
        }
    }
}

fn commands(before: &StoreSample, now: &StoreSample, seconds: f64) -> Vec<CommandRow> {
    let row = |command: &str| {
        let line = format!("cmdstat_{command}");
        let rate = |part| (now.part(&line, part) - before.part(&line, part)).max(0.0) / seconds;
        let earlier = before.times(command);
        let times: Vec<(u64, u64)> = now
            .times(command)
            .into_iter()
            .map(|(ns, count)| (ns, count.saturating_sub(earlier.get(&ns).copied().unwrap_or(0))))
            .collect();
        let percentile_us = |percentage| percentile_ns(&times, percentage).map(|ns| ns as f64 / 1000.0);
        CommandRow {
            command: command.to_owned(),
            per_s: rate("calls"),
            failed_per_s: rate("failed_calls") + rate("rejected_calls"),
            p50_us: percentile_us(50.0),
            p99_us: percentile_us(99.0),
            p999_us: percentile_us(99.9),
        }
    };
    let rows = now.names("cmdstat_").map(row);
    let mut rows: Vec<CommandRow> = rows.filter(|row| row.per_s + row.failed_per_s > 0.0).collect();
    rows.sort_by(|left, right| right.per_s.total_cmp(&left.per_s));
    rows
}

fn classes(now: &StoreSample) -> Vec<ClassRow> {
    let row = |class: &str| {
        let line = format!("memory_class_{class}");
        let part = |part| now.part(&line, part);
        let (blocks, places, used_places) = (part("blocks"), part("places"), part("used"));
        Some(ClassRow { place_bytes: class.parse().ok()?, blocks, places, used_places })
    };
    let mut rows: Vec<ClassRow> = now.names("memory_class_").filter_map(row).collect();
    rows.sort_by_key(|row| row.place_bytes);
    rows
}

/// Returns at most `height` lines of at most `width` characters.
fn text(view: &StoreRates, width: usize, height: usize) -> String {
    let percent = |part: f64, all: f64| format!("{:.0}", 100.0 * part / all.max(1.0));
    let size = |bytes: f64| binary(bytes as u64);
    let mut lines = vec![
        format!(
            "store {}, up {} s: {} clients ({} links, {} readers), {} sessions, {} keys, {:.0} % of a processor core",
            view.store,
            whole(view.uptime_seconds),
            whole(view.clients),
            whole(view.links),
            whole(view.readers),
            whole(view.sessions),
            whole(view.keys),
            100.0 * view.processor_part,
        ),
        format!(
            "memory: {} of {} ({} %); table {}, fragmented {}",
            size(view.used_memory_bytes),
            size(view.memory_limit_bytes),
            percent(view.used_memory_bytes, view.memory_limit_bytes),
            size(view.table_memory_bytes),
            size(view.fragmented_memory_bytes),
        ),
        format!(
            "each second: {} operations, {} hits, {} misses, {} commits, {} conflicts, {} expired, {} evicted, {} errors, {}B in, {}B out",
            whole(view.operations_per_s),
            whole(view.hits_per_s),
            whole(view.misses_per_s),
            whole(view.commits_per_s),
            whole(view.conflicts_per_s),
            whole(view.expired_per_s),
            whole(view.evicted_per_s),
            whole(view.errors_per_s),
            bytes(view.input_bytes_per_s),
            bytes(view.output_bytes_per_s),
        ),
        String::new(),
    ];
    let us = |value: Option<f64>| maybe(value, number);
    let rows = view.commands.iter().map(|row| {
        let cells = [
            row.command.clone(),
            whole(row.per_s),
            whole(row.failed_per_s),
            us(row.p50_us),
            us(row.p99_us),
            us(row.p999_us),
        ];
        (cells, String::new())
    });
    let head = ["COMMAND", "CALLS/S", "FAILED/S", "P50 us", "P99 us", "P99.9 us"];
    lines.extend(table(&head, 1, "", &rows.collect::<Vec<_>>()));
    lines.push(String::new());
    let rows = view.classes.iter().map(|row| {
        let used = percent(row.used_places, row.places);
        let cells =
            [row.place_bytes.to_string(), whole(row.blocks), whole(row.places), whole(row.used_places), used];
        (cells, String::new())
    });
    let head = ["OBJECT BYTES", "BLOCKS", "PLACES", "USED", "USED%"];
    lines.extend(table(&head, 0, "", &rows.collect::<Vec<_>>()));
    fit(lines, width, height, "caravan store top")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(at: Instant, lines: &[(&str, &str)]) -> StoreSample {
        let lines = lines.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        StoreSample { at, lines }
    }

    #[test]
    fn rates_and_percentiles_are_those_of_the_interval() {
        let at = Instant::now();
        let before = sample(
            at,
            &[
                ("keyspace_hits", "10"),
                ("evicted_keys", "9"),
                ("cmdstat_get", "calls=100,usec=5,rejected_calls=1,failed_calls=2"),
                ("cmdstat_set", "calls=7,usec=5,rejected_calls=0,failed_calls=0"),
                ("times_ns_get", "1000000=90"),
            ],
        );
        let now = sample(
            at + Duration::from_secs(2),
            &[
                ("keyspace_hits", "30"),
                ("evicted_keys", "1"),
                ("cmdstat_get", "calls=300,usec=5,rejected_calls=2,failed_calls=5"),
                ("cmdstat_set", "calls=7,usec=5,rejected_calls=0,failed_calls=0"),
                ("times_ns_get", "500=99,1000000=91"),
                ("memory_class_96", "blocks=1,places=100,used=50"),
                ("memory_class_1024", "blocks=2,places=10,used=10"),
            ],
        );
        let view = StoreRates::between(&before, &now);
        assert_eq!((view.hits_per_s, view.evicted_per_s), (10.0, 0.0));
        let [get] = &view.commands[..] else { panic!("{:?}", view.commands) };
        assert_eq!((get.per_s, get.failed_per_s), (100.0, 2.0));
        assert_eq!((get.p50_us, get.p99_us, get.p999_us), (Some(0.5), Some(0.5), Some(1000.0)));
        assert_eq!(view.classes.iter().map(|row| row.place_bytes).collect::<Vec<_>>(), [96, 1024]);
        let text = text(&view, 160, 50);
        assert!(text.contains("get          100         2"), "{text}");
        assert!(
            text.lines().any(|line| line.split_whitespace().eq(["96", "1", "100", "50", "50"])),
            "{text}"
        );
    }
}
