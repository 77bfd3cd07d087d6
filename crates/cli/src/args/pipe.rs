//! The arguments of `caravan pipe`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use caravan_bench::{quantity, size};
use caravan_pipe::connect::PortRange;
use caravan_pipe::coordinator::{Encryption, FanOut, HopTransport, PipelineOptions};
use caravan_pipe::limits::STREAMS_MAX;
use caravan_pipe::mover::{Compression, DeadOutlet, DigestKind, SlowOutlet};
use caravan_pipe::stage::Stage;
use caravan_pipe::tree::options::JOBS_MAX;
use clap::ArgAction;
use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};

use crate::args::SshArgs;

/// Join commands on several hosts by pipes
///
/// What the first stage writes, the second one reads, and so on, as in a shell's pipe. The first reads this
/// command's standard input, the last writes its standard output. A stage is HOST:'CMD', or :'CMD' for this
/// host; HOST is what ssh takes. A,B,C:'CMD' runs CMD on each of these hosts, and each gets the whole stream.
/// A stage that is '<FILE', '>FILE' or '>>FILE' is that file on its host.
///
/// Caravan starts itself on each host over ssh, and copies itself there first if it is missing. ssh carries commands
/// and control messages. The data takes another path: RDMA if both hosts have it, otherwise encrypted TCP, and the
/// ssh session only if no other path connects the hosts. Commands that follow each other on one host are joined by a
/// plain pipe.
// The brackets are what users type.
#[allow(rustdoc::broken_intra_doc_links)]
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  echo hello | caravan pipe host1:'tr [:lower:] [:upper:]' host2:'rev'
  caravan pipe backup@fileserver:'zfs send -I tank/media@last_backup tank/media@head' \\
      backup_server:'zfs recv tank-backup/media'
  ffmpeg -i sintel.mpg -pix_fmt yuv420p -f rawvideo - | \\
      caravan pipe playback_host:'ffplay -f rawvideo -pix_fmt yuv420p -s 720x480 -'
  caravan pipe -v host1:'</scratch/zeroes' host2:'>/dev/null'
  caravan pipe --progress :'<disk.img' a,b,c:'>/srv/disk.img'
  caravan pipe -n a:'pg_dump -Fc shop' b:'pg_restore -d shop'

Exit status:
  0      every stage succeeded, and every byte arrived
  1-254  the rightmost failing stage's: its own, or 128 + n if signal n ended it
  130    interrupted
  255    the pipeline was not set up, or a host or a connection was lost; standard error says what
  2      also: the command line cannot be understood

Standard output carries only the stream. Each line of a stage's standard error appears on standard error behind [host].")]
pub struct PipeArgs {
    /// What runs where: [user@]host[,host...]:'CMD', or :'CMD' for this host
    #[arg(value_name = "STAGE", required = true, value_parser = stage)]
    pub stages: Vec<Stage>,
    /// Print what would be done, and do nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// What is told
    #[command(flatten)]
    pub telling: Telling,
    /// What happens to the data
    #[command(flatten)]
    pub moving: Moving,
    /// One to many
    #[command(flatten)]
    pub spreading: Spreading,
    /// How hosts are reached
    #[command(flatten)]
    pub reach: Reach,
}

impl PipeArgs {
    /// What the coordinator is to know.
    pub fn options(&self) -> PipelineOptions {
        let spreading = &self.spreading;
        PipelineOptions {
            fan_out: match (spreading.chain, spreading.star) {
                (true, _) => FanOut::Chain,
                (_, true) => FanOut::Star,
                (false, false) => FanOut::Default,
            },
            on_slow: spreading.on_slow,
            on_dead: spreading.on_dead,
            ..self.reach.options(&self.moving, self.telling.progress)
        }
    }
}

