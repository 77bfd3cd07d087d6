#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod carry;
mod copy;
mod engine;
mod error;
mod fabric;
mod frames;
mod pipe;
mod remote;
mod selftest;
mod signals;
mod store;
mod top;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use caravan_bench::Error as Shared;
use serde::Serialize;

use crate::args::{Args, Command};
use crate::error::Error;

fn main() -> ExitCode {
    match run(Args::of_process(std::env::args_os()).command) {
        Ok(status) => status,
        // The reader of the output is gone (`caravan top | head`): nobody is left to tell.
        Err(Error::Shared(Shared::Output(error))) if error.kind() == ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        // These lines have no prefix, like those of compilers.
        Err(Error::Mistakes(lines)) => {
            eprintln!("{lines}");
            ExitCode::FAILURE
        }
        Err(Error::Said) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("caravan: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Runs the command and returns the exit status; that of a pipe comes from its stages.
fn run(command: Command) -> Result<ExitCode, Error> {
    let outcome = match command {
        Command::Pipe(args) => return pipe::run(&args),
        Command::Send(args) => return carry::send(&args),
        Command::Recv(args) => return carry::recv(&args),
        Command::Cp(args) => return copy::run(&args),
        Command::CopySource(args) => return copy::source(&args),
        Command::CopySink(args) => return copy::sink(&args),
        Command::StoreServer(_) => return store::child::run(),
        Command::PipeAgent(args) => remote::agent::run(&args),
        Command::Bench(bench) => caravan_bench::run(&bench).map_err(Error::from),
        Command::Limits(args) => caravan_bench::limits::run(&args).map_err(Error::from),
        Command::Engine(command) => engine::run(&command),
        Command::Store(command) => store::run(&command),
        Command::Frames(command) => frames::run(&command),
        Command::Top(args) => top::run(&args),
        Command::Fabric(args) => fabric::run(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::SelftestPeer(args) => selftest::peer(&args),
    };
    outcome.map(|()| ExitCode::SUCCESS)
}

fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Shared::Output)?)
}

/// Prints one JSON object as a line.
fn print_json(value: &impl Serialize) -> Result<(), Error> {
    let json = serde_json::to_string(value).map_err(|error| Shared::Output(error.into()))?;
    print(&format!("{json}\n"))
}

/// Returns a report as JSON that people can read.
fn pretty_json(value: &impl Serialize) -> Result<String, Error> {
    let json = serde_json::to_string_pretty(value).map_err(|error| Shared::Output(error.into()))?;
    Ok(format!("{json}\n"))
}
