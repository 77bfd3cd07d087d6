//! `caravan`: the benchmarks, and a live view of the links of this host.
//!
//! The command owns arguments, processes, statistics and pictures. What it measures lives in
//! `bench/erlang` (the nodes) and in the other crates.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod carry;
mod chart;
mod copy;
mod engine;
mod error;
mod fabric;
mod interrupt;
mod machine;
mod number;
mod pipe;
mod placement;
mod remote;
mod scratch;
mod selftest;
mod stats;
mod top;
mod usage;

use std::process::ExitCode;

use crate::args::{Args, Bench, Command};
use crate::error::Error;

fn main() -> ExitCode {
    match run(Args::of_process(std::env::args_os()).command) {
        Ok(status) => status,
        // Whoever read the output has gone (`caravan top | head`): nobody is left to tell.
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        // Lines that stand alone, as those of compilers.
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

/// The exit status, which for a pipe is its stages'.
fn run(command: Command) -> Result<ExitCode, Error> {
    let outcome = match command {
        Command::Pipe(args) => return pipe::run(&args),
        Command::Send(args) => return carry::send(&args),
        Command::Recv(args) => return carry::recv(&args),
        Command::Cp(args) => return copy::run(&args),
        Command::CopySource(args) => return copy::source(&args),
        Command::CopySink(args) => return copy::sink(&args),
        Command::PipeAgent(args) => remote::agent::run(&args),
        Command::Bench(Bench::Erlang(args)) => bench::erlang::run(&args),
        Command::Bench(Bench::Ring(args)) => bench::ring::run(&args),
        Command::Bench(Bench::RingPeer(args)) => bench::ring::peer(&args),
        Command::Bench(Bench::Rdma(args)) => bench::rdma::run(&args),
        Command::Bench(Bench::RdmaPeer) => bench::rdma::peer(),
        Command::Bench(Bench::Engine(args)) => bench::engine::run(&args),
        Command::Bench(Bench::EnginePeer(args)) => bench::engine::peer(&args),
        Command::Bench(Bench::Pipe(args)) => bench::pipe::run(&args),
        Command::Bench(Bench::PipePeer(args)) => bench::pipe::peer(&args),
        Command::Bench(Bench::Compare(args)) => bench::compare::run(&args),
        Command::Engine(command) => engine::run(&command),
        Command::Top(args) => top::run(&args),
        Command::Fabric(args) => fabric::run(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::SelftestPeer(args) => selftest::peer(&args),
    };
    outcome.map(|()| ExitCode::SUCCESS)
}
