//! The events of an engine: for people as lines with the time, for programs as JSON.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use caravan_bench::Error as Shared;
use caravan_engine::layout::bytes;
use caravan_engine::{Changes, EngineEvent};
use serde::Serialize;

use crate::engine::counted;
use crate::engine::top::Figures;
use crate::engine::trace::PatientOutlet;
use crate::error::Error;

/// Bytes of a huge page.
const HUGEPAGE_BYTES: u64 = 2 << 20;

/// Something that `caravan engine run` tells.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EngineNews<'a> {
    /// The engine runs.
    Running(EngineRunning<'a>),
    /// A change of the file was carried out.
    Reloaded { file: &'a Path, changes: &'a Changes },
    /// A change of the file was refused, and the engine runs on as before.
    Refused { file: &'a Path, reasons: &'a [String] },
    /// The engine ended, with these figures.
    Ended(&'a Figures),
    /// An event of the engine itself.
    #[serde(untagged)]
    Engine(&'a EngineEvent),
}

/// The parts and the memory of a running engine.
#[derive(Debug, Serialize)]
pub struct EngineRunning<'a> {
    pub file: &'a Path,
    pub pid: u32,
    pub apps: usize,
    pub links: usize,
    /// Processes, by the names of the workers.
    pub workers: BTreeMap<&'a str, RunningWorker>,
    /// `huge` or `small`.
    pub pages: &'static str,
    /// True if huge pages were asked for.
    pub hugepages_asked: bool,
    #[serde(skip)]
    pub hugepages: Hugepages,
    pub packets: u32,
    pub packets_max: u32,
}

/// Huge pages of 2 MiB.
#[derive(Clone, Copy, Debug)]
pub struct Hugepages {
    /// The number that the whole memory of the engine takes.
    wanted: u64,
    /// The number that is reserved and free; `None` if the kernel has no huge pages.
    free: Option<u64>,
}

impl Hugepages {
    /// Counts the huge pages for an engine of so many packets, now.
    pub fn of(packets_max: u32) -> Self {
        let count = |name: &str| {
            let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
            std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
        };
        let free =
            count("free_hugepages").map(|free| free.saturating_sub(count("resv_hugepages").unwrap_or(0)));
        Self { wanted: bytes(packets_max).div_ceil(HUGEPAGE_BYTES), free }
    }
}

/// A worker that runs.
#[derive(Debug, Serialize)]
pub struct RunningWorker {
    pub pid: Option<i32>,
    pub core: Option<usize>,
}

/// Writes all news: as JSON on standard output, or as text on standard error.
#[derive(Debug)]
pub struct NewsTeller {
    outlet: PatientOutlet,
    is_json: bool,
    /// True if nobody reads the text any more.
    is_alone: bool,
}

impl NewsTeller {
    /// Creates a teller for JSON or for text.
    pub fn new(is_json: bool) -> Result<Self, Error> {
        let outlet = match is_json {
            true => PatientOutlet::new(std::io::stdout(), |lines| {
                format!("{{\"event\":\"left_out\",\"lines\":{lines}}}")
            }),
            false => PatientOutlet::new(std::io::stderr(), |lines| format!("({lines} lines left out)")),
        };
        Ok(Self { outlet: outlet?, is_json, is_alone: false })
    }

    /// Returns the outlet.
    pub fn outlet(&self) -> &PatientOutlet {
        &self.outlet
    }

    /// Tells a piece of news. Fails if the program that reads JSON is gone; a reader of text may go.
    pub fn tell(&mut self, told: &EngineNews<'_>) -> Result<(), Error> {
        let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let line = match self.is_json {
            true => {
                #[derive(Serialize)]
                struct NewsLine<'a> {
                    time: &'a str,
                    #[serde(flatten)]
                    told: &'a EngineNews<'a>,
                }
                serde_json::to_string(&NewsLine { time: &now, told })
                    .map_err(|error| Shared::Output(error.into()))?
            }
            false => format!("{now}  {}", text(told)),
        };
        let said = if self.is_alone { Ok(()) } else { self.outlet.say(&line) };
        self.heard(said)
    }

    /// Writes as much as possible without waiting.
    pub fn write(&mut self) -> Result<(), Error> {
        let written = if self.is_alone { Ok(()) } else { self.outlet.write() };
        self.heard(written)
    }

    /// Writes the rest.
    pub fn finish(self) -> Result<(), Error> {
        match (self.is_json, self.is_alone) {
            (true, _) => self.outlet.finish(),
            // A reader of text that is gone is no error.
            (false, _) => self.outlet.finish().or(Ok(())),
        }
    }

    fn heard(&mut self, said: Result<(), Error>) -> Result<(), Error> {
        if said.is_err() && !self.is_json {
            self.is_alone = true;
            return Ok(());
        }
        said
    }
}

fn text(told: &EngineNews<'_>) -> String {
    match told {
        EngineNews::Running(running) => running_text(running),
        EngineNews::Reloaded { file, changes } => format!("reloaded {}: {changes}", file.display()),
        EngineNews::Refused { file, reasons } => {
            let reasons: Vec<_> = reasons.iter().map(|reason| format!("\n  {reason}")).collect();
            format!("{} is refused, and all goes on as before:{}", file.display(), reasons.concat())
        }
        EngineNews::Ended(figures) => figures.to_string(),
        EngineNews::Engine(event) => event_text(event),
    }
}

