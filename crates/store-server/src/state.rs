//! What all connections of a server share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use caravan_store::{ConnectOptions, Eviction, StoreFunctions};
use serde::{Deserialize, Serialize};

use crate::errands::OwnClient;
use crate::limits;
use crate::parts::ServedParts;
use crate::tally::CommandTallies;

/// What a server is started with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerFacts {
    /// The name of the store.
    pub name: String,
    /// The port on TCP, 0 for none.
    pub port: u16,
    /// The path of the UNIX socket, empty for none.
    pub socket: String,
    /// Whether other hosts can reach it; the password then cannot be removed.
    pub is_exposed: bool,
    /// What happens when the memory is used up.
    pub eviction: Eviction,
    /// When the server started, in milliseconds since 1970.
    pub started_ms: u64,
    /// Whether each thread has its share of the connections from the start.
    pub spreads: bool,
    /// The functions that clients may call.
    pub functions: Arc<StoreFunctions>,
    /// Whether it does requests on keys of other servers itself, instead of sending the client there.
    pub forwards: bool,
}

impl ServerFacts {
    /// Returns the facts of a server that listens nowhere.
    pub fn new(name: impl Into<String>) -> Self {
        let (port, is_exposed, started_ms, spreads, forwards) = (0, false, 0, false, false);
        let eviction = Eviction::Refuse;
        let (name, socket, functions) = (name.into(), String::new(), Arc::default());
        Self { name, port, socket, is_exposed, eviction, started_ms, spreads, forwards, functions }
    }
}

/// The settings that clients can change (CONFIG SET).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientSettings {
    /// The password that clients give.
    pub password: Option<Vec<u8>>,
    /// The largest number of connections at a time.
    pub clients_max: usize,
}

/// Who wants to know what [`ClientSettings`] are, on the thread that has changed them.
#[derive(Default)]
struct SettingsWatcher(OnceLock<Box<dyn Fn(ClientSettings) + Send + Sync>>);

impl std::fmt::Debug for SettingsWatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SettingsWatcher")
    }
}

/// What all connections of a server share: its parts of the store, the settings, the counters and the list of clients.
#[derive(Debug)]
pub struct ServerState {
    pub(crate) parts: Arc<ServedParts>,
    pub(crate) facts: ServerFacts,
    password: RwLock<Option<Vec<u8>>>,
    clients_max: AtomicUsize,
    watcher: SettingsWatcher,
    clients: Mutex<BTreeMap<u64, Arc<ClientCard>>>,
    next_client: AtomicU64,
    /// The clients that have attached, and those of them that have got the memory.
    links: AtomicU64,
    readers: AtomicU64,
    pub(crate) counters: ServerCounters,
    pub(crate) tallies: CommandTallies,
    /// Commands of other connections hold this shared. A transaction with a command on the whole store (KEYS, FLUSHALL) holds it
    /// alone, because the store's own transactions cover single keys.
    pub(crate) turn: RwLock<()>,
    /// This server as a client of all servers of the store.
    pub(crate) own_client: OwnClient,
}

/// Counters since the start. They order nothing, so all accesses are relaxed.
#[derive(Debug, Default)]
pub(crate) struct ServerCounters {
    pub(crate) commands: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) input_bytes: AtomicU64,
    pub(crate) output_bytes: AtomicU64,
    pub(crate) stalled: AtomicU64,
}

