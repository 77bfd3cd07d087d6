//! What coordinator and agents say to each other, over ssh or, with the agent of this host, a socket.
//!
//! Each message is a length of four bytes (big-endian), a byte that says of which sort it is, and that
//! much of JSON or of relayed data. The coordinator gives [`AgentOrder`]s, an agent answers with [`AgentReport`]s.
//! Both ends say every [`PING_INTERVAL`] that they are there, and take the other for dead after
//! [`SILENCE_MAX`] without a word.
//!
//! [`PING_INTERVAL`]: crate::limits::PING_INTERVAL
//! [`SILENCE_MAX`]: crate::limits::SILENCE_MAX
//! Messages as bytes.

use std::io;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::PipeKey;
use crate::connect::PortRange;
use crate::limits::{MESSAGE_BYTES_MAX, RELAY_BYTES_MAX};
use crate::mover::{HopOptions, MoverOptions};
use crate::place::Place;

/// Changes with any message.
pub const PROTOCOL: u32 = 2;

/// Begins each line that an agent's start says before the first message; shells' greetings do not.
pub const MARK: &str = "caravan-agent";

/// Which program this is: only the same on both sides can talk.
pub fn identity() -> String {
    format!("caravan {} agent {PROTOCOL}", env!("CARGO_PKG_VERSION"))
}

/// From the coordinator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum AgentOrder {
    /// Who are you? Answered by [`AgentReport::Hello`].
    Hello {
        /// How long either end may be silent.
        silence: Duration,
        /// Whether to look for RDMA devices.
        fabric: bool,
    },
    /// Listen for the other end of a hop: [`AgentReport::Listening`], then [`AgentReport::Connected`] or
    /// [`AgentReport::Unreachable`].
    Listen {
        /// Which hop.
        hop: u32,
        /// What the other end must know.
        key: PipeKey,
        /// Where to listen.
        ports: Option<PortRange>,
        /// How many connections.
        streams: u32,
        /// Which try at it.
        attempt: u32,
    },
    /// Connect to the other end of a hop: [`AgentReport::Connected`] or [`AgentReport::Unreachable`].
    Connect {
        /// Which hop.
        hop: u32,
        /// What the other end must know.
        key: PipeKey,
        /// Where it may be.
        addresses: Vec<SocketAddr>,
        /// Names of hosts to look up as well, with the port.
        names: Vec<(String, u16)>,
        /// How many connections.
        streams: u32,
        /// Which try at it.
        attempt: u32,
    },
    /// Make the first half of a fabric's connection: [`AgentReport::Half`].
    Initiate {
        /// Which hop.
        hop: u32,
        /// The other side's offer.
        offer: Vec<u8>,
        /// Which try at it.
        attempt: u32,
    },
    /// Make the second half: [`AgentReport::Half`].
    Accept {
        /// Which hop.
        hop: u32,
        /// What the initiating side has said.
        request: Vec<u8>,
        /// Which try at it.
        attempt: u32,
    },
    /// Finish it: [`AgentReport::Connected`] or [`AgentReport::Unreachable`].
    Finish {
        /// Which hop.
        hop: u32,
        /// What both ends must know.
        key: PipeKey,
        /// The other side's half; nothing for the accepting side.
        answer: Vec<u8>,
        /// Which try at it.
        attempt: u32,
    },
    /// Take the reading end of a pipe from another agent of this host: [`AgentReport::Doorway`].
    Open {
        /// The hop that the pipe takes the place of.
        hop: u32,
        /// Which try at it.
        attempt: u32,
    },
    /// Make a pipe and hand its reading end to the agent behind that doorway: [`AgentReport::Connected`].
    Hand {
        /// The hop that the pipe takes the place of.
        hop: u32,
        /// What the other agent has said.
        doorway: Vec<u8>,
        /// Which try at it.
        attempt: u32,
    },
    /// The pipe is handed over: [`AgentReport::Connected`].
    Take {
        /// Which hop.
        hop: u32,
        /// Which try at it.
        attempt: u32,
    },
    /// The hop's data go over this control channel: [`AgentReport::Connected`].
    Relay {
        /// Which hop.
        hop: u32,
        /// Which try at it.
        attempt: u32,
    },
    /// Open these files, so that nothing runs and nothing is overwritten if one cannot be had:
    /// [`AgentReport::Prepared`], or [`AgentReport::Ended`] for the stage whose file it is.
    Prepare {
        /// The stage, its file, and how.
        files: Vec<(u32, PathBuf, OpenMode)>,
    },
    /// A command to be run once everything starts. Each is an order of its own, as it may have
    /// [`COMMAND_BYTES_MAX`](crate::limits::COMMAND_BYTES_MAX).
    Command(StageCommand),
    /// All hops are there: run this, and the commands that were told before.
    Start(AgentPart),
    /// So many bytes of relayed data, or of lines (hop `None`), were taken.
    Credit {
        /// Which hop's.
        hop: Option<u32>,
        /// How many.
        bytes: u64,
    },
    /// The agent's end of a relayed hop is closed by the other side.
    RelayEnd {
        /// Which hop.
        hop: u32,
    },
    /// Kill everything.
    Abort,
    /// A stage's reader will not come: kill the stage.
    Kill {
        /// Which stage.
        stage: u32,
    },
    /// All is done: end.
    End,
    /// Are you there?
    Ping,
    /// The coordinator is about to be stopped (Ctrl-Z), or goes on: its silence means nothing meanwhile.
    Pause(bool),
}

