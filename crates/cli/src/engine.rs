//! `caravan engine`: packet networks in worker processes.

mod events;
pub mod run;
mod top;
mod trace;

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use caravan_bench::Error as Shared;
use caravan_engine::config::file::{ConfigFile, Mistake};
use caravan_engine::config::graph;
use caravan_engine::{Registry, view};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with, sockopt,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::args::{EngineCheck, EngineCommand, EngineGraph, EngineReload};
use crate::error::Error;
use crate::{print, print_json};

/// Runs the command.
pub fn run(command: &EngineCommand) -> Result<(), Error> {
    match command {
        EngineCommand::Run(args) => run::run(args),
        EngineCommand::Check(args) => check(args),
        EngineCommand::Graph(args) => draw(args),
        EngineCommand::Reload(args) => reload(args),
        EngineCommand::Top(args) => top::run(args),
        EngineCommand::Trace(args) => trace::run(args),
    }
}

/// Formats the mistakes of a file as compilers do, so that editors find the places.
fn lines(file: &Path, mistakes: &[Mistake]) -> Vec<String> {
    mistakes.iter().map(|mistake| format!("{}:{mistake}", file.display())).collect()
}

/// Returns the error that shows the mistakes of a file and nothing else.
fn refused(file: &Path, mistakes: &[Mistake]) -> Error {
    Error::Mistakes(lines(file, mistakes).join("\n"))
}

/// Formats a count with its noun: `1 app`, `2 apps`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[derive(Debug, Serialize)]
struct CheckReport<'a> {
    file: &'a Path,
    apps: usize,
    links: usize,
    workers: usize,
    mistakes: &'a [Mistake],
}

/// Checks a file and prints the result. Returns an error if the file cannot be run.
fn check(args: &EngineCheck) -> Result<(), Error> {
    let path = args.file.as_path();
    let outcome = ConfigFile::open(path, &Registry::standard());
    let (file, mistakes) = match outcome {
        Ok(file) => (file, Vec::new()),
        Err(mistakes) => (ConfigFile::default(), mistakes),
    };
    let (apps, links) = (file.config.apps.len(), file.config.links.len());
    let workers = file.config.workers_used().len();
    if args.json {
        print_json(&CheckReport { file: path, apps, links, workers, mistakes: &mistakes })?;
        return if mistakes.is_empty() { Ok(()) } else { Err(Error::Said) };
    }
    if !mistakes.is_empty() {
        return Err(refused(path, &mistakes));
    }
    print(&format!(
        "{}: {}, {}, {}\n",
        path.display(),
        counted(apps, "app"),
        counted(links, "link"),
        counted(workers, "worker")
    ))
}

/// Writes the graph of a file, as SVG or in the DOT language.
fn draw(args: &EngineGraph) -> Result<(), Error> {
    let file = ConfigFile::open_unchecked(&args.file).map_err(|mistakes| refused(&args.file, &mistakes))?;
    let dot = graph::dot(&file.config);
    let drawn = if args.dot { dot } else { svg_of(&dot)? };
    match &args.output {
        None => print(&drawn),
        Some(path) => {
            let failed = |source| Shared::File { what: "write", path: path.clone(), source };
            Ok(std::fs::write(path, drawn).map_err(failed)?)
        }
    }
}

/// Has Graphviz draw a graph.
fn svg_of(dot: &str) -> Result<String, Error> {
    let failed = |why: &dyn std::fmt::Display| {
        Error::Sentence(format!(
            "cannot draw the graph with Graphviz (`dot -Tsvg`): {why}. Install it (on Debian: apt install \
             graphviz), or use --dot, which writes the graph in its language"
        ))
    };
    let mut command = Command::new("dot");
    let command = command.arg("-Tsvg").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    if let Some(mut input) = child.stdin.take() {
        // Graphviz reads all of its input before it writes. If it ends early, its status says so.
        let _ = input.write_all(dot.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(&error))?;
    let svg = String::from_utf8_lossy(&output.stdout);
    match svg.find("<svg").and_then(|start| Some(start + svg[start..].find('>')? + 1)) {
        Some(inside) if output.status.success() => {
            Ok([&svg[..inside], graph::STYLE_DARK, &svg[inside..]].concat())
        }
        _ => Err(failed(&String::from_utf8_lossy(&output.stderr).trim())),
    }
}

#[derive(Debug, Serialize)]
struct ReloadReport {
    pid: i32,
    /// The changes that were carried out; null if there were none.
    changes: Value,
    refused: Vec<String>,
}

/// Prints the result of a reload. Returns an error if the file was refused.
fn reload(args: &EngineReload) -> Result<(), Error> {
    let pid = view::find(args.pid)?.pid;
    let answer = give(pid, ControlOrder::Reload)?;
    if args.json {
        let (changes, refused, outcome) = match answer {
            ControlAnswer::Done { changes, .. } => (changes, Vec::new(), Ok(())),
            ControlAnswer::Refused(why) => (Value::Null, why, Err(Error::Said)),
        };
        print_json(&ReloadReport { pid, changes, refused })?;
        return outcome;
    }
    match answer {
        ControlAnswer::Done { text, .. } => print(&format!("{text}\n")),
        ControlAnswer::Refused(why) => Err(Error::Mistakes(why.join("\n"))),
    }
}

/// The most bytes of an order.
const ORDER_BYTES_MAX: usize = 1024;
/// The most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// How long a connection may take to send its order.
const ORDER_WAIT_MAX: Duration = Duration::from_secs(1);
/// Connections that wait to be accepted: any user of this host can make some.
const BACKLOG: i32 = 128;
/// Connections accepted per turn, so that those of other users, which are closed, do not keep out an order.
const ACCEPTED_MAX: usize = BACKLOG as usize;
/// How long a connection may wait to be accepted.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a caller waits for an answer: longer than any change takes in which a worker has to be killed for its
/// silence.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);

/// An order to a running engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlOrder {
    /// Reads the configuration file again.
    Reload,
}