impl ServerCounters {
    fn all(&self) -> [&AtomicU64; 7] {
        let Self { commands, connections, refused, errors, input_bytes, output_bytes, stalled } = self;
        [commands, connections, refused, errors, input_bytes, output_bytes, stalled]
    }
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl ServerState {
    /// Returns the state of a server of these parts.
    pub fn new(parts: Arc<ServedParts>, facts: ServerFacts, password: Option<Vec<u8>>) -> Self {
        Self {
            parts,
            facts,
            password: RwLock::new(password),
            clients_max: AtomicUsize::new(limits::CLIENTS_DEFAULT),
            watcher: SettingsWatcher::default(),
            clients: Mutex::default(),
            next_client: AtomicU64::new(1),
            links: AtomicU64::new(0),
            readers: AtomicU64::new(0),
            counters: ServerCounters::default(),
            tallies: CommandTallies::default(),
            turn: RwLock::new(()),
            own_client: OwnClient::default(),
        }
    }

    /// Sets the server's counters back to zero. Those of the store stay.
    pub(crate) fn clear_counters(&self) {
        self.counters.all().into_iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
        self.tallies.clear();
    }

    pub(crate) fn has_password(&self) -> bool {
        self.password.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Returns how this server connects to others of its store, itself included, of which no answer takes longer than `wait`.
    pub(crate) fn connect_options(&self, address: &str, wait: Duration) -> ConnectOptions {
        let mut options = ConnectOptions::new(address).connect_wait(wait).answer_wait(wait);
        options.password = self.password.read().unwrap_or_else(PoisonError::into_inner).clone();
        options
    }

    pub(crate) fn password(&self) -> Vec<u8> {
        self.password.read().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    pub(crate) fn set_password(&self, password: &[u8]) {
        let password = (!password.is_empty()).then(|| password.to_vec());
        *self.password.write().unwrap_or_else(PoisonError::into_inner) = password;
        self.tell_settings();
    }

    /// Returns whether this is the password. The time depends on the lengths only.
    pub(crate) fn is_password(&self, tried: &[u8]) -> bool {
        let password = self.password();
        let differences =
            tried.iter().zip(password.iter().cycle()).fold(0, |all, (left, right)| all | (left ^ right));
        differences == 0 && tried.len() == password.len()
    }

    pub(crate) fn clients_max(&self) -> usize {
        self.clients_max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_clients_max(&self, clients: usize) {
        self.clients_max.store(clients, Ordering::Relaxed);
        self.tell_settings();
    }

    /// Calls `watcher` now and after each change, before the client that made it gets its reply. There is one watcher.
    pub(crate) fn watch_settings(&self, watcher: Box<dyn Fn(ClientSettings) + Send + Sync>) {
        let _ = self.watcher.0.set(watcher);
        self.tell_settings();
    }

    fn tell_settings(&self) {
        if let Some(watcher) = self.watcher.0.get() {
            let password = self.password.read().unwrap_or_else(PoisonError::into_inner).clone();
            watcher(ClientSettings { password, clients_max: self.clients_max() });
        }
    }

    /// Enters a new connection into the list, which it leaves when the card's entry is dropped.
    pub(crate) fn enter(self: &Arc<Self>, address: String, now_ms: u64) -> ClientEntry {
        count(&self.counters.connections, 1);
        let id = self.next_client.fetch_add(1, Ordering::Relaxed);
        let card = Arc::new(ClientCard {
            id,
            address,
            entered_ms: now_ms,
            busy_ms: AtomicU64::new(now_ms),
            unsent_bytes: AtomicU64::new(0),
            notes: Mutex::default(),
        });
        self.clients().insert(id, Arc::clone(&card));
        ClientEntry { state: Arc::clone(self), card, link: None }
    }

    /// Returns how many clients there are.
    pub(crate) fn client_counts(&self) -> ClientCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all = self.clients().len() as u64;
        ClientCounts { all, links: read(&self.links), readers: read(&self.readers) }
    }

    pub(crate) fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ClientCard>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What CLIENT LIST tells about a connection.
#[derive(Debug)]
pub(crate) struct ClientCard {
    pub(crate) id: u64,
    pub(crate) address: String,
    pub(crate) entered_ms: u64,
    pub(crate) busy_ms: AtomicU64,
    /// Bytes of replies that wait for the client.
    pub(crate) unsent_bytes: AtomicU64,
    notes: Mutex<ClientNotes>,
}

/// The part of a card that commands change.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientNotes {
    pub(crate) name: Vec<u8>,
    pub(crate) command: &'static str,
    pub(crate) is_resp3: bool,
    /// The commands since MULTI, and the bytes of memory that they take.
    pub(crate) queued: Option<(usize, usize)>,
}

/// How many clients there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientCounts {
    pub(crate) all: u64,
    /// Those whose connection has become a link.
    pub(crate) links: u64,
    /// Those of the links whose client has got a descriptor of the memory, and reads it by itself.
    pub(crate) readers: u64,
}

impl ClientCard {
    pub(crate) fn notes(&self) -> MutexGuard<'_, ClientNotes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place in the list of clients.
#[derive(Debug)]
pub(crate) struct ClientEntry {
    state: Arc<ServerState>,
    pub(crate) card: Arc<ClientCard>,
    /// Of a link: whether its client is a reader.
    link: Option<bool>,
}

impl ClientEntry {
    /// Notes that the connection has become a link.
    pub(crate) fn become_link(&mut self, is_reader: bool) {
        self.card.notes().command = "caravan.attach";
        self.link = Some(is_reader);
        count(&self.state.links, 1);
        count(&self.state.readers, u64::from(is_reader));
    }
}

impl Drop for ClientEntry {
    fn drop(&mut self) {
        self.state.clients().remove(&self.card.id);
        if let Some(is_reader) = self.link {
            self.state.links.fetch_sub(1, Ordering::Relaxed);
            self.state.readers.fetch_sub(u64::from(is_reader), Ordering::Relaxed);
        }
    }
}
