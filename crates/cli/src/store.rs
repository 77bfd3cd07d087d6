//! `caravan store`: a server with the Redis protocol, and commands that speak to it.

pub mod child;
mod demo;
mod detach;
mod leave;
mod orders;
mod serve;
mod status;
mod top;

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use caravan_bench::Error as Shared;
use caravan_cluster::{ConfigurationRegister, EtcdOptions, EtcdRegister, FileRegister};
use caravan_segment::printable;
use caravan_store::limits::ANSWER_WAIT;
use caravan_store_server::{ClientError, StoreAnswer, StoreClient};
use serde_json::{Map, Value, json};

use crate::args::{StoreChoice, StoreCommand, StoreDel, StoreGet, StoreScan, StoreSet, StoreStat};
use crate::error::Error;

pub use self::demo::NODES_MAX as DEMO_NODES_MAX;

/// Runs the command.
pub fn run(command: &StoreCommand) -> Result<(), Error> {
    match command {
        StoreCommand::Serve(args) => serve::run(args),
        StoreCommand::Get(args) => get(args),
        StoreCommand::Set(args) => set(args),
        StoreCommand::Del(args) => del(args),
        StoreCommand::Scan(args) => scan(args),
        StoreCommand::Stat(args) => stat(args),
        StoreCommand::Top(args) => top::run(args),
        StoreCommand::Save(args) => orders::save(args),
        StoreCommand::Upgrade(args) => orders::upgrade(args),
        StoreCommand::Status(args) => status::run(args),
        StoreCommand::Leave(args) => leave::run(args),
        StoreCommand::Demo(args) => demo::run(args),
    }
}

/// Returns the path of the socket of a store: the one that the user gives, or the one that follows from the name.
fn socket_path(given: Option<&Path>, name: &str) -> Result<PathBuf, Error> {
    let path =
        given.map_or_else(|| caravan_store::connected::socket_of_name(name), |path| Ok(path.to_owned()));
    path.map_err(|error| Error::Sentence(format!("the store {name} has no place for its socket: {error}")))
}

/// Returns a path that another process understands, whatever its folder.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    Ok(std::path::absolute(path).map_err(|source| Shared::File {
        what: "find",
        path: path.to_owned(),
        source,
    })?)
}

/// Opens what holds the configuration of a store of several servers.
fn register(place: &str) -> Result<Arc<dyn ConfigurationRegister>, Error> {
    Ok(match place.starts_with("etcd://") {
        true => Arc::new(EtcdOptions::parse(place).and_then(EtcdRegister::new).map_err(sentence)?),
        false => Arc::new(FileRegister::new(absolute(Path::new(place))?).map_err(sentence)?),
    })
}

/// Returns the first line of a file with a password.
fn password(path: &Path) -> Result<Vec<u8>, Error> {
    let text =
        std::fs::read(path).map_err(|source| Shared::File { what: "read", path: path.into(), source })?;
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match line.is_empty() {
        true => Err(Error::Sentence(format!(
            "{}: the first line is to be a password, and is empty",
            path.display()
        ))),
        false => Ok(line.to_vec()),
    }
}

/// Returns what messages call a store.
fn store_words(socket: Option<&Path>, name: &str) -> String {
    socket.map_or_else(|| format!("the store {name}"), |socket| format!("the store at {}", socket.display()))
}

fn unreachable_store(store: &str, socket: &Path, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::Sentence(format!(
            "{store} is not served: nobody listens at {}. Start it with `caravan store serve`",
            socket.display()
        )),
        io::ErrorKind::InvalidInput => Error::Sentence(format!(
            "{}: this is no path for a socket, which has at most 100 bytes",
            socket.display()
        )),
        _ => Shared::File { what: "connect to", path: socket.to_owned(), source }.into(),
    }
}

fn sentence(error: impl std::fmt::Display) -> Error {
    Error::Sentence(error.to_string())
}

/// Tells the operator something, with escapes for what steers a terminal.
fn tell(text: &str) {
    eprintln!("caravan: {}", printable(text));
}

/// A connection to the store that a command is for.
struct StoreTalk {
    client: StoreClient,
    store: String,
}

impl StoreTalk {
    fn open(choice: &StoreChoice) -> Result<Self, Error> {
        let socket = socket_path(choice.socket.as_deref(), &choice.name)?;
        let store = store_words(choice.socket.as_deref(), &choice.name);
        let connect = || {
            let mut client = StoreClient::connect(&socket)?;
            client.limit_silence(ANSWER_WAIT)?;
            Ok(client)
        };
        let client = connect().map_err(|source| unreachable_store(&store, &socket, source))?;
        let mut talk = Self { client, store };
        if let Some(file) = &choice.password_file {
            talk.call(&[b"AUTH", &password(file)?])?;
        }
        Ok(talk)
    }

    /// Sends a command, and returns the answer unless it is an error.
    fn call(&mut self, words: &[&[u8]]) -> Result<StoreAnswer, Error> {
        let answer = self.client.call(words);
        self.taken(answer)
    }

    /// Returns an answer unless it is an error.
    fn taken(&self, answer: Result<StoreAnswer, ClientError>) -> Result<StoreAnswer, Error> {
        match answer {
            Ok(StoreAnswer::Error(text)) => {
                Err(Error::Sentence(format!("{} refused: {}", self.store, printable(text))))
            }
            Ok(answer) => Ok(answer),
            Err(error) => Err(Error::Sentence(format!("{}: {error}", self.store))),
        }
    }

    fn unexpected(&self) -> Error {
        Error::Sentence(format!("{} gave an answer of another kind than expected", self.store))
    }
}

