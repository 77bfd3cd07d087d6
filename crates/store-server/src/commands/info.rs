//! INFO.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::commands::connection::REDIS_VERSION;
use crate::commands::settings::policy;
use crate::error::CommandError;
use crate::resp::words::CommandWords;
use crate::session::Session;

/// The names of the sections, in their order.
const SECTIONS: [&str; 5] = ["Server", "Clients", "Memory", "Stats", "Keyspace"];

pub(crate) fn info(session: &mut Session, words: CommandWords<'_>) -> Result<(), CommandError> {
    let asks_for_all = words.len() == 1
        || (1..words.len()).any(|at| ["all", "default", "everything"].iter().any(|name| words.is(at, name)));
    let mut text = String::new();
    for section in SECTIONS {
        if asks_for_all || (1..words.len()).any(|at| words.is(at, section)) {
            let separator = if text.is_empty() { "" } else { "\r\n" };
            // Writing to a String cannot fail.
            let _ = write!(text, "{separator}# {section}\r\n");
            for (name, value) in lines(session, section) {
                let _ = write!(text, "{name}:{value}\r\n");
            }
        }
    }
    session.reply.verbatim(&text);
    Ok(())
}

fn lines(session: &Session, section: &str) -> Vec<(&'static str, String)> {
    match section {
        "Server" => server(session),
        "Clients" => {
            let clients = session.state.clients().len();
            let most = session.state.clients_max();
            vec![("connected_clients", clients.to_string()), ("maxclients", most.to_string())]
        }
        "Memory" => memory(session),
        "Stats" => stats(session),
        _ => match session.store().counts().keys {
            0 => Vec::new(),
            keys => vec![("db0", format!("keys={keys}"))],
        },
    }
}

fn server(session: &Session) -> Vec<(&'static str, String)> {
    let facts = &session.state.facts;
    let uptime_s = session.now_ms.saturating_sub(facts.started_ms) / 1000;
    vec![
        ("redis_version", REDIS_VERSION.to_owned()),
        ("redis_mode", "standalone".to_owned()),
        ("server_name", "caravan".to_owned()),
        ("caravan_version", env!("CARGO_PKG_VERSION").to_owned()),
        ("caravan_store", facts.name.clone()),
        ("process_id", std::process::id().to_string()),
        ("tcp_port", facts.port.to_string()),
        ("uptime_in_seconds", uptime_s.to_string()),
    ]
}

fn memory(session: &Session) -> Vec<(&'static str, String)> {
    let counts = session.store().counts();
    vec![
        ("used_memory", counts.used_bytes.to_string()),
        ("maxmemory", counts.memory_bytes.to_string()),
        ("maxmemory_policy", String::from_utf8_lossy(&policy(&session.state)).into_owned()),
    ]
}

fn stats(session: &Session) -> Vec<(&'static str, String)> {
    let (counts, counters) = (session.store().counts(), &session.state.counters);
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed).to_string();
    vec![
        ("total_connections_received", read(&counters.connections)),
        ("total_commands_processed", read(&counters.commands)),
        ("total_net_input_bytes", read(&counters.input_bytes)),
        ("total_net_output_bytes", read(&counters.output_bytes)),
        ("rejected_connections", read(&counters.refused)),
        ("client_output_stalled_disconnections", read(&counters.stalled)),
        ("total_error_replies", read(&counters.errors)),
        ("expired_keys", counts.expired.to_string()),
        ("evicted_keys", counts.evicted.to_string()),
        ("keyspace_hits", counts.hits.to_string()),
        ("keyspace_misses", counts.misses.to_string()),
        ("transaction_commits", counts.commits.to_string()),
        ("transaction_conflicts", counts.conflicts.to_string()),
    ]
}
