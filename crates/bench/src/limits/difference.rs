//! `caravan limits compare`: two results, row by row.

use std::fs;
use std::path::Path;

use super::args::LimitsCompare;
use super::report::{LimitRow, LimitsReport, SCHEMA};
use super::unit::{rate, time};
use crate::error::Error;
use crate::number::number;
use crate::output::{self, aligned};

const HEADINGS: [&str; 7] = ["", "latency A", "B", "B/A", "bandwidth A", "B", "B/A"];

/// Compares, and prints.
pub fn run(args: &LimitsCompare) -> Result<(), Error> {
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    output::table(&text(&a, &b), Path::new(""))
}

fn read(path: &Path) -> Result<LimitsReport, Error> {
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    let wrong = |why: String| {
        Error::Sentence(format!(
            "{}: {why}. Name a file that `caravan limits --json FILE` has written",
            path.display()
        ))
    };
    let report: LimitsReport = serde_json::from_str(&text).map_err(|why| wrong(why.to_string()))?;
    match report.schema == SCHEMA {
        true => Ok(report),
        false => Err(wrong(format!("it has the format {}, and this program reads {SCHEMA}", report.schema))),
    }
}

fn text(a: &LimitsReport, b: &LimitsReport) -> String {
    let find = |report: &LimitsReport, what: &str| report.rows.iter().find(|row| row.what == what).cloned();
    let pairs = a.rows.iter().filter_map(|row| Some((row.clone(), find(b, &row.what)?)));
    let rows: Vec<_> =
        [HEADINGS.map(str::to_owned).to_vec()].into_iter().chain(pairs.map(|(a, b)| cells(&a, &b))).collect();
    let mut text = aligned(&rows);
    for (name, one, other) in [("A", a, b), ("B", b, a)] {
        let alone: Vec<_> = one
            .rows
            .iter()
            .filter(|row| find(other, &row.what).is_none())
            .map(|row| row.what.as_str())
            .collect();
        if !alone.is_empty() {
            text += &format!("Only in {name}: {}\n", alone.join("; "));
        }
    }
    for (name, report) in [("A", a), ("B", b)] {
        text += &format!("{name}: {}, {}\n", report.date, report.machine);
    }
    text
}

fn cells(a: &LimitRow, b: &LimitRow) -> Vec<String> {
    let bandwidth = |row: &LimitRow| row.bytes_per_s.unwrap_or(row.predicted_bytes_per_s);
    vec![
        a.what.clone(),
        time(a.latency_s()),
        time(b.latency_s()),
        number(b.latency_s() / a.latency_s()),
        rate(bandwidth(a), "B/s", 3),
        rate(bandwidth(b), "B/s", 3),
        number(bandwidth(b) / bandwidth(a)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::camels;
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn rows_are_compared_by_their_names() {
        let a = LimitsReport::begin(camels::rows());
        let mut b = a.clone();
        b.rows[0].model.access_s *= 2.0;
        b.rows[1].what = "another".into();
        let text = text(&a, &b);
        let row: Vec<_> = text
            .lines()
            .find(|line| line.starts_with("disk, 10 ms"))
            .expect("a row")
            .split_whitespace()
            .collect();
        assert_eq!(row[3..8], ["10", "ms", "20", "ms", "2.00"]);
        assert!(text.contains("Only in A: flash SSD, 0.1 ms\nOnly in B: another\n"), "{text}");
    }

    #[test]
    fn a_file_that_is_no_result_is_named() {
        let folder = Scratch::create().expect("a folder");
        let path = folder.path().join("a.json");
        for (contents, expected) in [
            ("{", "EOF while parsing"),
            (
                r#"{"schema":"x/9","caravan":"","date":"","machine":"","rows":[],"notes":[]}"#,
                "the format x/9",
            ),
        ] {
            fs::write(&path, contents).expect("written");
            let why = read(&path).expect_err("refused").to_string();
            assert!(why.contains("a.json") && why.contains(expected) && why.contains("--json FILE"), "{why}");
        }
    }
}
