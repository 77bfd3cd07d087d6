//! The benchmarks.

pub mod erlang;
pub mod ring;

mod output;
mod progress;
