#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod args;
mod chart;
mod choice;
mod compare;
mod control;
mod engine;
mod erlang;
mod error;
mod frames;
mod history;
mod hosts;
pub mod interrupt;
pub mod limits;
mod machine;
pub mod number;
pub mod output;
mod pipe;
mod placement;
mod process;
mod rdma;
mod report;
mod ring;
pub mod scratch;
mod stats;
mod steps;
mod store;
mod tcp;
mod usage;
mod workloads;

pub use args::{BenchCommand, FramesBench, quantity, ring_bytes, seconds, size};
pub use error::{Error, Result};

use process::PeerTask;

/// Runs a benchmark, or the other process of one, as the arguments say.
pub fn run(bench: &BenchCommand) -> Result<()> {
    match bench {
        BenchCommand::Erlang(args) => erlang::run(args),
        BenchCommand::Ring(args) => ring::run(args),
        BenchCommand::Rdma(args) => rdma::run(args),
        BenchCommand::Tcp(args) => tcp::run(args),
        BenchCommand::Engine(args) => engine::run(args),
        BenchCommand::Pipe(args) if args.steps => steps::run(args),
        BenchCommand::Pipe(args) => hosts::run(args),
        BenchCommand::Store(args) => store::run(args),
        BenchCommand::Frames(args) => frames::run(args),
        BenchCommand::Workloads(args) => workloads::run(args),
        BenchCommand::Limits(args) => limits::bench(args),
        BenchCommand::Compare(args) => compare::run(args),
        BenchCommand::Peer { task } => match task {
            PeerTask::Ring(task) => ring::peer(task),
            PeerTask::Engine(task) => engine::peer(task),
            PeerTask::Rdma => rdma::peer(),
            PeerTask::Tcp => tcp::peer(),
            PeerTask::Steps => steps::peer(),
            PeerTask::Store(task) => store::peer(task),
            PeerTask::Frames => frames::peer(),
            PeerTask::StoreEcho => store::echo_peer(),
        },
    }
}
