//! The history of results: a file to which each run adds a line for each figure, and which
//! `caravan bench compare` reads.

use std::fmt::{self, Display, Formatter};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::machine::Machine;
use crate::output;

/// The version of the format, which changes when a reader of the file has to.
const SCHEMA: &str = "caravan-engine-history/1";
/// The file by which a folder is known to be a checkout of Caravan.
const CHECKOUT: &str = "crates/engine/Cargo.toml";

/// One figure of one run. Less is better, whatever the unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryLine {
    pub schema: String,
    /// The name of the run: the same in all its lines, and in no other's.
    pub run: String,
    /// When the run began (RFC 3339).
    pub date: String,
    /// The output of `git describe --always --dirty` in the checkout that contains the program.
    pub commit: Option<String>,
    pub caravan: String,
    pub machine: HistoryHost,
    /// The benchmark's key, such as `interlink/60/swap`.
    pub benchmark: String,
    /// `near`, `far`, or `none` if the figure does not depend on the placement.
    pub placement: String,
    /// `ns` or `ratio`.
    pub unit: String,
    pub samples: Vec<f64>,
}

/// What distinguishes machines: figures of different ones are not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryHost {
    pub processor: String,
    pub cores: usize,
    pub kernel: String,
    pub system: String,
}

impl From<&Machine> for HistoryHost {
    fn from(machine: &Machine) -> Self {
        let Machine { processor, cores, kernel, system, .. } = machine.clone();
        Self { processor, cores, kernel, system }
    }
}

impl Display for HistoryHost {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { processor, cores, kernel, system } = self;
        write!(f, "{cores} x {processor}, Linux {kernel}, {system}")
    }
}

impl HistoryHost {
    /// True if the figures of both can be compared: a kernel update does not make another machine.
    pub fn same(&self, other: &Self) -> bool {
        (&self.processor, self.cores) == (&other.processor, other.cores)
    }
}

/// What all lines of a run have in common.
#[derive(Clone, Debug, Serialize)]
pub struct HistoryRun {
    pub date: String,
    pub commit: Option<String>,
    pub caravan: &'static str,
    #[serde(skip)]
    name: String,
    #[serde(skip)]
    machine: HistoryHost,
}

impl HistoryRun {
    pub fn begin(machine: &Machine) -> Self {
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let name = format!("{date}/{}", std::process::id());
        Self { date, commit: commit(), caravan: env!("CARGO_PKG_VERSION"), name, machine: machine.into() }
    }

    pub fn line(&self, benchmark: &str, placement: &str, unit: &str, samples: &[f64]) -> HistoryLine {
        HistoryLine {
            schema: SCHEMA.into(),
            run: self.name.clone(),
            date: self.date.clone(),
            commit: self.commit.clone(),
            caravan: self.caravan.into(),
            machine: self.machine.clone(),
            benchmark: benchmark.into(),
            placement: placement.into(),
            unit: unit.into(),
            samples: samples.to_vec(),
        }
    }
}

/// Appends lines to the file, and creates it if necessary. Does nothing for an empty name.
pub fn append(path: &Path, lines: &[HistoryLine]) -> Result<(), Error> {
    if output::is_none(path) {
        return Ok(());
    }
    output::folder_of(path)?;
    let mut text = String::new();
    for line in lines {
        text.push_str(&serde_json::to_string(line).map_err(|error| Error::Output(error.into()))?);
        text.push('\n');
    }
    let mut file =
        OpenOptions::new().append(true).create(true).open(path).map_err(Error::file("open", path))?;
    // A single write: two runs that end at once do not mix their lines.
    file.write_all(text.as_bytes()).map_err(Error::file("write to", path))
}

/// Reads all lines of the file, oldest first. Lines of another schema are left out.
pub fn read(path: &Path) -> Result<Vec<HistoryLine>, Error> {
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let broken = |error: serde_json::Error| Error::History {
            path: path.to_owned(),
            line: number + 1,
            reason: error.to_string(),
        };
        let value: serde_json::Value = serde_json::from_str(line).map_err(broken)?;
        if value["schema"] == SCHEMA {
            lines.push(serde_json::from_value(value).map_err(broken)?);
        }
    }
    Ok(lines)
}

/// Returns the commit of the checkout that contains this program, or else of the current folder's checkout.
fn commit() -> Option<String> {
    let program = std::env::current_exe().ok();
    let folders =
        [program.as_deref().and_then(Path::parent).map(Path::to_owned), std::env::current_dir().ok()];
    let root = folders.into_iter().flatten().find_map(|folder| checkout(&folder))?;
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["describe", "--always", "--dirty"]).stdin(Stdio::null());
    let output = git.stderr(Stdio::null()).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn checkout(folder: &Path) -> Option<PathBuf> {
    folder.ancestors().find(|above| above.join(CHECKOUT).is_file()).map(Path::to_owned)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::scratch::Scratch;

    /// Returns a line of run `run` on a machine with `cores` cores.
    pub fn line(run: &str, commit: &str, cores: usize, benchmark: &str, samples: &[f64]) -> HistoryLine {
        let machine =
            HistoryHost { processor: "P".into(), cores, kernel: "6.1".into(), system: "Linux".into() };
        let run = HistoryRun {
            date: run.into(),
            commit: Some(commit.into()),
            caravan: "0.1.0",
            name: run.into(),
            machine,
        };
        run.line(benchmark, "near", "ns", samples)
    }

    #[test]
    fn what_is_added_is_read_again_after_what_was_there() {
        let scratch = Scratch::create().expect("a folder");
        let path = scratch.path().join("new/history.jsonl");
        let lines = [line("1", "a", 2, "swap", &[1.5, 2.0]), line("1", "a", 2, "tunnel/60", &[9.0])];
        append(&path, &lines[..1]).expect("added");
        append(&path, &lines[1..]).expect("added");
        assert_eq!(read(&path).expect("read"), lines);
    }

    #[test]
    fn another_schema_is_left_out_and_a_broken_line_is_named() {
        let scratch = Scratch::create().expect("a folder");
        let path = scratch.path().join("history.jsonl");
        fs::write(&path, "{\"schema\": \"caravan-engine-history/9\", \"else\": 1}\n\n").expect("written");
        assert_eq!(read(&path).expect("read"), []);
        fs::write(&path, "\n{\"schema\": \n").expect("written");
        let error = read(&path).expect_err("broken").to_string();
        assert!(error.contains("history.jsonl, line 2"), "{error}");
    }

    #[test]
    fn no_file_is_written_where_none_is_wanted() {
        append(Path::new(""), &[line("1", "a", 2, "swap", &[1.0])]).expect("nothing to do");
    }

    #[test]
    fn the_checkout_is_found_from_below() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(checkout(&here.join("src/bench")), here.ancestors().nth(2).map(Path::to_owned));
        assert_eq!(checkout(Path::new("/proc")), None);
    }
}