/// What the user is told of.
#[derive(Clone, Debug, clap::Args)]
pub struct Telling {
    /// Print what carries the data and what is encrypted, and the figures at the end
    #[arg(short = 'v', long, action = ArgAction::Count)]
    pub verbose: u8,
    /// Show on standard error how much has passed, how fast, and what the transfer waits for
    #[arg(long)]
    pub progress: bool,
    /// Write the final figures as a JSON object to standard error, or to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

/// How a stream gets to several hosts.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "One to many")]
pub struct Spreading {
    /// Each host passes the stream on to the next, so that the source sends it once; the default. Refused with
    /// --on-slow drop and with --on-dead continue
    #[arg(long, conflicts_with = "star")]
    pub chain: bool,
    /// The source sends the stream to each host; the default with --on-slow drop or --on-dead continue
    #[arg(long)]
    pub star: bool,
    /// What happens to a host that holds up the others
    #[arg(long, value_name = "WHAT", default_value = "wait", value_parser = choice(ON_SLOW))]
    pub on_slow: SlowOutlet,
    /// What happens when one of several hosts fails
    #[arg(long, value_name = "WHAT", default_value = "fail", value_parser = choice(ON_DEAD))]
    pub on_dead: DeadOutlet,
}

/// A word that an option takes, its help, and what it means.
type Choice<T> = (&'static str, &'static str, T);

const ON_SLOW: &[Choice<SlowOutlet>] = &[
    ("wait", "All hosts go at its pace", SlowOutlet::Wait),
    (
        "drop",
        "The host is dropped once its unread data has filled the buffer (-m) for a second",
        SlowOutlet::Drop,
    ),
];
const ON_DEAD: &[Choice<DeadOutlet>] = &[
    ("fail", "All hosts end", DeadOutlet::Fail),
    (
        "continue",
        "The other hosts get the whole stream; the exit status still reports the failure",
        DeadOutlet::Continue,
    ),
];
const COMPRESSION: &[Choice<Compression>] =
    &[("zstd", "Zstandard: smaller", Compression::Zstd), ("lz4", "LZ4: faster", Compression::Lz4)];
const DIGEST: &[Choice<DigestKind>] = &[
    ("xxh3", "XXH3, 128 bits: finds damage", DigestKind::Xxh3),
    ("sha256", "SHA-256: finds damage, and takes longer; only encryption finds forgery", DigestKind::Sha256),
    ("off", "The length alone", DigestKind::Off),
];
const TRANSPORT: &[Choice<HopTransport>] = &[
    ("rdma", "RDMA devices on both hosts", HopTransport::Rdma),
    ("tcp", "TCP", HopTransport::Tcp),
    ("ssh", "The ssh session", HopTransport::Ssh),
];

/// Takes one of a few words.
fn choice<T: Clone + core::marker::Send + Sync + 'static>(
    choices: &'static [Choice<T>],
) -> impl TypedValueParser<Value = T> {
    let words = choices.iter().map(|(word, help, _)| PossibleValue::new(word).help(*help));
    PossibleValuesParser::new(words).try_map(|given| {
        let choice = choices.iter().find(|(word, ..)| *word == given);
        choice.map(|(.., meaning)| meaning.clone()).ok_or("it is none of these words")
    })
}

fn stage(text: &str) -> Result<Stage, String> {
    Stage::parse(text).map_err(|error| error.to_string())
}

/// Send standard input, or a file, to a host that runs `caravan recv`
///
/// Needs TCP between the two hosts, and no ssh. `caravan recv` prints a key, and this command asks for it; a sender
/// without the key is refused. The data is encrypted. `caravan recv` may be started up to 10 seconds after this
/// command.
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

Type the key, or put it into a file that no other user can read. Other users can see arguments and the environment.

Exit status:
  0    every byte arrived, and the other side has written all of it
  1    a file could not be read, or the other side could not write
  2    the command line cannot be understood
  130  interrupted
  255  no connection, or it was lost; standard error says why")]
