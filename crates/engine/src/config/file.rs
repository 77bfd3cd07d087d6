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
//! Every mistake is reported with its line and column, all at once: first the TOML syntax, then
//! unknown keys and wrong values, then the findings of [`check`].

use std::collections::BTreeMap;
use std::fs::File as StdFile;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use caravan_ring::SpinMode;
use caravan_segment::Pages;
use caravan_segment::printable;
use serde::Serialize;
use serde_json::{Number, Value};
use toml::Spanned;
use toml::de::{DeArray, DeString, DeTable, DeValue};

use super::Config;
use super::check;
use crate::app::Registry;
use crate::config::check::{ConfigPart, instead, listed, shown};
use crate::config::{AppConfig, LinkName, WORKER_DEFAULT, WorkerConfig};
use crate::engine::EngineOptions;
use crate::layout::LinkMode;
use crate::limits::{
    FILE_BYTES_MAX, GRANT_PACKETS, MISTAKES_MAX, NAME_BYTES_MAX, PACKET_BYTES_MAX, PACKETS_MAX,
};

/// A configuration file that has been read, with the places of its parts.
///
/// ```
/// use caravan_engine::config::file::ConfigFile;
///
/// let mistakes = ConfigFile::parse("[app.a]\nworker = 'left'").unwrap_err();
/// assert_eq!(mistakes[0].to_string(), "1:6: app `a` has no kind: add kind = \"...\"");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigFile {
    /// Apps, links and workers.
    pub config: Config,
    /// The table `[engine]`. It cannot change while the engine runs.
    pub options: EngineOptions,
    places: BTreeMap<ConfigPart, FilePosition>,
}

/// A place in a file: line and column, in characters, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FilePosition {
    /// The line.
    pub line: usize,
    /// The character in the line.
    pub column: usize,
}

/// A mistake in a file. Shown as `LINE:COLUMN: TEXT`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Mistake {
    /// Its place; none if the mistake is the file as a whole.
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

    /// Reads a file, without checking the kinds of its apps.
    pub fn open_unchecked(path: &Path) -> Result<Self, Vec<Mistake>> {
        Self::parse(&text_of(path)?)
    }

    /// Reads the text of a file, without checking the kinds of its apps.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let lines = FileLines::of(text);
        let (table, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            let errors = errors.iter().map(|error| lines.no_toml(error.span(), error.message()));
            return Err(sorted(errors.collect()));
        }
        read_file(table.get_ref(), &lines)
    }

    /// Checks that an engine with these kinds of apps can carry the file out. Returns every mistake, in the order of
    /// the file.
    pub fn check(&self, registry: &Registry) -> Result<(), Vec<Mistake>> {
        // A file that is being written is empty for a moment, and an empty configuration makes no sense.
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
        // A worker without its own table has the place of the first app that names it.
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

/// Returns the mistakes in the order of the file, each once, and no more than a person reads.
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

/// The starts of the lines of a text, so that each place is found at once.
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

    /// Makes a mistake of the parser's message. The parser does not name a key that is there twice.
    fn no_toml(&self, span: Option<Range<usize>>, text: &str) -> Mistake {
        let named = span.clone().and_then(|span| self.text.get(span)).unwrap_or_default().trim();
        match named.is_empty() || named.contains('\n') || named.len() > NAME_BYTES_MAX {
            true => self.mistake(span, text),
            false => self.mistake(span, &format!("`{named}`: {text}")),
        }
    }

    fn mistake(&self, span: Option<Range<usize>>, text: &str) -> Mistake {
        Mistake { place: span.map(|span| self.place(span.start)), text: printable(text) }
    }
}

/// Returns everything in a document, or every mistake in it.
fn read_file(table: &DeTable<'_>, lines: &FileLines<'_>) -> Result<ConfigFile, Vec<Mistake>> {
    let mut reader = FileReader { lines, file: ConfigFile::default(), mistakes: Vec::new() };
    reader.document(table);
    match reader.mistakes.is_empty() {
        true => Ok(reader.file),
        false => Err(sorted(reader.mistakes)),
    }
}

type TomlKey<'i> = Spanned<DeString<'i>>;
type TomlItem<'i> = Spanned<DeValue<'i>>;

struct FileReader<'a> {
    lines: &'a FileLines<'a>,
    file: ConfigFile,
    mistakes: Vec<Mistake>,
}

