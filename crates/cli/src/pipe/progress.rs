//! The progress of a pipe: a line for each hop, which a terminal redraws; elsewhere a new line every 5 s.

use std::collections::VecDeque;

use caravan_bench::number;
use caravan_pipe::coordinator::HopFigures;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Seconds between lines when there is no terminal.
const LINES_INTERVAL: f64 = 5.0;
/// Steps of a bar, fine enough for any terminal.
const BAR_STEPS: u64 = 1000;

/// Lines that are redrawn in place.
#[derive(Debug)]
pub struct Bars {
    all: MultiProgress,
    hops: Vec<(ProgressBar, Recent)>,
}

impl Bars {
    pub fn new() -> Self {
        Self { all: MultiProgress::new(), hops: Vec::new() }
    }

    /// Draws the current figures.
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

    /// Calls `tell` while nothing is drawn.
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

/// Lines that are not redrawn, for a file.
#[derive(Debug)]
pub struct Lines {
    hops: Vec<Recent>,
    next_at: f64,
}

impl Lines {
    pub fn new() -> Self {
        Self { hops: Vec::new(), next_at: LINES_INTERVAL }
    }

    /// Returns the lines to write now.
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

/// Describes the bytes so far, the recent rate, the share and the remaining time, and what the hop waits for.
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

/// Returns the share of the bytes that has passed, from 0 to 1: a file may have grown meanwhile.
fn share(hop: &HopFigures) -> Option<f64> {
    let total = hop.total.filter(|total| *total > 0)? as f64;
    Some((hop.bytes as f64 / total).min(1.0))
}

/// Seconds that a rate is taken over: long enough to be read, short enough to be current.
const RECENT_SECONDS: f64 = 3.0;
/// The share of time from which a hop counts as waiting.
const WAITING_SHARE: f64 = 0.2;
/// The share from which the writer counts as the bottleneck. Everything before it waits then, too.
const WRITER_SHARE: f64 = 0.5;

/// With fewer bytes, the processor time per gigabyte would mostly be that of starting and ending.
const CPU_BYTES_MIN: u64 = 10_000_000;

/// Formats bytes with a unit: `640 B`, `1.23 MB`.
pub fn quantity(bytes: f64) -> String {
    let text = number::bytes(bytes);
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    format!("{digits} {}B", &text[digits.len()..])
}

/// Formats a time: `0:07`, `12:34`, `1:02:03`; a very long one is not exact.
pub fn clock(seconds: f64) -> String {
    const DAYS_MAX: u64 = 100;
    let seconds = seconds.ceil() as u64;
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{rest:02}"),
        _ if hours / 24 >= DAYS_MAX => format!("more than {DAYS_MAX} days"),
        _ => format!("{hours}:{minutes:02}:{rest:02}"),
    }
}

/// The recent figures of a hop.
#[derive(Debug, Default)]
pub struct Recent(VecDeque<HopFigures>);

impl Recent {
    /// Adds the current figures and drops old ones: a dozen stay, or two if they come slowly.
    pub fn add(&mut self, hop: &HopFigures) {
        if self.0.is_empty() && hop.seconds > 0.0 {
            self.0.push_back(HopFigures::default());
        }
        self.0.push_back(hop.clone());
        while self.0.len() > 2 && self.0.get(1).is_some_and(|old| hop.seconds - old.seconds >= RECENT_SECONDS)
        {
            self.0.pop_front();
        }
    }

    /// Returns the recent rate in bytes per second.
    pub fn rate(&self) -> f64 {
        match self.ends() {
            Some((old, new)) => new.bytes.saturating_sub(old.bytes) as f64 / (new.seconds - old.seconds),
            None => 0.0,
        }
    }

    /// Returns what the hop waits for, if anything.
    pub fn waits_for(&self) -> Option<&'static str> {
        let (old, new) = self.ends()?;
        bottleneck(
            new.seconds - old.seconds,
            [
                new.reader_wait - old.reader_wait,
                new.network_wait - old.network_wait,
                new.writer_wait - old.writer_wait,
            ],
        )
    }

    fn ends(&self) -> Option<(&HopFigures, &HopFigures)> {
        let (old, new) = (self.0.front()?, self.0.back()?);
        (new.seconds > old.seconds).then_some((old, new))
    }
}

/// Returns which of reader, network and writer the hop waited for, if any.
fn bottleneck(seconds: f64, [reader, network, writer]: [f64; 3]) -> Option<&'static str> {
    if writer >= seconds * WRITER_SHARE {
        return Some("writer");
    }
    let (name, most) = if network >= reader { ("network", network) } else { ("reader", reader) };
    (most >= seconds * WAITING_SHARE).then_some(name)
}

/// Returns `Bandwidth 2.872 GB/s` of the hop that carried most: the line that users of rdpipe know.
pub fn bandwidth(hops: &[HopFigures]) -> Option<String> {
    let measured = hops.iter().filter(|hop| hop.is_measured && hop.seconds > 0.0);
    // Of several hops that carried the same, the first counts.
    let hop = measured.rev().max_by_key(|hop| hop.bytes)?;
    Some(format!("Bandwidth {:.3} GB/s", hop.bytes as f64 / hop.seconds / 1e9))
}

