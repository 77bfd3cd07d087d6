//! The thread that does the peers' operations while the owners of the endpoints do something else: one for all
//! connections of a process, for as long as there are any.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::Errno;

use super::connection::{TcpConnection, TcpState};
use crate::contract::Error;

/// The number of events that the kernel reports at once.
const EVENTS_MAX: usize = 64;
/// The id of the descriptor that ends the thread; connections have others.
const STOP: u64 = 0;

/// The connections of this process, and the thread that serves them. The thread ends when the last holder does.
#[derive(Debug)]
pub struct TcpAgent {
    shared: Arc<TcpAgentShared>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
    /// A forked child has no such thread.
    process: u32,
}

#[derive(Debug)]
struct TcpAgentShared {
    epoll: OwnedFd,
    connections: Mutex<ServedConnections>,
}

#[derive(Debug, Default)]
struct ServedConnections {
    last_id: u64,
    by_id: BTreeMap<u64, Weak<TcpConnection>>,
}

impl TcpAgentShared {
    fn lock(&self) -> MutexGuard<'_, ServedConnections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place with the agent; dropping it takes the connection away from the thread.
#[derive(Debug)]
pub struct ServedConnection {
    agent: Arc<TcpAgent>,
    id: u64,
    connection: Arc<TcpConnection>,
}

impl TcpAgent {
    /// Returns this process's agent.
    fn of_process() -> Result<Arc<Self>, Error> {
        static AGENT: Mutex<Weak<TcpAgent>> = Mutex::new(Weak::new());
        let mut agent = AGENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = agent.upgrade().filter(|agent| agent.process == std::process::id()) {
            return Ok(agent);
        }
        let made = Arc::new(Self::start()?);
        *agent = Arc::downgrade(&made);
        Ok(made)
    }

    fn start() -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(system("eventfd"))?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)
            .map_err(system("epoll_ctl"))?;
        let shared = Arc::new(TcpAgentShared { epoll, connections: Mutex::default() });
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("caravan-tcp".to_owned())
            .spawn(move || serve(&for_thread))
            .map_err(|source| Error::System { call: "clone", source })?;
        Ok(Self { shared, stop, thread: Some(thread), process: std::process::id() })
    }

    /// Has the agent serve a connection.
    pub fn serve(connection: TcpConnection) -> Result<ServedConnection, Error> {
        let (agent, connection) = (Self::of_process()?, Arc::new(connection));
        let id = {
            let mut connections = agent.shared.lock();
            connections.last_id += 1;
            let id = connections.last_id;
            connections.by_id.insert(id, Arc::downgrade(&connection));
            id
        };
        let served = ServedConnection { agent, id, connection };
        let data = epoll::EventData::new_u64(id);
        epoll::add(&served.agent.shared.epoll, served.connection.socket(), data, watched())
            .map_err(system("epoll_ctl"))?;
        Ok(served)
    }
}

impl Drop for TcpAgent {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // Nothing but a full counter can fail, and that is readable, too.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has ended as well.
            let _ = thread.join();
        }
    }
}

impl ServedConnection {
    /// Returns the connection.
    pub fn connection(&self) -> &TcpConnection {
        &self.connection
    }

    /// Moves the connection on by a turn of the owner's. The agent goes on with what is left.
    pub fn advance(&self, state: &mut TcpState) {
        if self.connection.advance(state) {
            let data = epoll::EventData::new_u64(self.id);
            // The descriptors are open, and the connection is in the list: nothing can fail.
            let _ = epoll::modify(&self.agent.shared.epoll, self.connection.socket(), data, watched());
        }
    }
}

impl Drop for ServedConnection {
    fn drop(&mut self) {
        // The thread may have a turn of this connection in hand, but takes no other one.
        let _ = epoll::delete(&self.agent.shared.epoll, self.connection.socket());
        self.agent.shared.lock().by_id.remove(&self.id);
        self.connection.close();
    }
}

/// Serves connections until the agent ends.
fn serve(shared: &TcpAgentShared) {
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut unfinished: Vec<u64> = Vec::new();
    loop {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let limit = if unfinished.is_empty() { None } else { Some(&none) };
        events.clear();
        match epoll::wait(shared.epoll.as_fd(), rustix::buffer::spare_capacity(&mut events), limit) {
            Ok(_) | Err(Errno::INTR) => {}
            // The descriptor and the list are this agent's own: no other error is possible.
            Err(_) => return,
        }
        let mut turns = std::mem::take(&mut unfinished);
        turns.extend(events.iter().map(|event| event.data.u64()));
        turns.sort_unstable();
        turns.dedup();
        if turns.first() == Some(&STOP) {
            return;
        }
        for id in turns {
            let connection = shared.lock().by_id.get(&id).and_then(Weak::upgrade);
            let more = connection.is_some_and(|connection| connection.advance(&mut connection.lock()));
            if more {
                unfinished.push(id);
            }
        }
    }
}

/// Returns the events of a socket that the agent waits for. Edges, because the owner may have read the bytes already.
fn watched() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET
}

fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |source| Error::System { call, source: source.into() }
}
