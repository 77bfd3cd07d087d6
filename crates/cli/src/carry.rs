//! `caravan send` and `caravan recv`: a stream between two hosts, without ssh.
//!
//! | send | | recv |
//! |---|---|---|
//! | connects all data streams and the side channel | -> | listens; rejects a connection that does not know the key |
//! | offers the stream, with its terms | -> | answers that it is ready, or why not |
//! | moves the data | -> | moves the data |
//! | | <- | reports that the data are complete and in their place |

pub mod stream;
mod talk;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write, stdin};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use caravan_bench::interrupt::{GLANCE, Interrupt};
use caravan_pipe::cancel::Cancel;
use caravan_pipe::connect::tcp::{DataListener, addresses, connect_patiently};
use caravan_pipe::connect::{DataChannel, DataConnection, HopSide, PortRange, SideChannel};
use caravan_pipe::coordinator::{Encryption, Observer};
use caravan_pipe::limits::BLOCK_BYTES;
use caravan_pipe::mover::{HopOptions, MoverInlet, MoverOptions, MoverOutlet};
use caravan_pipe::{Error, PipeKey};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::geteuid;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::args::{Recv, Send};
use crate::carry::stream::{CarriedStream, CarryStream, RecvOutput, StreamFacts};
use crate::carry::talk::{StreamTerms, Talk, attended};
use crate::error::Error as CommandError;
use crate::pipe::{Ending, Teller};

/// How long `send` waits for a receiver that is not there yet.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `caravan send` and returns its exit status.
pub fn send(args: &Send) -> Result<ExitCode, CommandError> {
    let to = args.destination().unwrap_or_else(|why| refuse(&why));
    let telling = &args.telling;
    let ending = Ending::prepare(telling).map_err(CommandError::pipe_setup)?;
    let (input, total) = input(to.file.as_deref()).map_err(of_a_file)?;
    let interrupt = Interrupt::watch().map_err(CommandError::pipe_setup)?;
    let key = match &args.secret.file {
        Some(file) => from_file(file)?,
        None => asked(&to.host, to.port, &interrupt)?,
    };
    let mut teller = Teller::new(telling);
    let sent = SendRun { args, host: (&to.host, to.port), key, interrupt }.run(input, total, &mut teller);
    drop(teller);
    Ok(stream::tell(ending, sent))
}

/// Runs `caravan recv` and returns its exit status.
pub fn recv(args: &Recv) -> Result<ExitCode, CommandError> {
    let to = args.destined().unwrap_or_else(|why| refuse(&why));
    let telling = &args.telling;
    let ending = Ending::prepare(telling).map_err(CommandError::pipe_setup)?;
    let interrupt = Interrupt::watch().map_err(CommandError::pipe_setup)?;
    let mut teller = Teller::new(telling);
    let (key, is_shown) = match &args.secret.file {
        Some(file) => (from_file_or_new(file, &mut teller)?, false),
        None => (PipeKey::random()?, true),
    };
    let output = RecvOutput::open(to.file.as_deref()).map_err(of_a_file)?;
    let listener = listen(to.port, args.ports)?;
    invite(&listener, is_shown.then_some(&key), &mut teller);
    let received = RecvRun { args, key, interrupt }.run(listener, output, &mut teller);
    drop(teller);
    Ok(stream::tell(ending, received))
}

/// Turns an error about a file into one whose exit status is 1.
fn of_a_file(error: Error) -> CommandError {
    CommandError::Sentence(error.to_string())
}

/// Ends the process like the command line's own parser does.
fn refuse(why: &str) -> ! {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{why}\n")).exit()
}

struct SendRun<'a> {
    args: &'a Send,
    host: (&'a str, u16),
    key: PipeKey,
    interrupt: Interrupt,
}

impl SendRun<'_> {
    /// Returns an error if something failed before any data moved.
    fn run(self, input: OwnedFd, total: Option<u64>, teller: &mut Teller) -> Result<CarriedStream, Error> {
        let moving = &self.args.moving;
        let hop = HopOptions {
            digest: moving.digest,
            sealed: moving.sealing() != Encryption::Never,
            compression: moving.compression,
            block_bytes: BLOCK_BYTES,
            silence: None,
        };
        if !hop.sealed {
            teller.warn("the data are not encrypted: whoever is on the way can read and change them");
        }
        let cancel = Cancel::new()?;
        let connecting = || connect_patiently(self.host, &self.key, moving.streams + 1, PATIENCE, &cancel);
        let mut connection = attended(&self.interrupt, &cancel, connecting)?;
        let words = SideChannel::beside(&mut connection, HopSide::Sender)?;
        let mut talk = Talk::new(words, self.host.0.to_owned(), self.interrupt);
        talk.offer(StreamTerms { hop: hop.clone(), total })?;
        let facts = StreamFacts {
            from: "here".to_owned(),
            to: self.host.0.to_owned(),
            transport: transport(&connection, &hop),
            total,
            digest: hop.digest,
            side: HopSide::Sender,
        };
        teller.note(&format!("here -> {}: {}", facts.to, facts.transport));
        let options =
            MoverOptions { rate: moving.rate, buffer_bytes: moving.buffer_bytes, ..MoverOptions::default() };
        let outlet = MoverOutlet::Hop(Box::new(connection), hop);
        let mut stream = CarryStream { facts, talk: &mut talk, teller, cancel: &cancel };
        let moved = stream.run(MoverInlet::Descriptor(input), outlet, &options)?;
        Ok(moved.and(|| talk.hear_the_end()))
    }
}

