//! How long parts had no commit after a kill, for each kind of it.

use std::time::Duration;

use serde_json::{Value, json};

use super::StopKind;

/// The pauses after kills.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DemoPauses {
    server: Vec<Duration>,
    host: Vec<Duration>,
}

/// The median, the 95th and 99th percentile and the longest of some pauses, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PauseFigures {
    pub count: usize,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl PauseFigures {
    pub fn to_json(self) -> Value {
        let Self { count, p50_ms, p95_ms, p99_ms, max_ms } = self;
        json!({ "count": count, "p50_ms": p50_ms, "p95_ms": p95_ms, "p99_ms": p99_ms, "max_ms": max_ms })
    }
}

impl DemoPauses {
    pub fn note(&mut self, kind: StopKind, pause: Duration) {
        match kind {
            StopKind::Server => self.server.push(pause),
            StopKind::Host => self.host.push(pause),
        }
    }

    /// Returns the figures of all pauses together.
    pub fn all(&self) -> Option<PauseFigures> {
        figures(self.server.iter().chain(&self.host))
    }

    pub fn to_json(&self) -> Value {
        let one = |pauses: &Vec<Duration>| figures(pauses.iter()).map(|it| it.to_json());
        json!({ "server": one(&self.server), "server_and_keeper": one(&self.host) })
    }

    /// Returns a line for each kind of kill that there was.
    pub fn lines(&self) -> Vec<String> {
        let line = |(what, pauses): (&str, &Vec<Duration>)| {
            let PauseFigures { count, p50_ms, p95_ms, max_ms, .. } = figures(pauses.iter())?;
            let parts = if count == 1 { "part" } else { "parts" };
            Some(format!(
                "After the end of {what}, {count} {parts} had no commit for {p50_ms:.0} ms (p50), {p95_ms:.0} ms (p95), {max_ms:.0} ms (max).\n"
            ))
        };
        let kinds = [("a server", &self.server), ("a server and its keeper", &self.host)];
        kinds.into_iter().filter_map(line).collect()
    }
}

pub fn figures<'p>(pauses: impl Iterator<Item = &'p Duration>) -> Option<PauseFigures> {
    let mut ms: Vec<f64> = pauses.map(|pause| pause.as_secs_f64() * 1e3).collect();
    ms.sort_by(f64::total_cmp);
    // The smallest of which so many percent are no longer.
    let percentile = |percent: usize| ms.get((ms.len() * percent).div_ceil(100).max(1) - 1).copied();
    let (p50_ms, p95_ms) = (percentile(50)?, percentile(95)?);
    let (p99_ms, max_ms) = (percentile(99)?, percentile(100)?);
    Some(PauseFigures { count: ms.len(), p50_ms, p95_ms, p99_ms, max_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_kill_has_its_figures() {
        let mut pauses = DemoPauses::default();
        assert_eq!((pauses.all(), pauses.lines()), (None, vec![]));
        (1..=20).rev().for_each(|ms| pauses.note(StopKind::Server, Duration::from_millis(ms)));
        pauses.note(StopKind::Host, Duration::from_millis(70));
        let all = pauses.all().unwrap();
        assert_eq!((all.count, all.p50_ms, all.p95_ms, all.max_ms), (21, 11.0, 20.0, 70.0));
        let lines = [
            "After the end of a server, 20 parts had no commit for 10 ms (p50), 19 ms (p95), 20 ms (max).\n",
            "After the end of a server and its keeper, 1 part had no commit for 70 ms (p50), 70 ms (p95), 70 ms (max).\n",
        ];
        assert_eq!(pauses.lines(), lines);
        assert_eq!(pauses.to_json()["server"]["p95_ms"], 19.0);
    }
}
