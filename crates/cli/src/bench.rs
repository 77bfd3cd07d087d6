//! The benchmarks.

pub mod compare;
pub mod engine;
pub mod erlang;
pub mod pipe;
pub mod rdma;
pub mod ring;

pub mod bare;
pub mod child;
pub mod control;
pub mod endpoint;
pub mod output;
pub mod progress;
