//! The arguments of `caravan store`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use caravan_bench::seconds;
use caravan_store::limits;
use clap::{Subcommand, ValueEnum};

/// The name of a store whose user gives none.
pub const STORE_NAME: &str = "default";

/// A key-value store that speaks the Redis protocol.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    Serve(StoreServe),
    Get(StoreGet),
    Set(StoreSet),
    Del(StoreDel),
    Scan(StoreScan),
    Stat(StoreStat),
    Top(StoreTop),
    Save(StoreSave),
    Upgrade(StoreUpgrade),
}

/// Serve a store in memory until stopped
///
/// Serves a store with the Redis protocol on a UNIX socket, and with --port also on TCP. Prints one line when it is ready.
/// Redis's clients work unchanged. This process keeps the memory, and a child of it serves: if the child dies, or is
/// upgraded, another one goes on with the same keys. The keys are gone when the command ends, unless --save names a file.
/// Ctrl-C or SIGTERM ends it in order. Exit status: 0 on SIGTERM, 130 on Ctrl-C, 1 if something failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan store serve
  caravan store serve sessions --memory 1G --evict lru
  caravan store serve --port 6379
  caravan store serve --port 6379 --bind 192.0.2.7 --password-file secret \\
      --tls-cert server.crt --tls-key server.key
  caravan store serve --load keys.snapshot --save keys.snapshot
  caravan store serve --detach --log store.log

Then, for example:
  caravan store set greeting hello
  redis-cli -s $XDG_RUNTIME_DIR/caravan/default.sock get greeting")]
#[command(group(clap::ArgGroup::new("tcp").multiple(true)))]
pub struct StoreServe {
    /// The name of the store: letters, digits, '.', '_' and '-'
    #[arg(default_value = STORE_NAME, value_parser = store_name)]
    pub name: String,
    /// Listen on this TCP port, too; 0 for one that the system chooses
    #[arg(long, value_name = "N", group = "tcp")]
    pub port: Option<u16>,
    /// Speak TLS, with this certificate (PEM): on --tls-port if that is given, else on --port
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tcp"])]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Speak TLS on this TCP port, and none on --port; 0 for one that the system chooses
    #[arg(long, value_name = "N", group = "tcp", requires = "tls_cert")]
    pub tls_port: Option<u16>,
    /// The address of the ports. Any but this host's own takes a password
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", requires = "tcp")]
    pub bind: IpAddr,
    /// Give Prometheus the counters at http://ADDRESS:PORT/metrics; without ADDRESS, at 127.0.0.1
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = metrics_address)]
    pub metrics: Option<SocketAddr>,
    /// The path of the UNIX socket, instead of the one that follows from NAME
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The memory of the store, everything included: bytes, or with K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory_bytes)]
    pub memory: u64,
    /// What happens when the memory is used up
    #[arg(long, value_name = "POLICY", default_value = "refuse")]
    pub evict: StoreEviction,
    /// A file with the password that clients must give, in its first line
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Begin with the keys of this snapshot
    #[arg(long, value_name = "FILE")]
    pub load: Option<PathBuf>,
    /// Write a snapshot to this file at the end
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Serve in the background, and return when the store is ready
    #[arg(long)]
    pub detach: bool,
    /// Append the messages of a store in the background to this file, instead of dropping them
    #[arg(long, value_name = "FILE", requires = "detach")]
    pub log: Option<PathBuf>,
    /// Print the line as a JSON object
    #[arg(long)]
    pub json: bool,
    /// This is the process in the background
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// What `caravan store serve` starts.
#[derive(Debug, clap::Args)]
pub struct StoreServerProcess {
    /// The name of the store, for people who look at processes
    pub name: String,
}

/// What a store does when its memory is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoreEviction {
    /// Writes that need memory fail
    Refuse,
    /// Keys that were not used lately are deleted
    Lru,
}