/// From an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum AgentReport {
    /// Who it is.
    Hello(Box<Hello>),
    /// It listens.
    Listening {
        /// For which hop.
        hop: u32,
        /// Where.
        port: u16,
        /// Which try at it.
        attempt: u32,
    },
    /// Half of a fabric's connection.
    Half {
        /// Of which hop.
        hop: u32,
        /// For the other side.
        bytes: Vec<u8>,
        /// Which try at it.
        attempt: u32,
    },
    /// A doorway for a pipe.
    Doorway {
        /// Instead of which hop.
        hop: u32,
        /// For the other side.
        bytes: Vec<u8>,
        /// Which try at it.
        attempt: u32,
    },
    /// A hop's end is there.
    Connected {
        /// Which hop's.
        hop: u32,
        /// What carries it.
        description: String,
        /// Which try at it.
        attempt: u32,
    },
    /// A hop's end could not be had in this way.
    Unreachable {
        /// Which hop's.
        hop: u32,
        /// Why.
        why: String,
        /// Which try at it.
        attempt: u32,
    },
    /// The files are open; of which stage, and their lengths where they have one.
    Prepared {
        /// In no order.
        lengths: Vec<(u32, Option<u64>)>,
    },
    /// A stage has ended.
    Ended {
        /// Which.
        stage: u32,
        /// How.
        status: Status,
    },
    /// A mover has ended.
    Moved {
        /// Which.
        mover: u32,
        /// What became of it.
        result: MoverResult,
    },
    /// Lines of a stage's standard error.
    Lines {
        /// Which stage's.
        stage: u32,
        /// Each without its end of line. What they [count for](line_cost) is given back by [`AgentOrder::Credit`].
        texts: Vec<String>,
    },
    /// An outlet has ended before the stream has, and others go on.
    Left {
        /// Which mover's.
        mover: u32,
        /// Its place among the mover's outlets.
        outlet: usize,
        /// It failed, or was dropped; otherwise its reader has closed.
        has_failed: bool,
    },
    /// What movers have counted so far: mover, bytes, bytes on the wire, waited for the inlet, for the
    /// outlets (ns).
    Figures(Vec<(u32, [u64; 4])>),
    /// So many bytes of relayed data were taken.
    Credit {
        /// Which hop's.
        hop: u32,
        /// How many.
        bytes: u64,
    },
    /// This end of a relayed hop is closed.
    RelayEnd {
        /// Which hop.
        hop: u32,
    },
    /// Processes that it could not end; a description of each.
    Spared {
        /// As users are told of them: at most [`SPARED_MAX`](crate::limits::SPARED_MAX).
        processes: Vec<String>,
    },
    /// Nothing of this agent runs any more, but for what it has told of.
    Gone,
    /// The agent itself fails; the sentence.
    Failed(String),
    /// It is there.
    Ping,
}

