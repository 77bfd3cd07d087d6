#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod chart;
mod compare;
mod control;
mod engine;
mod erlang;
mod error;
mod history;
mod hosts;
pub mod interrupt;
mod machine;
pub mod number;
pub mod output;
mod pipe;
mod placement;
mod process;
mod rdma;
mod ring;
pub mod scratch;
mod stats;
mod steps;
mod usage;

pub use args::{BenchCommand, quantity, ring_bytes, seconds, size};
pub use error::{Error, Result};

/// Runs a benchmark, or the other process of one, as the arguments say.
pub fn run(bench: &BenchCommand) -> Result<()> {
    match bench {
        BenchCommand::Erlang(args) => erlang::run(args),
        BenchCommand::Ring(args) => ring::run(args),
        BenchCommand::RingPeer(args) => ring::peer(args),
        BenchCommand::Rdma(args) => rdma::run(args),
        BenchCommand::RdmaPeer => rdma::peer(),
        BenchCommand::Engine(args) => engine::run(args),
        BenchCommand::EnginePeer(args) => engine::peer(args),
        BenchCommand::Pipe(args) => pipe::run(args),
        BenchCommand::PipePeer => pipe::peer(),
        BenchCommand::Compare(args) => compare::run(args),
    }
}
