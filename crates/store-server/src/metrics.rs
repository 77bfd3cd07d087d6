//! The counters as Prometheus reads them, in its text format, over HTTP: `GET /metrics`, one answer for each connection.
//!
//! One thread serves one connection after the other, each for a limited time: who asks is a program that asks every few
//! seconds, not a crowd.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SocketFlags, acceptfrom_with};

use crate::error::ServeError;
use crate::limits;
use crate::state::ServerState;

/// A socket at which the counters are asked for.
pub(crate) struct MetricsPost {
    listener: OwnedFd,
}

impl MetricsPost {
    pub(crate) fn of(listener: OwnedFd) -> Self {
        Self { listener }
    }

    /// Answers until the bell rings.
    pub(crate) fn serve(self, state: &ServerState, bell: &OwnedFd) {
        loop {
            let mut ready = [PollFd::new(bell, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            if poll(&mut ready, None).is_err() {
                continue;
            }
            if !ready[0].revents().is_empty() {
                return;
            }
            match acceptfrom_with(&self.listener, SocketFlags::CLOEXEC) {
                // Who asks may be gone, and is told nothing more.
                Ok((socket, _)) => _ = answer(TcpStream::from(socket), state),
                // The client was gone first, or descriptors are short: a pause keeps the thread from spinning.
                Err(_) => std::thread::sleep(limits::EXPIRY_INTERVAL),
            }
        }
    }
}

fn answer(mut stream: TcpStream, state: &ServerState) -> std::io::Result<()> {
    let deadline = Instant::now() + limits::METRICS_REQUEST_MAX;
    let mut head = Vec::new();
    let status = loop {
        if head.windows(4).any(|end| end == b"\r\n\r\n") {
            break status(&head);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() >= limits::METRICS_HEAD_BYTES_MAX {
            break "400 Bad Request";
        }
        stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes)? {
            0 => break "400 Bad Request",
            count => head.extend_from_slice(&bytes[..count]),
        }
    };
    let body = match status {
        "200 OK" => text(state),
        "404 Not Found" => "The counters are at /metrics.\n".to_owned(),
        _ => "It takes GET /metrics HTTP/1.1.\n".to_owned(),
    };
    let kind = if status == "200 OK" { "text/plain; version=0.0.4; charset=utf-8" } else { "text/plain" };
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.set_write_timeout(Some(limits::METRICS_REQUEST_MAX))?;
    stream.write_all(reply.as_bytes())
}

/// Returns the status of the answer to a request with this head.
fn status(head: &[u8]) -> &'static str {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    match words[..] {
        [b"GET", target, version] if version.starts_with(b"HTTP/1.") => {
            let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
            if path == b"/metrics" { "200 OK" } else { "404 Not Found" }
        }
        [_, _, version] if version.starts_with(b"HTTP/1.") => "405 Method Not Allowed",
        _ => "400 Bad Request",
    }
}

/// The text of the answer.
struct MetricsText(String);

impl MetricsText {
    /// Begins a metric; its samples follow.
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "# HELP caravan_store_{name} {help}\n# TYPE caravan_store_{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let escaped = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "caravan_store_{name}{labels} {value}");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.metric(name, kind, help);
        self.sample(name, &[], value);
    }
}

/// The upper ends of the histogram's buckets: each is four times the one before, from 250 ns to 1 s.
const BUCKETS: u32 = 12;
const FIRST_BUCKET_NS: u64 = 250;

fn text(state: &ServerState) -> String {
    let mut text = MetricsText(String::new());
    text.metric("info", "gauge", "The store that is served.");
    let labels = [("store", &state.facts.name[..]), ("version", env!("CARGO_PKG_VERSION"))];
    text.sample("info", &labels, 1);
    store(&mut text, state);
    server(&mut text, state);
    commands(&mut text, state);
    text.0
}

