//! The arguments of `caravan send` and `caravan recv`.

use std::path::PathBuf;

use caravan_pipe::connect::Ports;

use super::{Moving, Telling, moving};

/// Send standard input, or a file, to a host that runs `caravan recv`
///
/// Nothing but TCP is needed between both hosts, no ssh. `caravan recv` says which key is asked for here, and
/// whoever does not know it is turned away; the data are encrypted. It may be started up to 10 seconds later.
// The brackets are what users type.
#[allow(rustdoc::broken_intra_doc_links)]
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tar c photos | caravan send backup.example.org
  caravan send 192.0.2.7:40000 disk.img --progress
  caravan send -v 192.0.2.7 40000 disk.img
  caravan send [2001:db8::7]:40000 < disk.img
  caravan send --key-file ~/.key backup.example.org dump.sql -c zstd

The key is typed, or in a file that nobody else may read: arguments and the environment can be seen by others.

Exit status:
  0    every byte arrived, and the other side has put them where it wanted them
  1    a file could not be read, or the other side could not write
  2    the command line cannot be understood
  130  interrupted
  255  no connection, or it was lost; standard error says why")]
pub struct Send {
    /// The host that receives: HOST, HOST:PORT or [ADDRESS]:PORT
    #[arg(value_name = "HOST[:PORT]")]
    pub host: String,
    /// The port, where it does not stand behind the host, and the file; without one, standard input
    #[arg(value_name = "[PORT] [FILE]", num_args = 0..)]
    pub rest: Vec<String>,
    /// The key
    #[command(flatten)]
    pub secret: KeySource,
    /// What is told
    #[command(flatten)]
    pub telling: Told,
    /// What happens to the data
    #[command(flatten)]
    pub moving: Moving,
}

/// Receive what `caravan send` sends from another host
///
/// Listens on PORT, makes a key, says on standard error what is to be typed on the other host, and takes one
/// stream from whoever knows the key. A file comes into being as FILE.part, and is renamed once all of it has
/// arrived. How the data are compressed and checked, and over how many connections they come, is the sending
/// side's choice.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan recv > disk.img
  caravan recv 40000 disk.img
  caravan recv -v 40000 | tar x
  caravan recv -p 40000:40010 dump.sql     the first of these ports that is free
  caravan recv --key-file ~/.key dump.sql  the key is in that file; made if it is not there

Exit status:
  0    every byte arrived
  1    the file could not be written
  2    the command line cannot be understood
  130  interrupted
  255  no connection, or it was lost; standard error says why")]
pub struct Recv {
    /// The port (18516, or any other if that one is taken), and the file; without one, standard output
    #[arg(value_name = "[PORT] [FILE]", num_args = 0..)]
    pub words: Vec<String>,
    /// The key
    #[command(flatten)]
    pub secret: KeySource,
    /// What is told
    #[command(flatten)]
    pub telling: Told,
    /// Bytes a second at most: 500k, 100M, 1.5G, 64Ki
    #[arg(short = 'L', long = "rate", value_name = "RATE", value_parser = moving::rate)]
    pub rate: Option<u64>,
    /// Bytes that may wait in memory between the network and the writer: 64M, 1Gi
    #[arg(short = 'm', long = "buffer", value_name = "SIZE", default_value = "0", hide_default_value = true, value_parser = caravan_bench::size)]
    pub buffer_bytes: u64,
    /// Listen on the first of these ports that is free: 40000:40010
    #[arg(short = 'p', long, value_name = "LO:HI", value_parser = moving::ports)]
    pub ports: Option<Ports>,
    /// Take data that are not encrypted, too, if the sending side wants it so
    #[arg(long)]
    pub insecure: bool,
}

/// Where the key comes from.
#[derive(Clone, Debug, clap::Args)]
pub struct KeySource {
    /// The file that the key is in, which nobody else may read
    #[arg(long = "key-file", value_name = "FILE")]
    pub file: Option<PathBuf>,
    // Old tools took it so: whoever still does is told what to do.
    #[arg(long = "key", value_name = "KEY", hide = true)]
    pub argument: Option<String>,
}

