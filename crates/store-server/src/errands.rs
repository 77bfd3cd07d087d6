//! Errands: requests that take other servers.
//!
//! A request with keys of several parts is a transaction over these parts, which this server does as a client of all servers, itself
//! included (`caravan_store`'s `ClusterStore`). That may wait for another server, and a worker waits for nobody. So the worker
//! hands the connection to one of the threads here, which does the one request and hands the connection back. While such a
//! thread waits, it holds no table of parts and no turn, so that parts come and go meanwhile. A request that finds its key locked
//! by such a transaction waits here, too.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use caravan_store::{ClusterStore, StoreError};

use crate::connection::{ConnectionWait, StoreConnection};
use crate::limits;
use crate::state::ServerState;
use crate::worker::{WorkerPost, unix_ms};

/// A connection whose next request takes other servers.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) connection: Box<StoreConnection>,
    /// The worker that counts the connection, and gets it back.
    pub(crate) post: Arc<WorkerPost>,
}

/// The threads that do errands. There are none until they are needed.
#[derive(Debug)]
pub(crate) struct ErrandThreads {
    state: Arc<ServerState>,
    line: Mutex<ErrandLine>,
    news: Condvar,
}

/// The errands that wait for a thread.
#[derive(Debug, Default)]
struct ErrandLine {
    waiting: VecDeque<Errand>,
    threads: Vec<JoinHandle<()>>,
    /// Threads without an errand.
    idle: usize,
    is_ending: bool,
}

impl ErrandThreads {
    pub(crate) fn new(state: &Arc<ServerState>) -> Self {
        Self { state: Arc::clone(state), line: Mutex::default(), news: Condvar::new() }
    }

    fn line(&self) -> MutexGuard<'_, ErrandLine> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does an errand soon, and gives the connection back to its worker. A server that ends closes it.
    pub(crate) fn take(self: &Arc<Self>, errand: Errand) {
        let mut line = self.line();
        if line.is_ending {
            return;
        }
        line.waiting.push_back(errand);
        if line.waiting.len() > line.idle && line.threads.len() < limits::ERRAND_THREADS_MAX {
            let own = Arc::clone(self);
            let name = format!("store-errand-{}", line.threads.len());
            match std::thread::Builder::new().name(name).spawn(move || own.run()) {
                Ok(thread) => line.threads.push(thread),
                // Another thread will come to it; without one, nobody would.
                Err(_) if line.threads.is_empty() => line.waiting.drain(..).for_each(close),
                Err(_) => {}
            }
        }
        drop(line);
        self.news.notify_one();
    }

    /// Waits for the next errand; `None` at the end.
    fn next(&self) -> Option<Errand> {
        let mut line = self.line();
        loop {
            if line.is_ending {
                return None;
            }
            if let Some(errand) = line.waiting.pop_front() {
                return Some(errand);
            }
            line.idle += 1;
            line = self.news.wait(line).unwrap_or_else(PoisonError::into_inner);
            line.idle -= 1;
        }
    }

    fn run(self: Arc<Self>) {
        let mut spare = Vec::new();
        while let Some(mut errand) = self.next() {
            let now_ms = self.state.parts.table().publish_now(unix_ms());
            errand.connection.run_errand(now_ms);
            match errand.connection.advance(&self.state, &mut spare, Instant::now(), now_ms) {
                ConnectionWait::End => close(errand),
                // Others have their turn first.
                ConnectionWait::Errand => self.take(errand),
                _ => errand.post.take_back(errand.connection),
            }
        }
    }

    /// Ends the threads once they have done what they are doing.
    pub(crate) fn end(&self) {
        self.state.own_client.is_ending.store(true, Ordering::Relaxed);
        let threads = {
            let mut line = self.line();
            line.is_ending = true;
            line.waiting.drain(..).for_each(close);
            std::mem::take(&mut line.threads)
        };
        self.news.notify_all();
        // A thread that panicked has told so itself.
        threads.into_iter().for_each(|thread| _ = thread.join());
        self.state.own_client.forget();
    }
}

fn close(errand: Errand) {
    errand.post.connections.fetch_sub(1, Ordering::Relaxed);
}

/// This server as a client of all servers of its store.
#[derive(Debug, Default)]
pub(crate) struct OwnClient {
    /// With the password with which it has connected.
    store: Mutex<Option<(Vec<u8>, Arc<ClusterStore>)>>,
    is_ending: AtomicBool,
}

impl OwnClient {
    /// Returns the client, which connects when it is first needed. Blocks.
    pub(crate) fn store(&self, state: &ServerState) -> Result<Arc<ClusterStore>, StoreError> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let password = state.password();
        if let Some((_, known)) = store.as_ref().filter(|(with, _)| *with == password) {
            return Ok(Arc::clone(known));
        }
        let table = state.parts.table();
        let cluster = table.cluster.as_ref().ok_or(StoreError::Disconnected)?;
        let own = cluster.configuration.member(cluster.own).ok_or(StoreError::Disconnected)?;
        let options = state.connect_options(&own.client_address, limits::ERRAND_WAIT);
        drop(table);
        let known = Arc::new(ClusterStore::connect(options)?);
        *store = Some((password, Arc::clone(&known)));
        Ok(known)
    }

    /// Fails once the server ends: a transaction is then not tried again.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.is_ending.load(Ordering::Relaxed) { Err(StoreError::Conflict) } else { Ok(()) }
    }

    /// Has the next errand connect anew.
    pub(crate) fn forget(&self) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
