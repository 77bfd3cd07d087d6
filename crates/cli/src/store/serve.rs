//! `caravan store serve`: a store and its server in this process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use caravan_bench::number::binary;
use caravan_segment::printable;
use caravan_segment::process::allow_descriptors;
use caravan_store::{Eviction, Store, StoreOptions};
use caravan_store_server::{ServerOptions, StoreServer, TlsOptions};
use serde_json::json;

use crate::args::{StoreEviction, StoreServe};
use crate::engine::run::{Asked, EngineSignals};
use crate::error::Error;
use crate::store::{password, socket_path};

/// How long the end waits for, at most, after a signal.
const GLANCE: Duration = Duration::from_millis(100);

/// Serves until it is stopped.
pub fn run(args: &StoreServe) -> Result<(), Error> {
    let signals = EngineSignals::watch()?;
    // Each connection takes a descriptor, and shells allow fewer than the limit of connections. Without more, a client
    // waits until another one leaves.
    allow_descriptors(u64::MAX);
    let eviction = match args.evict {
        StoreEviction::Refuse => Eviction::Refuse,
        StoreEviction::Lru => Eviction::LeastRecentlyUsed,
    };
    let store_options =
        StoreOptions::new(args.memory).eviction(eviction).name(format!("caravan-{}", args.name));
    let store = Store::embedded(store_options).map_err(sentence)?;
    let socket = args.socket.clone().map_or_else(|| socket_path(&args.name), Ok)?;
    let mut options = ServerOptions::new(&args.name, socket);
    let at = |port| SocketAddr::new(args.bind, port);
    // With a certificate and one port, that port speaks TLS.
    let plain = args.port.filter(|_| args.tls_cert.is_none() || args.tls_port.is_some());
    options.address = plain.map(at);
    options.tls = args
        .tls_port
        .or(args.port)
        .zip(args.tls_cert.clone())
        .zip(args.tls_key.clone())
        .map(|((port, certificate), key)| TlsOptions { address: at(port), certificate, key });
    options.metrics = args.metrics;
    options.password = args.password_file.as_deref().map(password).transpose()?;
    options.eviction = eviction;
    let tell = |text: &str| eprintln!("caravan: {}", printable(text));
    let server = StoreServer::start(Arc::new(store), options, tell).map_err(sentence)?;
    print_ready(args, &server)?;
    loop {
        match signals.asked() {
            Asked::Interrupt => {
                server.end();
                return Err(caravan_bench::Error::Interrupted.into());
            }
            Asked::End => {
                server.end();
                return Ok(());
            }
            // There is no file to read again.
            Asked::Reload | Asked::Nothing => std::thread::sleep(GLANCE),
        }
    }
}

fn sentence(error: impl std::fmt::Display) -> Error {
    Error::Sentence(error.to_string())
}

/// Prints the one line that says where the store is served.
fn print_ready(args: &StoreServe, server: &StoreServer) -> Result<(), Error> {
    let (pid, socket) = (std::process::id(), server.socket().display().to_string());
    if args.json {
        let address = server.address().map(|address| address.to_string());
        let tls_address = server.tls_address().map(|address| address.to_string());
        let metrics = server.metrics().map(|address| format!("http://{address}/metrics"));
        return crate::print_json(&json!({
            "event": "ready", "name": args.name, "pid": pid, "socket": socket, "address": address,
            "tls_address": tls_address, "metrics": metrics, "memory_bytes": args.memory,
        }));
    }
    let tcp = server.address().map_or_else(String::new, |address| format!(" and {address}"));
    let metrics = server
        .metrics()
        .map_or_else(String::new, |address| format!(", its counters at http://{address}/metrics"));
    let tls = server.tls_address().map_or_else(String::new, |address| format!(" and, with TLS, {address}"));
    let memory = binary(args.memory);
    crate::print(&format!(
        "The store {} ({memory}) is served at {socket}{tcp}{tls}{metrics} by process {pid}.\n",
        args.name
    ))
}