pub struct Send {
    /// The host that receives: HOST, HOST:PORT or [ADDRESS]:PORT
    #[arg(value_name = "HOST[:PORT]")]
    pub host: String,
    /// The port, if it is not behind the host, and the file (default: standard input)
    #[arg(value_name = "[PORT] [FILE]", num_args = 0..)]
    pub rest: Vec<String>,
    /// The key
    #[command(flatten)]
    pub secret: KeySource,
    /// What is told
    #[command(flatten)]
    pub telling: Telling,
    /// What happens to the data
    #[command(flatten)]
    pub moving: Moving,
}

/// Receive what `caravan send` sends from another host
///
/// Listens on PORT, makes a key, prints on standard error what to type on the other host, and receives one stream
/// from a sender that knows the key. The file is written as FILE.part, and renamed once all of it has arrived. The
/// sending side chooses the compression, the digest and the number of connections.
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
    /// The port (default: 18516, or any other if that is taken), and the file (default: standard output)
    #[arg(value_name = "[PORT] [FILE]", num_args = 0..)]
    pub words: Vec<String>,
    /// The key
    #[command(flatten)]
    pub secret: KeySource,
    /// What is told
    #[command(flatten)]
    pub telling: Telling,
    /// Limit the rate to so many bytes per second: 500k, 100M, 1.5G, 64Ki
    #[arg(short = 'L', long = "rate", value_name = "RATE", value_parser = rate)]
    pub rate: Option<u64>,
    /// Hold up to so many bytes in memory between the network and the writer: 64M, 1Gi
    #[arg(short = 'm', long = "buffer", value_name = "SIZE", default_value = "0", hide_default_value = true, value_parser = caravan_bench::size)]
    pub buffer_bytes: u64,
    /// Listen on the first of these ports that is free: 40000:40010
    #[arg(short = 'p', long, value_name = "LO:HI", value_parser = ports)]
    pub ports: Option<PortRange>,
    /// Also accept data that is not encrypted, if the sending side asks for that
    #[arg(long)]
    pub insecure: bool,
}

