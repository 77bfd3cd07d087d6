//! How long transfers and readings take in parts of which the server that is killed has no copy: in the second after a kill, and,
//! to compare, in one before it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use caravan_cluster::PartId;
use serde_json::{Value, json};

use super::pauses::{PauseFigures, figures};

/// The longest time that an operation has taken since a moment, those included that are under way.
#[derive(Debug)]
pub struct LongestTime {
    from_ns: AtomicU64,
    longest_ns: AtomicU64,
    /// When the operation of each thread began; 0 if none is under way.
    since_ns: Vec<AtomicU64>,
}

impl LongestTime {
    pub fn new(threads: usize) -> Self {
        let since_ns = (0..threads).map(|_| AtomicU64::new(0)).collect();
        Self { from_ns: AtomicU64::new(0), longest_ns: AtomicU64::new(0), since_ns }
    }

    pub fn begin(&self, thread: usize, now_ns: u64) {
        self.since_ns[thread].store(now_ns.max(1), Ordering::Relaxed);
    }

    pub fn end(&self, thread: usize, now_ns: u64) {
        let since_ns = self.since_ns[thread].swap(0, Ordering::Relaxed);
        self.longest_ns.fetch_max(self.taken_ns(since_ns, now_ns), Ordering::Relaxed);
    }

    /// Returns how long an operation has taken since the moment.
    fn taken_ns(&self, since_ns: u64, now_ns: u64) -> u64 {
        now_ns.saturating_sub(since_ns.max(self.from_ns.load(Ordering::Relaxed)))
    }

    /// Returns the longest time, and begins anew.
    pub fn take(&self, now_ns: u64) -> Duration {
        let under_way = self.since_ns.iter().map(|since| since.load(Ordering::Relaxed));
        let under_way = under_way.filter(|since_ns| *since_ns > 0);
        let under_way = under_way.map(|since_ns| self.taken_ns(since_ns, now_ns)).max().unwrap_or(0);
        self.from_ns.store(now_ns, Ordering::Relaxed);
        Duration::from_nanos(self.longest_ns.swap(0, Ordering::Relaxed).max(under_way))
    }
}

/// The longest transfer and the longest reading of each part in some second.
pub type PartTimes = Vec<(PartId, Duration, Duration)>;

/// What was taken of the parts that have nothing to do with a kill.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WellTimes {
    before: [Vec<Duration>; 2],
    after: [Vec<Duration>; 2],
}

fn note(to: &mut [Vec<Duration>; 2], times: &PartTimes, well: &[PartId]) {
    for (_, transfer, reading) in times.iter().filter(|(part, ..)| well.contains(part)) {
        to[0].push(*transfer);
        to[1].push(*reading);
    }
}

impl WellTimes {
    pub fn note_before(&mut self, times: &PartTimes, well: &[PartId]) {
        note(&mut self.before, times, well);
    }

    pub fn note_after(&mut self, times: &PartTimes, well: &[PartId]) {
        note(&mut self.after, times, well);
    }

    pub fn to_json(&self) -> Value {
        let one = |of: &[Vec<Duration>; 2]| {
            let [transfer, reading] = of.each_ref().map(|times| figures(times.iter()).map(|it| it.to_json()));
            json!({ "transfer": transfer, "reading": reading })
        };
        json!({ "before": one(&self.before), "after": one(&self.after) })
    }

    pub fn lines(&self) -> Vec<String> {
        let line = |(index, what): (usize, &str)| {
            let after = figures(self.after[index].iter())?;
            let PauseFigures { p50_ms, p95_ms, p99_ms, max_ms, .. } = after;
            let before = figures(self.before[index].iter());
            let before = before.map_or_else(String::new, |it| {
                format!("; in a second before it, {:.1} ms (p50), {:.1} ms (p99)", it.p50_ms, it.p99_ms)
            });
            Some(format!(
                "Elsewhere, the longest {what} of a part in the second after a kill took {p50_ms:.1} ms (p50), {p95_ms:.1} ms (p95), {p99_ms:.1} ms (p99), {max_ms:.1} ms (max){before}.\n"
            ))
        };
        [(0, "transfer"), (1, "reading")].into_iter().filter_map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_counts_from_the_moment_on_also_while_it_is_under_way() {
        let time = LongestTime::new(2);
        time.begin(0, 10);
        time.begin(1, 20);
        time.end(0, 25);
        assert_eq!(time.take(100), Duration::from_nanos(80));
        assert_eq!(time.take(107), Duration::from_nanos(7));
        time.end(1, 110);
        assert_eq!(time.take(200), Duration::from_nanos(3));
        assert_eq!(time.take(300), Duration::ZERO);
    }

    #[test]
    fn only_parts_without_a_copy_count() {
        let mut times = WellTimes::default();
        assert_eq!(times.lines(), [""; 0]);
        let ms = Duration::from_millis;
        let all = vec![(PartId(0), ms(900), ms(800)), (PartId(1), ms(4), ms(2))];
        times.note_before(&all, &[PartId(1)]);
        times.note_after(&vec![(PartId(0), ms(900), ms(800)), (PartId(1), ms(8), ms(3))], &[PartId(1)]);
        assert_eq!(times.to_json()["after"]["transfer"]["p99_ms"], 8.0);
        assert_eq!(times.to_json()["before"]["reading"]["max_ms"], 2.0);
        assert_eq!(
            times.lines()[0],
            "Elsewhere, the longest transfer of a part in the second after a kill took 8.0 ms (p50), 8.0 ms (p95), 8.0 ms (p99), 8.0 ms (max); in a second before it, 4.0 ms (p50), 4.0 ms (p99).\n"
        );
    }
}
