//! A worker: a thread that serves its part of the connections with epoll.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use crate::balance::{self, BusyMeter, HandOver};
use crate::connection::{ConnectionWait, StoreConnection};
use crate::error::ServeError;
use crate::limits;
use crate::links::LinkWorkers;
use crate::published::PublishedCounters;
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
    poller: OwnedFd,
    connections: HashMap<u64, (StoreConnection, ConnectionWait)>,
    next: u64,
    /// The ends of pauses (DEBUG SLEEP), in order. The connection may be gone by then.
    pauses: BTreeSet<(Instant, u64)>,
    /// The counters for `caravan top`, at the first worker.
    published: Option<PublishedCounters>,
    /// A buffer for the connection that is served just now.
    spare: Vec<u8>,
}

impl StoreWorker {
    pub(crate) fn new(
        index: usize,
        posts: Vec<Arc<WorkerPost>>,
        state: Arc<ServerState>,
        tell: Tell,
        links: Arc<LinkWorkers>,
    ) -> Result<Self, ServeError> {
        let poller =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(ServeError::system("make an epoll set"))?;
        epoll::add(&poller, &posts[index].bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)
            .map_err(ServeError::system("add to an epoll set"))?;
        let published = (index == 0).then(|| PublishedCounters::begin(&state)).transpose();
        let failed = ServeError::system("make the counters for `caravan top`");
        let published = published.map_err(|error| failed(std::io::Error::other(error)))?;
        Ok(Self {
            index,
            posts,
            state,
            tell,
            links,
            poller,
            connections: HashMap::new(),
            next: BELL + 1,
            pauses: BTreeSet::new(),
            published,
            spare: Vec::new(),
        })
    }

    fn post(&self) -> &WorkerPost {
        &self.posts[self.index]
    }

    /// Tells whether this worker also removes expired keys, and sets the counters for `caravan top`.
    fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Serves until it is asked to end, and then sends what is ready to be sent.
    pub(crate) fn serve(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let begin = Instant::now();
        let (mut checked, mut swept) = (begin, begin);
        let mut meter = BusyMeter::begin(begin);
        self.published.iter().for_each(|published| published.set(&self.state, Duration::ZERO));
        // Pairs with the Release in `end`.
        while !self.post().is_ending.load(Ordering::Acquire) {
            self.wait(&mut events, self.longest_wait(Instant::now()));
            let (now, now_ms) = self.publish_now();
            // All requests are served before the first reply is sent.
            events.retain(|token| self.receive(*token, now, now_ms));
            events.drain(..).for_each(|token| self.advance(token, now, now_ms));
            self.wake(now, now_ms);
            if self.is_first() && now.saturating_duration_since(swept) >= limits::EXPIRY_INTERVAL {
                swept = now;
                self.remove_expired();
                let uptime = now.saturating_duration_since(begin);
                self.published.iter().for_each(|published| published.set(&self.state, uptime));
            }
            if now.saturating_duration_since(checked) >= GLANCE {
                checked = now;
                self.close_stalled(now);
            }
            if let Some(busy_percent) = meter.measure(now) {
                self.post().busy_percent.store(busy_percent, Ordering::Relaxed);
                self.balance();
            }
        }
        self.end();
    }

    /// Publishes the time by which keys expire, and returns it.
    fn publish_now(&self) -> (Instant, u64) {
        self.state.store.publish_now(unix_ms());
        (Instant::now(), self.state.store.now_ms())
    }

    fn longest_wait(&self, now: Instant) -> Duration {
        let most = if self.is_first() { limits::EXPIRY_INTERVAL } else { GLANCE };
        let pause = self.pauses.first().map(|(until, _)| until.saturating_duration_since(now));
        pause.map_or(most, |pause| pause.min(most))
    }