/// Adds bytes to a JSON object: as text, or in hexadecimal digits under another name if they are no text.
fn insert_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), text.into()),
        Err(_) => {
            let mut digits = String::new();
            // Writing to a String cannot fail.
            bytes.iter().for_each(|byte| _ = write!(digits, "{byte:02x}"));
            object.insert(format!("{name}_hex"), digits.into())
        }
    };
}

fn print_line(line: impl std::fmt::Display) -> Result<(), Error> {
    crate::print(&format!("{line}\n"))
}

fn get(args: &StoreGet) -> Result<(), Error> {
    let mut talk = StoreTalk::open(&args.choice)?;
    let value = match talk.call(&[b"GET", args.key.as_bytes()])? {
        StoreAnswer::Bulk(value) => value,
        StoreAnswer::Null => {
            let key = printable(&args.key);
            return Err(Error::Sentence(format!("{} has no key {key}", talk.store)));
        }
        _ => return Err(talk.unexpected()),
    };
    if args.choice.json {
        let mut object = Map::new();
        insert_bytes(&mut object, "key", args.key.as_bytes());
        insert_bytes(&mut object, "value", &value);
        return print_line(Value::Object(object));
    }
    if stdout().is_terminal() {
        return print_line(printable(&value));
    }
    let mut out = stdout().lock();
    Ok(out.write_all(&value).and_then(|()| out.flush()).map_err(Shared::Output)?)
}

fn set(args: &StoreSet) -> Result<(), Error> {
    let mut talk = StoreTalk::open(&args.choice)?;
    let value = match &args.value {
        Some(value) => value.clone().into_bytes(),
        None => {
            let mut value = Vec::new();
            // One byte more than a value may have is enough for the store to refuse it.
            let most = caravan_store::limits::VALUE_BYTES_MAX as u64 + 1;
            let read = stdin().lock().take(most).read_to_end(&mut value);
            read.map_err(|source| Shared::File { what: "read", path: "standard input".into(), source })?;
            value
        }
    };
    let expire_ms = args.expire.map(|expire| expire.as_millis().to_string());
    let mut words: Vec<&[u8]> = vec![b"SET", args.key.as_bytes(), &value];
    if let Some(expire_ms) = &expire_ms {
        words.extend([b"PX", expire_ms.as_bytes()]);
    }
    talk.call(&words)?;
    if args.choice.json { print_line(json!({ "set": true })) } else { Ok(()) }
}

fn del(args: &StoreDel) -> Result<(), Error> {
    let mut talk = StoreTalk::open(&args.choice)?;
    let keys = args.keys.iter().map(|key| key.as_bytes());
    let words: Vec<&[u8]> = std::iter::once(&b"DEL"[..]).chain(keys).collect();
    match talk.call(&words)? {
        StoreAnswer::Integer(deleted) if args.choice.json => print_line(json!({ "deleted": deleted })),
        StoreAnswer::Integer(deleted) => print_line(deleted),
        _ => Err(talk.unexpected()),
    }
}

/// Keys that one step of a scan looks at.
const SCAN_KEYS: &[u8] = b"1000";

fn scan(args: &StoreScan) -> Result<(), Error> {
    let mut talk = StoreTalk::open(&args.choice)?;
    let mut out = io::BufWriter::new(stdout().lock());
    let mut cursor = b"0".to_vec();
    loop {
        let words = [&b"SCAN"[..], &cursor, b"MATCH", args.pattern.as_bytes(), b"COUNT", SCAN_KEYS];
        let StoreAnswer::Array(parts) = talk.call(&words)? else { return Err(talk.unexpected()) };
        let [StoreAnswer::Bulk(next), StoreAnswer::Array(keys)] = &parts[..] else {
            return Err(talk.unexpected());
        };
        for key in keys {
            let StoreAnswer::Bulk(key) = key else { return Err(talk.unexpected()) };
            if args.choice.json {
                let mut object = Map::new();
                insert_bytes(&mut object, "key", key);
                writeln!(out, "{}", Value::Object(object)).map_err(Shared::Output)?;
            } else {
                writeln!(out, "{}", printable(key)).map_err(Shared::Output)?;
            }
        }
        if next == b"0" {
            return Ok(out.flush().map_err(Shared::Output)?);
        }
        cursor = next.clone();
    }
}

fn stat(args: &StoreStat) -> Result<(), Error> {
    let mut talk = StoreTalk::open(&args.choice)?;
    let StoreAnswer::Bulk(text) = talk.call(&[b"INFO", b"everything"])? else {
        return Err(talk.unexpected());
    };
    let lines = top::printable_lines(&text);
    let pairs = lines.iter().filter_map(|line| line.split_once(':'));
    if args.choice.json {
        let object: Map<String, Value> =
            pairs.map(|(name, value)| (name.to_owned(), figures(value))).collect();
        return print_line(Value::Object(object));
    }
    pairs.clone().try_for_each(|(name, value)| print_line(format_args!("{name:38} {value}")))
}

/// Returns a value of INFO as JSON: a number, an object for `calls=3,failed_calls=0`, or else text.
fn figures(value: &str) -> Value {
    let number = |value: &str| {
        let whole = value.parse::<u64>().ok().map(Value::from);
        whole.or_else(|| Some(Value::from(value.parse::<f64>().ok()?)))
    };
    let parts: Map<String, Value> = top::parts(value)
        .map(|(name, value)| (name.to_owned(), number(value).unwrap_or_else(|| value.into())))
        .collect();
    match parts.is_empty() {
        true => number(value).unwrap_or_else(|| value.into()),
        false => Value::Object(parts),
    }
}
