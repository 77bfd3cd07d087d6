//! The chart: bandwidth by the bytes under way, a curve for each thing.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::args::{is_png, is_svg};
use super::report::{LimitRow, LimitsReport};
use super::unit::{rate, time};
use crate::chart::curves::{Curve, CurveChart, LogAxis};
use crate::error::Error;
use crate::{output, process};

/// What makes PNG of SVG.
const CONVERTER: &str = "rsvg-convert";

/// Says before anything is measured that a chart could not be written.
pub fn check(charts: &[impl AsRef<Path>]) -> Result<(), Error> {
    match charts.iter().find(|path| is_png(path.as_ref()) && !process::is_installed(CONVERTER)) {
        Some(path) => Err(Error::Sentence(format!(
            "{}: {CONVERTER}, which makes PNG, is not here. Install the package librsvg2-bin, or name a file that ends with .svg",
            path.as_ref().display()
        ))),
        None => Ok(()),
    }
}

/// Writes the chart of a report to a file.
pub fn write(report: &LimitsReport, path: &Path) -> Result<(), Error> {
    let svg = chart(report).svg();
    if is_svg(path) {
        return output::file(path, svg.as_bytes());
    }
    output::file(path, &png(&svg)?)
}

fn png(svg: &str) -> Result<Vec<u8>, Error> {
    let failed = |why: String| Error::Sentence(format!("{CONVERTER} made no PNG: {why}"));
    let mut command = Command::new(CONVERTER);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|why| failed(why.to_string()))?;
    if let Some(mut input) = child.stdin.take() {
        // It reads everything before it writes. One that does not says why itself.
        let _ = input.write_all(svg.as_bytes());
    }
    let done = child.wait_with_output().map_err(|why| failed(why.to_string()))?;
    match done.status.success() {
        true => Ok(done.stdout),
        false => Err(failed(String::from_utf8_lossy(&done.stderr).trim().to_owned())),
    }
}

fn chart(report: &LimitsReport) -> CurveChart {
    CurveChart {
        title: "Limits: bandwidth by bytes under way".into(),
        x: LogAxis {
            title: "block x parallelism (bytes under way)".into(),
            label: |value| rate(value, "B", 3),
        },
        y: LogAxis { title: "bandwidth".into(), label: |value| rate(value, "B/s", 3) },
        curves: report.rows.iter().map(curve).collect(),
        footer: report.machine.clone(),
    }
}

/// Returns the measured points of a row, or the one that the arithmetic has.
fn curve(row: &LimitRow) -> Curve {
    let measured = row.cells.iter().map(|cell| (cell.in_flight() as f64, cell.bytes_per_s));
    let mut points: Vec<_> = measured.filter(|point| point.1 > 0.0).collect();
    if points.is_empty() {
        points.push((row.block_bytes * row.parallel, row.predicted_bytes_per_s));
    }
    Curve { name: format!("{} ({})", row.what, time(row.latency_s())), points }
}

#[cfg(test)]
mod tests {
    use super::super::camels;
    use super::super::report::LimitsReport;
    use super::*;

    #[test]
    fn each_row_is_a_curve_and_camels_fit_on_the_chart() {
        let report = LimitsReport::begin(camels::rows());
        let svg = chart(&report).svg();
        assert_eq!(svg.matches("<circle").count(), 2 * report.rows.len());
        assert!(svg.contains("20 camels with cards (40 days)"), "{svg}");
    }
}