/// What a line of standard error counts for in the window of lines: its text, and what it takes to keep it.
pub fn line_cost(text: &str) -> u64 {
    text.len() as u64 + 32
}

/// Who an agent is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Which protocol it speaks.
    pub identity: String,
    /// Where it is.
    pub place: Place,
    /// Its addresses that others may reach.
    pub addresses: Vec<IpAddr>,
    /// The address at which ssh has reached it, if ssh has (`SSH_CONNECTION`).
    pub ssh_address: Option<IpAddr>,
    /// The address from which ssh has come.
    pub ssh_client: Option<IpAddr>,
    /// What it has of RDMA, or why nothing.
    pub offer: Result<Vec<u8>, String>,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenMode {
    /// For reading.
    Read,
    /// For writing; what it holds goes once everything starts.
    Write,
    /// For writing at its end.
    Append,
}

/// What an agent is to run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AgentPart {
    /// Commands.
    pub commands: Vec<StageCommand>,
    /// Movers.
    pub movers: Vec<Mover>,
    /// Whether movers' figures are reported every quarter of a second.
    pub figures: bool,
}

/// A command of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageCommand {
    /// The stage, as all reports name it.
    pub stage: u32,
    /// What it is.
    pub kind: CommandKind,
    /// Its standard input.
    pub input: CommandEnd,
    /// Its standard output.
    pub output: CommandEnd,
}

/// What a command is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandKind {
    /// For the user's login shell.
    Shell(String),
    /// This program with these arguments.
    Program(Vec<String>),
}

/// One end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandEnd {
    /// `/dev/null`.
    Null,
    /// What the user's own command has there; of the agent of this host alone.
    Caller,
    /// A pipe of this agent's. Whoever else names it has its other end; one that was handed over
    /// ([`AgentOrder::Hand`], [`AgentOrder::Take`]) bears its hop's number.
    Pipe(u32),
}

/// A mover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mover {
    /// As all reports name it.
    pub mover: u32,
    /// Where bytes come from.
    pub from: InletSpec,
    /// Where they go.
    pub to: Vec<OutletSpec>,
    /// What this end decides.
    pub options: MoverOptions,
}

/// Where a mover's bytes come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InletSpec {
    /// A hop that is connected.
    Hop(u32, HopOptions),
    /// A pipe of this agent's.
    Pipe(u32),
    /// The file of this stage, which is open already.
    File {
        /// The stage.
        stage: u32,
    },
    /// The standard input of the user's own command.
    Caller,
    /// Nothing: its end is there at once.
    Null,
}

/// Where a mover's bytes go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutletSpec {
    /// A hop that is connected.
    Hop(u32, HopOptions),
    /// A pipe of this agent's.
    Pipe(u32),
    /// The file of this stage, which is open already.
    File {
        /// The stage.
        stage: u32,
    },
    /// The standard output of the user's own command.
    Caller,
    /// The same, line by line, each with this in front.
    Lines(String),
    /// Nowhere.
    Null,
}

/// How a stage ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// By itself, with this exit status.
    Exit(u8),
    /// By this signal.
    Signal(u8),
    /// It could not be started, or its file not be read or written; the sentence.
    Failed(String),
}

/// What became of a mover, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverResult {
    /// Bytes taken in.
    pub bytes: u64,
    /// Bytes on the wire.
    pub wire_bytes: u64,
    /// Nanoseconds from its start to its end.
    pub took_ns: u64,
    /// Nanoseconds of processor time of its thread.
    pub cpu_ns: u64,
    /// Nanoseconds it waited for its inlet and for its outlets.
    pub waited_ns: (u64, u64),
    /// The digest of all of it.
    pub digest: Option<String>,
    /// Whether all of it came (`Ok(true)`), nobody wanted the rest (`Ok(false)`), or why it failed.
    pub inlet: Result<bool, String>,
    /// The same for each outlet: all was taken, its reader has closed, or why it failed.
    pub outlets: Vec<Result<bool, String>>,
}

