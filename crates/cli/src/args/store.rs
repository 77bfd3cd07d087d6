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
    Serve(Box<StoreServe>),
    Get(StoreGet),
    Set(StoreSet),
    Del(StoreDel),
    Scan(StoreScan),
    Stat(StoreStat),
    Top(StoreTop),
    Save(StoreSave),
    Upgrade(StoreUpgrade),
    Status(StoreStatus),
    Leave(StoreLeave),
    Demo(StoreDemo),
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
  caravan store serve shop --cluster shop.json --port 7001 --member one
  caravan store serve shop --join 127.0.0.1:7001 --port 7002 --member two
  caravan store serve shop --cluster etcd://10.0.0.1:2379/shop --port 6379 --bind 10.0.0.7 \\
      --password-file secret

Then, for example:
  caravan store set greeting hello
  redis-cli -s $XDG_RUNTIME_DIR/caravan/default.sock get greeting")]
#[command(group(clap::ArgGroup::new("tcp").multiple(true)))]
#[command(group(clap::ArgGroup::new("several").args(["cluster", "join"])))]
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
    /// The path of the UNIX socket, instead of the one that follows from NAME, or from NAME.MEMBER
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Be one of several servers of the store, whose configuration is at PLACE: a file for servers of this host, or
    /// etcd://HOST:PORT[,HOST:PORT...]/KEY. The first server makes it
    #[arg(long, value_name = "PLACE", requires = "port", conflicts_with_all = ["load", "save"])]
    pub cluster: Option<String>,
    /// Be one of several servers of the store, of which one is at ADDRESS: HOST:PORT, or unix:PATH. That one says where the
    /// configuration is
    #[arg(long, value_name = "ADDRESS", requires = "port", conflicts_with_all = ["load", "save"])]
    pub join: Option<String>,
    /// The name of this server among the others, instead of this host's name
    #[arg(long, value_name = "NAME", requires = "several", value_parser = store_name)]
    pub member: Option<String>,
    /// How many servers have a copy of each key: 2 if left out when the store is made. It stays
    #[arg(long, value_name = "N", requires = "several", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub copies: Option<u8>,
    /// Into how many parts the keys are divided, each of which has its own memory: 16 if left out when the store is made. It
    /// stays
    #[arg(long, value_name = "N", requires = "several", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub parts: Option<u16>,
    /// How long servers wait for one that is silent before others take over, from 50ms to 10s: 250ms if left out when
    /// the store is made. It stays
    #[arg(long, value_name = "TIME", requires = "several", value_parser = lease)]
    pub lease: Option<Duration>,
    /// How fast a new copy is filled: bytes in a second, or with K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "1G", requires = "several", value_parser = recovery_rate)]
    pub recovery_rate: u64,
    /// Do what clients ask of keys of other servers, instead of naming the server: for clients that do not know Redis Cluster
    #[arg(long, requires = "cluster")]
    pub forward: bool,
    /// The memory of the store, or with --cluster of each part, everything included: bytes, or with K, M, G or T
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

/// Show the servers of a store, its parts and their copies
///
/// Shows the servers with their addresses and whether they answer, and for each part of the store its hash slots, its primary and
/// its other copies: what carries the stream to them (shm, rdma or tcp), and how far they are behind. Asks a server of
/// this host, and then the others. With --cluster, it asks no server, and shows what the configuration at PLACE says. Exit status: 1
/// if something failed, otherwise 0.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan store status --name shop
  caravan store status --cluster shop.json
  caravan store status --name shop --json | jq -r '.servers[] | select(.state == \"silent\") | .name'")]
pub struct StoreStatus {
    /// Read the configuration at PLACE, as for `serve --cluster`, and ask no server
    #[arg(long, value_name = "PLACE", conflicts_with_all = ["name", "socket", "password_file"])]
    pub cluster: Option<String>,
    #[command(flatten)]
    pub choice: StoreChoice,
}

/// Remove a server from a store of several servers
///
/// The server hands its parts over to the others, one after the other, while clients are served. When it has none left, it
/// leaves the store and ends. The command shows how many copies are left to hand over, and returns when the server has left. If it
/// is interrupted, the server goes on leaving. Exit status: 0 if the server has left, 1 if not, 130 on Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan store leave shop.json --member two
  caravan store leave etcd://10.0.0.1:2379/shop --member host7 --password-file secret --json")]
pub struct StoreLeave {
    /// The configuration, as for `serve --cluster`: a file, or etcd://HOST:PORT[,HOST:PORT...]/KEY
    #[arg(value_name = "PLACE")]
    pub place: String,
    /// The name of the server
    #[arg(long, value_name = "NAME", value_parser = store_name)]
    pub member: String,
    /// A file with the password, in its first line
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Print the progress and the end as JSON: an object in each line
    #[arg(long)]
    pub json: bool,
}