/// The result of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlAnswer {
    /// The order was carried out.
    Done {
        /// The result as a sentence.
        text: String,
        /// The engine's `Changes`; null if they are too many for one message.
        changes: serde_json::Value,
    },
    /// The order was refused, for these reasons.
    Refused(Vec<String>),
}

/// The engine's socket for orders.
#[derive(Debug)]
pub struct ControlSocket {
    listener: OwnedFd,
    connection: Option<(OwnedFd, Instant)>,
}

impl ControlSocket {
    /// Listens under the process id of this process.
    pub fn listen() -> Result<Self, Error> {
        let listener = new_socket(SocketFlags::NONBLOCK)?;
        let name = name(std::process::id() as i32)?;
        bind(&listener, &name).map_err(failed("bind"))?;
        listen(&listener, BACKLOG).map_err(failed("listen"))?;
        Ok(Self { listener, connection: None })
    }

    /// Returns a descriptor that is readable when [`order`](Self::order) has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_ref().map_or(self.listener.as_fd(), |(connection, _)| connection.as_fd())
    }

    /// Returns an order, if there is one. It must be [answered](Self::answer).
    pub fn order(&mut self) -> Option<ControlOrder> {
        let (connection, since) = match self.connection.take() {
            Some(before) => before,
            None => (accept(&self.listener)?, Instant::now()),
        };
        let mut bytes = [0; ORDER_BYTES_MAX];
        match recv(&connection, bytes.as_mut_slice(), RecvFlags::DONTWAIT) {
            Ok((length, _)) => {
                // Other bytes are not an order, nor is the end of the connection: both close it.
                let order = serde_json::from_slice(&bytes[..length.min(ORDER_BYTES_MAX)]).ok()?;
                self.connection = Some((connection, since));
                Some(order)
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.connection = (since.elapsed() < ORDER_WAIT_MAX).then_some((connection, since));
                None
            }
            Err(_) => None,
        }
    }

    /// Answers the last order. Its sender may be gone.
    pub fn answer(&mut self, answer: ControlAnswer) {
        let Some((connection, _)) = self.connection.take() else { return };
        let bytes = encoded(answer);
        let _ = send(&connection, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// Encodes an answer, shortened if it is too long.
fn encoded(answer: ControlAnswer) -> Vec<u8> {
    let written = |answer: &ControlAnswer| serde_json::to_vec(answer).unwrap_or_default();
    let bytes = written(&answer);
    if bytes.len() <= ANSWER_BYTES_MAX {
        return bytes;
    }
    written(&match answer {
        ControlAnswer::Done { .. } => ControlAnswer::Done {
            text: "done; the changes are too many for here: the engine has told them".into(),
            changes: serde_json::Value::Null,
        },
        ControlAnswer::Refused(_) => {
            ControlAnswer::Refused(vec!["the reasons are too many for here: the engine has told them".into()])
        }
    })
}

/// Accepts the next connection of this user or of root, if there is one in this turn.
fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    for _ in 0..ACCEPTED_MAX {
        let connection = accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
        let peer = sockopt::socket_peercred(&connection);
        if peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root()) {
            return Some(connection);
        }
    }
    None
}

