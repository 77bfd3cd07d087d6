//! A worker: a thread that serves its part of the connections with epoll.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use crate::balance::{self, BusyMeter, HandOver};
use crate::connection::{ConnectionWait, StoreConnection};
use crate::errands::{Errand, ErrandThreads};
use crate::error::ServeError;
use crate::limits;
use crate::links::LinkWorkers;
use crate::published::PublishedCounters;
use crate::seat::{SeatWork, Seated};
use crate::state::{ServerState, count};

/// The number of the worker's own bell among the descriptors; connections count from 1.
const BELL: u64 = 0;

/// Events that one wait returns.
const EVENTS: usize = 256;

/// The longest wait: it bounds how late a stalled client, or a client without requests, is noticed.
const GLANCE: Duration = Duration::from_millis(500);

/// Messages for the operator: one sentence each.
pub(crate) type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// What the acceptor and all workers know of a worker.
#[derive(Debug)]
pub(crate) struct WorkerPost {
    bell: OwnedFd,
    /// `None` once the worker takes no more.
    arrived: Mutex<Option<Vec<StoreConnection>>>,
    /// Connections of the worker, those that have just arrived included.
    pub(crate) connections: AtomicUsize,
    /// The percentage of a core that the worker used when it last looked.
    pub(crate) busy_percent: AtomicUsize,
    is_ending: AtomicBool,
}

