//! The results as text: what each benchmark came to beside its goal, and swap beside copy.

use std::fmt::Write;

use super::case::Goal;
use super::results::{Figure, Results, Unit};
use crate::compare::p_value;
use crate::number::number;
use crate::stats::Summary;

/// How probable chance may be at most for swap or copy to be called better.
const CHANCE: f64 = 0.01;

/// The whole table.
pub fn text(results: &Results) -> String {
    let mut text = String::new();
    let cores =
        results.cores.map_or_else(String::new, |(a, b)| format!("; two processes on cores {a} and {b}"));
    // Writing into a String cannot fail.
    let _ = writeln!(
        text,
        "{}{cores}\n{} {}, {}\nMedians (least..most) of {} samples or more of {} s, in turn; {} taken again because \
         cores moved.\n",
        results.machine.without_distance(),
        results.caravan,
        results.commit.as_deref().unwrap_or("(unknown commit)"),
        results.date,
        results.samples,
        results.seconds,
        results.moved
    );
    packets(&mut text, results);
    swap_and_copy(&mut text, results);
    others(&mut text, results);
    text
}

fn packets(text: &mut String, results: &Results) {
    let rows: Vec<_> = results.figures.iter().filter(|figure| figure.unit == Unit::NsPerPacket).collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "{:<28}{:<6}{:>4}{:>26}{:>9}{:>9}{:>9}   goal",
        "", "", "n", "Mpps", "ns", "CPU ns", "Gbit/s"
    );
    for figure in rows {
        let of = |summary: &Option<Summary>| summary.as_ref().map_or_else(String::new, Summary::spread);
        let median = |summary: &Option<Summary>| {
            summary.as_ref().map_or_else(String::new, |summary| number(summary.median))
        };
        let row = format!(
            "{:<28}{:<6}{:>4}{:>26}{:>9}{:>9}{:>9}   {}",
            figure.key,
            shown(figure.placement),
            figure.value.samples.len(),
            of(&figure.mpps),
            number(figure.value.median),
            median(&figure.cpu_ns),
            figure.gbit_per_s.map_or_else(String::new, number),
            goal(figure)
        );
        let _ = writeln!(text, "{}", row.trim_end());
    }
}

/// The question that a link between two processes asks: to hand the packet over, or to copy its data.
fn swap_and_copy(text: &mut String, results: &Results) {
    let mut begun = false;
    for swap in &results.figures {
        let Some(name) = swap.key.strip_suffix("/swap") else { continue };
        let Some(copy) = results.figure(&format!("{name}/copy"), swap.placement) else { continue };
        if !begun {
            let _ = writeln!(
                text,
                "\nSwap or copy, between two processes{:>20}{:>10}{:>12}{:>12}{:>12}",
                "swap Mpps", "copy Mpps", "copy/swap", "CPU c/s", "better"
            );
            begun = true;
        }
        // A rate's ratio is that of the times turned round.
        let rate = swap.value.median / copy.value.median;
        let cpu = match (&swap.cpu_ns, &copy.cpu_ns) {
            (Some(swap), Some(copy)) => number(copy.median / swap.median),
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "  {:<27}{:<6}{:>20}{:>10}{:>12}{:>12}{:>12}",
            name,
            swap.placement,
            number(1e3 / swap.value.median),
            number(1e3 / copy.value.median),
            number(rate),
            cpu,
            better(&swap.value, &copy.value)
        );
    }
}

/// One is better where that is hardly chance.
fn better(swap: &Summary, copy: &Summary) -> &'static str {
    match () {
        () if p_value(&swap.samples, &copy.samples) >= CHANCE => "neither",
        () if swap.median < copy.median => "swap",
        () => "copy",
    }
}

fn others(text: &mut String, results: &Results) {
    for figure in &results.figures {
        let name = |what: &str| format!("{what} {}", shown(figure.placement)).trim_end().to_owned();
        let line = match (figure.unit, figure.key.as_str()) {
            (Unit::NsPerPacket, _) => continue,
            (Unit::Ratio, _) => {
                let what = name("swap: the engine to the bare loop in C, of each pair,");
                format!("{what}: {}   {}", figure.value.spread(), goal(figure))
            }
            (Unit::Ns, "recovery") => format!(
                "recovery of a killed worker: {} ms, {} kills   {}",
                figure.value.scaled(1e-6).spread(),
                figure.value.samples.len(),
                goal(figure)
            ),
            (Unit::Ns, key) => {
                let when = if key.ends_with("quiet-gap") { "in a quiet time" } else { "meanwhile" };
                let gaps = figure.value.scaled(1e-6);
                format!("largest gap in another's traffic {when}: {} ms", gaps.spread())
            }
        };
        let _ = writeln!(text, "\n{line}");
    }
}

fn shown(placement: &str) -> &str {
    if placement == super::sampler::NO_PLACEMENT { "" } else { placement }
}

/// `>= 150: reached`
fn goal(figure: &Figure) -> String {
    let Some(goal) = figure.goal else { return String::new() };
    let wanted = match goal {
        Goal::AtLeastMpps(mpps) => format!("at least {mpps} Mpps"),
        Goal::BelowMs(ms) => format!("below {ms} ms"),
        Goal::RatioAtMost(ratio) => format!("at most {ratio}"),
    };
    format!("{wanted}: {}", if figure.reached == Some(true) { "reached" } else { "MISSED" })
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::example;
    use super::*;

    #[test]
    fn rows_have_rates_and_goals() {
        let text = text(&example("--only interlink/60,tunnel/60,swap,recovery"));
        for expected in [
            "200 (167..250)",
            "at least 150 Mpps: reached",
            "at least 80 Mpps: reached",
            "swap/c-loop",
            "of each pair, near: 2.00 (2.00..2.00)   at most 1.3: MISSED",
            "recovery of a killed worker: 2.50 (2.00..3.00) ms, 10 kills   below 10 ms: reached",
            "largest gap in another's traffic meanwhile: 0.10 (0.10..0.10) ms",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn swap_and_copy_are_side_by_side() {
        let text = text(&example("--only interlink-touch/1500"));
        let rows: Vec<_> = text.lines().filter(|line| line.starts_with("  interlink-touch/1500")).collect();
        assert_eq!(rows.len(), 2, "{text}");
        let cells: Vec<_> = rows[0].split_whitespace().collect();
        assert_eq!(cells, ["interlink-touch/1500", "near", "200", "200", "1.00", "1.00", "neither"]);
    }

    #[test]
    fn better_is_what_chance_hardly_does() {
        let about = |median: f64, count: i32| {
            let samples = (0..count).map(|n| median + f64::from(2 * n - count + 1) / 10.0);
            Summary::of(samples.collect()).expect("samples")
        };
        for (swap, copy, expected) in [
            (about(5.0, 9), about(9.0, 9), "swap"),
            (about(9.0, 9), about(5.0, 9), "copy"),
            (about(5.0, 9), about(5.1, 9), "neither"),
            (about(5.0, 2), about(9.0, 2), "neither"),
        ] {
            assert_eq!(better(&swap, &copy), expected, "{swap:?} {copy:?}");
        }
    }
}