impl MoverResult {
    /// Of a mover that could not even begin, or whose agent is gone.
    pub fn failed(why: &impl ToString) -> Self {
        Self {
            bytes: 0,
            wire_bytes: 0,
            took_ns: 0,
            cpu_ns: 0,
            waited_ns: (0, 0),
            digest: None,
            inlet: Err(why.to_string()),
            outlets: Vec::new(),
        }
    }
}

const JSON: u8 = 0;
const DATA: u8 = 1;

/// What comes out of a control channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessage<T> {
    /// An order or a report.
    Word(T),
    /// Data of a relayed hop.
    Data {
        /// Which hop's.
        hop: u32,
        /// At most [`RELAY_BYTES_MAX`](crate::limits::RELAY_BYTES_MAX) of them.
        bytes: Vec<u8>,
    },
}

/// Writes a message, in one call where `to` takes it whole.
pub fn write<T: Serialize>(to: &mut (impl Write + ?Sized), message: &ControlMessage<T>) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    match message {
        ControlMessage::Word(word) => {
            bytes.push(JSON);
            serde_json::to_writer(&mut bytes, word)?;
        }
        ControlMessage::Data { hop, bytes: data } => {
            bytes.push(DATA);
            bytes.extend_from_slice(&hop.to_be_bytes());
            bytes.extend_from_slice(data);
        }
    }
    let length = u32::try_from(bytes.len() - 5).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("a message is too long"))?;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads a message; `UnexpectedEof` where there are no more.
pub fn read<T: DeserializeOwned>(from: &mut (impl Read + ?Sized)) -> io::Result<ControlMessage<T>> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let [a, b, c, d, sort] = head;
    let length = u32::from_be_bytes([a, b, c, d]);
    if length > MESSAGE_BYTES_MAX {
        return Err(malformed("a message is too long"));
    }
    let mut body = Vec::new();
    from.take(length.into()).read_to_end(&mut body)?;
    if body.len() < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match sort {
        JSON => Ok(ControlMessage::Word(serde_json::from_slice(&body)?)),
        DATA => {
            let (hop, bytes) = body.split_first_chunk().ok_or_else(|| malformed("data of no hop"))?;
            if bytes.is_empty() || bytes.len() > RELAY_BYTES_MAX {
                return Err(malformed("data of a length that is none"));
            }
            Ok(ControlMessage::Data { hop: u32::from_be_bytes(*hop), bytes: bytes.to_vec() })
        }
        _ => Err(malformed("a message of no known sort")),
    }
}

fn malformed(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_were_written() {
        let mut bytes = Vec::new();
        write(&mut bytes, &ControlMessage::Word(AgentOrder::Relay { hop: 7, attempt: 1 })).expect("written");
        write(&mut bytes, &ControlMessage::<AgentOrder>::Data { hop: 9, bytes: vec![0, 1, 255] })
            .expect("written");
        let mut rest = &bytes[..];
        assert!(matches!(
            read::<AgentOrder>(&mut rest),
            Ok(ControlMessage::Word(AgentOrder::Relay { hop: 7, attempt: 1 }))
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
        let long = [&0x0002_0000_u32.to_be_bytes()[..], &[1], &[0; 0x2_0000]].concat();
        let empty = [0, 0, 0, 4, 1, 0, 0, 0, 7];
        for bad in [
            &long[..],
            &empty,
            &[0xff; 8],
            &[0, 0, 0, 2, 0, b'{', b'}'],
            &[0, 0, 0, 0, 2],
            &[0, 0, 0, 3, 1, 0, 0, 0],
        ] {
            assert!(read::<AgentReport>(&mut &bad[..]).is_err(), "{bad:?}");
        }
    }
}