/// What the user is told of.
#[derive(Clone, Debug, clap::Args)]
pub struct Told {
    /// Say what carries the data and what is encrypted, and the figures at the end
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// How much has passed, how fast, and what it waits for, on standard error
    #[arg(long)]
    pub progress: bool,
    /// The final figures as a JSON object, on standard error or into FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

impl Told {
    /// As `caravan pipe` has it.
    pub fn telling(&self) -> Telling {
        Telling { verbose: self.verbose, dry_run: false, progress: self.progress, json: self.json.clone() }
    }
}

/// Where to send, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    pub host: String,
    pub port: u16,
    pub file: Option<PathBuf>,
}

/// Where to listen, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destined {
    /// `None`: the usual one, or any other.
    pub port: Option<u16>,
    pub file: Option<PathBuf>,
}

impl Send {
    /// What the words mean; a sentence if nothing.
    pub fn destination(&self) -> Result<Destination, String> {
        refuse_key(self.secret.argument.as_deref())?;
        if self.moving.ports.is_some() {
            return Err("the receiving side listens: give -p to `caravan recv`".to_owned());
        }
        let (host, port) = host_and_port(&self.host)?;
        let (port, files) = match (port, self.rest.split_first()) {
            (None, Some((word, files))) => match word.parse() {
                Ok(port) if port > 0 => (Some(port), files),
                _ => (None, &self.rest[..]),
            },
            (port, _) => (port, &self.rest[..]),
        };
        let file = one_file(files)?;
        Ok(Destination { host, port: port.unwrap_or(Recv::PORT_DEFAULT), file })
    }
}

impl Recv {
    /// Where it listens if that port is free, and where `caravan send` looks for it.
    pub const PORT_DEFAULT: u16 = 18_516;

    /// What the words mean; a sentence if nothing.
    pub fn destined(&self) -> Result<Destined, String> {
        refuse_key(self.secret.argument.as_deref())?;
        let (port, files) = match self.words.split_first().map(|(word, files)| (word.parse(), files)) {
            Some((Ok(port), files)) if port > 0_u16 => (Some(port), files),
            _ => (None, &self.words[..]),
        };
        if port.is_some() && self.ports.is_some() {
            return Err("PORT and -p both say where to listen: leave one of them out".to_owned());
        }
        Ok(Destined { port, file: one_file(files)? })
    }
}

/// At most one; what looks like a key is none.
fn one_file(words: &[String]) -> Result<Option<PathBuf>, String> {
    match words {
        [] => Ok(None),
        [file] if looks_like_a_key(file) => Err(key_is_seen()),
        [file] => Ok(Some(PathBuf::from(file))),
        [first, ..] if looks_like_a_key(first) => Err(key_is_seen()),
        [_, second, ..] => Err(format!(
            "`{second}` is one word too many: only a port and a file are taken. If it was meant as a key: {}",
            key_is_seen()
        )),
    }
}

fn refuse_key(argument: Option<&str>) -> Result<(), String> {
    argument.map_or(Ok(()), |_| Err(key_is_seen()))
}

fn key_is_seen() -> String {
    "a key is not taken as an argument, because everybody on this host can see arguments (ps). Leave it out: \
     `caravan recv` makes one and shows it, and `caravan send` asks for it; or put it into a file that nobody \
     else may read, and give --key-file FILE. Do not use the one just given any more"
        .to_owned()
}

/// Nothing but digits of a key, and as many as a file's name seldom has.
fn looks_like_a_key(word: &str) -> bool {
    word.len() >= 16 && word.chars().all(|letter| letter.is_ascii_hexdigit() || letter == '-')
}

