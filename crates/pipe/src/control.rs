//! What the coordinator and the agents say to each other, over ssh or, with the agent of this host, a socket.
//!
//! Each message is a [frame](crate::framing): a byte for its kind, and JSON or relayed data. The coordinator gives
//! [`AgentOrder`]s, an agent answers with [`AgentReport`]s. Both ends send a ping every [`PING_INTERVAL`], and take the
//! other for dead after [`SILENCE_MAX`] without a message.
//!
//! [`PING_INTERVAL`]: crate::limits::PING_INTERVAL
//! [`SILENCE_MAX`]: crate::limits::SILENCE_MAX

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::connect::PortRange;
use crate::framing::malformed;
use crate::limits::{MESSAGE_BYTES_MAX, RELAY_BYTES_MAX};
use crate::mover::{HopOptions, MoverFigures, MoverOptions};
use crate::place::Place;
use crate::{PipeKey, framing};

/// The version of the protocol; it changes with any message.
pub const PROTOCOL: u32 = 4;

/// The beginning of each line that a starting agent prints before its first message; shells' greetings do not have
/// it.
pub const MARK: &str = "caravan-agent";

/// Returns the identity of this program: only two programs with the same identity can talk.
pub fn identity() -> String {
    format!("caravan {} agent {PROTOCOL}", env!("CARGO_PKG_VERSION"))
}

/// What the coordinator tells an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum AgentOrder {
    /// Asks who the agent is: [`AgentReport::Hello`].
    Hello {
        /// How long either end may be silent.
        silence: Duration,
        /// Whether to look for RDMA devices.
        fabric: bool,
    },
    /// Connects an end of a hop: [`AgentReport::Hop`].
    Hop {
        /// The number of the hop.
        hop: u32,
        /// The number of the attempt at connecting it. A new attempt ends the one before.
        attempt: u32,
        /// What to do.
        order: HopOrder,
    },
    /// Opens these files, so that nothing runs and nothing is overwritten if one cannot be opened:
    /// [`AgentReport::Prepared`], or [`AgentReport::Ended`] for the stage whose file it is.
    Prepare {
        /// Stages, their files, and how to open them.
        files: Vec<(u32, PathBuf, OpenMode)>,
    },
    /// A command that runs once everything starts. Each is an order of its own, because it may have
    /// [`COMMAND_BYTES_MAX`](crate::limits::COMMAND_BYTES_MAX).
    Command(StageCommand),
    /// All hops are connected: run the commands that were ordered before, and these movers.
    Start {
        /// The movers of this agent.
        movers: Vec<Mover>,
        /// Whether to report the movers' figures every quarter of a second.
        figures: bool,
    },
    /// The receiver has taken bytes of a relayed hop, or the user has been shown lines.
    Credit {
        /// The number of the hop; `None` for lines.
        hop: Option<u32>,
        /// How many bytes.
        bytes: u64,
    },
    /// The other side has closed a relayed hop.
    RelayEnd {
        /// The number of the hop.
        hop: u32,
    },
    /// Kill everything.
    Abort,
    /// Kill a stage, because nothing more will come to it.
    Kill {
        /// The number of the stage.
        stage: u32,
    },
    /// All is done: end.
    End,
    /// The coordinator is alive.
    Ping,
    /// The coordinator is about to be stopped (Ctrl-Z; `true`), or goes on. Its silence means nothing meanwhile.
    Pause(bool),
}