struct RecvRun<'a> {
    args: &'a Recv,
    key: PipeKey,
    interrupt: Interrupt,
}

impl RecvRun<'_> {
    /// Returns an error if something failed before any data moved.
    fn run(
        self,
        listener: DataListener,
        output: RecvOutput,
        teller: &mut Teller,
    ) -> Result<CarriedStream, Error> {
        let cancel = Cancel::new()?;
        let accepting = || listener.accept_any(&self.key, Duration::MAX, &cancel);
        let mut connection = attended(&self.interrupt, &cancel, accepting)?;
        let words = SideChannel::beside(&mut connection, HopSide::Receiver)?;
        let from = words.peer().map_or_else(|| "there".to_owned(), |peer| peer.ip().to_string());
        let mut talk = Talk::new(words, from.clone(), self.interrupt);
        let StreamTerms { hop, total } = talk.agree(self.args.insecure)?;
        let facts = StreamFacts {
            from,
            to: "here".to_owned(),
            transport: transport(&connection, &hop),
            total,
            digest: hop.digest,
            side: HopSide::Receiver,
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
            (MoverInlet::Hop(Box::new(connection), hop), MoverOutlet::Descriptor(output.descriptor()?));
        let mut stream = CarryStream { facts, talk: &mut talk, teller, cancel: &cancel };
        let moved = stream.run(inlet, outlet, &options)?.and(|| output.complete());
        talk.tell_the_end(moved.failure());
        Ok(moved)
    }
}

/// Returns the input, and its number of bytes if that is known.
fn input(file: Option<&Path>) -> Result<(OwnedFd, Option<u64>), Error> {
    let Some(path) = file else {
        let input = stdin().as_fd().try_clone_to_owned();
        return Ok((input.map_err(Error::system("fcntl(F_DUPFD)"))?, None));
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

/// Listens on the port that the user wants; otherwise on the default port, or on any other.
fn listen(port: Option<u16>, ports: Option<PortRange>) -> Result<DataListener, Error> {
    let only = |port| PortRange { first: port, last: port };
    match port.map(only).or(ports) {
        Some(ports) => DataListener::open(Some(ports)),
        None => DataListener::open(Some(only(Recv::PORT_DEFAULT))).or_else(|_| DataListener::open(None)),
    }
}

/// Prints the command to run on the other host.
fn invite(listener: &DataListener, key: Option<&PipeKey>, teller: &mut Teller) {
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
            teller.warn(&format!("and, when it asks for the key: {}", text(key)));
        }
        None => teller.warn(&format!("    caravan send --key-file FILE {host}")),
    }
}

/// Describes for users what carries the data.
fn transport(connection: &DataConnection, hop: &HopOptions) -> String {
    let streams = match &connection.channel {
        DataChannel::Streams(streams) => streams.len(),
        DataChannel::Link(_) => 1,
    };
    // The side channel's stream carries no data.
    let described = connection.description.rsplit_once(", ").filter(|(_, last)| last.ends_with(" streams"));
    let mut text = described.map_or(connection.description.as_str(), |(described, _)| described).to_owned();
    if streams > 1 {
        text += &format!(", {streams} streams");
    }
    text + if hop.sealed { ", encrypted" } else { ", not encrypted" }
}

/// The number of hexadecimal digits of a key.
const DIGITS: usize = 2 * PipeKey::BYTES;
/// Longer text is not a key, whatever the file or the terminal contains.
const TEXT_BYTES_MAX: u64 = 256;
/// How many attempts the user has to type a key.
const TRIES: u32 = 3;