impl FileReader<'_> {
    fn wrong(&mut self, span: Range<usize>, text: &str) {
        let mistake = self.lines.mistake(Some(span), text);
        self.mistakes.push(mistake);
    }

    fn document(&mut self, table: &DeTable<'_>) {
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "links" => self.links(value),
                "engine" => self.table(key, value, "a table: [engine]", |reader, table| reader.engine(table)),
                "worker" => self.tables(key, value, Self::worker),
                "app" => self.tables(key, value, Self::app),
                _ => self.unknown(key, "the file", &["links", "engine", "worker", "app"]),
            }
        }
    }

    fn engine(&mut self, table: &DeTable<'_>) {
        for (key, value) in table {
            let options = &mut self.file.options;
            let told = match key.get_ref().as_ref() {
                "packets_max" => {
                    let number = number(value, GRANT_PACKETS as usize, PACKETS_MAX as usize);
                    number.map(|number| options.packets_max = number as u32)
                }
                "headroom" => number(value, 0, PACKET_BYTES_MAX).map(|bytes| options.headroom = bytes),
                "spin" => spin(value).map(|mode| options.spin = mode),
                "hugepages" => {
                    let truth = value.get_ref().as_bool().ok_or_else(|| "true or false".to_owned());
                    truth.map(|huge| options.pages = if huge { Pages::HugeIfOffered } else { Pages::Small })
                }
                _ => {
                    self.unknown(key, "[engine]", &["packets_max", "headroom", "spin", "hugepages"]);
                    continue;
                }
            };
            self.takes(key, value, told);
        }
    }

    fn worker(&mut self, name: &TomlKey<'_>, table: &DeTable<'_>) {
        let mut worker = WorkerConfig::default();
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "core" => {
                    let core = number(value, 0, usize::MAX).map(|core| worker.core = Some(core));
                    self.takes(key, value, core);
                }
                _ => self.unknown(key, &format!("[worker.{}]", shown(name.get_ref())), &["core"]),
            }
        }
        let name_text = name.get_ref().to_string();
        self.file.places.insert(ConfigPart::Worker(name_text.clone()), self.lines.place(name.span().start));
        self.file.config.workers.insert(name_text, worker);
    }

    fn app(&mut self, name: &TomlKey<'_>, table: &DeTable<'_>) {
        let mut kind = None;
        let mut worker = WORKER_DEFAULT.to_owned();
        let mut config = serde_json::Map::new();
        for (key, value) in table {
            let text = value.get_ref().as_str().ok_or_else(|| "a text in quotes".to_owned());
            match key.get_ref().as_ref() {
                "kind" => {
                    let told = text.map(|text| kind = Some(text.to_owned()));
                    self.takes(key, value, told);
                }
                "worker" => {
                    let told = text.map(|text| worker = text.to_owned());
                    self.takes(key, value, told);
                }
                "links" => self.wrong(
                    key.span(),
                    "`links` belongs to no app: put it above the first table, at the top of the file",
                ),
                own => match json(value) {
                    Ok(value) => _ = config.insert(own.to_owned(), value),
                    Err((span, text)) => self.wrong(span, &text),
                },
            }
        }
        let name_text = name.get_ref().to_string();
        let Some(kind) = kind else {
            if !table.contains_key("kind") {
                let text = format!("app `{}` has no kind: add kind = \"...\"", shown(&name_text));
                self.wrong(name.span(), &text);
            }
            return;
        };
        self.file.places.insert(ConfigPart::App(name_text.clone()), self.lines.place(name.span().start));
        let app = AppConfig { kind, worker, config: Value::Object(config) };
        self.file.config.apps.insert(name_text, app);
    }

    fn links(&mut self, value: &TomlItem<'_>) {
        let Some(links) = value.get_ref().as_array() else {
            return self.wrong(value.span(), "links = ...: it takes a list: [\"app.output -> app.input\"]");
        };
        self.each_link(links);
    }

    fn each_link(&mut self, links: &DeArray<'_>) {
        for link in links {
            let mut mode = LinkMode::Swap;
            let name = match link.get_ref() {
                DeValue::String(_) => Some(link),
                DeValue::Table(table) => self.link_table(link, table, &mut mode),
                other => {
                    let text = format!("a link is a text in quotes or a table, not {}", article(other));
                    self.wrong(link.span(), &text);
                    None
                }
            };
            let Some((name, span)) = name.and_then(|name| Some((name.get_ref().as_str()?, name.span())))
            else {
                continue;
            };
            let name = match name.parse::<LinkName>() {
                Ok(name) => name,
                Err(error) => {
                    self.wrong(span, &error.to_string());
                    continue;
                }
            };
            let place = self.lines.place(span.start);
            if let Some(before) = self.file.places.insert(ConfigPart::Link(name.clone()), place) {
                let text =
                    format!("link `{}` is there twice: see line {}", shown(&name.to_string()), before.line);
                self.wrong(span, &text);
            }
            self.file.config.links.insert(name, mode);
        }
    }

    /// Reads `{ link = "a.output -> b.input", mode = "copy" }`. Returns the link's name.
    fn link_table<'t, 'i>(
        &mut self,
        link: &TomlItem<'_>,
        table: &'t DeTable<'i>,
        mode: &mut LinkMode,
    ) -> Option<&'t TomlItem<'i>> {
        for (key, value) in table {
            let text = value.get_ref().as_str();
            match key.get_ref().as_ref() {
                "link" => {
                    let told = text.map(drop).ok_or_else(|| "a text: \"app.output -> app.input\"".to_owned());
                    self.takes(key, value, told);
                }
                "mode" => {
                    let told = match text {
                        Some("swap") => Ok(LinkMode::Swap),
                        Some("copy") => Ok(LinkMode::Copy),
                        _ => Err("\"swap\" or \"copy\"".to_owned()),
                    };
                    self.takes(key, value, told.map(|told| *mode = told));
                }
                _ => self.unknown(key, "a link", &["link", "mode"]),
            }
        }
        if !table.contains_key("link") {
            self.wrong(link.span(), "a link without its ends: add link = \"app.output -> app.input\"");
        }
        table.get("link")
    }

    fn table(
        &mut self,
        key: &TomlKey<'_>,
        value: &TomlItem<'_>,
        takes: &str,
        read: impl FnOnce(&mut Self, &DeTable<'_>),
    ) {
        match value.get_ref().as_table() {
            Some(table) => read(self, table),
            None => self.takes(key, value, Err(takes.to_owned())),
        }
    }

    /// Reads `[worker.NAME]` and `[app.NAME]`.
    fn tables(
        &mut self,
        key: &TomlKey<'_>,
        value: &TomlItem<'_>,
        read: fn(&mut Self, &TomlKey<'_>, &DeTable<'_>),
    ) {
        let takes = format!("tables: [{}.NAME]", key.get_ref());
        self.table(key, value, &takes, |reader, table| {
            for (name, value) in table {
                let takes = format!("a table: [{}.{}]", key.get_ref(), shown(name.get_ref()));
                reader.table(name, value, &takes, |reader, table| read(reader, name, table));
            }
        });
    }

    fn unknown(&mut self, key: &TomlKey<'_>, of: &str, known: &[&str]) {
        let name = key.get_ref();
        let instead = instead(name, known.iter().copied(), "keys");
        let all = match instead.starts_with("do") && known.len() > 1 {
            true => format!(" There are {}", listed(known.iter().copied())),
            false => String::new(),
        };
        let text = format!("{of} has no key `{}`: {instead}{all}", shown(name));
        self.wrong(key.span(), &text);
    }

    /// Reports a value that its key does not take.
    fn takes(&mut self, key: &TomlKey<'_>, value: &TomlItem<'_>, told: Result<(), String>) {
        if let Err(takes) = told {
            let text = format!(
                "{} = {}: it takes {takes}",
                shown(key.get_ref()),
                shown(self.lines.text.get(value.span()).unwrap_or_default())
            );
            self.wrong(value.span(), &text);
        }
    }
}