/// Describes all that is known of a hop at the end.
pub fn report(hop: &HopFigures) -> String {
    let head = match hop.from == hop.to {
        true if hop.is_measured => hop.from.clone(),
        true => format!("{}: {}", hop.from, hop.transport),
        false => format!("{} -> {}: {}", hop.from, hop.to, hop.transport),
    };
    if !hop.is_measured {
        return format!("{head}, from command to command: there are no figures");
    }
    let mut text = format!("{head}: {} bytes in {:.3} s", hop.bytes, hop.seconds);
    if hop.seconds > 0.0 {
        text.push_str(&format!(", {}/s", quantity(hop.bytes as f64 / hop.seconds)));
    }
    // Frames and tags make less of a difference than that.
    if hop.wire_bytes > 0 && hop.wire_bytes.abs_diff(hop.bytes) > hop.bytes / 20 {
        text.push_str(&format!(", {} on the wire", quantity(hop.wire_bytes as f64)));
    }
    if hop.bytes >= CPU_BYTES_MIN {
        text.push_str(&format!(", {} CPU s/GB", number::number(hop.cpu / hop.bytes as f64 * 1e9)));
    }
    if let Some(digest) = &hop.digest {
        text.push_str(&format!(", {} {}", digest.kind, digest.value));
    }
    text.push_str(&format!(
        "; waited {:.2} s for the reader, {:.2} s for the network, {:.2} s for the writer",
        hop.reader_wait, hop.network_wait, hop.writer_wait
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use caravan_pipe::coordinator::StreamDigest;
    use caravan_pipe::mover::DigestKind;

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

    #[test]
    fn quantities_have_units() {
        assert_eq!([0.0, 640.0, 1234.0, 2.5e9].map(quantity), ["0 B", "640 B", "1.23 kB", "2.50 GB"]);
        assert_eq!([0.2, 59.9, 3723.0, 1e9].map(clock), ["0:01", "1:00", "1:02:03", "more than 100 days"]);
    }

    #[test]
    fn a_rate_is_of_the_last_seconds() {
        let mut recent = Recent::default();
        assert_eq!((recent.rate(), recent.waits_for()), (0.0, None));
        // 10 s at 100 bytes per second, then 10 s without any bytes.
        for quarter in 0..80 {
            let seconds = f64::from(quarter) / 4.0;
            let bytes = (seconds.min(10.0) * 100.0) as u64;
            recent.add(&HopFigures { bytes, seconds, ..HopFigures::default() });
            assert!(recent.0.len() < 20, "{recent:?}");
            if (1.0..=10.0).contains(&seconds) {
                assert!((recent.rate() - 100.0).abs() < 5.0, "{seconds}: {}", recent.rate());
            }
        }
        assert_eq!(recent.rate(), 0.0);
    }

    #[test]
    fn the_one_who_holds_up_the_others_is_named() {
        for (waits, expected) in [
            ([0.9, 0.1, 0.0], Some("reader")),
            ([0.1, 0.8, 0.0], Some("network")),
            // A slow writer lets the network fill.
            ([0.0, 0.95, 0.9], Some("writer")),
            ([0.1, 0.1, 0.1], None),
        ] {
            assert_eq!(bottleneck(1.0, waits), expected, "{waits:?}");
        }
    }

    #[test]
    fn a_report_has_every_figure() {
        let mut hop = HopFigures {
            from: "host1".to_owned(),
            to: "host2".to_owned(),
            transport: "TCP 10.0.0.2:40112, encrypted".to_owned(),
            is_measured: true,
            bytes: 4_000_000_000,
            wire_bytes: 1_000_000_000,
            seconds: 2.0,
            network_wait: 1.5,
            cpu: 2.2,
            digest: Some(StreamDigest::new(DigestKind::Xxh3, "00ff".to_owned())),
            ..HopFigures::default()
        };
        assert_eq!(bandwidth(std::slice::from_ref(&hop)).as_deref(), Some("Bandwidth 2.000 GB/s"));
        assert_eq!(
            report(&hop),
            "host1 -> host2: TCP 10.0.0.2:40112, encrypted: 4000000000 bytes in 2.000 s, 2.00 GB/s, 1.00 GB on the \
             wire, 0.55 CPU s/GB, xxh3 00ff; waited 0.00 s for the reader, 1.50 s for the network, 0.00 s for the writer"
        );
        let inside = HopFigures { from: "here".to_owned(), to: "here".to_owned(), bytes: 7, ..hop.clone() };
        assert!(report(&inside).starts_with("here: 7 bytes in 2.000 s, 4 B/s, "), "{}", report(&inside));
        hop.is_measured = false;
        assert_eq!(bandwidth(std::slice::from_ref(&hop)), None);
        assert!(report(&hop).ends_with("there are no figures"), "{}", report(&hop));
    }
}
