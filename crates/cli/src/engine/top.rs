//! `caravan engine top`: shows what the workers and links of a running engine do.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_bench::Error as Shared;
use caravan_bench::interrupt::Interrupt;
use caravan_bench::number::{bytes, number};
use caravan_engine::Engine;
use caravan_engine::layout::{DropReason, LinkMode, engine as words, link, worker};
use caravan_engine::view::{self, EngineView, FoundEngine, LinkView, Owners, Snapshot, WorkerView};
use serde::Serialize;

use crate::args::EngineTop;
use crate::error::Error;
use crate::top::{fit, maybe, show, table, wait, whole};

/// Counting packets takes at most one part in this many of the time.
const OWNERS_SHARE: u32 = 10;

/// Shows the engine until it is interrupted, or as often as was asked for.
pub fn run(args: &EngineTop) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let engine = view::find(args.pid)?;
    let refreshes = if args.once { Some(1) } else { args.count };
    let mut owners = Counted::default();
    let mut before = Snapshot::read(&engine)?;
    let mut shown = 0;
    while refreshes != Some(shown) {
        match wait(args.interval, &interrupt) {
            // Ctrl-C is the normal way to leave this view.
            Err(Error::Shared(Shared::Interrupted)) => return Ok(()),
            other => other?,
        }
        let mut now = Snapshot::read(&engine)?;
        owners.count(&engine, &mut now)?;
        let view = EngineView::between(&before, &now);
        show(&view, args.json, args.once, shown == 0, |width, height| text(&view, width, height))?;
        before = now;
        shown += 1;
    }
    Ok(())
}

/// The owners of the packets when they were last counted.
#[derive(Default)]
struct Counted {
    last: Option<(Owners, Instant, Duration)>,
}

impl Counted {
    fn count(&mut self, engine: &FoundEngine, snapshot: &mut Snapshot) -> Result<(), Error> {
        if let Some((owners, at, took)) = &self.last {
            if at.elapsed() < *took * OWNERS_SHARE {
                snapshot.owners = owners.clone();
                return Ok(());
            }
        }
        let start = Instant::now();
        snapshot.count_owners(engine)?;
        self.last = Some((snapshot.owners.clone(), start, start.elapsed()));
        Ok(())
    }
}

/// The figures of an engine that ends. Links and workers that a reload removed are not in them, except for the packets
/// that were lost.
#[derive(Debug, Default, Serialize)]
pub struct Figures {
    pub seconds: f64,
    pub links: Vec<LinkFigures>,
    /// Packets that were lost, by cause.
    pub drops: BTreeMap<&'static str, u64>,
    /// Restarts after crashes, by worker.
    pub restarts: BTreeMap<String, u64>,
    /// The figures that apps report.
    pub apps: BTreeMap<String, BTreeMap<String, u64>>,
}

/// The figures of one link.
#[derive(Debug, Serialize)]
pub struct LinkFigures {
    pub name: String,
    pub packets: u64,
    pub bytes: u64,
    /// Packets that the link could not take.
    pub dropped: u64,
}

impl Figures {
    /// Ends an engine that has run for `ran`. The figures are read after its apps have stopped, so they include what
    /// the apps held until then.
    pub fn of_end(engine: &mut Engine, ran: Duration) -> Self {
        let names = engine.config().workers_used().into_iter().map(str::to_owned);
        let workers: Vec<_> =
            names.filter_map(|name| engine.worker_id(&name).map(|worker| (name, worker))).collect();
        // A worker that is being started again does not report, so its apps are left out.
        let apps = engine.end();
        let shared = engine.shared();
        let mut figures = Self { seconds: ran.as_secs_f64(), apps, ..Self::default() };
        for name in engine.config().links.keys().map(ToString::to_string) {
            let Some(id) = engine.link_id(&name) else { continue };
            let word = |offset| shared.link(id, offset).load(Ordering::Relaxed);
            let (packets, bytes, dropped) = (word(link::PACKETS), word(link::BYTES), word(link::DROPS));
            figures.links.push(LinkFigures { name, packets, bytes, dropped });
        }
        for (name, id) in workers {
            let word = |offset| shared.worker(id, offset).load(Ordering::Relaxed);
            let restarts = word(worker::RESTARTS);
            if restarts > 0 {
                figures.restarts.insert(name, restarts);
            }
            for (place, drop) in DropReason::ALL.iter().enumerate() {
                *figures.drops.entry(drop.name()).or_default() += word(worker::DROPS + 8 * place);
            }
        }
        for (place, drop) in DropReason::ALL.iter().enumerate() {
            let count = shared.engine(words::DROPS + 8 * place).load(Ordering::Relaxed);
            *figures.drops.entry(drop.name()).or_default() += count;
        }
        figures.drops.retain(|_, count| *count > 0);
        figures.apps.retain(|_, report| !report.is_empty());
        figures
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ended after {:.1} s", self.seconds)?;
        for LinkFigures { name, packets, bytes: length, dropped } in &self.links {
            let rate = bytes(*packets as f64 / self.seconds.max(1e-9));
            let (packets, length) = (count(*packets), bytes(*length as f64));
            write!(f, "\n  link {name}: {packets} packets ({rate}/s), {length}B")?;
            if *dropped > 0 {
                write!(f, ", {} dropped", count(*dropped))?;
            }
        }
        if !self.drops.is_empty() {
            let drops: Vec<_> =
                self.drops.iter().map(|(why, packets)| format!("{why} {}", count(*packets))).collect();
            write!(f, "\n  dropped: {}", drops.join(", "))?;
        }
        for (worker, restarts) in &self.restarts {
            write!(f, "\n  worker {worker}: restarted {}", times(*restarts))?;
        }
        for (app, report) in &self.apps {
            let report: Vec<_> =
                report.iter().map(|(name, figure)| format!("{name} {}", count(*figure))).collect();
            write!(f, "\n  app {app}: {}", report.join(", "))?;
        }
        Ok(())
    }
}

