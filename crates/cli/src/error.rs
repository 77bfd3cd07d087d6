//! The errors of the command, as sentences for the person at the terminal.

use std::io;

/// Every failure of the command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Sentence(String),
    #[error("{0}")]
    Engine(#[from] caravan_engine::Error),
    #[error(
        "a trace is no text: send it to a file or a program, as in `caravan engine trace LINK > trace.pcap`"
    )]
    Terminal,
    #[error("{0}")]
    Mistakes(String),
    #[error("the output says what is wrong")]
    Said,
    #[error(
        "process {0} takes no orders: it is no engine that `caravan engine run` started, or is just ending. Send SIGHUP to the one that is meant, or start it with that command"
    )]
    NoOrders(i32),
    #[error(
        "the engine of process {0} runs in another network namespace, which cannot be entered from here: run this as root, or use `kill -HUP {0}`, and the engine's own output says what came of it"
    )]
    OtherNetwork(i32),
    #[error(
        "{}: --until-end: no app has an end, so nothing would ever end: that takes a pcap_reader, or a source with a count",
        .0.display()
    )]
    NoEnd(std::path::PathBuf),
    #[error("the engine of process {0} did not answer: it has ended, or hangs. Its own output may say why")]
    NoAnswer(i32),
    #[error("{call}: {source}")]
    Control { call: &'static str, source: rustix::io::Errno },
    #[error("{0}")]
    Fabric(#[from] caravan_fabric::Error),
    #[error("cannot find the host {host}: {source}. Give its address, or see whether its name is right")]
    Resolve { host: String, source: io::Error },
    #[error("towards {host} there is only TCP; the lines above say why")]
    OnlyTcp { host: String },
    #[error("{host}: {what}")]
    SelfTestHost { host: String, what: String },
    #[error("the self-test found failures; the report names them")]
    SelfTestFailed,
    #[error("{0}")]
    Frames(#[from] caravan_frames::Error),
    #[error("{0}")]
    Pipe(#[from] caravan_pipe::Error),
    /// What other commands share with benchmarks: files, the output, signals, an interrupt.
    #[error("{0}")]
    Shared(#[from] caravan_bench::Error),
}

impl Error {
    /// Returns an error that kept a pipe between hosts from being set up; its exit status is 255.
    pub fn pipe_setup(why: impl std::fmt::Display) -> Self {
        Self::Pipe(caravan_pipe::Error::Usage(why.to_string()))
    }

    /// Returns the exit status: 130 after Ctrl-C, as shells expect; 255 if a pipe between hosts could not be set up,
    /// as ssh does, because 1 may be a stage's status; 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Shared(caravan_bench::Error::Interrupted) | Self::Pipe(caravan_pipe::Error::Cancelled) => {
                130
            }
            Self::Pipe(_) => 255,
            _ => 1,
        }
    }
}