/// Where the key comes from.
#[derive(Clone, Debug, clap::Args)]
pub struct KeySource {
    /// Read the key from this file, which no other user may be able to read
    #[arg(long = "key-file", value_name = "FILE")]
    pub file: Option<PathBuf>,
    // Old tools took it so: whoever still does is told what to do.
    #[arg(long = "key", value_name = "KEY", hide = true)]
    pub argument: Option<String>,
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

/// At most one host and file. A word that looks like a key is refused.
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

/// Copy files and directories between hosts, and continue a copy that was interrupted
///
/// SRC and DST are paths on this host or, as [USER@]HOST:PATH, on another. If both are on other hosts, the data goes
/// directly from one to the other. Write a local path that contains a colon as ./a:b. With several SRC, DST is a
/// directory. Names are chosen as by cp -r.
///
/// Keeps permissions, modification times, symbolic and hard links, holes and, if root writes, numeric owners. Does
/// not keep extended attributes and ACLs. Leaves out sockets and devices in a directory, with a message. A SRC that
/// is a device or a FIFO is read to its end, and a DST that is one is written to.
///
/// There is no --exclude and no --delete. -p sets ports, since permissions and times are always kept.
///
/// A file appears under its name only once it is complete. Until then a file of more than 1 MiB is called .NAME.part.
/// If a copy was interrupted, the same command continues with that file, if its content is the beginning of the
/// source.
// The brackets are what users type.
#[allow(rustdoc::broken_intra_doc_links)]
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan cp disk.img fs2:/srv/images/
  caravan cp -r fs1:/home/ann/photos fs2:/backup/ann
  caravan cp -r --update --progress projects backup@fs2:projects
  caravan cp -r fs1:/etc/. etc-of-fs1
  caravan cp -v big_file fs2:/dev/null
  caravan cp -c zstd -L 20M dump.sql jump@far.example.org:

Exit status:
  0    everything was copied
  1    a file, or everything, was not copied; standard error says which and why
  2    the command line cannot be understood
  130  interrupted
  255  the copy was not set up, or a host or a connection was lost; standard error says what")]
pub struct Copy {
    /// What to copy, and last the destination: PATH or [USER@]HOST:PATH
    #[arg(value_names = ["SRC", "DST"], required = true, num_args = 2..)]
    pub paths: Vec<OsString>,
    /// Copy directories with everything in them
    #[arg(short, long, visible_short_aliases = ['R', 'a'], alias = "archive")]
    pub recursive: bool,
    /// Skip files that exist at the destination with the same size and modification time
    #[arg(short, long, visible_alias = "resume")]
    pub update: bool,
    /// Threads on each side that read or write; by default one per core, and at least 4
    #[arg(short, long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=JOBS_MAX as u64))]
    pub jobs: Option<usize>,
    /// Write each file to the disk before it gets its name, so that it survives a power cut
    #[arg(long)]
    pub fsync: bool,
    /// Print what would be done, and do nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// What users of scp and rsync type, and what is so anyway
    #[arg(long, hide = true, aliases = ["times", "perms", "links", "sparse", "partial"])]
    pub preserve: bool,
    /// What is told
    #[command(flatten)]
    pub telling: Telling,
    /// What happens to the data
    #[command(flatten)]
    pub moving: Moving,
    /// How hosts are reached
    #[command(flatten)]
    pub reach: Reach,
}

/// Either half: one reads what is there and writes the stream, the other the reverse.
#[derive(Clone, Debug, clap::Args)]
pub struct CopyHalf {
    /// JSON, in pieces that an argument may be long
    #[arg(required = true)]
    pub options: Vec<String>,
}

/// PipelineOptions of a stream between hosts.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Moving")]
pub struct Moving {
    /// Limit the rate to so many bytes per second: 500k, 100M, 1.5G, 64Ki
    #[arg(short = 'L', long = "rate", value_name = "RATE", value_parser = rate)]
    pub rate: Option<u64>,
    /// Hold up to so many bytes in memory between reading and writing: 64M, 1Gi
    #[arg(short = 'm', long = "buffer", value_name = "SIZE", default_value = "0", hide_default_value = true, value_parser = size)]
    pub buffer_bytes: u64,
    /// TCP connections for each hop
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(STREAMS_MAX)))]
    pub streams: u32,
    /// Compress the data between hosts
    #[arg(short = 'c', long = "compress", value_name = "HOW", value_parser = choice(COMPRESSION))]
    pub compression: Option<Compression>,
    /// Compare this digest of the stream at its end, besides its length
    #[arg(long, visible_alias = "hash", value_name = "KIND", default_value = "xxh3", value_parser = choice(DIGEST))]
    pub digest: DigestKind,
    /// Encrypt all data that leaves a host; the default over TCP
    #[arg(long, conflicts_with = "insecure")]
    pub encrypt: bool,
    /// Do not encrypt over TCP: anybody on the network path can read and change the data
    #[arg(long)]
    pub insecure: bool,
    /// Listen for data on one of these ports, which the firewall must let through: 40000:40010
    #[arg(short = 'p', long, value_name = "LO:HI", value_parser = ports)]
    pub ports: Option<PortRange>,
}

impl Moving {
    /// What --encrypt and --insecure come to.
    pub fn sealing(&self) -> Encryption {
        match (self.encrypt, self.insecure) {
            (true, _) => Encryption::Always,
            (false, true) => Encryption::Never,
            (false, false) => Encryption::Default,
        }
    }
}

/// As fast as no network is.
const RATE_MAX: u64 = 1 << 50;

/// `100M`, `1.5G` (powers of 1,000), `64Ki` (of 1,024); also `1.5GB`, `64KiB`.
pub fn rate(text: &str) -> Result<u64, String> {
    match quantity(text.strip_suffix("/s").unwrap_or(text)) {
        Some(bytes) if (1..=RATE_MAX).contains(&bytes) => Ok(bytes),
        _ => Err("it takes bytes a second, such as 500k, 100M, 1.5G or 64Mi".into()),
    }
}