    fn wait(&self, tokens: &mut Vec<u64>, most: Duration) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let most = Timespec::try_from(most).ok();
        match epoll::wait(&self.poller, rustix::buffer::spare_capacity(&mut events), most.as_ref()) {
            Ok(_) => tokens.extend(events.iter().map(|event| event.data.u64())),
            Err(Errno::INTR) => {}
            // No cause is known. A pause keeps the thread from spinning.
            Err(_) => std::thread::sleep(limits::EXPIRY_INTERVAL),
        }
    }

    /// Takes over the connections that have arrived.
    fn welcome(&mut self) {
        let _ = rustix::io::read(&self.post().bell, &mut [0; 8]);
        let arrived = self.post().arrived().as_mut().map(std::mem::take);
        arrived.into_iter().flatten().for_each(|connection| self.adopt(connection));
    }

    /// Waits for the input of a connection that is counted already.
    fn adopt(&mut self, connection: StoreConnection) {
        let token = self.next;
        let data = epoll::EventData::new_u64(token);
        if epoll::add(&self.poller, &connection, data, epoll::EventFlags::IN).is_err() {
            self.post().connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        self.next += 1;
        self.connections.insert(token, (connection, ConnectionWait::Input));
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
        let waits = |(token, (_, wait)): (&u64, &(_, ConnectionWait))| {
            (*wait == ConnectionWait::Input).then_some(*token)
        };
        let tokens: Vec<u64> = self.connections.iter().filter_map(waits).take(connections).collect();
        let taken = tokens.iter().filter_map(|token| self.connections.remove(token));
        let handed: Vec<_> = taken.map(|(connection, _)| connection).collect();
        for connection in &handed {
            // It is in the set, so this does not fail.
            let _ = epoll::delete(&self.poller, connection);
        }
        let count = handed.len();
        let back = self.posts[to].hand_over(handed);
        self.post().connections.fetch_sub(count - back.len(), Ordering::Relaxed);
        back.into_iter().for_each(|connection| self.adopt(connection));
    }

    /// Serves what has arrived on a connection, and returns whether it is there to be advanced.
    fn receive(&mut self, token: u64, now: Instant, now_ms: u64) -> bool {
        if token == BELL {
            self.welcome();
            return false;
        }
        let Some((connection, _)) = self.connections.get_mut(&token) else { return false };
        let is_there = connection.receive(&self.state, &mut self.spare, now, now_ms);
        if !is_there {
            self.close(token);
        }
        is_there
    }

    fn advance(&mut self, token: u64, now: Instant, now_ms: u64) {
        let Some((connection, before)) = self.connections.get_mut(&token) else { return };
        let wait = connection.advance(&self.state, &mut self.spare, now, now_ms);
        let flags = match wait {
            ConnectionWait::Input => epoll::EventFlags::IN,
            ConnectionWait::Output => epoll::EventFlags::OUT,
            // The end of the connection is reported without a flag, and would wake this thread again and again.
            ConnectionWait::Time(_) => epoll::EventFlags::ONESHOT,
            ConnectionWait::Attach => return self.attach(token),
            ConnectionWait::End => return self.close(token),
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
        let Some((connection, _)) = self.connections.remove(&token) else { return };
        // It is in the set, so this does not fail.
        let _ = epoll::delete(&self.poller, connection.as_fd());
        self.post().connections.fetch_sub(1, Ordering::Relaxed);
        connection.into_attachment().into_iter().for_each(|attachment| self.links.attach(attachment));
    }

    fn close(&mut self, token: u64) {
        // Closing the socket takes it out of the set.
        if self.connections.remove(&token).is_some() {
            self.post().connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Goes on with the connections whose pause is over.
    fn wake(&mut self, now: Instant, now_ms: u64) {
        while let Some((_, token)) = self.pauses.first().copied().filter(|(until, _)| *until <= now) {
            self.pauses.pop_first();
            self.advance(token, now, now_ms);
        }
    }

    fn remove_expired(&self) {
        // Expired keys are invisible at once, so a failure costs memory only, and the next sweep tries again.
        let _ = self.state.store.remove_expired(limits::EXPIRY_KEYS);
    }

    fn close_stalled(&mut self, now: Instant) {
        let stalled = |(token, (connection, _)): (&u64, &mut (StoreConnection, ConnectionWait))| {
            connection.is_stalled(now, limits::OUTPUT_STALLED_MAX).then_some(*token)
        };
        let late = self.connections.iter().filter(|(_, (connection, _))| connection.is_late(now));
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        late.into_iter().for_each(|token| self.close(token));
        let stalled: Vec<u64> = self.connections.iter_mut().filter_map(stalled).collect();
        for token in stalled {
            if let Some((connection, _)) = self.connections.get(&token) {
                let seconds = limits::OUTPUT_STALLED_MAX.as_secs();
                let client = connection.client();
                (self.tell)(&format!("{client} has read none of its replies for {seconds} s: closed it"));
            }
            count(&self.state.counters.stalled, 1);
            self.close(token);
        }
    }

    /// Serves the requests that have arrived and sends the replies, for a limited time.
    fn end(mut self) {
        let deadline = Instant::now() + limits::END_MAX;
        let (now, now_ms) = self.publish_now();
        let mut events = Vec::new();
        let arrived = self.post().arrived().take();
        arrived.into_iter().flatten().for_each(|connection| self.adopt(connection));
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.advance(token, now, now_ms));
        let is_sending = |wait: &ConnectionWait| *wait == ConnectionWait::Output;
        self.connections.retain(|_, (_, wait)| is_sending(wait));
        while !self.connections.is_empty() && Instant::now() < deadline {
            self.wait(&mut events, limits::EXPIRY_INTERVAL);
            let (now, now_ms) = self.publish_now();
            events.drain(..).for_each(|token| self.advance(token, now, now_ms));
            self.connections.retain(|_, (_, wait)| is_sending(wait));
        }
    }
}

/// Returns the milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
