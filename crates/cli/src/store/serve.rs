//! `caravan store serve`: the keeper of a store.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use caravan_bench::Error as Shared;
use caravan_bench::number::binary;
use caravan_segment::{HostMemory, printable};
use caravan_store::Eviction;
use caravan_store_server::MemberOptions;
use caravan_store_server::keeper::channel::ClusterSettings;
use caravan_store_server::keeper::{KeeperEvent, KeeperOptions, StoreKeeper};
use caravan_store_server::limits::FILL_PIECE_BYTES;
use caravan_store_server::{ServerOptions, TlsOptions, host_name};
use serde_json::json;

use crate::args::{StoreEviction, StoreServe};
use crate::carry::stream::RecvOutput;
use crate::error::Error;
use crate::signals::{Asked, RunSignals};
use crate::store::detach::{self, DetachedOutput};
use crate::store::status::ask;
use crate::store::{absolute, password, sentence, socket_path, tell};

/// How long the end waits for, at most, after a signal.
const GLANCE: Duration = Duration::from_millis(100);

/// Serves until it is stopped.
pub fn run(args: &StoreServe) -> Result<(), Error> {
    if args.detach && !args.detached {
        return detach::start();
    }
    let signals = RunSignals::watch()?;
    let detached = args.detached.then(|| DetachedOutput::begin(args.log.as_deref())).transpose()?;
    let place = match &args.join {
        Some(address) => Some(place_of(args, address)?),
        None => args.cluster.clone(),
    };
    let cluster = place.map(|place| cluster(args, &place)).transpose()?;
    let socket_name = match &cluster {
        Some(cluster) => format!("{}.{}", args.name, cluster.member.name),
        None => args.name.clone(),
    };
    let socket = socket_path(args.socket.as_deref(), &socket_name)?;
    let cluster = cluster.map(|mut cluster| {
        cluster.member.socket.clone_from(&socket);
        cluster
    });
    check_memory(args.memory, HostMemory::read())?;
    let mut server = ServerOptions::new(&args.name, &socket);
    let at = |port| SocketAddr::new(args.bind, port);
    // With a certificate and one port, that port speaks TLS.
    server.address = args.port.filter(|_| args.tls_cert.is_none() || args.tls_port.is_some()).map(at);
    let files = args.tls_cert.as_deref().zip(args.tls_key.as_deref());
    if let Some((port, (certificate, key))) = args.tls_port.or(args.port).zip(files) {
        let (certificate, key) = (absolute(certificate)?, absolute(key)?);
        server.tls = Some(TlsOptions { address: at(port), certificate, key });
    }
    server.metrics = args.metrics;
    server.password = args.password_file.as_deref().map(password).transpose()?;
    server.eviction = match args.evict {
        StoreEviction::Refuse => Eviction::Refuse,
        StoreEviction::Lru => Eviction::LeastRecentlyUsed,
    };
    server.forwards = args.forward;
    if let Some(path) = &args.save {
        // A file that cannot be written is noticed now, rather than at the end.
        RecvOutput::open(Some(path)).map_err(sentence)?;
    }
    let own = Path::new("/proc/self/exe");
    let program =
        File::open(own).map_err(|source| Shared::File { what: "open", path: own.into(), source })?;
    let keeper = StoreKeeper::start(KeeperOptions {
        server,
        memory_bytes: args.memory,
        cluster,
        load: args.load.as_deref().map(absolute).transpose()?,
        save: args.save.as_deref().map(absolute).transpose()?,
        program: program.into(),
        log: detached.as_ref().map(DetachedOutput::descriptor).transpose()?,
    });
    keep(args, &signals, keeper.map_err(sentence)?, &socket, detached.as_ref())
}

fn keep(
    args: &StoreServe,
    signals: &RunSignals,
    mut keeper: StoreKeeper,
    socket: &Path,
    detached: Option<&DetachedOutput>,
) -> Result<(), Error> {
    let mut ended_by = None;
    while !keeper.is_over() {
        for event in keeper.step(GLANCE).map_err(sentence)? {
            if let KeeperEvent::Ready { pid } = event {
                print_ready(args, socket, &keeper, pid)?;
                detached.map_or(Ok(()), DetachedOutput::let_go)?;
            } else {
                tell(&words(&args.name, &event));
            }
        }
        if ended_by.is_none() {
            match signals.asked() {
                asked @ (Asked::Interrupt | Asked::End) => {
                    ended_by = Some(asked);
                    keeper.end();
                }
                // There is no file to read again.
                Asked::Reload | Asked::Nothing => {}
            }
        }
    }
    match ended_by {
        Some(Asked::Interrupt) => Err(Shared::Interrupted.into()),
        _ => Ok(()),
    }
}

