//! `caravan engine`: packet networks in worker processes.

mod check;
mod control;
mod ending;
mod events;
mod figures;
mod graph;
mod outlet;
mod reload;
mod run;
mod signals;
mod top;
mod trace;

use std::io::Write;
use std::path::Path;

use caravan_engine::config::file::Mistake;
use serde::Serialize;

use crate::args::Engine;
use crate::error::Error;

/// Does what the command says.
pub fn run(command: &Engine) -> Result<(), Error> {
    match command {
        Engine::Run(args) => run::run(args),
        Engine::Check(args) => check::run(args),
        Engine::Graph(args) => graph::run(args),
        Engine::Reload(args) => reload::run(args),
        Engine::Top(args) => top::run(args),
        Engine::Trace(args) => trace::run(args),
    }
}

/// Mistakes of a file as compilers tell them, so that editors find the places.
fn lines(file: &Path, mistakes: &[Mistake]) -> Vec<String> {
    mistakes.iter().map(|mistake| format!("{}:{mistake}", file.display())).collect()
}

/// The error that shows mistakes of a file and nothing else.
fn refused(file: &Path, mistakes: &[Mistake]) -> Error {
    Error::Mistakes(lines(file, mistakes).join("\n"))
}

/// `1 app`, `2 apps`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// One JSON object as a line of standard output.
fn print_json(value: &impl Serialize) -> Result<(), Error> {
    let json = serde_json::to_string(value).map_err(|error| Error::Output(error.into()))?;
    print(&format!("{json}\n"))
}

fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
}