/// `LO:HI`, or a single port.
pub fn ports(text: &str) -> Result<PortRange, String> {
    let (first, last) = text.split_once([':', '-']).unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(PortRange { first, last }),
        _ => Err("it takes two ports, the lower one first, such as 40000:40010, or a single one (`caravan cp` keeps \
                  times and permissions without -p)"
            .into()),
    }
}

/// How hosts are reached: with ssh, and for the data.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Hosts")]
pub struct Reach {
    /// Carry data between hosts by this alone, and fail where it cannot
    #[arg(short = 't', long, value_name = "WHAT", value_parser = choice(TRANSPORT))]
    pub transport: Option<HopTransport>,
    /// The name or address under which other hosts reach this one
    #[arg(short = 'H', long = "here", value_name = "NAME", value_parser = name)]
    pub here: Option<String>,
    /// ssh's options
    #[command(flatten)]
    pub ssh: SshArgs,
    /// Never copy this program to a host; each host must have this version on its PATH
    #[arg(long)]
    pub no_bootstrap: bool,
    /// How long a host may be silent before it is taken for dead
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = silence)]
    pub silence: Duration,
}

impl Reach {
    /// What the coordinator is to know, with the defaults for one to many.
    pub fn options(&self, moving: &Moving, progress: bool) -> PipelineOptions {
        PipelineOptions {
            transport: self.transport,
            ports: moving.ports,
            here: self.here.clone(),
            sealing: moving.sealing(),
            digest: moving.digest,
            compression: moving.compression,
            streams: moving.streams,
            rate: moving.rate,
            buffer_bytes: moving.buffer_bytes,
            fan_out: FanOut::Default,
            on_slow: SlowOutlet::Wait,
            on_dead: DeadOutlet::Fail,
            progress,
            silence: self.silence,
        }
    }
}

/// Both ends say every second that they are there: less than two of that is chance.
const SILENCE_SECONDS_MIN: f64 = 2.0;
const SILENCE_SECONDS_MAX: f64 = 3600.0;

fn silence(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (SILENCE_SECONDS_MIN..=SILENCE_SECONDS_MAX).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!("it takes seconds from {SILENCE_SECONDS_MIN} to {SILENCE_SECONDS_MAX}, such as 10")),
    }
}

