//! The threads that serve links: clients whose connection has become one.
//!
//! They are others than those of sockets, because they look at the memory of the links that are awake again and again
//! before they sleep, which would keep sockets waiting.

mod attach;
mod client;
mod extents;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use caravan_fabric::contract::Armed;
use caravan_fabric::{SpinMode, SpinPolicy, Turn};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use self::client::{LinkClient, Received};
use crate::error::ServeError;
use crate::limits;
use crate::seat::{Seat, SeatLook, SeatWork, Seated, look_at};
use crate::state::{ServerState, count};
use crate::worker::{Tell, unix_ms};

pub(crate) use attach::{AttachCarrier, AttachRequest, BlockingChannel, ClientRequest, LinkAttachment};
pub(crate) use extents::StoreExtents;

/// The number of the worker's bell among the descriptors. A client has two: an even one for its link, and the next
/// one for its connection.
const BELL: u64 = 0;
/// Events that one wait returns.
const EVENTS: usize = 256;
/// The longest wait: it bounds how late a stalled client is noticed.
const GLANCE: Duration = Duration::from_millis(500);

/// All threads that serve links.
#[derive(Debug)]
pub(crate) struct LinkWorkers {
    state: Arc<ServerState>,
    tell: TellHolder,
    posts: Vec<Arc<LinkPost>>,
    seats: Vec<Arc<Seat<LinkWorker>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Connections that become links just now.
    attaching: AtomicUsize,
}

struct TellHolder(Tell);

impl std::fmt::Debug for TellHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tell")
    }
}

/// What reaches a thread from others.
#[derive(Debug)]
struct LinkPost {
    bell: OwnedFd,
    arrived: Mutex<Vec<LinkClient>>,
    clients: AtomicUsize,
    is_ending: AtomicBool,
}

impl LinkPost {
    /// Has the thread serve a client, which is counted already.
    fn take(&self, client: LinkClient) {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        self.ring();
    }