/// How an agent is to connect its end of a hop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum HopOrder {
    /// Listen for the other end: [`HopReport::Listening`], then [`HopReport::Connected`].
    Listen {
        /// What the other end must know.
        key: PipeKey,
        /// Where to listen.
        ports: Option<PortRange>,
        /// How many connections.
        streams: u32,
    },
    /// Connect to the other end: [`HopReport::Connected`].
    Connect {
        /// What the other end must know.
        key: PipeKey,
        /// Where it may be.
        addresses: Vec<SocketAddr>,
        /// Names of hosts to look up as well, with the port.
        names: Vec<(String, u16)>,
        /// How many connections.
        streams: u32,
    },
    /// Make the first half of a fabric's connection from the other side's offer: [`HopReport::Half`].
    Initiate(Vec<u8>),
    /// Make the second half from what the initiating side has reported: [`HopReport::Half`].
    Accept(Vec<u8>),
    /// Finish a fabric's connection: [`HopReport::Connected`].
    Finish {
        /// What both ends must know.
        key: PipeKey,
        /// The other side's half; nothing for the accepting side.
        answer: Vec<u8>,
    },
    /// Take the reading end of a pipe from another agent of this host: [`HopReport::Doorway`].
    Open,
    /// Make a pipe and hand its reading end to the agent behind that doorway: [`HopReport::Connected`].
    Hand(Vec<u8>),
    /// The other agent has handed the pipe over: [`HopReport::Connected`].
    Take,
    /// The hop's data go over this control channel: [`HopReport::Connected`].
    Relay,
}

/// What an agent tells the coordinator.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum AgentReport {
    /// Who the agent is.
    Hello(Box<Hello>),
    /// What became of an order about a hop.
    Hop {
        /// The number of the hop.
        hop: u32,
        /// The number of the attempt, as the order had it.
        attempt: u32,
        /// What happened.
        report: HopReport,
    },
    /// The files are open.
    Prepared {
        /// The stages and the lengths of their files, where a file has one; the order means nothing.
        lengths: Vec<(u32, Option<u64>)>,
    },
    /// A stage has ended.
    Ended {
        /// The number of the stage.
        stage: u32,
        /// How it ended.
        status: Status,
    },
    /// A mover has ended.
    Moved {
        /// The number of the mover.
        mover: u32,
        /// What became of it.
        result: MoverResult,
    },
    /// Lines of a stage's standard error.
    Lines {
        /// The number of the stage.
        stage: u32,
        /// Lines without their ends. [`AgentOrder::Credit`] gives back what they [cost](line_cost).
        texts: Vec<String>,
    },
    /// An outlet has ended before the stream has, and others go on.
    Left {
        /// The number of the mover.
        mover: u32,
        /// The index of the outlet among the mover's.
        outlet: usize,
        /// Whether it failed or was dropped; otherwise its reader has closed.
        has_failed: bool,
    },
    /// Movers, and what they have counted so far.
    Figures(Vec<(u32, MoverFigures)>),
    /// This side has taken bytes of a relayed hop.
    Credit {
        /// The number of the hop.
        hop: u32,
        /// How many bytes.
        bytes: u64,
    },
    /// This end of a relayed hop is closed.
    RelayEnd {
        /// The number of the hop.
        hop: u32,
    },
    /// Processes that the agent could not end.
    Spared {
        /// Descriptions for the user: at most [`SPARED_MAX`](crate::limits::SPARED_MAX).
        processes: Vec<String>,
    },
    /// Nothing of this agent runs any more, except for the processes that it has reported.
    Gone,
    /// The agent itself has failed; the reason.
    Failed(String),
    /// The agent is alive.
    Ping,
}

/// What became of an end of a hop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum HopReport {
    /// The agent listens on this port.
    Listening(u16),
    /// This side's half of a fabric's connection, for the other side.
    Half(Vec<u8>),
    /// A doorway for a pipe, for the other side.
    Doorway(Vec<u8>),
    /// The end is connected; what carries it, for the user.
    Connected(String),
    /// The end could not be connected; the reason.
    Unreachable(String),
}

/// Returns what a line of standard error costs in the credit of lines: its text, and the memory to keep it.
pub fn line_cost(text: &str) -> u64 {
    text.len() as u64 + 32
}

