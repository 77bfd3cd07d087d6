//! `caravan engine reload`: a running engine reads its file again.

use caravan_engine::view;
use serde::Serialize;
use serde_json::Value;

use super::control::{Answer, Order, give};
use super::{print, print_json};
use crate::args::EngineReload;
use crate::error::Error;

#[derive(Debug, Serialize)]
struct Report {
    pid: i32,
    /// What was carried out; null if nothing was.
    changes: Value,
    refused: Vec<String>,
}

/// Prints what came of it. An error if the file was refused.
pub fn run(args: &EngineReload) -> Result<(), Error> {
    let pid = view::find(args.pid)?.pid;
    let answer = give(pid, Order::Reload)?;
    if args.json {
        let (changes, refused, outcome) = match answer {
            Answer::Done { changes, .. } => (changes, Vec::new(), Ok(())),
            Answer::Refused(why) => (Value::Null, why, Err(Error::Said)),
        };
        print_json(&Report { pid, changes, refused })?;
        return outcome;
    }
    match answer {
        Answer::Done { text, .. } => print(&format!("{text}\n")),
        Answer::Refused(why) => Err(Error::Mistakes(why.join("\n"))),
    }
}
