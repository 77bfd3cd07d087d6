//! Configurations as TOML files.
//!
//! ```toml
//! # Links come first: what stands below a table's name belongs to that table.
//! links = [
//!     "source.output -> sink.input",
//!     # { link = "...", mode = "copy" }: packets are copied, not handed over.
//! ]
//!
//! [engine]                 # all of it may be left out
//! packets_max = 65536      # packets that there may be
//! headroom = 120           # bytes free in front of a new packet, for headers
//! spin = "auto"            # "on", "off"
//! hugepages = false
//!
//! [worker.left]            # only to keep a worker on a core
//! core = 0
//!
//! [app.source]
//! kind = "source"
//! worker = "left"          # "main" if left out
//! size = 60                # every other key is the kind's own
//!
//! [app.sink]
//! kind = "sink"
//! ```
//!
//! A mistake is told with its line and column, and all of them in one go: first what is no TOML, then
//! keys and values that mean nothing here, then what [`check`] finds.

mod read;

use std::collections::BTreeMap;
use std::fs::File as StdFile;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use serde::Serialize;
use toml::de::DeTable;

use super::Config;
use super::check::{self, ConfigPart};
use crate::app::Registry;
use crate::engine::EngineOptions;
use crate::limits::{FILE_BYTES_MAX, MISTAKES_MAX, NAME_BYTES_MAX};

/// What a file says, and where.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigFile {
    /// Apps, links and workers.
    pub config: Config,
    /// What the table `[engine]` says. It cannot change while the engine runs.
    pub options: EngineOptions,
    places: BTreeMap<ConfigPart, FilePosition>,
}

/// A place in a file: line and column, in letters, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FilePosition {
    /// The line.
    pub line: usize,
    /// The letter in it.
    pub column: usize,
}

/// A mistake in a file. Shown as `LINE:COLUMN: TEXT`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Mistake {
    /// Where it is; none if it is the file as a whole.
    #[serde(flatten)]
    pub place: Option<FilePosition>,
    /// What is wrong, and what would be right.
    pub text: String,
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.place {
            Some(FilePosition { line, column }) => write!(f, "{line}:{column}: {}", self.text),
            None => write!(f, " {}", self.text),
        }
    }
}

impl ConfigFile {
    /// Reads a file, and checks that an engine of these kinds of apps can carry it out.
    pub fn open(path: &Path, registry: &Registry) -> Result<Self, Vec<Mistake>> {
        let file = Self::parse(&text_of(path)?)?;
        file.check(registry)?;
        Ok(file)
    }

    /// Reads a file, of whatever kinds its apps are.
    pub fn open_unchecked(path: &Path) -> Result<Self, Vec<Mistake>> {
        Self::parse(&text_of(path)?)
    }

    /// Understands a file's text.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let lines = FileLines::of(text);
        let (table, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            let errors = errors.iter().map(|error| lines.no_toml(error.span(), error.message()));
            return Err(sorted(errors.collect()));
        }
        read::file(table.get_ref(), &lines)
    }

    /// Every mistake that [`check`] finds, in the order of the file.
    pub fn check(&self, registry: &Registry) -> Result<(), Vec<Mistake>> {
        // A file that is being written is empty for a moment: nobody means that.
        if self.config.apps.is_empty() {
            let text = "there are no apps: add a table [app.NAME] for each".to_owned();
            return Err(vec![Mistake { place: None, text }]);
        }
        let packets_max = self.options.packets_max;
        let findings = check::findings(&self.config, registry, packets_max);
        if findings.is_empty() {
            return Ok(());
        }
        Err(sorted(
            findings
                .into_iter()
                .map(|finding| Mistake { place: self.place(&finding.part), text: finding.text })
                .collect(),
        ))
    }

    fn place(&self, part: &ConfigPart) -> Option<FilePosition> {
        // A worker without a table of its own is there for the first app that names it.
        let named_by = |worker: &str| {
            let app = self.config.apps.iter().find(|(_, app)| app.worker == worker)?.0;
            self.places.get(&ConfigPart::App(app.clone()))
        };
        let place = self.places.get(part).or_else(|| match part {
            ConfigPart::Worker(worker) => named_by(worker),
            _ => None,
        });
        place.copied()
    }
}

fn text_of(path: &Path) -> Result<String, Vec<Mistake>> {
    let whole = |text: String| vec![Mistake { place: None, text }];
    let mut bytes = Vec::new();
    let read =
        StdFile::open(path).and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| whole(format!("cannot read it: {error}")))?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(whole(format!("more than {FILE_BYTES_MAX} bytes: this is no configuration")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
        let place = FileLines::of(&good).place(good.len());
        vec![Mistake { place: Some(place), text: "this is not UTF-8: write the file in UTF-8".into() }]
    })
}

/// In the order of the file, each once, and not more than a person reads.
fn sorted(mut mistakes: Vec<Mistake>) -> Vec<Mistake> {
    mistakes.sort();
    mistakes.dedup();
    let more = mistakes.len().saturating_sub(MISTAKES_MAX);
    mistakes.truncate(MISTAKES_MAX);
    if more > 0 {
        mistakes.push(Mistake { place: None, text: format!("and {more} more mistakes") });
    }
    mistakes
}

/// Where the lines of a text start, so that each place is found at once.
struct FileLines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> FileLines<'a> {
    fn of(text: &'a str) -> Self {
        let ends = text.match_indices('\n').map(|(end, _)| end + 1);
        Self { text, starts: std::iter::once(0).chain(ends).collect() }
    }

    fn place(&self, at: usize) -> FilePosition {
        let line = self.starts.partition_point(|start| *start <= at);
        let start = self.starts[line - 1];
        let before = self.text.get(start..at).map_or(at - start, |before| before.chars().count());
        FilePosition { line, column: before + 1 }
    }

    /// What the parser says, and about what: it does not name a key that is there twice.
    fn no_toml(&self, span: Option<Range<usize>>, text: &str) -> Mistake {
        let named = span.clone().and_then(|span| self.text.get(span)).unwrap_or_default().trim();
        match named.is_empty() || named.contains('\n') || named.len() > NAME_BYTES_MAX {
            true => self.mistake(span, text),
            false => self.mistake(span, &format!("`{named}`: {text}")),
        }
    }

    fn mistake(&self, span: Option<Range<usize>>, text: &str) -> Mistake {
        Mistake { place: span.map(|span| self.place(span.start)), text: check::visible(text) }
    }
}

#[cfg(test)]
mod tests;
