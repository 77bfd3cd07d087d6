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

pub use args::{Bench, quantity, ring_bytes, seconds, size};
pub use error::{Error, Result};

/// Runs a benchmark, or the other process of one, as the arguments say.
pub fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Erlang(args) => erlang::run(args),
        Bench::Ring(args) => ring::run(args),
        Bench::RingPeer(args) => ring::peer(args),
        Bench::Rdma(args) => rdma::run(args),
        Bench::RdmaPeer => rdma::peer(),
        Bench::Engine(args) => engine::run(args),
        Bench::EnginePeer(args) => engine::peer(args),
        Bench::Pipe(args) => pipe::run(args),
        Bench::PipePeer => pipe::peer(),
        Bench::Compare(args) => compare::run(args),
    }
}