/// Who an agent is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The program and protocol of the agent.
    pub identity: String,
    /// The place of the agent.
    pub place: Place,
    /// The agent's addresses that others may reach.
    pub addresses: Vec<IpAddr>,
    /// The address at which ssh reached the agent, if ssh did (`SSH_CONNECTION`).
    pub ssh_address: Option<IpAddr>,
    /// The address from which ssh came.
    pub ssh_client: Option<IpAddr>,
    /// What the agent has of RDMA, or why it has nothing.
    pub offer: Result<Vec<u8>, String>,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenMode {
    /// Open for reading.
    Read,
    /// Open for writing; the old content is removed once everything starts.
    Write,
    /// Open for writing at the end.
    Append,
}

/// A command of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageCommand {
    /// The number of the stage, as in all reports.
    pub stage: u32,
    /// What the command runs.
    pub kind: CommandKind,
    /// The standard input of the command.
    pub input: CommandEnd,
    /// The standard output of the command.
    pub output: CommandEnd,
}

/// What a command runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandKind {
    /// A command line for the user's login shell.
    Shell(String),
    /// This program with these arguments.
    Program(Vec<String>),
}

/// The standard input or output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandEnd {
    /// `/dev/null`.
    Null,
    /// The same end of the user's own command; only for the agent of this host.
    Caller,
    /// A pipe of this agent. Another command or mover with the same number has the pipe's other end. A pipe that
    /// was handed over ([`HopOrder::Hand`], [`HopOrder::Take`]) has the number of its hop.
    Pipe(u32),
}

/// What a mover is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mover {
    /// The number of the mover, as in all reports.
    pub mover: u32,
    /// Where bytes come from.
    pub from: InletSpec,
    /// Where bytes go.
    pub to: Vec<OutletSpec>,
    /// The options of this end.
    pub options: MoverOptions,
}

/// Where a mover's bytes come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InletSpec {
    /// A hop that is connected.
    Hop(u32, HopOptions),
    /// A pipe of this agent.
    Pipe(u32),
    /// The file of this stage, which is already open.
    File {
        /// The stage.
        stage: u32,
    },
    /// The standard input of the user's own command.
    Caller,
    /// Nothing: the stream ends at once.
    Null,
}

/// Where a mover's bytes go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutletSpec {
    /// A hop that is connected.
    Hop(u32, HopOptions),
    /// A pipe of this agent.
    Pipe(u32),
    /// The file of this stage, which is already open.
    File {
        /// The stage.
        stage: u32,
    },
    /// The standard output of the user's own command.
    Caller,
    /// The standard output of the user's own command, line by line, each behind this prefix.
    Lines(String),
    /// Nowhere.
    Null,
}

/// How a stage ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// The stage ended by itself, with this exit status.
    Exit(u8),
    /// This signal killed the stage.
    Signal(u8),
    /// The stage could not be started, or its file could not be read or written; the reason.
    Failed(String),
}

/// The result of a mover, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverResult {
    /// The final figures; `bytes` are those that were taken in.
    pub figures: MoverFigures,
    /// Nanoseconds from the mover's start to its end.
    pub took_ns: u64,
    /// Nanoseconds of processor time of the mover's thread.
    pub cpu_ns: u64,
    /// The digest of the whole stream.
    pub digest: Option<String>,
    /// Whether the whole stream came (`Ok(true)`), every outlet stopped early (`Ok(false)`), or why the inlet
    /// failed.
    pub inlet: Result<bool, String>,
    /// For each outlet, whether it took the whole stream (`Ok(true)`), its reader closed (`Ok(false)`), or why it
    /// failed.
    pub outlets: Vec<Result<bool, String>>,
    /// Whether it failed only because something else did, here or at the other end of a hop.
    pub was_ended: bool,
}