fn host_and_port(text: &str) -> Result<(String, Option<u16>), String> {
    let wrong = || Err(format!("`{text}` is no HOST:PORT, such as 192.0.2.7:40000 or [2001:db8::7]:40000"));
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, port.strip_prefix(':').map_or_else(|| Some(""), Some)),
            None => return wrong(),
        },
        // More than one colon: an address without a port.
        None => match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') => (host, Some(port)),
            _ => (text, None),
        },
    };
    // user@ is ssh's business; here nobody logs in.
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    match port.map(str::parse) {
        _ if host.is_empty() => wrong(),
        None => Ok((host.to_owned(), None)),
        Some(Ok(port)) if port > 0 => Ok((host.to_owned(), Some(port))),
        Some(_) => wrong(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Sending {
        #[command(flatten)]
        send: Send,
    }

    #[derive(Debug, Parser)]
    struct Receiving {
        #[command(flatten)]
        recv: Recv,
    }

    const PORT_DEFAULT: u16 = Recv::PORT_DEFAULT;

    fn send(line: &str) -> Result<(String, u16, Option<PathBuf>), String> {
        let words = std::iter::once("send").chain(line.split(' '));
        let to = Sending::try_parse_from(words).map_err(|error| error.to_string())?.send.destination()?;
        Ok((to.host, to.port, to.file))
    }

    fn recv(line: &str) -> Result<(Option<u16>, Option<PathBuf>), String> {
        let words = std::iter::once("recv").chain(line.split(' ').filter(|word| !word.is_empty()));
        let to = Receiving::try_parse_from(words).map_err(|error| error.to_string())?.recv.destined()?;
        Ok((to.port, to.file))
    }

    #[test]
    fn hosts_ports_and_files_are_told_apart() {
        for (line, host, port, file) in [
            ("b", "b", PORT_DEFAULT, None),
            ("b:40000", "b", 40_000, None),
            ("b 40000", "b", 40_000, None),
            ("b 40000 disk.img", "b", 40_000, Some("disk.img")),
            ("-v b 40000 disk.img", "b", 40_000, Some("disk.img")),
            ("b disk.img", "b", PORT_DEFAULT, Some("disk.img")),
            ("b:40000 7", "b", 40_000, Some("7")),
            ("root@b:40000", "b", 40_000, None),
            ("[fd00::1]:40000", "fd00::1", 40_000, None),
            ("fd00::1 40000", "fd00::1", 40_000, None),
            ("[fd00::1]", "fd00::1", PORT_DEFAULT, None),
        ] {
            assert_eq!(send(line), Ok((host.to_owned(), port, file.map(PathBuf::from))), "{line}");
        }
        for line in ["b:", "b:0", "b:65536", ":40000", "[fd00::1", "[fd00::1]40000"] {
            assert!(send(line).expect_err(line).contains("is no HOST:PORT"), "{line}");
        }
        assert_eq!(recv(""), Ok((None, None)));
        assert_eq!(recv("40000"), Ok((Some(40_000), None)));
        assert_eq!(recv("40000 disk.img"), Ok((Some(40_000), Some("disk.img".into()))));
        assert_eq!(recv("disk.img"), Ok((None, Some("disk.img".into()))));
        assert!(recv("40000 -p 1:2").expect_err("both").contains("leave one of them out"));
        assert!(send("b -p 1:2").expect_err("a port").contains("give -p to `caravan recv`"));
    }

    #[test]
    fn a_key_in_an_argument_is_refused_with_the_remedy() {
        for refusal in [
            send("b 40000 0123456789abcdef0123456789abcdef"),
            send("b 40000 0123456789abcdef0123456789abcdef disk.img"),
            send("b 40000 secret disk.img"),
            send("b --key secret"),
            recv("40000 0123456789abcdef0123456789abcdef").map(|_| unreachable!()),
            recv("40000 secret disk.img").map(|_| unreachable!()),
        ] {
            let text = refusal.expect_err("a key");
            assert!(text.contains("can see arguments (ps)") && text.contains("--key-file FILE"), "{text}");
        }
    }
}