impl WorkerPost {
    pub(crate) fn new() -> Result<Self, ServeError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(ServeError::system("make an eventfd"))?;
        let (arrived, is_ending) = (Mutex::new(Some(Vec::new())), AtomicBool::new(false));
        Ok(Self {
            bell,
            arrived,
            connections: AtomicUsize::new(0),
            busy_percent: AtomicUsize::new(0),
            is_ending,
        })
    }

    /// Gives the worker connections that wait for input. Returns those that it does not take because it ends.
    pub(crate) fn hand_over(&self, connections: Vec<StoreConnection>) -> Vec<StoreConnection> {
        match &mut *self.arrived() {
            None => return connections,
            Some(arrived) => {
                self.connections.fetch_add(connections.len(), Ordering::Relaxed);
                arrived.extend(connections);
            }
        }
        self.ring();
        Vec::new()
    }

    /// Takes a connection of this worker back, which another thread has served.
    pub(crate) fn take_back(&self, connection: Box<StoreConnection>) {
        // A worker that ends closes it.
        if let Some(arrived) = &mut *self.arrived() {
            arrived.push(*connection);
        }
        self.ring();
    }

    /// The same, unless the connection is at its end.
    fn give_back(&self, connection: Box<StoreConnection>, is_there: bool) {
        if is_there {
            self.take_back(connection);
        } else {
            self.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn arrived(&self) -> MutexGuard<'_, Option<Vec<StoreConnection>>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the worker to end.
    pub(crate) fn end(&self) {
        // Pairs with the Acquire in `serve`.
        self.is_ending.store(true, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        // It fails only if 2^64 rings are not heard yet; then the worker wakes anyway.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// A worker's own part.
pub(crate) struct StoreWorker {
    /// The place of this worker's post among `posts`, those of all workers.
    index: usize,
    posts: Vec<Arc<WorkerPost>>,
    state: Arc<ServerState>,
    tell: Tell,
    /// Who serves the connections that become links.
    links: Arc<LinkWorkers>,
    /// Who does requests that take other servers.
    errands: Arc<ErrandThreads>,
    poller: OwnedFd,
    /// Each is `None` while the thread serves it, and what it waits for otherwise.
    connections: HashMap<u64, (Option<Box<StoreConnection>>, ConnectionWait)>,
    next: u64,
    /// The connections with events.
    ready: VecDeque<u64>,
    /// Those whose replies are to be sent next.
    served: VecDeque<u64>,
    /// The ends of pauses (DEBUG SLEEP), in order. The connection may be gone by then.
    pauses: BTreeSet<(Instant, u64)>,
    /// The counters for `caravan top`, at the first worker.
    published: Option<PublishedCounters>,
    /// A buffer for the connection that is served just now.
    spare: Vec<u8>,
    begin: Instant,
    checked: Instant,
    swept: Instant,
}

/// What a worker serves its connections with in one turn.
struct WorkerTurn<'t> {
    state: &'t ServerState,
    post: &'t WorkerPost,
    now: Instant,
    now_ms: u64,
}

impl StoreWorker {
    pub(crate) fn new(
        index: usize,
        posts: Vec<Arc<WorkerPost>>,
        state: Arc<ServerState>,
        tell: Tell,
        links: Arc<LinkWorkers>,
        errands: Arc<ErrandThreads>,
    ) -> Result<Self, ServeError> {
        let poller = new_poller(&posts[index].bell)?;
        let published = (index == 0).then(|| PublishedCounters::begin(&state)).transpose();
        let failed = ServeError::system("make the counters for `caravan top`");
        let begin = Instant::now();
        let published = published.map_err(|error| failed(std::io::Error::other(error)))?;
        Ok(Self {
            index,
            posts,
            state,
            tell,
            links,
            errands,
            poller,
            connections: HashMap::new(),
            next: BELL + 1,
            ready: VecDeque::with_capacity(EVENTS),
            served: VecDeque::with_capacity(EVENTS),
            pauses: BTreeSet::new(),
            published,
            spare: Vec::new(),
            begin,
            checked: begin,
            swept: begin,
        })
    }

    fn post(&self) -> &WorkerPost {
        &self.posts[self.index]
    }

    /// Tells whether this worker also removes expired keys, and sets the counters for `caravan top`.
    fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Publishes the time by which keys expire, and returns it.
    fn publish_now(&self) -> (Instant, u64) {
        let now_ms = self.state.parts.table().publish_now(unix_ms());
        (Instant::now(), now_ms)
    }

    fn longest_wait(&self, now: Instant) -> Duration {
        let most = if self.is_first() { limits::EXPIRY_INTERVAL } else { GLANCE };
        let pause = self.pauses.first().map(|(until, _)| until.saturating_duration_since(now));
        pause.map_or(most, |pause| pause.min(most))
    }

    fn wait(&mut self, most: Duration) {
        // A thread before this one may have left something.
        let most = if self.ready.is_empty() && self.served.is_empty() { most } else { Duration::ZERO };
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let most = Timespec::try_from(most).ok();
        match epoll::wait(&self.poller, rustix::buffer::spare_capacity(&mut events), most.as_ref()) {
            Ok(_) => self.ready.extend(events.iter().map(|event| event.data.u64())),
            Err(Errno::INTR) => {}
            // No cause is known. A pause keeps the thread from spinning.
            Err(_) => std::thread::sleep(limits::EXPIRY_INTERVAL),
        }
    }

    /// Takes over the connections that have arrived.
    fn welcome(&mut self) {
        let _ = rustix::io::read(&self.post().bell, &mut [0; 8]);
        let arrived = self.post().arrived().as_mut().map(std::mem::take);
        for connection in arrived.into_iter().flatten() {
            // One that another thread has served may wait for something else than input.
            let token = self.adopt(connection);
            self.served.extend(token);
        }
    }

    /// Waits for the input of a connection that is counted already. Returns its number.
    fn adopt(&mut self, connection: StoreConnection) -> Option<u64> {
        let token = self.next;
        let data = epoll::EventData::new_u64(token);
        if epoll::add(&self.poller, connection.as_fd(), data, epoll::EventFlags::IN).is_err() {
            self.post().connections.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.next += 1;
        self.connections.insert(token, (Some(Box::new(connection)), ConnectionWait::Input));
        Some(token)
    }

    /// Hands connections to another worker if they are better served there. Those with output or a pause stay.
    fn balance(&mut self) {
        if self.state.facts.spreads {
            return;
        }
        let Some(HandOver { to, connections }) =
            balance::next_hand_over(self.index, &balance::loads(&self.posts))
        else {
            return;
        };
        let waits = |(token, (_, wait)): (&u64, &(Option<_>, ConnectionWait))| {
            (*wait == ConnectionWait::Input).then_some(*token)
        };
        let tokens: Vec<u64> = self.connections.iter().filter_map(waits).take(connections).collect();
        let taken = tokens.iter().filter_map(|token| self.connections.remove(token));
        let handed: Vec<_> = taken.filter_map(|(connection, _)| Some(*connection?)).collect();
        for connection in &handed {
            // It is in the set, so this does not fail.
            let _ = epoll::delete(&self.poller, connection.as_fd());
        }
        let count = handed.len();
        let back = self.posts[to].hand_over(handed);
        self.post().connections.fetch_sub(count - back.len(), Ordering::Relaxed);
        back.into_iter().for_each(|connection| _ = self.adopt(connection));
    }

    fn take(&mut self, token: u64) -> Option<Box<StoreConnection>> {
        self.connections.get_mut(&token)?.0.take()
    }

    fn put_back(&mut self, token: u64, connection: Box<StoreConnection>) {
        if let Some((place, _)) = self.connections.get_mut(&token) {
            *place = Some(connection);
        }
    }

    /// Serves once. Returns nothing if another thread has the seat now.
    fn turn<'s>(
        mut worker: Seated<'s, Self>,
        state: &ServerState,
        post: &WorkerPost,
        meter: &mut BusyMeter,
    ) -> Option<Seated<'s, Self>> {
        let most = worker.longest_wait(Instant::now());
        worker.wait(most);
        let (now, now_ms) = worker.publish_now();
        let turn = WorkerTurn { state, post, now, now_ms };
        // All requests are served before the first reply is sent.
        while let Some(token) = worker.ready.pop_front() {
            worker = Self::receive(worker, token, &turn)?;
        }
        worker.wake(now);
        while let Some(token) = worker.served.pop_front() {
            worker = Self::advance(worker, token, &turn)?;
        }
        if worker.is_first() && now.saturating_duration_since(worker.swept) >= limits::EXPIRY_INTERVAL {
            worker.swept = now;
            worker = worker.absent(|| remove_expired(state)).1?;
            let uptime = now.saturating_duration_since(worker.begin);
            worker.published.iter().for_each(|published| published.set(state, uptime));
        }
        if now.saturating_duration_since(worker.checked) >= GLANCE {
            worker.checked = now;
            worker.close_stalled(now);
        }
        if let Some(busy_percent) = meter.measure(now) {
            post.busy_percent.store(busy_percent, Ordering::Relaxed);
            worker.balance();
        }
        Some(worker)
    }

    /// Serves what has arrived on a connection, which is advanced next if it is still there.
    fn receive<'s>(
        mut worker: Seated<'s, Self>,
        token: u64,
        turn: &WorkerTurn<'_>,
    ) -> Option<Seated<'s, Self>> {
        if token == BELL {
            worker.welcome();
            return Some(worker);
        }
        let Some(mut connection) = worker.take(token) else { return Some(worker) };
        let mut spare = std::mem::take(&mut worker.spare);
        let (is_there, worker) =
            worker.absent(|| connection.receive(turn.state, &mut spare, turn.now, turn.now_ms));
        let Some(mut worker) = worker else {
            turn.post.give_back(connection, is_there);
            return None;
        };
        worker.spare = spare;
        if is_there {
            worker.put_back(token, connection);
            worker.served.push_back(token);
        } else {
            worker.close(token);
        }
        Some(worker)
    }

    fn advance<'s>(
        mut worker: Seated<'s, Self>,
        token: u64,
        turn: &WorkerTurn<'_>,
    ) -> Option<Seated<'s, Self>> {
        let Some(mut connection) = worker.take(token) else { return Some(worker) };
        let mut spare = std::mem::take(&mut worker.spare);
        let (wait, worker) =
            worker.absent(|| connection.advance(turn.state, &mut spare, turn.now, turn.now_ms));
        let Some(mut worker) = worker else {
            // Whoever adopts it finds again what it waits for.
            turn.post.give_back(connection, wait != ConnectionWait::End);
            return None;
        };
        worker.spare = spare;
        worker.put_back(token, connection);
        worker.await_next(token, wait);
        Some(worker)
    }

    /// Has a connection wait for what it needs next.
    fn await_next(&mut self, token: u64, wait: ConnectionWait) {
        let Some((Some(connection), before)) = self.connections.get_mut(&token) else { return };
        let flags = match wait {
            ConnectionWait::Attach => return self.attach(token),
            ConnectionWait::Errand => return self.send_on_errand(token),
            ConnectionWait::End => return self.close(token),
            wait => events_of(wait),
        };
        if wait != *before {
            let data = epoll::EventData::new_u64(token);
            if epoll::modify(&self.poller, connection.as_fd(), data, flags).is_err() {
                return self.close(token);
            }
            *before = wait;
            if let ConnectionWait::Time(until) = wait {
                self.pauses.insert((until, token));
            }
        }
    }

    /// Hands a connection over to become a link.
    fn attach(&mut self, token: u64) {
        let Some((Some(connection), _)) = self.connections.remove(&token) else { return };
        // It is in the set, so this does not fail.
        let _ = epoll::delete(&self.poller, connection.as_fd());
        self.post().connections.fetch_sub(1, Ordering::Relaxed);
        connection.into_attachment().into_iter().for_each(|attachment| self.links.attach(attachment));
    }

    /// Hands a connection over until its next request is done, which takes other servers.
    fn send_on_errand(&mut self, token: u64) {
        let Some((Some(connection), _)) = self.connections.remove(&token) else { return };
        // It is in the set, so this does not fail.
        let _ = epoll::delete(&self.poller, connection.as_fd());
        self.errands.take(Errand { connection, post: Arc::clone(&self.posts[self.index]) });
    }

    fn close(&mut self, token: u64) {
        // Closing the socket takes it out of the set.
        if self.connections.remove(&token).is_some() {
            self.post().connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Goes on with the connections whose pause is over.
    fn wake(&mut self, now: Instant) {
        while let Some((_, token)) = self.pauses.first().copied().filter(|(until, _)| *until <= now) {
            self.pauses.pop_first();
            self.served.push_back(token);
        }
    }

    fn close_stalled(&mut self, now: Instant) {
        let stalled = |(token, (connection, _)): (&u64, &mut (Option<Box<StoreConnection>>, _))| {
            let is_stalled = |connection: &mut Box<StoreConnection>| {
                connection.is_stalled(now, limits::OUTPUT_STALLED_MAX)
            };
            connection.as_mut().is_some_and(is_stalled).then_some(*token)
        };
        let is_late = |connection: &Option<Box<StoreConnection>>| {
            connection.as_ref().is_some_and(|connection| connection.is_late(now))
        };
        let late = self.connections.iter().filter(|(_, (connection, _))| is_late(connection));
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        late.into_iter().for_each(|token| self.close(token));
        let stalled: Vec<u64> = self.connections.iter_mut().filter_map(stalled).collect();
        for token in stalled {
            if let Some((Some(connection), _)) = self.connections.get(&token) {
                let seconds = limits::OUTPUT_STALLED_MAX.as_secs();
                let client = connection.client();
                (self.tell)(&format!("{client} has read none of its replies for {seconds} s: closed it"));
            }
            count(&self.state.counters.stalled, 1);
            self.close(token);
        }
    }

    fn is_ending(&self) -> bool {
        // Pairs with the Release in `end`.
        self.post().is_ending.load(Ordering::Acquire)
    }

    /// Serves the requests that have arrived and sends the replies, for a limited time.
    fn end(&mut self) {
        let deadline = Instant::now() + limits::END_MAX;
        let arrived = self.post().arrived().take();
        arrived.into_iter().flatten().for_each(|connection| _ = self.adopt(connection));
        self.ready.clear();
        self.ready.extend(self.connections.keys());
        loop {
            let (now, now_ms) = self.publish_now();
            while let Some(token) = self.ready.pop_front() {
                self.advance_here(token, now, now_ms);
            }
            self.connections.retain(|_, (_, wait)| *wait == ConnectionWait::Output);
            if self.connections.is_empty() || Instant::now() >= deadline {
                return self.connections.clear();
            }
            self.served.clear();
            self.wait(limits::EXPIRY_INTERVAL);
        }
    }

    /// Advances a connection without giving up the seat.
    fn advance_here(&mut self, token: u64, now: Instant, now_ms: u64) {
        let Some(mut connection) = self.take(token) else { return };
        let state = Arc::clone(&self.state);
        let wait = connection.advance(&state, &mut self.spare, now, now_ms);
        self.put_back(token, connection);
        self.await_next(token, wait);
    }
}

impl SeatWork for StoreWorker {
    /// Serves until it is asked to end, and then sends what is ready to be sent.
    fn work(mut worker: Seated<'_, Self>) {
        let (state, post) = (Arc::clone(&worker.state), Arc::clone(&worker.posts[worker.index]));
        let mut meter = BusyMeter::begin(Instant::now());
        worker.published.iter().for_each(|published| published.set(&state, worker.begin.elapsed()));
        while !worker.is_ending() {
            let Some(still) = Self::turn(worker, &state, &post, &mut meter) else { return };
            worker = still;
        }
        worker.end();
    }

    /// The connection that the thread serves is no more in the set, whose other connections go on.
    fn let_go(&mut self) -> Result<(), ServeError> {
        self.connections.retain(|_, (connection, _)| connection.is_some());
        let poller = new_poller(&self.post().bell)?;
        for (token, (connection, wait)) in &self.connections {
            let data = epoll::EventData::new_u64(*token);
            let added = connection.iter().map(|it| epoll::add(&poller, it.as_fd(), data, events_of(*wait)));
            added.collect::<Result<Vec<()>, Errno>>().map_err(ServeError::system("add to an epoll set"))?;
        }
        self.poller = poller;
        Ok(())
    }
}

/// Makes a set of descriptors with this bell.
fn new_poller(bell: &OwnedFd) -> Result<OwnedFd, ServeError> {
    let poller =
        epoll::create(epoll::CreateFlags::CLOEXEC).map_err(ServeError::system("make an epoll set"))?;
    epoll::add(&poller, bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)
        .map_err(ServeError::system("add to an epoll set"))?;
    Ok(poller)
}

/// Returns the events for which a connection waits.
fn events_of(wait: ConnectionWait) -> epoll::EventFlags {
    match wait {
        ConnectionWait::Input => epoll::EventFlags::IN,
        ConnectionWait::Output => epoll::EventFlags::OUT,
        // The end of the connection is reported without a flag, and would wake this thread again and again.
        _ => epoll::EventFlags::ONESHOT,
    }
}

/// Removes keys that have expired, of parts whose commits do not wait.
fn remove_expired(state: &ServerState) {
    let parts = state.parts.table();
    // Expired keys are invisible at once, so a failure costs memory only, and the next sweep tries again.
    let stores = parts.stores().filter(|store| !store.commits_wait());
    stores.for_each(|store| _ = store.remove_expired(limits::EXPIRY_KEYS));
}

/// Returns the milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
