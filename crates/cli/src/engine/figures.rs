//! What an engine has done, for its last words.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use caravan_engine::Engine;
use caravan_engine::layout::{DROPS, engine as words, link, worker};
use serde::Serialize;

use caravan_bench::number::{bytes, number};

/// Figures of what ran last: those of links and workers that a reload removed went with them, but for
/// the packets that were lost.
#[derive(Debug, Default, Serialize)]
pub struct Figures {
    pub seconds: f64,
    pub links: Vec<LinkFigures>,
    /// Packets that were lost, by cause.
    pub drops: BTreeMap<&'static str, u64>,
    /// Restarts after crashes, by worker.
    pub restarts: BTreeMap<String, u64>,
    /// What apps say of themselves.
    pub apps: BTreeMap<String, BTreeMap<String, u64>>,
}

/// What one link has carried.
#[derive(Debug, Serialize)]
pub struct LinkFigures {
    pub name: String,
    pub packets: u64,
    pub bytes: u64,
    /// Packets that it could not take.
    pub dropped: u64,
}

impl Figures {
    /// Ends an engine that has run for `ran`. The figures are those after its apps have stopped: what they
    /// held until then is in them.
    pub fn of_end(engine: &mut Engine, ran: Duration) -> Self {
        let names = engine.config().workers_used().into_iter().map(str::to_owned);
        let workers: Vec<_> =
            names.filter_map(|name| engine.worker_id(&name).map(|worker| (name, worker))).collect();
        // A worker that is being started again says nothing: its apps are left out.
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
            for (place, drop) in DROPS.iter().enumerate() {
                *figures.drops.entry(drop.name()).or_default() += word(worker::DROPS + 8 * place);
            }
        }
        for (place, drop) in DROPS.iter().enumerate() {
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
            let times = if *restarts == 1 { "once".into() } else { format!("{restarts} times") };
            write!(f, "\n  worker {worker}: restarted {times}")?;
        }
        for (app, report) in &self.apps {
            let report: Vec<_> =
                report.iter().map(|(name, figure)| format!("{name} {}", count(*figure))).collect();
            write!(f, "\n  app {app}: {}", report.join(", "))?;
        }
        Ok(())
    }
}

/// A whole number, its thousands apart.
fn count(value: u64) -> String {
    if value < 1000 { value.to_string() } else { number(value as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