/// Which store a command speaks to.
#[derive(Clone, Debug, clap::Args)]
pub struct StoreChoice {
    /// The name of the store
    #[arg(short, long, value_name = "NAME", default_value = STORE_NAME, value_parser = store_name)]
    pub name: String,
    /// The path of the store's UNIX socket, instead of its name
    #[arg(long, value_name = "PATH", conflicts_with = "name")]
    pub socket: Option<PathBuf>,
    /// A file with the password, in its first line
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Print the value of a key
///
/// Writes the bytes of the value to standard output as they are; to a terminal, with a line end and with escapes for what is no
/// text. Exit status: 1 if there is no such key, or if something failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan store get greeting
  caravan store get photo > photo.jpg
  caravan store get greeting --json | jq -r .value")]
pub struct StoreGet {
    /// The key
    pub key: String,
    #[command(flatten)]
    pub choice: StoreChoice,
}

/// Set the value of a key
///
/// Sets the value of a key, which loses its expiry unless a new one is given. Without VALUE, the value is what standard
/// input brings, byte for byte. Exit status: 1 if something failed, otherwise 0.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan store set greeting hello
  caravan store set token abc --expire 60
  caravan store set photo < photo.jpg")]
pub struct StoreSet {
    /// The key
    pub key: String,
    /// The value; standard input if left out
    pub value: Option<String>,
    /// Let the key expire after so many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub expire: Option<Duration>,
    #[command(flatten)]
    pub choice: StoreChoice,
}

/// Delete keys, and print how many existed
///
/// Deletes all of the keys at one moment, and prints the number of those that existed. Exit status: 1 if something
/// failed, otherwise 0, also where no key existed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan store del greeting
  caravan store del a b c --json")]
pub struct StoreDel {
    /// The keys
    #[arg(required = true)]
    pub keys: Vec<String>,
    #[command(flatten)]
    pub choice: StoreChoice,
}

/// List the keys
///
/// Prints each key on a line, with escapes for what is no text, in no order. A key that exists all the time is printed
/// once or more often; one that comes or goes meanwhile may be printed or not.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan store scan
  caravan store scan 'session:*'
  caravan store scan --json | jq -r .key")]
pub struct StoreScan {
    /// A pattern, as for the Redis command SCAN: `*`, `?`, `[a-c]`
    #[arg(default_value = "*")]
    pub pattern: String,
    #[command(flatten)]
    pub choice: StoreChoice,
}

/// Show the counters of a store
///
/// Prints what the Redis command INFO returns: memory by size class, clients, calls and times of each command, hits and
/// misses, expired and evicted keys, commits and conflicts of transactions. With --json, prints one object in which numbers
/// are numbers.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan store stat
  caravan store stat --json | jq .used_memory")]
pub struct StoreStat {
    #[command(flatten)]
    pub choice: StoreChoice,
}

/// Show what a store does, again and again
///
/// Shows the commands of the last interval with how long they took in the server, hits and misses, memory by size class, expired and
/// evicted keys, commits and conflicts of transactions. Of a pipeline, the first command is timed and then one in 17.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan store top
  caravan store top --once
  caravan store top --json | jq -c '.commands[] | {command, per_s, p99_us}'")]
pub struct StoreTop {
    /// Print one table and end
    #[arg(long)]
    pub once: bool,
    /// Seconds between refreshes
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    #[command(flatten)]
    pub choice: StoreChoice,
}

/// Save the keys of a store to a file
///
/// Writes a snapshot: all keys with their values and expiry, as they are at one moment, while clients are served. FILE is
/// replaced when the snapshot is complete and on the disk; if something fails, it stays as it was. Only the user who serves
/// the store can save it. Exit status: 1 if something failed, otherwise 0.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan store save keys.snapshot
  caravan store serve --load keys.snapshot")]
pub struct StoreSave {
    /// The file
    pub file: PathBuf,
    /// The name of the store
    #[arg(short, long, value_name = "NAME", default_value = STORE_NAME, value_parser = store_name)]
    pub name: String,
    /// The path of the store's UNIX socket, instead of its name
    #[arg(long, value_name = "PATH", conflicts_with = "name")]
    pub socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Replace the server of a store by this program's
///
/// Starts a server of this program in the place of the running one, over the same memory. Clients that are connected get the
/// replies to what they have sent, and their connections are closed; who connects meanwhile waits. Processes that have mapped
/// the memory go on reading. If the new server does not come up, the old program serves again. The process that keeps the
/// memory stays the same. Exit status: 1 if the old program serves still, otherwise 0.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ./caravan-new store upgrade
  caravan store upgrade sessions --program ./caravan-new")]
pub struct StoreUpgrade {
    /// The name of the store
    #[arg(default_value = STORE_NAME, value_parser = store_name)]
    pub name: String,
    /// The path of the store's UNIX socket, instead of its name
    #[arg(long, value_name = "PATH", conflicts_with = "name")]
    pub socket: Option<PathBuf>,
    /// The new program, instead of this one
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The longest name of a store: it is a part of a socket's path, which has at most 100 bytes.
const NAME_BYTES_MAX: usize = 40;

fn store_name(text: &str) -> Result<String, String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let fits = text.len() <= NAME_BYTES_MAX && !text.starts_with(['.', '-']) && !text.is_empty();
    match fits && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("it takes 1 to 40 letters, digits, '.', '_' and '-', the first no '.' or '-'".into()),
    }
}

fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse().map(|port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    port.or_else(|_| text.parse())
        .map_err(|_| "it takes a port, or an address and a port such as 192.0.2.7:9121 or [::1]:9121".into())
}

fn memory_bytes(text: &str) -> Result<u64, String> {
    let units = [("K", 10), ("M", 20), ("G", 30), ("T", 40), ("", 0)];
    let upper = text.to_ascii_uppercase();
    let found = units.iter().find_map(|(unit, shift)| Some((upper.strip_suffix(unit)?, shift)));
    let bytes = found
        .and_then(|(number, shift)| number.parse::<u64>().ok()?.checked_mul(1 << shift))
        .ok_or("it takes a number of bytes, or one with K, M, G or T, such as 512M")?;
    let (least, most) = (limits::MEMORY_BYTES_MIN, limits::MEMORY_BYTES_MAX);
    match (least..=most).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("a store takes {}M to {}G of memory", least >> 20, most >> 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(memory_bytes("16777216"), Ok(16 << 20));
        assert_eq!(memory_bytes("8192K"), Ok(limits::MEMORY_BYTES_MIN));
        assert_eq!(memory_bytes("64m"), Ok(64 << 20));
        assert_eq!(memory_bytes("128G"), Ok(limits::MEMORY_BYTES_MAX));
        for text in ["", "M", "1.5G", "-1", "1GB", "99999999T"] {
            assert!(memory_bytes(text).is_err_and(|why| why.starts_with("it takes a number")), "{text}");
        }
        for text in ["0", "1", "7M", "129G", "1T"] {
            assert_eq!(memory_bytes(text), Err("a store takes 8M to 128G of memory".into()), "{text}");
        }
    }

    #[test]
    fn metrics_are_for_this_host_unless_told_otherwise() {
        assert_eq!(metrics_address("9121"), Ok(([127, 0, 0, 1], 9121).into()));
        assert_eq!(metrics_address("0.0.0.0:1"), Ok(([0, 0, 0, 0], 1).into()));
        assert!(metrics_address("[::1]:9121").is_ok());
        for text in ["", "x", "65536", "localhost:1", "127.0.0.1"] {
            assert!(metrics_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_parts_of_paths() {
        assert!(store_name("a-b_c.1").is_ok());
        for text in ["", ".", "..", "-a", "a/b", "a b", &"a".repeat(41)] {
            assert!(store_name(text).is_err(), "{text}");
        }
    }
}
