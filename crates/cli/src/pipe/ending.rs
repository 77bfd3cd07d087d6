//! The end of a pipe: its failures, its figures and its exit status.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use caravan_bench::Error as Shared;
use caravan_pipe::coordinator::PipelineSummary;
use serde::Serialize;
use serde_json::Value;

use crate::args::Telling;
use crate::error::Error;
use crate::pipe::{progress, say};

/// Where the end is reported.
#[derive(Debug)]
pub struct Ending {
    is_verbose: bool,
    /// True if progress was drawn. It is cleared at the end, so its last state is printed as a line.
    had_progress: bool,
    json: Json,
}

#[derive(Debug)]
enum Json {
    None,
    Stderr,
    File(PathBuf, File),
}

impl Ending {
    /// Opens the file for the JSON, if there is one.
    pub fn prepare(telling: &Telling) -> Result<Self, Error> {
        let json = match &telling.json {
            None => Json::None,
            Some(path) if path == Path::new("-") => Json::Stderr,
            Some(path) => {
                let file = File::create(path);
                let file = file.map_err(|source| Shared::File { what: "write", path: path.clone(), source });
                Json::File(path.clone(), file?)
            }
        };
        Ok(Self { is_verbose: telling.verbose > 0, had_progress: telling.progress, json })
    }

    /// Reports the end, the cause first, and returns the exit status.
    pub fn tell(self, outcome: Result<PipelineSummary, caravan_pipe::Error>) -> ExitCode {
        let summary = outcome.unwrap_or_else(|error| failed(&error));
        for failure in &summary.failures {
            say(&format!("caravan: {failure}"));
        }
        if self.is_verbose {
            progress::bandwidth(&summary.hops).iter().for_each(|line| say(line));
        }
        for hop in summary.hops.iter().filter(|hop| self.is_verbose || (self.had_progress && hop.is_measured))
        {
            say(&format!("caravan: {}", progress::report(hop)));
        }
        match self.json {
            Json::None => {}
            Json::Stderr => say(&object(&summary).to_string()),
            Json::File(path, mut file) => {
                if let Err(source) = writeln!(file, "{}", object(&summary)) {
                    say(&format!("caravan: {}", Shared::File { what: "write", path, source }));
                    return ExitCode::from(if summary.status == 0 { 255 } else { summary.status });
                }
            }
        }
        ExitCode::from(summary.status)
    }
}

/// Returns the summary of a pipe that could not be set up.
fn failed(error: &caravan_pipe::Error) -> PipelineSummary {
    let status = if matches!(error, caravan_pipe::Error::Cancelled) { 130 } else { 255 };
    PipelineSummary { status, failures: vec![error.to_string()], ..PipelineSummary::default() }
}

/// What the JSON holds.
#[derive(Debug, Serialize)]
struct Report<'a> {
    version: &'static str,
    #[serde(flatten)]
    summary: &'a PipelineSummary,
}

fn object(summary: &PipelineSummary) -> Value {
    let report = Report { version: env!("CARGO_PKG_VERSION"), summary };
    serde_json::to_value(report).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use caravan_pipe::coordinator::{HopFigures, StreamDigest};
    use caravan_pipe::mover::DigestKind;
    use serde_json::json;

    #[test]
    fn the_object_has_every_figure() {
        let hop = HopFigures {
            from: "a".to_owned(),
            to: "here".to_owned(),
            is_measured: true,
            bytes: 7,
            digest: Some(StreamDigest::new(DigestKind::Sha256, "ab".to_owned())),
            ..HopFigures::default()
        };
        let summary = PipelineSummary {
            status: 3,
            failures: vec!["stage 1 (a): 'false' exited 3".to_owned()],
            hops: vec![hop],
            statuses: vec![vec![Some(3), None]],
            setup_seconds: 0.25,
            stream_seconds: 1.5,
        };
        let object = object(&summary);
        assert_eq!(object["status"], 3);
        assert_eq!(object["failures"][0], "stage 1 (a): 'false' exited 3");
        assert_eq!(object["statuses"], json!([[3, null]]));
        assert_eq!((&object["setup_seconds"], &object["stream_seconds"]), (&json!(0.25), &json!(1.5)));
        assert_eq!(object["hops"][0]["bytes"], 7);
        assert_eq!(object["hops"][0]["digest"], json!({ "kind": "sha256", "value": "ab" }));
        assert_eq!(object["version"], env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn what_could_not_be_set_up_has_a_status_too() {
        assert_eq!(failed(&caravan_pipe::Error::Cancelled).status, 130);
        let summary = failed(&caravan_pipe::Error::Usage("no such stage".to_owned()));
        assert_eq!((summary.status, summary.failures), (255, vec!["no such stage".to_owned()]));
    }
}
