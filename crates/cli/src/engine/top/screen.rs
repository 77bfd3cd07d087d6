//! The tables of workers and links, cut to the terminal.

use std::fmt::Write;

use caravan_engine::layout::Mode;
use caravan_engine::view::{LinkView, Owners, View, WorkerView};
use serde::Serialize;

use caravan_bench::number::{bytes, number};

const WORKER_HEAD: [&str; 11] =
    ["WORKER", "STATE", "PID", "CORE", "RESTARTS", "BREATHS/S", "BUSY%", "P50", "P99", "MAX", "OWNS"];
const LINK_HEAD: [&str; 8] = ["LINK", "WORKERS", "PKT/S", "BIT/S", "DROP/S", "WAITS", "OWNS", "PACKETS"];
/// Columns of text, on the left of each table.
const TEXTS: usize = 2;

/// At most `height` lines of at most `width` characters.
pub fn text(view: &View, width: usize, height: usize) -> String {
    let mut lines = vec![head(view), owners(view)];
    lines.push(String::new());
    let workers = view.workers.iter().map(|worker| (worker_cells(worker, &view.owners), drops(worker)));
    lines.extend(table(&WORKER_HEAD, "DROPS/S", workers.collect()));
    lines.push(String::new());
    let links = view.links.iter().map(|link| (link_cells(link, &view.owners), traced(link)));
    lines.extend(table(&LINK_HEAD, "", links.collect()));
    if lines.len() > height && height > 1 {
        let hidden = lines.len() - (height - 1);
        lines.truncate(height - 1);
        lines.push(format!("and {hidden} more lines: caravan engine top --once shows all"));
    }
    let cut = |line: &String| line.chars().take(width).collect::<String>();
    lines.iter().fold(String::new(), |text, line| text + cut(line).trim_end() + "\n")
}

fn head(view: &View) -> String {
    let pages = if view.huge_pages { "huge" } else { "small" };
    format!(
        "engine {}, up {} s, configured {}; {} of {} packets have memory ({pages} pages)",
        view.pid,
        number(view.uptime_seconds),
        plural(view.configured),
        whole(view.packets.into()),
        whole(view.packets_max as f64),
    )
}

fn plural(times: u64) -> String {
    if times == 1 { "once".into() } else { format!("{times} times") }
}

/// Whose the packets are; what nobody has any more is a leak.
fn owners(view: &View) -> String {
    let Owners { pool, workers, full, empty, parked, lost, impossible } = &view.owners;
    let sum = |counts: &std::collections::BTreeMap<String, u64>| whole(counts.values().sum::<u64>() as f64);
    let mut text = format!(
        "packets: workers {}, on links {}, coming back {}, parked {}, nobody's {}",
        sum(workers),
        sum(full),
        sum(empty),
        sum(parked),
        whole(*pool as f64)
    );
    let lost = lost.values().sum::<u64>() + impossible;
    if lost > 0 {
        let _ = write!(text, ", LOST {}", whole(lost as f64));
    }
    text
}

/// Lines of cells under a head, and a text behind each.
fn table<const N: usize>(head: &[&str; N], behind: &str, rows: Vec<([String; N], String)>) -> Vec<String> {
    let mut all = vec![(head.map(str::to_owned), behind.to_owned())];
    all.extend(rows);
    let widths: [usize; N] = std::array::from_fn(|column| {
        all.iter().map(|(row, _)| row[column].chars().count()).max().unwrap_or(0)
    });
    let line = |(row, behind): &([String; N], String)| {
        let mut text = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Writing into a String cannot fail.
            let _ = if column < TEXTS {
                write!(text, "{cell:<width$}  ")
            } else {
                write!(text, "{cell:>width$}  ")
            };
        }
        text + behind
    };
    all.iter().map(line).collect()
}

fn worker_cells(worker: &WorkerView, owners: &Owners) -> [String; WORKER_HEAD.len()] {
    let breath = |ns: u64| if worker.breath.count == 0 { "-".into() } else { time(ns) };
    [
        worker.now.name.clone(),
        state(worker),
        worker.now.pid.to_string(),
        worker.now.core.map_or_else(|| "-".into(), |core| core.to_string()),
        worker.now.restarts.to_string(),
        maybe(worker.breaths_per_s, whole),
        maybe(worker.busy_part, |part| format!("{:.0}", 100.0 * part)),
        breath(worker.breath.p50_ns),
        breath(worker.breath.p99_ns),
        breath(worker.breath.max_ns),
        whole(owners.workers.get(&worker.now.name).copied().unwrap_or(0) as f64),
    ]
}

/// What it does, if it runs.
fn state(worker: &WorkerView) -> String {
    match (worker.now.state, worker.now.stage) {
        (Some(caravan_engine::layout::State::Running), Some(stage)) => word(&stage),
        (Some(state), _) => word(&state),
        (None, _) => "?".into(),
    }
}

/// As JSON has it.
fn word(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default().trim_matches('"').to_owned()
}

fn drops(worker: &WorkerView) -> String {
    let drops = worker.drops_per_s.iter().map(|(cause, rate)| format!("{cause} {}", whole(*rate)));
    drops.collect::<Vec<_>>().join(", ")
}

