//! Output of a benchmark: its table and its files.

use std::fs;
use std::io::{self, IsTerminal, Write, stderr};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::error::Error;

/// True if a file's name is `-`, standard output.
pub fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// True if a file's name is empty: the user does not want that file.
pub fn is_none(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

/// Prints the table on standard output, or on standard error if the JSON goes to standard output.
pub fn table(text: &str, json: &Path) -> Result<(), Error> {
    let written = match is_standard_output(json) {
        true => io::stderr().write_all(text.as_bytes()),
        false => io::stdout().write_all(text.as_bytes()),
    };
    written.map_err(Error::Output)
}

/// Writes results as JSON to a file, to standard output (`-`), or nowhere (empty).
pub fn json(results: &impl Serialize, path: &Path) -> Result<(), Error> {
    if is_none(path) {
        return Ok(());
    }
    let mut text = serde_json::to_string_pretty(results).map_err(|error| Error::Output(error.into()))?;
    text.push('\n');
    if is_standard_output(path) {
        return io::stdout().write_all(text.as_bytes()).map_err(Error::Output);
    }
    file(path, text.as_bytes())
}

/// Aligns columns: the first to the left, the others to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
    let width = |column| rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, &width) in widths.iter().enumerate() {
            let cell = cell(row, column);
            line += &if column == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Writes a file, and creates its folder.
pub fn file(path: &Path, contents: &[u8]) -> Result<(), Error> {
    folder_of(path)?;
    fs::write(path, contents).map_err(Error::file("write", path))
}

/// Creates the folder of a file.
pub(crate) fn folder_of(path: &Path) -> Result<(), Error> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => fs::create_dir_all(folder).map_err(Error::file("make the folder of", path)),
        None => Ok(()),
    }
}

/// Draws a progress bar on standard error. Dropping it clears the bar.
#[derive(Debug)]
pub struct BenchProgress {
    bar: ProgressBar,
    is_terminal: bool,
    round: String,
}

impl BenchProgress {
    /// Creates a bar of so many steps.
    pub fn new(steps: usize) -> Self {
        let bar = ProgressBar::new(steps as u64);
        let template = "{spinner} [{elapsed_precise}] [{bar:30}] {percent:>3}%  {prefix}: {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, is_terminal: stderr().is_terminal(), round: String::new() }
    }

    /// Begins a round: the bar shows its title with each of its steps.
    pub fn round(&mut self, title: String) {
        if !self.is_terminal {
            eprintln!("caravan: {title}");
        }
        self.round = title;
        self.bar.set_prefix(self.round.clone());
    }

    /// Begins a step, and thereby ends the one before it.
    pub fn step(&self, title: &str) {
        self.bar.set_message(title.to_owned());
        self.bar.inc(1);
    }
}

impl Drop for BenchProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error = file(Path::new("/proc/none/results.json"), b"{}").expect_err("refused");
        assert!(error.to_string().contains("/proc/none/results.json"), "{error}");
    }
}
