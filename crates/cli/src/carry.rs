//! `caravan send` and `caravan recv`: a stream between two hosts, without ssh.
//!
//! | send | | recv |
//! |---|---|---|
//! | connects: all streams, and one for words | -> | listens; whoever does not know the key is turned away |
//! | says what comes, and how | -> | says that it is ready, or why not |
//! | moves | -> | moves |
//! | | <- | says that all is where it belongs |

mod file;
mod key;
mod stream;
mod talk;

use std::io::stdin;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use caravan_pipe::cancel::Cancel;
use caravan_pipe::connect::tcp::{Listener, addresses, connect_patiently};
use caravan_pipe::connect::{Channel, Connection, Ports, Side, Words};
use caravan_pipe::coordinator::{Observer, Sealing};
use caravan_pipe::limits::BLOCK_BYTES;
use caravan_pipe::mover::{HopOptions, Inlet, MoverOptions, Outlet};
use caravan_pipe::{Error, Key};

use self::file::Output;
use self::stream::{Facts, Moved, Stream};
use self::talk::{Talk, Terms, attended};
use crate::args::{Recv, Send};
use crate::error::Error as CommandError;
use crate::pipe::{Ending, Teller};
use caravan_bench::interrupt::Interrupt;

/// How late the receiving side may be.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends.
pub fn send(args: &Send) -> Result<ExitCode, CommandError> {
    let to = args.destination().unwrap_or_else(|why| refuse(&why));
    let telling = args.telling.telling();
    let ending = Ending::prepare(&telling).map_err(CommandError::pipe_setup)?;
    let (input, total) = input(to.file.as_deref()).map_err(of_a_file)?;
    let interrupt = Interrupt::watch().map_err(CommandError::pipe_setup)?;
    let key = match &args.secret.file {
        Some(file) => key::from_file(file)?,
        None => key::asked(&to.host, to.port, &interrupt)?,
    };
    let mut teller = Teller::new(&telling);
    let sent = Sending { args, host: (&to.host, to.port), key, interrupt }.run(input, total, &mut teller);
    drop(teller);
    Ok(stream::tell(ending, sent))
}

/// Receives.
pub fn recv(args: &Recv) -> Result<ExitCode, CommandError> {
    let to = args.destined().unwrap_or_else(|why| refuse(&why));
    let telling = args.telling.telling();
    let ending = Ending::prepare(&telling).map_err(CommandError::pipe_setup)?;
    let interrupt = Interrupt::watch().map_err(CommandError::pipe_setup)?;
    let mut teller = Teller::new(&telling);
    let (key, is_shown) = match &args.secret.file {
        Some(file) => (key::from_file_or_new(file, &mut teller)?, false),
        None => (Key::random()?, true),
    };
    let output = Output::open(to.file.as_deref()).map_err(of_a_file)?;
    let listener = listen(to.port, args.ports)?;
    invite(&listener, is_shown.then_some(&key), &mut teller);
    let received = Receiving { args, key, interrupt }.run(listener, output, &mut teller);
    drop(teller);
    Ok(stream::tell(ending, received))
}

/// The status of what is wrong with a file is 1.
fn of_a_file(error: Error) -> CommandError {
    CommandError::Sentence(error.to_string())
}

/// As what the command line's own rules refuse.
fn refuse(why: &str) -> ! {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{why}\n")).exit()
}

struct Sending<'a> {
    args: &'a Send,
    host: (&'a str, u16),
    key: Key,
    interrupt: Interrupt,
}

impl Sending<'_> {
    /// What failed before anything was moved is an error.
    fn run(self, input: OwnedFd, total: Option<u64>, teller: &mut Teller) -> Result<Moved, Error> {
        let moving = &self.args.moving;
        let hop = HopOptions {
            digest: moving.digest_kind(),
            sealed: moving.sealing() != Sealing::Never,
            compression: moving.compression_kind(),
            block_bytes: BLOCK_BYTES,
            silence: None,
        };
        if !hop.sealed {
            teller.warn("the data are not encrypted: whoever is on the way can read and change them");
        }
        let cancel = Cancel::new()?;
        let connecting = || connect_patiently(self.host, &self.key, moving.streams + 1, PATIENCE, &cancel);
        let mut connection = attended(&self.interrupt, &cancel, connecting)?;
        let words = Words::beside(&mut connection, Side::Sender)?;
        let mut talk = Talk::new(words, self.host.0.to_owned(), self.interrupt);
        talk.offer(Terms { hop: hop.clone(), total })?;
        let facts = Facts {
            from: "here".to_owned(),
            to: self.host.0.to_owned(),
            transport: transport(&connection, &hop),
            total,
            digest: hop.digest,
            side: Side::Sender,
        };
        teller.note(&format!("here -> {}: {}", facts.to, facts.transport));
        let options =
            MoverOptions { rate: moving.rate, buffer_bytes: moving.buffer_bytes, ..MoverOptions::default() };
        let outlet = Outlet::Hop(Box::new(connection), hop);
        let mut stream = Stream { facts, talk: &mut talk, teller, cancel: &cancel };
        let moved = stream.run(Inlet::Descriptor(input), outlet, &options)?;
        Ok(moved.and(|| talk.hear_the_end()))
    }
}

