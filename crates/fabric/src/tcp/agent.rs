//! The thread that does the peers' operations while the owners of the endpoints do something else: one for all
//! connections of a process, for as long as there are any.
//!
//! A connection is **attended** while its owner polls it again and again, and sleeps on its socket in between: the agent
//! would only be woken beside the owner.
//!
//! | who | change | why |
//! |---|---|---|
//! | agent | attended | the socket has news, and the owner has polled since the agent asked last |
//! | agent | not attended | the owner has not polled for [`ATTENDANCE`]; or the socket has failed |
//! | owner | not attended | the socket takes no more bytes: only the agent waits for room |

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::Errno;

use super::connection::{TcpConnection, TcpState};
use super::limits::ATTENDANCE;
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
    /// Says which events of a connection's socket the agent waits for. What is there already counts as news.
    fn watch(&self, connection: &TcpConnection, id: u64, events: epoll::EventFlags) {
        // The descriptors are open, and the connection is in the list: nothing can fail.
        let _ = epoll::modify(&self.epoll, connection.socket(), epoll::EventData::new_u64(id), events);
    }

    fn connection(&self, id: u64) -> Option<Arc<TcpConnection>> {
        self.lock().by_id.get(&id).and_then(Weak::upgrade)
    }

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
        let more = self.connection.advance(state);
        self.leave(state, more);
    }

    /// Sends what the socket takes. The agent goes on with what is left.
    pub fn push(&self, state: &mut TcpState) {
        self.connection.push(state);
        self.leave(state, false);
    }

    fn leave(&self, state: &mut TcpState, more: bool) {
        let is_stuck = state.attended && state.has_unsent();
        if is_stuck || more && !state.attended {
            state.attended = false;
            self.agent.shared.watch(&self.connection, self.id, watched());
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
    let (mut unfinished, mut attended): (Vec<u64>, Vec<u64>) = Default::default();
    let mut asked = Instant::now();
    let timespec = |duration| Timespec::try_from(duration).ok();
    let (none, attendance) = (timespec(Duration::ZERO), timespec(ATTENDANCE));
    loop {
        let limit = match (unfinished.is_empty(), attended.is_empty()) {
            (false, _) => none.as_ref(),
            (true, false) => attendance.as_ref(),
            (true, true) => None,
        };
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
            match shared.connection(id).map(|connection| shared.turn(&connection, id)) {
                Some(AgentTurn::More) => unfinished.push(id),
                Some(AgentTurn::Attended) => attended.push(id),
                Some(AgentTurn::Done) | None => {}
            }
        }
        if !attended.is_empty() && asked.elapsed() >= ATTENDANCE {
            asked = Instant::now();
            attended.sort_unstable();
            attended.dedup();
            attended
                .retain(|id| shared.connection(*id).is_some_and(|connection| shared.ask(&connection, *id)));
        }
    }
}

/// What came of a turn of the agent's.
enum AgentTurn {
    Done,
    More,
    /// The owner takes the turns from now on.
    Attended,
}

impl TcpAgentShared {
    /// Moves a connection with news on, or leaves it to its owner.
    fn turn(&self, connection: &TcpConnection, id: u64) -> AgentTurn {
        let mut state = connection.lock();
        if std::mem::take(&mut state.attended) {
            // The socket has failed: nothing else is waited for.
            self.watch(connection, id, watched());
        } else if std::mem::take(&mut state.polled) && !state.has_unsent() {
            state.attended = true;
            self.watch(connection, id, epoll::EventFlags::ET);
            return AgentTurn::Attended;
        }
        if connection.advance(&mut state) { AgentTurn::More } else { AgentTurn::Done }
    }

    /// Tells whether a connection is still attended.
    fn ask(&self, connection: &TcpConnection, id: u64) -> bool {
        let mut state = connection.lock();
        if state.attended && !std::mem::take(&mut state.polled) {
            state.attended = false;
            self.watch(connection, id, watched());
        }
        state.attended
    }
}

/// Returns the events of a socket that the agent waits for. Edges, because the owner may have read the bytes already.
fn watched() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET
}

/// Returns the error of a system call.
pub fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |source| Error::System { call, source: source.into() }
}