/// Formats a whole number with its thousands apart.
fn count(value: u64) -> String {
    if value < 1000 { value.to_string() } else { number(value as f64) }
}

const WORKER_HEAD: [&str; 11] =
    ["WORKER", "STATE", "PID", "CORE", "RESTARTS", "BREATHS/S", "BUSY%", "P50", "P99", "MAX", "OWNS"];
const LINK_HEAD: [&str; 8] = ["LINK", "WORKERS", "PKT/S", "BIT/S", "DROP/S", "WAITS", "OWNS", "PACKETS"];
/// The number of text columns, on the left of each table.
const TEXTS: usize = 2;

/// Returns at most `height` lines of at most `width` characters.
pub fn text(view: &EngineView, width: usize, height: usize) -> String {
    let mut lines = vec![head(view), owners(view)];
    lines.push(String::new());
    let workers = view.workers.iter().map(|worker| (worker_cells(worker, &view.owners), drops(worker)));
    lines.extend(table(&WORKER_HEAD, TEXTS, "DropReason/S", &workers.collect::<Vec<_>>()));
    lines.push(String::new());
    let links = view.links.iter().map(|link| (link_cells(link, &view.owners), traced(link)));
    lines.extend(table(&LINK_HEAD, TEXTS, "", &links.collect::<Vec<_>>()));
    fit(lines, width, height, "caravan engine top")
}

fn head(view: &EngineView) -> String {
    let pages = if view.huge_pages { "huge" } else { "small" };
    format!(
        "engine {}, up {} s, configured {}; {} of {} packets have memory ({pages} pages)",
        view.pid,
        number(view.uptime_seconds),
        times(view.configured),
        whole(view.packets.into()),
        whole(view.packets_max as f64),
    )
}

fn times(times: u64) -> String {
    if times == 1 { "once".into() } else { format!("{times} times") }
}

/// Describes the owners of the packets; a packet without an owner is a leak.
fn owners(view: &EngineView) -> String {
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

/// Returns what the worker does, if it runs.
fn state(worker: &WorkerView) -> String {
    match (worker.now.state, worker.now.stage) {
        (Some(caravan_engine::layout::WorkerState::Running), Some(stage)) => word(&stage),
        (Some(state), _) => word(&state),
        (None, _) => "?".into(),
    }
}

/// Returns the name that JSON uses.
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
        Some(LinkMode::Swap) => format!("{from} > {to}"),
        Some(LinkMode::Copy) => format!("{from} > {to} (copy)"),
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

/// Formats a time: `640ns`, `5.1us`, `12ms`.
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
    use super::*;
    use caravan_engine::layout::{DropReason, WorkerStage, WorkerState};
    use caravan_engine::owner::{LinkId, WorkerId};
    use caravan_engine::view::{Breaths, LinkSnapshot, WorkerSnapshot};
    use std::collections::BTreeMap;

    #[test]
    fn last_words_have_everything_that_there_is() {
        let mut figures = Figures { seconds: 2.0, ..Figures::default() };
        assert_eq!(figures.to_string(), "ended after 2.0 s");
        let name = "a.o -> b.i".to_owned();
        figures.links.push(LinkFigures { name, packets: 3_000_000, bytes: 180_000_000, dropped: 7 });
        figures.drops.insert("full", 7);
        figures.restarts.insert("left".into(), 2);
        figures.apps.insert("b".into(), BTreeMap::from([("packets".into(), 2_999_993)]));
        let lines = [
            "ended after 2.0 s",
            "  link a.o -> b.i: 3,000,000 packets (1.50M/s), 180MB, 7 dropped",
            "  dropped: full 7",
            "  worker left: restarted 2 times",
            "  app b: packets 2,999,993",
        ];
        assert_eq!(figures.to_string(), lines.join("\n"));
    }

    fn view(workers: usize) -> EngineView {
        let now = WorkerSnapshot {
            id: WorkerId::new(0).unwrap(),
            name: "left".into(),
            pid: 77,
            state: Some(WorkerState::Running),
            stage: Some(WorkerStage::Pushing),
            core: Some(1),
            restarts: 2,
            breaths: 9,
            idle_breaths: 0,
            sleeps: 0,
            busy_ns: 0,
            free: 5,
            wanted: 0,
            skipped: 0,
            drops: [0; DropReason::COUNT],
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
        let now = LinkSnapshot {
            id: LinkId::new(0).unwrap(),
            name: "a.output -> b.input".into(),
            from: WorkerId::new(0),
            to: WorkerId::new(1),
            mode: Some(LinkMode::Copy),
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
        EngineView {
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
            "WORKER STATE PID CORE RESTARTS BREATHS/S BUSY% P50 P99 MAX OWNS DropReason/S",
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