struct Receiving<'a> {
    args: &'a Recv,
    key: Key,
    interrupt: Interrupt,
}

impl Receiving<'_> {
    /// What failed before anything was moved is an error.
    fn run(self, listener: Listener, output: Output, teller: &mut Teller) -> Result<Moved, Error> {
        let cancel = Cancel::new()?;
        let accepting = || listener.accept_any(&self.key, Duration::MAX, &cancel);
        let mut connection = attended(&self.interrupt, &cancel, accepting)?;
        let words = Words::beside(&mut connection, Side::Receiver)?;
        let from = words.peer().map_or_else(|| "there".to_owned(), |peer| peer.ip().to_string());
        let mut talk = Talk::new(words, from.clone(), self.interrupt);
        let Terms { hop, total } = talk.agree(self.args.insecure)?;
        let facts = Facts {
            from,
            to: "here".to_owned(),
            transport: transport(&connection, &hop),
            total,
            digest: hop.digest,
            side: Side::Receiver,
        };
        teller.note(&format!("{} -> here: {}", facts.from, facts.transport));
        if !hop.sealed {
            teller.warn("the data are not encrypted: the sending side wants it so");
        }
        let options = MoverOptions {
            rate: self.args.rate,
            buffer_bytes: self.args.buffer_bytes,
            ..MoverOptions::default()
        };
        let (inlet, outlet) =
            (Inlet::Hop(Box::new(connection), hop), Outlet::Descriptor(output.descriptor()?));
        let mut stream = Stream { facts, talk: &mut talk, teller, cancel: &cancel };
        let moved = stream.run(inlet, outlet, &options)?.and(|| output.complete());
        talk.tell_the_end(moved.failure());
        Ok(moved)
    }
}

/// What is sent, and how much that is, if it is known.
fn input(file: Option<&Path>) -> Result<(OwnedFd, Option<u64>), Error> {
    let Some(path) = file else {
        let input = stdin().as_fd().try_clone_to_owned();
        return Ok((input.map_err(|source| Error::System { call: "fcntl(F_DUPFD)", source })?, None));
    };
    let opened = std::fs::File::open(path).and_then(|file| Ok((file.metadata()?, file)));
    let (facts, file) =
        opened.map_err(|source| Error::File { what: "read", path: path.to_owned(), source })?;
    if facts.is_dir() {
        let path = path.display();
        return Err(Error::Usage(format!("{path} is a folder: `tar c {path} | caravan send ...` sends it")));
    }
    Ok((file.into(), facts.is_file().then_some(facts.len())))
}

/// Where the user wants it; else on the usual port, or any other.
fn listen(port: Option<u16>, ports: Option<Ports>) -> Result<Listener, Error> {
    let only = |port| Ports { first: port, last: port };
    match port.map(only).or(ports) {
        Some(ports) => Listener::open(Some(ports)),
        None => Listener::open(Some(only(Recv::PORT_DEFAULT))).or_else(|_| Listener::open(None)),
    }
}

/// What is to be done on the other host.
fn invite(listener: &Listener, key: Option<&Key>, teller: &mut Teller) {
    let port = listener.port();
    let own = addresses().unwrap_or_default();
    let all: Vec<_> = own.iter().map(IpAddr::to_string).collect();
    let place = if all.is_empty() { String::new() } else { format!(" of {}", all.join(", ")) };
    let host = match own.first() {
        Some(address) => SocketAddr::new(*address, port).to_string(),
        None => format!("HOST:{port}"),
    };
    teller.warn(&format!("listening on port {port}{place}. On the other host, type"));
    match key {
        Some(key) => {
            teller.warn(&format!("    caravan send {host}"));
            teller.warn(&format!("and, when it asks for the key: {}", key::text(key)));
        }
        None => teller.warn(&format!("    caravan send --key-file FILE {host}")),
    }
}

/// What users see of what carries the data.
fn transport(connection: &Connection, hop: &HopOptions) -> String {
    let streams = match &connection.channel {
        Channel::Streams(streams) => streams.len(),
        Channel::Link(_) => 1,
    };
    // The one for words is none of the data's.
    let described = connection.description.rsplit_once(", ").filter(|(_, last)| last.ends_with(" streams"));
    let mut text = described.map_or(connection.description.as_str(), |(described, _)| described).to_owned();
    if streams > 1 {
        text += &format!(", {streams} streams");
    }
    text + if hop.sealed { ", encrypted" } else { ", not encrypted" }
}