/// Asks a server of the store where the configuration is.
fn place_of(args: &StoreServe, address: &str) -> Result<String, Error> {
    let secret = args.password_file.as_deref().map(password).transpose()?;
    let failed = |why: &dyn std::fmt::Display| {
        Error::Sentence(format!("cannot join the store {} at {}: {why}", args.name, printable(address)))
    };
    let told = ask(address, secret.as_deref()).map_err(|error| failed(&error))?;
    let store = &told.configuration.store;
    if *store != args.name {
        return Err(failed(&format!("that server is of the store {store}")));
    }
    if !told.place.starts_with("etcd://") && told.host != host_name() {
        return Err(failed(&format!(
            "its configuration is {}, a file of another host. Servers of several hosts need one in etcd",
            printable(&told.place)
        )));
    }
    Ok(told.place)
}

/// Returns what makes the server one of several.
fn cluster(args: &StoreServe, place: &str) -> Result<ClusterSettings, Error> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let reached = if args.bind.is_unspecified() { host.clone() } else { SocketHost(args.bind).to_string() };
    let place = match place.strip_prefix("etcd://") {
        Some(_) => place.to_owned(),
        None => absolute(Path::new(place))?.display().to_string(),
    };
    let pieces = args.recovery_rate / FILL_PIECE_BYTES;
    let member = MemberOptions {
        store: args.name.clone(),
        name: args.member.clone().unwrap_or(host),
        client_address: reached.clone(),
        socket: PathBuf::new(),
        tcp_address: Some(reached),
        part_bytes: args.memory,
        copies: args.copies,
        parts: args.parts,
        lease: args.lease,
        fill_pause: Duration::from_secs(1) / u32::try_from(pieces).unwrap_or(u32::MAX).max(1),
    };
    Ok(ClusterSettings { place, member })
}

/// The host of an address, as it stands before a port.
struct SocketHost(IpAddr);

impl std::fmt::Display for SocketHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "[{address}]"),
        }
    }
}

/// Refuses a limit that the store could not reach: writes would fail long before.
fn check_memory(limit: u64, host: Option<HostMemory>) -> Result<(), Error> {
    match host {
        Some(host) if limit > host.total_bytes => Err(Error::Sentence(format!(
            "--memory is {}, and this host, or the control group, has {} in all: give less",
            binary(limit),
            binary(host.total_bytes)
        ))),
        _ => Ok(()),
    }
}

fn words(name: &str, event: &KeeperEvent) -> String {
    match event {
        KeeperEvent::Ready { pid } => format!("store {name}: process {pid} serves it"),
        KeeperEvent::Lost { what, pause } if pause.is_zero() => {
            format!("store {name}: {what}. Another one is started with the same keys")
        }
        KeeperEvent::Lost { what, pause } => {
            let seconds = pause.as_secs_f64();
            format!("store {name}: {what}. Another one is started with the same keys in {seconds} s")
        }
        KeeperEvent::Left => format!("store {name}: this server has left, as it was asked to"),
        KeeperEvent::Upgraded { pid } => format!("store {name}: upgraded, process {pid} serves it"),
        KeeperEvent::NotUpgraded { why } => {
            format!("store {name}: not upgraded, the old program serves it: {why}")
        }
    }
}

/// Prints the one line that says where the store is served.
fn print_ready(args: &StoreServe, socket: &Path, keeper: &StoreKeeper, server: u32) -> Result<(), Error> {
    let pid = std::process::id();
    if args.json {
        let address = keeper.address().map(|address| address.to_string());
        let tls_address = keeper.tls_address().map(|address| address.to_string());
        let metrics = keeper.metrics().map(|address| format!("http://{address}/metrics"));
        return crate::print_json(&json!({
            "event": "ready", "name": args.name, "pid": pid, "server_pid": server, "socket": socket.display().to_string(),
            "address": address, "tls_address": tls_address, "metrics": metrics, "memory_bytes": args.memory,
        }));
    }
    let tcp = keeper.address().map_or_else(String::new, |address| format!(" and {address}"));
    let tls = keeper.tls_address().map_or_else(String::new, |address| format!(" and, with TLS, {address}"));
    let metrics = keeper
        .metrics()
        .map_or_else(String::new, |address| format!(", its counters at http://{address}/metrics"));
    let (memory, socket) = (binary(args.memory), printable(socket.as_os_str().as_encoded_bytes()));
    crate::print(&format!(
        "The store {} ({memory}) is served at {socket}{tcp}{tls}{metrics} by process {pid}.\n",
        args.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_the_host_cannot_have_is_refused() {
        let host = HostMemory { total_bytes: 120 << 20, available_bytes: 1 << 20 };
        for (limit, host) in [(1 << 30, None), (120 << 20, Some(host))] {
            assert!(check_memory(limit, host).is_ok(), "{limit}");
        }
        let error = check_memory(1 << 30, Some(host)).unwrap_err().to_string();
        let expected =
            "--memory is 1 GiB, and this host, or the control group, has 120 MiB in all: give less";
        assert_eq!(error, expected);
    }
}