/// Returns the key as users see it.
pub fn text(key: &PipeKey) -> String {
    key.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the key from a file that no other user may read.
pub fn from_file(path: &Path) -> Result<PipeKey, Error> {
    let file = File::open(path).map_err(|source| failed("read", path, source))?;
    read(file, path)
}

/// Reads the key from a file; if there is no such file, creates it with a new key.
pub fn from_file_or_new(path: &Path, teller: &mut Teller) -> Result<PipeKey, Error> {
    match File::open(path) {
        Ok(file) => read(file, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = PipeKey::random()?;
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            file.and_then(|mut file| file.write_all(format!("{}\n", text(&key)).as_bytes()))
                .map_err(|source| failed("write", path, source))?;
            let path = path.display();
            teller.warn(&format!("a new key is in {path}: copy that file to the other host, as with scp -p"));
            Ok(key)
        }
        Err(source) => Err(failed("read", path, source)),
    }
}

/// Asks for the key on the user's terminal, whatever standard input and output are.
pub fn asked(host: &str, port: u16, interrupt: &Interrupt) -> Result<PipeKey, Error> {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(|_| {
        Error::Usage(
            "there is no terminal on which to ask for the key: put it into a file that nobody else may read, and \
             give --key-file FILE"
                .to_owned(),
        )
    })?;
    let mut terminal = Hidden::of(terminal)?;
    for _ in 0..TRIES {
        terminal.say(&format!("Key that `caravan recv` on {host} port {port} shows: "))?;
        let typed = terminal.line(interrupt);
        terminal.say("\n")?;
        match parse(&typed?) {
            Some(key) => return Ok(key),
            None => terminal.say(&format!("That is no key: it has {DIGITS} digits, 0 to 9 and a to f.\n"))?,
        }
    }
    Err(Error::Usage(format!("no key was typed within {TRIES} tries")))
}

fn read(file: File, path: &Path) -> Result<PipeKey, Error> {
    let facts = file.metadata().map_err(|source| failed("read", path, source))?;
    if facts.mode() & 0o077 != 0 || ![0, geteuid().as_raw()].contains(&facts.uid()) {
        let path = path.display();
        return Err(Error::Usage(format!(
            "others may read the key in {path}: `chmod 600 {path}`, or, if they have seen it, remove it and let \
             `caravan recv --key-file {path}` make a new one"
        )));
    }
    let mut text = String::new();
    let read = file.take(TEXT_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|source| failed("read", path, source))?;
    parse(&text).ok_or_else(|| {
        Error::Usage(format!(
            "there is no key in {}: it has {DIGITS} digits, 0 to 9 and a to f",
            path.display()
        ))
    })
}

/// Parses a key. Spaces and dashes are ignored.
fn parse(text: &str) -> Option<PipeKey> {
    let digits: String = text.chars().filter(|letter| !letter.is_whitespace() && *letter != '-').collect();
    let is_key = digits.len() == DIGITS && digits.chars().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| is_key)?;
    Some(PipeKey::from_bytes(number.to_be_bytes()))
}

fn failed(what: &'static str, path: &Path, source: io::Error) -> Error {
    Error::File { what, path: path.to_owned(), source }
}

/// A terminal that does not show what is typed, until this value is dropped.
struct Hidden {
    terminal: File,
    before: Termios,
}

impl Hidden {
    fn of(terminal: File) -> Result<Self, Error> {
        let before = tcgetattr(&terminal).map_err(Error::system("/dev/tty"))?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        silent.local_modes.insert(LocalModes::ICANON | LocalModes::ISIG);
        // Text that was typed before the question is not an answer.
        tcsetattr(&terminal, OptionalActions::Flush, &silent).map_err(Error::system("/dev/tty"))?;
        Ok(Self { terminal, before })
    }

    fn say(&mut self, text: &str) -> Result<(), Error> {
        self.terminal.write_all(text.as_bytes()).map_err(Error::system("/dev/tty"))
    }

    /// Reads a line; fails on Ctrl-C or at the terminal's end.
    fn line(&mut self, interrupt: &Interrupt) -> Result<String, Error> {
        let mut line = Vec::new();
        while !line.contains(&b'\n') && (line.len() as u64) < TEXT_BYTES_MAX {
            let glance = Timespec { tv_sec: 0, tv_nsec: Duration::subsec_nanos(&GLANCE).into() };
            let ready = poll(&mut [PollFd::new(&self.terminal, PollFlags::IN)], Some(&glance));
            interrupt.check().map_err(|_| Error::Cancelled)?;
            if ready != Ok(0) {
                let mut room = [0; 64];
                match self.terminal.read(&mut room) {
                    Ok(0) => break,
                    Ok(count) => line.extend(room.iter().take(count)),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(source) => return Err(Error::system("/dev/tty")(source)),
                }
            }
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_shown() {
        let key = PipeKey::random().expect("random");
        let shown = text(&key);
        assert_eq!(parse(&shown), Some(key.clone()));
        assert_eq!(parse(&format!(" {}-{} \n", &shown[..7], shown[7..].to_uppercase())), Some(key));
        let long = format!("{shown}0");
        for none in
            ["", "x", &shown[1..], &long, &shown.replace(|_| true, "g"), "+1234567890123456789012345678901"]
        {
            assert_eq!(parse(none), None, "{none}");
        }
    }
}