/// Show a store of several servers that are killed while clients write
///
/// Starts servers of one store on this machine, in a temporary folder, and clients that move money between accounts; readers add it
/// up all the time. With --kill, a server is killed with SIGKILL every few seconds, once all copies are complete: in turn its process
/// alone, which its keeper starts again, and both, as when a host dies. Each line tells the commits in a second; the median and
/// the longest time from a kill to the next commit on a part of that server; and whether all sums were right. At the end come
/// the median, the 95th percentile and the longest for both ways of killing; and how long clients waited at most, in the second after a
/// kill, of parts of which that server had no copy. The last line is the verdict: whether every
/// acknowledged transfer is there exactly once and no refused one. Exit status: 0 if the verdict is good, 1
/// if not, 130 on Ctrl-C.
///
/// With --at, the clients use a store of several servers that runs already, and it is for you to stop its servers and cut its
/// network. Ctrl-C then ends the clients, and the verdict follows. Their keys are deleted if it is good.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan store demo
  caravan store demo --kill --seconds 60
  caravan store demo --kill --fill 1G --seconds 60
  caravan store demo --nodes 5 --kill --json | jq -c 'select(.event == \"verdict\")'
  caravan store demo --at 10.0.0.7:6379 --password-file secret --seconds 600")]
pub struct StoreDemo {
    /// How many servers there are
    #[arg(long, value_name = "N", default_value = "3", value_parser = node_count)]
    pub nodes: usize,
    /// Start no servers, and use the store of the server at this address
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["nodes", "kill"])]
    pub at: Option<String>,
    /// A file with the password of that store, in its first line
    #[arg(long, value_name = "FILE", requires = "at")]
    pub password_file: Option<PathBuf>,
    /// How many clients move money in each part of the store
    #[arg(long, value_name = "N", default_value = "2", value_parser = client_count)]
    pub clients: usize,
    /// How many transfers there are in a second at most, on a host with little to spare; as many as possible if left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Kill servers
    #[arg(long)]
    pub kill: bool,
    /// Put so much into the store first; its servers take twice as much memory, and a quarter more
    #[arg(long, value_name = "SIZE", value_parser = caravan_bench::size, conflicts_with = "at")]
    pub fill: Option<u64>,
    /// How long clients write, in seconds
    #[arg(long, value_name = "S", default_value = "20", value_parser = seconds)]
    pub seconds: Duration,
    /// Print JSON: an object in each line
    #[arg(long)]
    pub json: bool,
}

fn node_count(text: &str) -> Result<usize, String> {
    let most = crate::store::DEMO_NODES_MAX;
    let nodes = text.parse().ok().filter(|nodes| (1..=most).contains(nodes));
    nodes.ok_or_else(|| format!("it takes 1 to {most} servers"))
}

fn client_count(text: &str) -> Result<usize, String> {
    let clients = text.parse().ok().filter(|clients| (1..=100).contains(clients));
    clients.ok_or_else(|| "it takes 1 to 100 clients".to_owned())
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
    let bytes = byte_count(text)?;
    let (least, most) = (limits::MEMORY_BYTES_MIN, limits::MEMORY_BYTES_MAX);
    match (least..=most).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("a store takes {}M to {}G of memory", least >> 20, most >> 30)),
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(""), 1.0),
    };
    let seconds = number.parse::<f64>().map(|number| number * unit);
    let lease = seconds.ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let range = caravan_cluster::limits::LEASE_MIN..=caravan_cluster::limits::LEASE_MAX;
    lease
        .filter(|lease| range.contains(lease))
        .ok_or_else(|| "it takes a time between 50ms and 10s, such as 250ms or 2s".to_owned())
}

fn recovery_rate(text: &str) -> Result<u64, String> {
    let bytes = byte_count(text)?;
    if bytes >= 1 << 20 { Ok(bytes) } else { Err("it takes at least 1M in a second".to_owned()) }
}

fn byte_count(text: &str) -> Result<u64, String> {
    let units = [("K", 10), ("M", 20), ("G", 30), ("T", 40), ("", 0)];
    let upper = text.to_ascii_uppercase();
    let found = units.iter().find_map(|(unit, shift)| Some((upper.strip_suffix(unit)?, shift)));
    let bytes = found.and_then(|(number, shift)| number.parse::<u64>().ok()?.checked_mul(1 << shift));
    bytes.ok_or_else(|| "it takes a number of bytes, or one with K, M, G or T, such as 512M".to_owned())
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