fn number(value: &TomlItem<'_>, least: usize, most: usize) -> Result<usize, String> {
    let number = value.get_ref().as_integer();
    let number = number.and_then(|number| usize::from_str_radix(number.as_str(), number.radix()).ok());
    number.filter(|number| (least..=most).contains(number)).ok_or_else(|| match most {
        usize::MAX => format!("a number from {least}"),
        _ => format!("a number from {least} to {most}"),
    })
}

fn spin(value: &TomlItem<'_>) -> Result<SpinMode, String> {
    match value.get_ref().as_str() {
        Some("auto") => Ok(SpinMode::Auto),
        Some("on") => Ok(SpinMode::On),
        Some("off") => Ok(SpinMode::Off),
        _ => Err("\"auto\", \"on\" or \"off\"".to_owned()),
    }
}

/// Converts a value for the kind of an app. The parser limits its nesting.
fn json(value: &TomlItem<'_>) -> Result<Value, (Range<usize>, String)> {
    let wrong = |text: &str| (value.span(), text.to_owned());
    Ok(match value.get_ref() {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => {
            let (digits, radix) = (number.as_str(), number.radix());
            let signed = i64::from_str_radix(digits, radix).map(Number::from);
            let number = signed.or_else(|_| u64::from_str_radix(digits, radix).map(Number::from));
            Value::Number(number.map_err(|_| wrong("this number has more than 64 bits"))?)
        }
        DeValue::Float(number) => {
            let number = number.as_str().parse().ok().and_then(Number::from_f64);
            Value::Number(number.ok_or_else(|| wrong("this number is not finite, or too large"))?)
        }
        DeValue::Boolean(truth) => Value::Bool(*truth),
        DeValue::Datetime(time) => Value::String(time.to_string()),
        DeValue::Array(items) => Value::Array(items.iter().map(json).collect::<Result<_, _>>()?),
        DeValue::Table(table) => {
            let pairs = table.iter().map(|(key, value)| Ok((key.get_ref().to_string(), json(value)?)));
            Value::Object(pairs.collect::<Result<_, _>>()?)
        }
    })
}

fn article(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(_) | DeValue::Array(_) => format!("an {}", value.type_str()),
        _ => format!("a {}", value.type_str()),
    }
}

#[cfg(test)]
mod tests;