impl MoverResult {
    /// Returns the result of a mover that could not begin, or whose agent is gone.
    pub fn failed(why: &impl ToString) -> Self {
        Self {
            figures: MoverFigures::default(),
            took_ns: 0,
            cpu_ns: 0,
            digest: None,
            inlet: Err(why.to_string()),
            outlets: Vec::new(),
            was_ended: false,
        }
    }
}

const JSON: u8 = 0;
const DATA: u8 = 1;

/// A message on a control channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessage<T> {
    /// An order or a report.
    Word(T),
    /// Data of a relayed hop.
    Data {
        /// The number of the hop.
        hop: u32,
        /// At most [`RELAY_BYTES_MAX`] bytes of data.
        bytes: Vec<u8>,
    },
}

/// Writes a message, in one call if `to` takes it whole.
pub fn write<T: Serialize>(to: &mut (impl Write + ?Sized), message: &ControlMessage<T>) -> io::Result<()> {
    let frame = match message {
        ControlMessage::Word(word) => {
            framing::frame(&[&[JSON], &serde_json::to_vec(word)?], MESSAGE_BYTES_MAX)?
        }
        ControlMessage::Data { hop, bytes } => {
            framing::frame(&[&[DATA], &hop.to_be_bytes(), bytes], MESSAGE_BYTES_MAX)?
        }
    };
    to.write_all(&frame)?;
    to.flush()
}

/// Reads a message. The error is `UnexpectedEof` at the end of the channel.
pub fn read<T: DeserializeOwned>(from: &mut (impl Read + ?Sized)) -> io::Result<ControlMessage<T>> {
    let body = framing::read(from, MESSAGE_BYTES_MAX)?;
    match body.split_first() {
        Some((&JSON, json)) => Ok(ControlMessage::Word(serde_json::from_slice(json)?)),
        Some((&DATA, rest)) => {
            let (hop, bytes) = rest.split_first_chunk().ok_or_else(|| malformed("data of no hop"))?;
            if bytes.is_empty() || bytes.len() > RELAY_BYTES_MAX {
                return Err(malformed("data of a length that cannot be"));
            }
            Ok(ControlMessage::Data { hop: u32::from_be_bytes(*hop), bytes: bytes.to_vec() })
        }
        _ => Err(malformed("a message of an unknown kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_were_written() {
        let mut bytes = Vec::new();
        write(&mut bytes, &ControlMessage::Word(AgentOrder::RelayEnd { hop: 7 })).expect("written");
        write(&mut bytes, &ControlMessage::<AgentOrder>::Data { hop: 9, bytes: vec![0, 1, 255] })
            .expect("written");
        let mut rest = &bytes[..];
        assert!(matches!(
            read::<AgentOrder>(&mut rest),
            Ok(ControlMessage::Word(AgentOrder::RelayEnd { hop: 7 }))
        ));
        assert!(
            matches!(read::<AgentOrder>(&mut rest), Ok(ControlMessage::Data { hop: 9, bytes }) if bytes == [0, 1, 255])
        );
        assert_eq!(read::<AgentOrder>(&mut rest).expect_err("the end").kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_none_is_an_error() {
        let mut bytes = Vec::new();
        write(&mut bytes, &ControlMessage::Word(AgentReport::Gone)).expect("written");
        for cut in 0..bytes.len() {
            assert!(read::<AgentReport>(&mut &bytes[..cut]).is_err(), "{cut}");
        }
        let long = [&0x0002_0001_u32.to_be_bytes()[..], &[1], &[0; 0x2_0000]].concat();
        let empty = [0, 0, 0, 5, 1, 0, 0, 0, 7];
        for bad in [
            &long[..],
            &empty,
            &[0xff; 8],
            &[0, 0, 0, 3, 0, b'{', b'}'],
            &[0, 0, 0, 0],
            &[0, 0, 0, 1, 2],
            &[0, 0, 0, 4, 1, 0, 0, 0],
        ] {
            assert!(read::<AgentReport>(&mut &bad[..]).is_err(), "{bad:?}");
        }
    }
}
