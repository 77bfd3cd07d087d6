//! The errors of a benchmark, as sentences for the person at the terminal.

use std::io;
use std::path::{Path, PathBuf};

use crate::args::ErlangTransport;
use crate::placement::CorePair;

/// The result of a benchmark.
pub type Result<T> = std::result::Result<T, Error>;

/// Every failure of a benchmark.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
// The message of each variant says what it is and what its fields are.
#[allow(missing_docs)]
pub enum Error {
    #[error(
        "the Erlang modules are not in {searched}. Run `make build` in the checkout, or set \
         CARAVAN_ERLANG_DIR to the folder that holds erlang/ebin and bench/erlang/ebin"
    )]
    ModulesMissing { searched: String },
    #[error(
        "cannot start `{program}`: {source}. Install Erlang/OTP 25 or later (on Debian: apt \
         install erlang-base), or name the program with --erl"
    )]
    ErlMissing { program: String, source: io::Error },
    #[error(
        "the {asked} round was not carried by what was asked: {what}. No figure of this run \
         can be trusted, so none is written"
    )]
    NotCarried { asked: ErlangTransport, what: String },
    #[error("cannot {what} {path}: {source}", path = path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot write the output: {0}")]
    Output(io::Error),
    #[error("cannot watch for Ctrl-C: {0}")]
    Signals(io::Error),
    #[error("the system gives no random bytes: {0}")]
    Random(io::Error),
    #[error("cannot keep process {pid} on cores {cores:?}: {source}")]
    Pin { pid: i32, cores: Vec<usize>, source: io::Error },
    #[error(
        "this measurement needs 2 cores, and this process may use {0}: widen its CPU affinity (taskset, cpuset) or use a larger machine"
    )]
    CoresShort(usize),
    #[error(
        "cannot compile the bare loop in C with `{program}`: {reason}. Install a C compiler (on Debian: apt install gcc libc6-dev), or name one with --cc"
    )]
    Compiler { program: String, reason: String },
    #[error("the {process} of the benchmark failed: {reason}")]
    BenchProcess { process: &'static str, reason: String },
    #[error(
        "a sample did not end within {0} s: other work takes the cores, and two processes that wait for each other cannot be measured beside it. Try again when the machine is idle"
    )]
    BenchSlow(u64),
    #[error("no benchmark is called {name}: there are {names}")]
    NoBenchmark { name: String, names: String },
    #[error(
        "between cores {0} the distance changed within every round, {1} times in a row: the machine moves its cores about. Try again when it is less busy"
    )]
    Unsteady(CorePair, usize),
    #[error("{path}, line {line}: {reason}. Remove that line, or name another file with --history", path = path.display())]
    History { path: PathBuf, line: usize, reason: String },
    #[error("{0}")]
    Sentence(String),
    #[error("{0} of the benchmarks have become worse; the table names them")]
    Regressions(usize),
    #[error("{0}")]
    Engine(#[from] caravan_engine::Error),
    #[error("{0}")]
    Fabric(#[from] caravan_fabric::Error),
    #[error("the ring is broken: {0}")]
    Ring(#[from] caravan_ring::Corrupt),
    #[error("{0}")]
    Segment(#[from] caravan_segment::Error),
    #[error("{call}: {source}")]
    System { call: &'static str, source: io::Error },
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Returns what makes the error of an operation on a file, for `map_err`.
    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }
}