fn running_text(running: &EngineRunning<'_>) -> String {
    let Hugepages { wanted, free } = running.hugepages;
    let pages = match (running.pages, running.hugepages_asked, free) {
        ("huge", ..) => "huge pages".to_owned(),
        (_, false, _) => "small pages".to_owned(),
        (_, true, None) => "small pages, as this kernel has no huge ones".to_owned(),
        (_, true, Some(free)) => format!(
            "small pages, as that takes {wanted} huge ones of 2 MiB and {free} are free (`sysctl \
             vm.nr_hugepages=N` reserves N for all programs; a smaller packets_max takes fewer)"
        ),
    };
    let mut text = format!(
        "{} runs as process {}: {}, {}, {}; {} packets of at most {}, on {pages}",
        running.file.display(),
        running.pid,
        counted(running.apps, "app"),
        counted(running.links, "link"),
        counted(running.workers.len(), "worker"),
        running.packets,
        running.packets_max
    );
    for (name, worker) in &running.workers {
        let pid = worker.pid.map_or("no process".into(), |pid| format!("process {pid}"));
        let core = worker.core.map_or(String::new(), |core| format!(" on core {core}"));
        text.push_str(&format!("\n  worker {name}: {pid}{core}"));
    }
    text
}

fn event_text(event: &EngineEvent) -> String {
    match event {
        EngineEvent::Crashed { worker, pid, how, stage, recovered, .. } => {
            let stage = format!("{stage:?}").to_lowercase();
            format!(
                "worker {worker} (process {pid}) crashed while {stage}: {how}; {} lost, {} reclaimed",
                counted(recovered.lost as usize, "packet"),
                recovered.reclaimed
            )
        }
        EngineEvent::Restarted { worker, pid, after_ns } => {
            let after = Duration::from_nanos(*after_ns);
            format!("worker {worker} runs again as process {pid}, after {after:.1?}")
        }
        EngineEvent::Parked { worker, why } => format!("worker {worker} is parked: {why}"),
        EngineEvent::Hung { worker, seconds } => {
            format!("worker {worker} did not do as it was told for {seconds} s, and was killed")
        }
        EngineEvent::NotStarted { worker, why } => {
            format!("worker {worker} could not be started again: {why}")
        }
        EngineEvent::Short { worker, packets, packets_max } => {
            let why = match packets < packets_max {
                true => "and the machine has no memory for more",
                false => "raise packets_max in [engine] of the file",
            };
            format!("worker {worker} waits for packets: all {packets} are in use, {why}")
        }
        EngineEvent::Grown { packets } => format!("memory has grown to {packets} packets"),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_that_were_not_got_are_counted() {
        let mut running = EngineRunning {
            file: Path::new("e.toml"),
            pid: 7,
            apps: 1,
            links: 0,
            workers: BTreeMap::new(),
            pages: "small",
            hugepages_asked: true,
            hugepages: Hugepages { free: Some(38), ..Hugepages::of(65_536) },
            packets: 1024,
            packets_max: 65_536,
        };
        let text = running_text(&running);
        assert!(
            text.contains("on small pages, as that takes 71 huge ones of 2 MiB and 38 are free ("),
            "{text}"
        );
        running.hugepages.free = None;
        assert!(running_text(&running).ends_with("on small pages, as this kernel has no huge ones"));
        running.hugepages_asked = false;
        assert!(running_text(&running).ends_with("on small pages"));
    }

    #[test]
    fn each_event_is_a_line_that_says_what_happened() {
        let crashed = EngineEvent::Crashed {
            worker: "left".into(),
            pid: 7,
            how: "signal 9 (SIGKILL)".into(),
            stage: caravan_engine::layout::WorkerStage::Pushing,
            growing: false,
            half_received: 0,
            recovered: caravan_engine::recovery::Recovered { lost: 1, reclaimed: 64, ..Default::default() },
        };
        let changes = Changes { started: vec!["a".into()], unchanged: 2, ..Default::default() };
        let file = Path::new("e.toml");
        let reasons = ["e.toml:1:2: no".to_owned()];
        for (told, expected, json) in [
            (
                EngineNews::Engine(&crashed),
                "worker left (process 7) crashed while pushing: signal 9 (SIGKILL); 1 packet lost, 64 reclaimed",
                r#"{"event":"crashed","worker":"left","pid":7,"#,
            ),
            (
                EngineNews::Engine(&EngineEvent::Restarted {
                    worker: "left".into(),
                    pid: 8,
                    after_ns: 1_234_567,
                }),
                "worker left runs again as process 8, after 1.2ms",
                r#"{"event":"restarted","worker":"left","pid":8,"after_ns":1234567}"#,
            ),
            (
                EngineNews::Engine(&EngineEvent::Short {
                    worker: "left".into(),
                    packets: 2048,
                    packets_max: 2048,
                }),
                "worker left waits for packets: all 2048 are in use, raise packets_max in [engine] of the file",
                r#"{"event":"short","worker":"left","packets":2048,"packets_max":2048}"#,
            ),
            (
                EngineNews::Engine(&EngineEvent::Grown { packets: 2048 }),
                "memory has grown to 2048 packets",
                r#"{"event":"grown","packets":2048}"#,
            ),
            (
                EngineNews::Reloaded { file, changes: &changes },
                "reloaded e.toml: started: a; unchanged: 2",
                r#"{"event":"reloaded","file":"e.toml","changes":{"started":["a"],"#,
            ),
            (
                EngineNews::Refused { file, reasons: &reasons },
                "e.toml is refused, and all goes on as before:\n  e.toml:1:2: no",
                r#"{"event":"refused","file":"e.toml","reasons":["e.toml:1:2: no"]}"#,
            ),
        ] {
            assert_eq!(text(&told), expected);
            let written = serde_json::to_string(&told).expect("JSON");
            assert!(written.starts_with(json), "{written}");
        }
    }
}
