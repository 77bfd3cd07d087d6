#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod carry;
mod copy;
mod engine;
mod error;
mod fabric;
mod pipe;
mod remote;
mod selftest;
mod store;
mod top;

use std::process::ExitCode;

use crate::args::{Args, Command};
use crate::error::Error;

fn main() -> ExitCode {
    match run(Args::of_process(std::env::args_os()).command) {
        Ok(status) => status,
        // The reader of the output is gone (`caravan top | head`): nobody is left to tell.
        Err(Error::Output(error) | Error::Bench(caravan_bench::Error::Output(error)))
            if error.kind() == std::io::ErrorKind::BrokenPipe =>
        {
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
        Command::PipeAgent(args) => remote::agent::run(&args),
        Command::Bench(bench) => caravan_bench::run(&bench).map_err(Error::from),
        Command::Engine(command) => engine::run(&command),
        Command::Store(command) => store::run(&command),
        Command::Top(args) => top::run(&args),
        Command::Fabric(args) => fabric::run(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::SelftestPeer(args) => selftest::peer(&args),
    };
    outcome.map(|()| ExitCode::SUCCESS)
}