fn link_cells(link: &LinkView, owners: &Owners) -> [String; LINK_HEAD.len()] {
    let name = |worker: &Option<String>| worker.clone().unwrap_or_else(|| "-".into());
    let (from, to) = (name(&link.from_worker), name(&link.to_worker));
    let workers = match link.now.mode {
        None => from,
        Some(Mode::Swap) => format!("{from} > {to}"),
        Some(Mode::Copy) => format!("{from} > {to} (copy)"),
    };
    let owns = [&owners.full, &owners.empty, &owners.parked];
    let owns: u64 = owns.into_iter().filter_map(|counts| counts.get(&link.now.name)).sum();
    [
        link.now.name.clone(),
        workers,
        maybe(link.packets_per_s, whole),
        maybe(link.bits_per_s, bytes),
        maybe(link.drops_per_s, whole),
        if link.now.mode.is_some() {
            format!("{} {} {}", link.now.queued, link.now.full, link.now.waiting)
        } else {
            link.now.waiting.to_string()
        },
        whole(owns as f64),
        whole(link.now.packets as f64),
    ]
}

fn traced(link: &LinkView) -> String {
    link.now.tracer.map(|pid| format!("traced by {pid}")).unwrap_or_default()
}

fn maybe(value: Option<f64>, written: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), written)
}

fn whole(value: f64) -> String {
    number(value.round()).trim_end_matches(".00").trim_end_matches(".0").to_owned()
}

/// `640ns`, `5.1us`, `12ms`.
fn time(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{:.1}us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}ms", value / 1e6),
        _ => format!("{:.1}s", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use caravan_engine::layout::{DROPS, Stage, State};
    use caravan_engine::owner::{LinkId, WorkerId};
    use caravan_engine::view::{Breaths, Link, Worker};

    use super::*;

    fn view(workers: usize) -> View {
        let now = Worker {
            id: WorkerId::new(0).unwrap(),
            name: "left".into(),
            pid: 77,
            state: Some(State::Running),
            stage: Some(Stage::Pushing),
            core: Some(1),
            restarts: 2,
            breaths: 9,
            idle_breaths: 0,
            sleeps: 0,
            busy_ns: 0,
            free: 5,
            wanted: 0,
            skipped: 0,
            drops: [0; DROPS.len()],
            breath_buckets: Vec::new(),
        };
        let worker = WorkerView {
            now,
            breaths_per_s: Some(12_345.0),
            idle_breaths_per_s: None,
            sleeps_per_s: None,
            busy_part: Some(0.25),
            breath: Breaths { count: 9, p50_ns: 640, p99_ns: 5_100, p999_ns: 9_000, max_ns: 12_000_000 },
            drops_per_s: BTreeMap::from([("full", 7.0), ("limited", 1_200.0)]),
        };
        let now = Link {
            id: LinkId::new(0).unwrap(),
            name: "a.output -> b.input".into(),
            from: WorkerId::new(0),
            to: WorkerId::new(1),
            mode: Some(Mode::Copy),
            packets: 1_000_000,
            bytes: 60_000_000,
            drops: 0,
            taken: 0,
            queued: 1,
            waiting: 3,
            full: 2,
            empty: 0,
            parked: 0,
            tracer: Some(99),
        };
        let name = now.name.clone();
        let link = LinkView {
            now,
            from_worker: Some("left".into()),
            to_worker: Some("right".into()),
            packets_per_s: Some(2_000.0),
            bits_per_s: Some(960_000.0),
            drops_per_s: None,
        };
        let owners = Owners {
            pool: 3,
            workers: BTreeMap::from([("left".into(), 40)]),
            full: BTreeMap::from([(name.clone(), 2)]),
            empty: BTreeMap::from([(name, 5)]),
            ..Owners::default()
        };
        View {
            unix_time: 0.0,
            interval_seconds: 1.0,
            pid: 70,
            uptime_seconds: 12.0,
            configured: 1,
            huge_pages: false,
            packets: 50,
            packets_max: 65_536,
            owners,
            workers: vec![worker; workers],
            links: vec![link],
        }
    }

    #[test]
    fn a_row_has_every_column() {
        let text = text(&view(1), 200, 50);
        let lines: Vec<_> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "engine 70, up 12.0 s, configured once; 50 of 65,536 packets have memory (small pages)",
            "packets: workers 40, on links 2, coming back 5, parked 0, nobody's 3",
            "",
            "WORKER STATE PID CORE RESTARTS BREATHS/S BUSY% P50 P99 MAX OWNS DROPS/S",
            "left pushing 77 1 2 12,345 25 640ns 5.1us 12.0ms 40 full 7, limited 1,200",
            "",
            "LINK WORKERS PKT/S BIT/S DROP/S WAITS OWNS PACKETS",
            "a.output -> b.input left > right (copy) 2,000 960k - 1 2 3 7 1,000,000 traced by 99",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_leak_is_called_by_its_name() {
        let mut view = view(1);
        assert!(!text(&view, 200, 50).contains("LOST"));
        view.owners.lost.insert("worker 9".into(), 4);
        view.owners.impossible = 1;
        assert!(text(&view, 200, 50).contains("nobody's 3, LOST 5\n"));
    }

    #[test]
    fn a_small_terminal_gets_what_fits_and_is_told_so() {
        let text = text(&view(20), 40, 10);
        assert_eq!(text.lines().count(), 10);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.ends_with("and 18 more lines: caravan engine top --\n"), "{text}");
    }
}