    fn ring(&self) {
        // It fails only if 2^64 rings are not heard yet; then the thread wakes anyway.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

impl LinkWorkers {
    /// Starts `count` threads.
    pub(crate) fn start(
        state: &Arc<ServerState>,
        tell: &Tell,
        count: usize,
    ) -> Result<Arc<Self>, ServeError> {
        let mut workers = Self {
            state: Arc::clone(state),
            tell: TellHolder(Arc::clone(tell)),
            posts: Vec::new(),
            seats: Vec::new(),
            threads: Mutex::default(),
            attaching: AtomicUsize::new(0),
        };
        let may_wait = state.parts.table().cluster.is_some();
        for index in 0..count {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(ServeError::system("make an eventfd"))?;
            let post = Arc::new(LinkPost {
                bell,
                arrived: Mutex::default(),
                clients: AtomicUsize::new(0),
                is_ending: AtomicBool::new(false),
            });
            let worker = LinkWorker::new(Arc::clone(&post), Arc::clone(state), Arc::clone(tell))?;
            workers.posts.push(post);
            let seat = Seat::new(format!("store-link-{index}"), worker, may_wait);
            let started = seat.start();
            workers.seats.push(seat);
            match started {
                Ok(thread) => workers.threads().push(thread),
                Err(error) => {
                    workers.end();
                    return Err(error);
                }
            }
        }
        let posts = workers.posts.clone();
        state.parts.watch(Box::new(move || posts.iter().for_each(|post| post.ring())));
        Ok(Arc::new(workers))
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how the seats of all threads are looked at.
    pub(crate) fn looks(&self) -> impl Iterator<Item = SeatLook> {
        self.seats.iter().map(look_at)
    }

    /// Tells all threads to end.
    pub(crate) fn tell_end(&self) {
        for post in &self.posts {
            // Pairs with the Acquire in `serve`.
            post.is_ending.store(true, Ordering::Release);
            post.ring();
        }
    }

    /// Ends all threads, and closes their links.
    pub(crate) fn end(&self) {
        self.tell_end();
        let threads = std::mem::take(&mut *self.threads());
        threads.into_iter().for_each(|thread| _ = thread.join());
    }

    /// Returns the number of clients, those included that become one just now.
    pub(crate) fn clients(&self) -> usize {
        let served = self.posts.iter().map(|post| post.clients.load(Ordering::Relaxed)).sum::<usize>();
        served + self.attaching.load(Ordering::Relaxed)
    }

    /// Makes a connection a link, on a thread of its own, and hands it to one of the threads that serve.
    pub(crate) fn attach(self: &Arc<Self>, attachment: LinkAttachment) {
        let attachment = match attachment {
            LinkAttachment { socket, request: AttachRequest::Member(call), .. } => {
                if let Some(door) = self.state.parts.door() {
                    door.admit(socket, call);
                }
                return;
            }
            client => client,
        };
        if self.attaching.fetch_add(1, Ordering::Relaxed) >= limits::ATTACHING_MAX {
            self.attaching.fetch_sub(1, Ordering::Relaxed);
            return attachment.refuse("ERR too many clients attach at the same time: try again");
        }
        let workers = Arc::clone(self);
        let run = move || {
            match attachment.run(&workers.state) {
                Ok(client) => workers.welcome(client),
                Err(text) => (workers.tell.0)(&text),
            }
            workers.attaching.fetch_sub(1, Ordering::Relaxed);
        };
        // Without a thread the connection closes, and the client tries again.
        if std::thread::Builder::new().name("store-attach".to_owned()).spawn(run).is_err() {
            self.attaching.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn welcome(&self, client: LinkClient) {
        if let Some(post) = self.posts.iter().min_by_key(|post| post.clients.load(Ordering::Relaxed)) {
            post.clients.fetch_add(1, Ordering::Relaxed);
            post.take(client);
        }
    }
}

/// A thread that serves links.
pub(crate) struct LinkWorker {
    post: Arc<LinkPost>,
    state: Arc<ServerState>,
    tell: Tell,
    poller: OwnedFd,
    /// Each is `None` while the thread runs its requests.
    clients: HashMap<u64, Option<Box<LinkClient>>>,
    next: u64,
    /// The clients whose memory is looked at in each turn; the others are armed.
    awake: Vec<u64>,
    /// Those whose requests wait until the commits of their part no longer do.
    aside: Vec<u64>,
    /// Those whose connection has ended.
    ended: Vec<u64>,
    spin: SpinPolicy,
    begin: Instant,
    checked: Instant,
    turns: u32,
}

impl LinkWorker {
    fn new(post: Arc<LinkPost>, state: Arc<ServerState>, tell: Tell) -> Result<Self, ServeError> {
        let poller = new_poller(&post)?;
        let begin = Instant::now();
        Ok(Self {
            post,
            state,
            tell,
            poller,
            clients: HashMap::new(),
            next: 2,
            awake: Vec::new(),
            aside: Vec::new(),
            ended: Vec::new(),
            spin: SpinPolicy::new(SpinMode::Auto),
            begin,
            checked: begin,
            turns: 0,
        })
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    fn is_ending(&self) -> bool {
        // Pairs with the Release in `tell_end`.
        self.post.is_ending.load(Ordering::Acquire)
    }

    /// Looks at the descriptors. Returns nothing if another thread has the seat now.
    fn look<'s>(
        mut worker: Seated<'s, Self>,
        state: &ServerState,
        post: &LinkPost,
        tokens: &mut Vec<u64>,
    ) -> Option<Seated<'s, Self>> {
        worker.wait(tokens);
        state.parts.table().publish_now(unix_ms());
        tokens.drain(..).for_each(|token| worker.wake(token));
        let aside = std::mem::take(&mut worker.aside);
        worker.awake.extend(aside);
        while let Some(token) = worker.ended.last().copied() {
            // What they asked before is done.
            worker = Self::advance(worker, token, state, post)?.0;
            worker.ended.pop();
            worker.close(token);
        }
        if worker.checked.elapsed() >= GLANCE {
            worker.checked = Instant::now();
            worker.close_stalled();
            let tell = Arc::clone(&worker.tell);
            worker = worker.absent(|| close_absent(state, &tell)).1?;
        }
        Some(worker)
    }

    fn wait(&self, tokens: &mut Vec<u64>) {
        let most = match (self.awake.is_empty(), self.aside.is_empty()) {
            (false, _) => Duration::ZERO,
            (true, false) => limits::RELIEF_LOOK,
            (true, true) => GLANCE,
        };
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        let most = Timespec::try_from(most).ok();
        match epoll::wait(&self.poller, rustix::buffer::spare_capacity(&mut events), most.as_ref()) {
            Ok(_) => tokens.extend(events.iter().map(|event| event.data.u64())),
            Err(Errno::INTR) => {}
            // No cause is known. A pause keeps the thread from spinning.
            Err(_) => std::thread::sleep(limits::EXPIRY_INTERVAL),
        }
    }

    fn wake(&mut self, token: u64) {
        if token == BELL {
            self.welcome();
            return self.close_removed();
        }
        if token % 2 != 0 {
            // Clients say nothing on their connection: it is at its end.
            return self.ended.push(token - 1);
        }
        let now_ns = self.now_ns();
        if let Some(Some(client)) = self.clients.get_mut(&token) {
            self.spin.woken(now_ns);
            match client.wake() {
                Ok(()) if !self.awake.contains(&token) => self.awake.push(token),
                Ok(()) => {}
                Err(text) => self.lose(token, &text),
            }
        }
    }

    /// Takes over the clients that have arrived.
    fn welcome(&mut self) {
        let _ = rustix::io::read(&self.post.bell, &mut [0; 8]);
        let arrived = std::mem::take(&mut *self.post.arrived.lock().unwrap_or_else(PoisonError::into_inner));
        for client in arrived {
            let token = self.next;
            self.next += 2;
            let watched = watch(&self.poller, token, &client);
            self.clients.insert(token, Some(Box::new(client)));
            match watched {
                Ok(()) => self.awake.push(token),
                Err(_) => self.close(token),
            }
        }
    }

    /// Serves all clients that are awake. If they have nothing, spins or puts them to sleep, whatever pays. Returns nothing if another
    /// thread has the seat now.
    fn turn<'s>(
        mut worker: Seated<'s, Self>,
        state: &ServerState,
        post: &LinkPost,
    ) -> Option<Seated<'s, Self>> {
        let mut is_news = false;
        for index in (0..worker.awake.len()).rev() {
            let Some(token) = worker.awake.get(index).copied() else { continue };
            let (still, has_news) = Self::advance(worker, token, state, post)?;
            worker = still;
            is_news |= has_news;
        }
        worker.rest(is_news);
        Some(worker)
    }

    /// Spins or puts the clients to sleep after a turn.
    fn rest(&mut self, is_news: bool) {
        if self.awake.is_empty() {
            return;
        }
        let now_ns = self.now_ns();
        if is_news {
            return self.spin.found(now_ns);
        }
        match self.spin.nothing(now_ns) {
            Turn::Spin => std::thread::yield_now(),
            Turn::Sleep => {
                for token in std::mem::take(&mut self.awake) {
                    let Some(Some(client)) = self.clients.get_mut(&token) else { continue };
                    if client.is_put_aside() {
                        self.aside.push(token);
                        continue;
                    }
                    match client.arm() {
                        Ok(Armed::Wait) => {}
                        Ok(Armed::LookAgain) => self.awake.push(token),
                        Err(text) => self.lose(token, &text),
                    }
                }
            }
        }
    }

    /// Serves a client once, and returns whether it had something; nothing if another thread has the seat now.
    fn advance<'s>(
        mut worker: Seated<'s, Self>,
        token: u64,
        state: &ServerState,
        post: &LinkPost,
    ) -> Option<(Seated<'s, Self>, bool)> {
        let Some(place) = worker.clients.get_mut(&token) else { return Some((worker, false)) };
        let received = match place {
            Some(client) => client.receive(state),
            None => return Some((worker, false)),
        };
        match received {
            Ok(Received::Nothing) => return Some((worker, false)),
            Ok(Received::Requests) => {}
            Err(text) => {
                worker.lose(token, &text);
                return Some((worker, true));
            }
        }
        let Some(mut client) = place.take() else { return Some((worker, false)) };
        let (served, worker) = worker.absent(|| client.serve(state));
        let Some(mut worker) = worker else {
            match served {
                Ok(_) => post.take(*client),
                Err(_) => drop(post.clients.fetch_sub(1, Ordering::Relaxed)),
            }
            return None;
        };
        if let Some(place) = worker.clients.get_mut(&token) {
            *place = Some(client);
        }
        let is_news = served.unwrap_or_else(|text| {
            worker.lose(token, &text);
            true
        });
        Some((worker, is_news))
    }

    /// Closes the link of a client that has not kept to the protocol, or whose link failed.
    fn lose(&mut self, token: u64, text: &str) {
        if let Some(Some(client)) = self.clients.get(&token).filter(|_| !text.is_empty()) {
            (self.tell)(&format!("{}: {text}: closed its link", client.name()));
        }
        self.close(token);
    }

    fn close(&mut self, token: u64) {
        self.awake.retain(|awake| *awake != token);
        // Closing the descriptors takes them out of the set, but others may have been made of them.
        if let Some(Some(client)) = self.clients.remove(&token) {
            client.wait_fd().into_iter().for_each(|fd| _ = epoll::delete(&self.poller, fd));
            let _ = epoll::delete(&self.poller, client.as_fd());
            self.post.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes the links to parts that are served no longer. Their clients attach again, where the part is then.
    fn close_removed(&mut self) {
        let parts = self.state.parts.table();
        let is_removed = |(_, client): &(&u64, &Option<Box<LinkClient>>)| {
            client.as_ref().is_some_and(|client| !parts.serves(client.part()))
        };
        let removed: Vec<u64> = self.clients.iter().filter(is_removed).map(|(token, _)| *token).collect();
        removed.into_iter().for_each(|token| self.close(token));
    }

    fn close_stalled(&mut self) {
        let now = Instant::now();
        let is_stalled = |(_, client): &(&u64, &Option<Box<LinkClient>>)| {
            client.as_ref().is_some_and(|client| client.is_stalled(now, limits::OUTPUT_STALLED_MAX))
        };
        let stalled: Vec<u64> = self.clients.iter().filter(is_stalled).map(|(token, _)| *token).collect();
        for token in stalled {
            count(&self.state.counters.stalled, 1);
            let seconds = limits::OUTPUT_STALLED_MAX.as_secs();
            self.lose(token, &format!("it has read none of its replies for {seconds} s"));
        }
    }
}

impl SeatWork for LinkWorker {
    fn work(mut worker: Seated<'_, Self>) {
        let (state, post) = (Arc::clone(&worker.state), Arc::clone(&worker.post));
        let mut tokens = Vec::with_capacity(EVENTS);
        while !worker.is_ending() {
            let mut still = Some(worker);
            if still
                .as_ref()
                .is_some_and(|worker| worker.awake.is_empty() || worker.turns % limits::LINK_TURNS == 0)
            {
                still = still.and_then(|worker| Self::look(worker, &state, &post, &mut tokens));
            }
            let Some(mut turning) = still else { return };
            turning.turns = turning.turns.wrapping_add(1);
            let Some(turned) = Self::turn(turning, &state, &post) else { return };
            worker = turned;
        }
        // What has arrived is answered; clients learn of the end by their connections.
        for client in worker.clients.values_mut().flatten() {
            if matches!(client.receive(&state), Ok(Received::Requests)) {
                let _ = client.serve(&state);
            }
        }
        worker.clients.clear();
    }

    /// The client whose requests the thread runs is no more in the set, whose other clients go on.
    fn let_go(&mut self) -> Result<(), ServeError> {
        self.clients.retain(|_, client| client.is_some());
        let poller = new_poller(&self.post)?;
        for (token, client) in &self.clients {
            let Some(client) = client else { continue };
            watch(&poller, *token, client).map_err(ServeError::system("add to an epoll set"))?;
        }
        self.poller = poller;
        Ok(())
    }
}

/// Makes a set of descriptors with the bell of a post.
fn new_poller(post: &LinkPost) -> Result<OwnedFd, ServeError> {
    let poller =
        epoll::create(epoll::CreateFlags::CLOEXEC).map_err(ServeError::system("make an epoll set"))?;
    epoll::add(&poller, &post.bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)
        .map_err(ServeError::system("add to an epoll set"))?;
    Ok(poller)
}

/// Adds a client's two descriptors to a set.
fn watch(poller: &OwnedFd, token: u64, client: &LinkClient) -> Result<(), Errno> {
    let data = epoll::EventData::new_u64;
    let link = client.wait_fd().ok_or(Errno::BADF)?;
    epoll::add(poller, link, data(token), epoll::EventFlags::IN)?;
    epoll::add(poller, client.as_fd(), data(token + 1), epoll::EventFlags::IN | epoll::EventFlags::RDHUP)
}

/// Ends the sessions of clients that have not come back, of parts whose commits do not wait.
fn close_absent(state: &ServerState, tell: &Tell) {
    let limit = caravan_store::limits::SESSION_ABSENT_MAX;
    for part in state.parts.table().served.iter().filter(|part| !part.store.commits_wait()) {
        if let Err(error) = part.sessions.close_absent(&part.store, limit) {
            tell(&format!("the session of a client that is gone stays: {error}"));
        }
    }
}