/// Sends an order to the engine of the process `pid`, and waits for the answer.
pub fn give(pid: i32, order: ControlOrder) -> Result<ControlAnswer, Error> {
    enter_network_of(pid)?;
    let connection = new_socket(SocketFlags::empty())?;
    let unreachable = || Error::NoOrders(pid);
    // While the backlog is full, a connection waits for its turn.
    sockopt::set_socket_timeout(&connection, sockopt::Timeout::Send, Some(CONNECT_WAIT_MAX))
        .map_err(failed("SO_SNDTIMEO"))?;
    connect(&connection, &name(pid)?).map_err(|_| unreachable())?;
    // Any process can take the name once the engine has ended.
    let peer = sockopt::socket_peercred(&connection).map_err(failed("SO_PEERCRED"))?;
    if peer.pid.as_raw_nonzero().get() != pid {
        return Err(unreachable());
    }
    let bytes = serde_json::to_vec(&order).map_err(|error| Shared::Output(error.into()))?;
    send(&connection, &bytes, SendFlags::NOSIGNAL).map_err(failed("send"))?;
    let deadline = Instant::now() + ANSWER_WAIT_MAX;
    let mut bytes = vec![0; ANSWER_BYTES_MAX];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&connection, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => return Err(Error::NoAnswer(pid)),
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed("poll")(error)),
        }
    }
    let (length, _) =
        recv(&connection, bytes.as_mut_slice(), RecvFlags::DONTWAIT).map_err(|_| Error::NoAnswer(pid))?;
    serde_json::from_slice(&bytes[..length.min(ANSWER_BYTES_MAX)]).map_err(|_| Error::NoAnswer(pid))
}

/// Moves this thread into the network namespace of a process, if it is in another one.
fn enter_network_of(pid: i32) -> Result<(), Error> {
    let [ours, theirs] =
        ["self".to_owned(), pid.to_string()].map(|process| format!("/proc/{process}/ns/net"));
    // If the namespaces cannot be read, connecting to the socket shows whether it can be reached.
    let (Ok(here), Ok(there)) = (fs::read_link(ours), fs::read_link(&theirs)) else { return Ok(()) };
    if here == there {
        return Ok(());
    }
    let namespace = fs::File::open(theirs).map_err(|_| Error::OtherNetwork(pid))?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|_| Error::OtherNetwork(pid))
}

fn new_socket(flags: SocketFlags) -> Result<OwnedFd, Error> {
    let flags = flags | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed("socket"))
}

fn name(pid: i32) -> Result<SocketAddrUnix, Error> {
    SocketAddrUnix::new_abstract_name(format!("caravan-engine-{pid}").as_bytes())
        .map_err(failed("sockaddr_un"))
}

fn failed(call: &'static str) -> impl FnOnce(Errno) -> Error {
    move |source| Error::Control { call, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connects to the socket of this process.
    fn caller() -> OwnedFd {
        let connection = new_socket(SocketFlags::empty()).expect("a socket");
        connect(&connection, &name(std::process::id() as i32).expect("a name")).expect("connected");
        connection
    }

    fn said(connection: &OwnedFd) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; ANSWER_BYTES_MAX];
        let (length, _) = recv(connection, bytes.as_mut_slice(), RecvFlags::DONTWAIT)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// One test, because a process has one name. It covers orders, other bytes, a silent peer, a peer that goes, and
    /// an answer that is too long.
    #[test]
    fn orders_are_taken_one_at_a_time_and_nothing_else_does_harm() {
        let mut control = ControlSocket::listen().expect("a name");
        assert_eq!(control.order(), None);
        let (first, second) = (caller(), caller());
        send(&second, br#""reload""#, SendFlags::empty()).expect("sent");
        assert_eq!(control.order(), None, "the first is listened to");
        send(&first, b"\"stop\"", SendFlags::empty()).expect("sent");
        assert_eq!(control.order(), None, "no order");
        assert_eq!(said(&first), Ok(Vec::new()), "closed");
        assert_eq!(control.order(), Some(ControlOrder::Reload));
        control.answer(ControlAnswer::Refused(vec!["no".into()]));
        assert_eq!(said(&second), Ok(br#"{"refused":["no"]}"#.to_vec()));

        for message in [&[][..], &[b'['; 900], &[0xff; 4000], b"{\"reload\":1}"] {
            let caller = caller();
            send(&caller, message, SendFlags::empty()).expect("sent");
            assert_eq!(control.order(), None);
            assert_eq!(said(&caller), Ok(Vec::new()), "closed");
        }

        drop(caller());
        assert_eq!(control.order(), None);
        let gone = caller();
        send(&gone, br#""reload""#, SendFlags::empty()).expect("sent");
        drop(gone);
        assert_eq!(control.order(), Some(ControlOrder::Reload));
        control.answer(ControlAnswer::Refused(Vec::new()));

        let silent = caller();
        assert_eq!(control.order(), None);
        if let Some((_, since)) = &mut control.connection {
            *since -= ORDER_WAIT_MAX;
        }
        assert_eq!(control.order(), None);
        assert_eq!(said(&silent), Ok(Vec::new()), "closed");

        let long = caller();
        send(&long, br#""reload""#, SendFlags::empty()).expect("sent");
        assert_eq!(control.order(), Some(ControlOrder::Reload));
        control.answer(ControlAnswer::Refused(vec!["x".repeat(ANSWER_BYTES_MAX)]));
        let answer: ControlAnswer = serde_json::from_slice(&said(&long).expect("an answer")).expect("JSON");
        assert!(
            matches!(answer, ControlAnswer::Refused(why) if why[0].starts_with("the reasons are too many"))
        );
    }
}
