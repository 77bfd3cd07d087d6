//! How far a pipe is: a line for each hop, on a terminal always the same one, elsewhere a new one every 5 s.

use caravan_pipe::coordinator::HopFigures;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::figures::{Recent, clock, quantity};

/// Seconds between lines that stay.
const LINES_INTERVAL: f64 = 5.0;
/// Steps of a bar, fine enough for any terminal.
const BAR_STEPS: u64 = 1000;

/// Lines that are drawn over each other.
#[derive(Debug)]
pub struct Bars {
    all: MultiProgress,
    hops: Vec<(ProgressBar, Recent)>,
}

impl Bars {
    pub fn new() -> Self {
        Self { all: MultiProgress::new(), hops: Vec::new() }
    }

    /// The figures of now.
    pub fn show(&mut self, hops: &[HopFigures]) {
        let measured = || hops.iter().filter(|hop| hop.is_measured);
        for hop in measured().skip(self.hops.len()) {
            let bar = self.all.add(ProgressBar::new(BAR_STEPS));
            let drawn = if hop.total.is_some() { "{bar:20} " } else { "" };
            if let Ok(style) = ProgressStyle::with_template(&format!("{{prefix}}  {drawn}{{wide_msg}}")) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(format!("{} -> {}", hop.from, hop.to));
            self.hops.push((bar, Recent::default()));
        }
        for ((bar, recent), hop) in self.hops.iter_mut().zip(measured()) {
            recent.add(hop);
            if let Some(share) = share(hop) {
                bar.set_position((share * BAR_STEPS as f64) as u64);
            }
            bar.set_message(sentence(recent, hop));
            bar.tick();
        }
    }

    /// Does it with nothing drawn.
    pub fn beside(&self, tell: impl FnOnce()) {
        self.all.suspend(tell);
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        for (bar, _) in &self.hops {
            bar.finish_and_clear();
        }
    }
}

/// Lines for a file.
#[derive(Debug)]
pub struct Lines {
    hops: Vec<Recent>,
    next_at: f64,
}

impl Lines {
    pub fn new() -> Self {
        Self { hops: Vec::new(), next_at: LINES_INTERVAL }
    }

    /// What is to be written now.
    pub fn due(&mut self, hops: &[HopFigures]) -> Vec<String> {
        let measured = || hops.iter().filter(|hop| hop.is_measured);
        self.hops.resize_with(measured().count(), Recent::default);
        for (recent, hop) in self.hops.iter_mut().zip(measured()) {
            recent.add(hop);
        }
        let now = hops.iter().map(|hop| hop.seconds).fold(0.0, f64::max);
        if now < self.next_at {
            return Vec::new();
        }
        self.next_at = now + LINES_INTERVAL;
        self.hops
            .iter()
            .zip(measured())
            .map(|(recent, hop)| format!("caravan: {} -> {}: {}", hop.from, hop.to, sentence(recent, hop)))
            .collect()
    }
}

/// What has passed, how fast lately, how much of it that is and how long the rest takes, and what it waits for.
fn sentence(recent: &Recent, hop: &HopFigures) -> String {
    let rate = recent.rate();
    let mut text = format!("{}, {}/s", quantity(hop.bytes as f64), quantity(rate));
    if let Some(share) = share(hop) {
        text.push_str(&format!(", {:.0} %", (share * 100.0).floor()));
        let rest = hop.total.unwrap_or(0).saturating_sub(hop.bytes) as f64;
        if rest > 0.0 && rate > 0.0 {
            text.push_str(&format!(", {} left", clock(rest / rate)));
        }
    }
    if let Some(what) = recent.waits_for() {
        text.push_str(&format!(", waits for the {what}"));
    }
    text
}

/// How much of all of it has passed, from 0 to 1: a file may have grown meanwhile.
fn share(hop: &HopFigures) -> Option<f64> {
    let total = hop.total.filter(|total| *total > 0)? as f64;
    Some((hop.bytes as f64 / total).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(seconds: f64, bytes: u64, total: Option<u64>) -> HopFigures {
        HopFigures {
            from: "a".to_owned(),
            to: "b".to_owned(),
            is_measured: true,
            bytes,
            seconds,
            network_wait: seconds * 0.9,
            total,
            ..HopFigures::default()
        }
    }

    #[test]
    fn lines_come_every_five_seconds() {
        let mut lines = Lines::new();
        let mut told = Vec::new();
        for quarter in 0..44_u64 {
            let seconds = quarter as f64 / 4.0;
            let pipe = HopFigures { is_measured: false, ..hop(seconds, 0, None) };
            told.extend(lines.due(&[hop(seconds, quarter * 25_000_000, Some(2_000_000_000)), pipe]));
        }
        assert_eq!(
            told,
            [
                "caravan: a -> b: 500 MB, 100 MB/s, 25 %, 0:15 left, waits for the network",
                "caravan: a -> b: 1.00 GB, 100 MB/s, 50 %, 0:10 left, waits for the network",
            ]
        );
    }

    #[test]
    fn a_total_that_is_unknown_empty_or_outgrown_is_no_trouble() {
        let mut recent = Recent::default();
        recent.add(&hop(1.0, 10, None));
        assert_eq!(sentence(&recent, &hop(1.0, 10, None)), "10 B, 10 B/s, waits for the network");
        assert_eq!(share(&hop(1.0, 0, Some(0))), None);
        assert_eq!(share(&hop(1.0, 12, Some(10))), Some(1.0));
    }

    #[test]
    fn bars_are_made_for_hops_with_figures() {
        let mut bars = Bars::new();
        let pipe = HopFigures { is_measured: false, ..hop(1.0, 0, None) };
        bars.show(&[pipe.clone(), hop(1.0, 5, Some(10))]);
        bars.show(&[pipe, hop(2.0, 10, Some(10)), hop(2.0, 3, None)]);
        assert_eq!(bars.hops.iter().map(|(bar, _)| bar.position()).collect::<Vec<_>>(), [1000, 0]);
        assert_eq!(
            bars.hops.first().map(|(bar, _)| bar.message()).as_deref(),
            Some("10 B, 5 B/s, 100 %, waits for the network")
        );
    }
}
