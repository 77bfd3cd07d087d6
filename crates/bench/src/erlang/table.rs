//! The results as text for a terminal.

use std::fmt::Write;

use super::results::{FigureResult, Results};
use crate::number::number;
use crate::stats::Summary;

/// Everything: the machine, the table, and what carried the traffic.
pub fn text(results: &Results) -> String {
    let settings = &results.settings;
    let mut text = format!(
        "Erlang distribution: {} nodes, {} processes for each ordered pair, +S {}, OTP {}\n\
         {}\n\
         Medians of {} rounds (least..most), transports in turn; ratios are of each round's pair.\n\n",
        settings.nodes,
        settings.processes_per_ordered_pair,
        settings.schedulers,
        results.otp,
        results.machine.sentence(),
        settings.rounds,
    );
    text.push_str(&aligned(&rows(results)));
    text.push('\n');
    text.push_str(&carried(results));
    let _ = writeln!(text, "Took {:.0} s.", results.took_seconds);
    text
}

fn rows(results: &Results) -> Vec<Vec<String>> {
    let (base, others) = results.transports.split_first().unwrap_or((&"", &[]));
    let mut head = vec![String::new(), String::new()];
    head.extend(results.transports.iter().map(|name| (*name).to_owned()));
    head.extend(others.iter().map(|name| format!("{name}/{base}")));
    let mut rows = vec![head];
    rows.extend(results.figures.iter().map(|figure| row(results, figure)));
    rows
}

fn row(results: &Results, figure: &FigureResult) -> Vec<String> {
    let mut cells = vec![figure.figure.title.clone(), figure.figure.unit.to_owned()];
    let measured = results.transports.iter().map(|name| figure.measured.get(name));
    cells.extend(measured.map(|summary| summary.map_or_else(String::new, Summary::spread)));
    let ratios = results.transports.iter().skip(1).map(|name| figure.ratios.get(name));
    cells.extend(ratios.map(|summary| summary.map_or_else(String::new, Summary::spread)));
    cells
}

/// Which transport carried how much, by the links' counters.
fn carried(results: &Results) -> String {
    let mut text = String::from("Carried, by the links' own counters (all rounds, both directions):\n");
    for name in &results.transports {
        let Some(carried) = results.carried.get(name) else { continue };
        let _ = writeln!(
            text,
            "  {name}: {} on all {} link ends; {} messages and {:.1} GB for {} RPCs, {} round trips and {:.1} GB streamed",
            carried.transport,
            carried.links,
            number(carried.sent_messages as f64),
            carried.sent_bytes as f64 / 1e9,
            number(carried.work.rpcs as f64),
            number(carried.work.pings as f64),
            carried.work.streamed_bytes as f64 / 1e9,
        );
    }
    text
}

/// The first two columns to the left, the others to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(text, "{cell:<width$}"),
                1 => write!(text, " {cell:<width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::example;
    use super::*;

    #[test]
    fn a_row_has_both_transports_and_their_ratio() {
        let text = text(&example("", 4.0));
        let row = text.lines().find(|line| line.starts_with("RPCs, 4 nodes")).expect("the row");
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(
            cells[3..],
            ["1/s", "1,500", "(1,000..2,000)", "6,000", "(4,000..8,000)", "4.00", "(4.00..4.00)"]
        );
        assert!(text.contains("caravan/tcp"), "{text}");
        assert!(text.contains("caravan: shm on all 12 link ends; 4,000,000 messages"), "{text}");
        assert!(text.contains("for 1,800,000 RPCs"), "{text}");
    }
}
