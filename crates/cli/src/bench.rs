//! The benchmarks.

pub mod erlang;
pub mod rdma;
pub mod ring;

pub mod bare;
pub mod output;
pub mod progress;