fn store(text: &mut MetricsText, state: &ServerState) {
    let parts = state.parts.table();
    let counts = parts.counts();
    text.single(
        "keys",
        "gauge",
        "Keys, those included that have expired and are not removed yet.",
        counts.keys,
    );
    text.single("sessions", "gauge", "Sessions, which keep the replies to requests.", counts.sessions);
    text.single("memory_limit_bytes", "gauge", "The limit of memory.", counts.memory_bytes);
    text.single("memory_used_bytes", "gauge", "Memory in use, everything included.", counts.used_bytes);
    let memory = parts.memory_counts();
    text.metric("class_places", "gauge", "Places for objects, by the bytes of a place.");
    for class in &memory.classes {
        text.sample("class_places", &[("bytes", &class.place_bytes.to_string())], class.places);
    }
    text.metric("class_used_places", "gauge", "Places with an object, by the bytes of a place.");
    for class in &memory.classes {
        text.sample("class_used_places", &[("bytes", &class.place_bytes.to_string())], class.used_places);
    }
    for (name, help, value) in [
        ("hits_total", "Keys that were looked up and found.", counts.hits),
        ("misses_total", "Keys that were looked up and not found.", counts.misses),
        ("commits_total", "Transactions that wrote.", counts.commits),
        ("conflicts_total", "Attempts of transactions that another one thwarted.", counts.conflicts),
        ("expired_keys_total", "Keys removed because they had expired.", counts.expired),
        ("evicted_keys_total", "Keys removed for want of memory.", counts.evicted),
    ] {
        text.single(name, "counter", help, value);
    }
}

fn server(text: &mut MetricsText, state: &ServerState) {
    let clients = state.client_counts();
    text.single("clients", "gauge", "Connections.", clients.all);
    text.single("links", "gauge", "Connections that have become links.", clients.links);
    let help = "Links whose client has got the memory of the store, to read it by itself.";
    text.single("readers", "gauge", help, clients.readers);
    let counters = &state.counters;
    for (name, help, counter) in [
        ("connections_total", "Connections that were accepted.", &counters.connections),
        ("refused_connections_total", "Connections beyond the limit.", &counters.refused),
        ("stalled_connections_total", "Connections closed because they took no replies.", &counters.stalled),
        ("input_bytes_total", "Bytes from clients.", &counters.input_bytes),
        ("output_bytes_total", "Bytes to clients.", &counters.output_bytes),
    ] {
        text.single(name, "counter", help, counter.load(Ordering::Relaxed));
    }
}

fn commands(text: &mut MetricsText, state: &ServerState) {
    let used: Vec<_> = state.tallies.all().filter(|(_, tally)| tally.is_used()).collect();
    text.metric("commands_total", "counter", "Commands that ran.");
    for (spec, tally) in &used {
        text.sample("commands_total", &[("command", spec.name)], tally.calls.load(Ordering::Relaxed));
    }
    for (name, calls) in state.tallies.calls() {
        text.sample("commands_total", &[("command", &name)], calls);
    }
    text.metric(
        "commands_refused_total",
        "counter",
        "Commands that did not run: wrong words, or no password.",
    );
    for (spec, tally) in &used {
        let value = tally.rejected.load(Ordering::Relaxed);
        text.sample("commands_refused_total", &[("command", spec.name)], value);
    }
    text.metric("commands_failed_total", "counter", "Commands that ran and replied with an error.");
    for (spec, tally) in &used {
        text.sample("commands_failed_total", &[("command", spec.name)], tally.failed.load(Ordering::Relaxed));
    }
    text.metric("errors_total", "counter", "Errors that clients got, by their first word.");
    for (code, count) in state.tallies.errors() {
        text.sample("errors_total", &[("code", &String::from_utf8_lossy(&code))], count);
    }
    text.metric("command_seconds", "histogram", "Times of commands; of a pipeline, of one command in 17.");
    for (spec, tally) in &used {
        let (times, label) = (tally.times.times(), ("command", spec.name));
        for end_ns in (0..BUCKETS).map(|step| FIRST_BUCKET_NS << (2 * step)) {
            let count: u64 = times.iter().filter(|(ns, _)| *ns <= end_ns).map(|(_, count)| count).sum();
            let end = (end_ns as f64 / 1e9).to_string();
            text.sample("command_seconds_bucket", &[label, ("le", &end)], count);
        }
        let count: u64 = times.iter().map(|(_, count)| count).sum();
        text.sample("command_seconds_bucket", &[label, ("le", "+Inf")], count);
        text.sample("command_seconds_sum", &[label], tally.times.sum_ns() as f64 / 1e9);
        text.sample("command_seconds_count", &[label], count);
    }
}

/// Starts the thread.
pub(crate) fn spawn(
    post: MetricsPost,
    state: Arc<ServerState>,
    bell: Arc<OwnedFd>,
) -> Result<std::thread::JoinHandle<()>, ServeError> {
    let thread = std::thread::Builder::new().name("store-metrics".to_owned());
    thread.spawn(move || post.serve(&state, &bell)).map_err(ServeError::system("start a thread"))
}