fn name(text: &str) -> Result<String, String> {
    match text.is_empty() || text.starts_with('-') || text.contains(char::is_whitespace) {
        true => Err("it takes a name or an address of this host, such as 192.0.2.7".into()),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    fn parsed(line: &str) -> Result<Command, String> {
        let words = ["caravan"].into_iter().chain(line.split(' ').filter(|word| !word.is_empty()));
        Args::try_parse_from(words).map(|args| args.command).map_err(|error| error.to_string())
    }

    fn pipe(line: &str) -> PipeArgs {
        let Ok(Command::Pipe(pipe)) = parsed(&format!("pipe {line}")) else { panic!("{line}") };
        *pipe
    }

    #[test]
    fn every_option_reaches_the_coordinator_or_ssh() {
        let options = pipe(":true").options();
        assert_eq!((options.sealing, options.fan_out), (Encryption::Default, FanOut::Default));
        assert_eq!((options.streams, options.silence), (1, caravan_pipe::limits::SILENCE_MAX));
        let words = "-v -v -n -p 4000:4010 -H lab -t tcp --encrypt --hash sha256 -c lz4 -L 10M -m 1Mi -P 4 \
                     --progress --json --star --on-slow drop --on-dead continue --no-bootstrap -F f -J j -o A=b \
                     -o C=d -i k --ssh other --silence 10 a:x";
        let pipe = pipe(words);
        let options = pipe.options();
        assert_eq!(options.transport, Some(HopTransport::Tcp));
        assert_eq!(options.ports.map(|ports| (ports.first, ports.last)), Some((4000, 4010)));
        assert_eq!(options.here.as_deref(), Some("lab"));
        assert_eq!((options.sealing, options.digest), (Encryption::Always, DigestKind::Sha256));
        assert_eq!(options.compression, Some(Compression::Lz4));
        assert_eq!((options.streams, options.rate, options.buffer_bytes), (4, Some(10_000_000), 1 << 20));
        assert_eq!((options.fan_out, options.on_slow), (FanOut::Star, SlowOutlet::Drop));
        assert_eq!((options.on_dead, options.progress), (DeadOutlet::Continue, true));
        assert_eq!(options.silence, Duration::from_secs(10));
        let ssh = pipe.reach.ssh;
        assert_eq!((ssh.options.len(), ssh.program), (2, "other".into()));
        assert_eq!(
            (ssh.identity, ssh.config, ssh.jump),
            (Some("k".into()), Some("f".into()), Some("j".into()))
        );
        assert!(pipe.dry_run && pipe.reach.no_bootstrap && pipe.telling.verbose == 2);
        assert_eq!((pipe.telling.json, pipe.stages.len()), (Some("-".into()), 1));
    }

    fn send(line: &str) -> Result<(String, u16, Option<PathBuf>), String> {
        let Command::Send(send) = parsed(&format!("send {line}"))? else { panic!("{line}") };
        send.destination().map(|to| (to.host, to.port, to.file))
    }

    fn recv(line: &str) -> Result<(Option<u16>, Option<PathBuf>), String> {
        let Command::Recv(recv) = parsed(&format!("recv {line}"))? else { panic!("{line}") };
        recv.destined().map(|to| (to.port, to.file))
    }

    #[test]
    fn hosts_ports_and_files_are_told_apart() {
        for (line, host, port, file) in [
            ("b", "b", Recv::PORT_DEFAULT, None),
            ("b:40000", "b", 40_000, None),
            ("b 40000", "b", 40_000, None),
            ("b 40000 disk.img", "b", 40_000, Some("disk.img")),
            ("-v b 40000 disk.img", "b", 40_000, Some("disk.img")),
            ("b disk.img", "b", Recv::PORT_DEFAULT, Some("disk.img")),
            ("b:40000 7", "b", 40_000, Some("7")),
            ("root@b:40000", "b", 40_000, None),
            ("[fd00::1]:40000", "fd00::1", 40_000, None),
            ("fd00::1 40000", "fd00::1", 40_000, None),
            ("[fd00::1]", "fd00::1", Recv::PORT_DEFAULT, None),
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

    #[test]
    fn units_are_decimal_or_binary() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("100k", 100_000),
            ("100K", 100_000),
            ("1.5G", 1_500_000_000),
            ("64Ki", 65_536),
            ("64KiB", 65_536),
            ("8MB", 8_000_000),
            ("0.5Mi", 524_288),
            ("1Ti", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        assert_eq!(rate("100MB/s"), Ok(100_000_000));
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in
            ["", "k", "i", "1i", "-1", "1e9", "1..5M", "M1", "1 M", "1X", "2Ti", "99999999999999999999", "∞"]
        {
            let refusal = size(text).expect_err(text);
            assert!(refusal.contains("such as 64k, 100M"), "{text}: {refusal}");
        }
        for text in ["0", "0k", "fast", "9999999T"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ports_are_a_range_or_one() {
        assert_eq!(ports("40000:40010"), Ok(PortRange { first: 40_000, last: 40_010 }));
        assert_eq!(ports("40000-40010"), Ok(PortRange { first: 40_000, last: 40_010 }));
        assert_eq!(ports("7"), Ok(PortRange { first: 7, last: 7 }));
        for text in ["", "0", "0:7", "9:7", "1:65536", "a:b", "1:2:3", ":5"] {
            assert!(ports(text).expect_err(text).contains("the lower one first"), "{text}");
        }
    }
}
