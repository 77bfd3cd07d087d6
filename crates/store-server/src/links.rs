//! The threads that serve links: clients whose connection has become one.
//!
//! They are others than those of sockets, because they look at the memory of the links that are awake again and again
//! before they sleep, which would keep sockets waiting.

mod attach;
mod client;
mod parts;

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

use self::client::LinkClient;
use crate::error::ServeError;
use crate::limits;
use crate::state::{ServerState, count};
use crate::worker::{Tell, unix_ms};

pub(crate) use attach::{AttachRequest, LinkAttachment};
pub(crate) use parts::StoreParts;

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
            threads: Mutex::default(),
            attaching: AtomicUsize::new(0),
        };
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
            let thread = std::thread::Builder::new().name(format!("store-link-{index}"));
            let spawned = thread.spawn(move || worker.serve());
            match spawned {
                Ok(thread) => workers.threads().push(thread),
                Err(error) => {
                    workers.end();
                    return Err(ServeError::system("start a thread")(error));
                }
            }
        }
        Ok(Arc::new(workers))
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all threads, and closes their links.
    pub(crate) fn end(&self) {
        for post in &self.posts {
            // Pairs with the Acquire in `serve`.
            post.is_ending.store(true, Ordering::Release);
            post.ring();
        }
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
            post.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(client);
            post.ring();
        }
    }
}

/// A thread that serves links.
struct LinkWorker {
    post: Arc<LinkPost>,
    state: Arc<ServerState>,
    tell: Tell,
    poller: OwnedFd,
    clients: HashMap<u64, LinkClient>,
    next: u64,
    /// The clients whose memory is looked at in each turn; the others are armed.
    awake: Vec<u64>,
    spin: SpinPolicy,
    begin: Instant,
}

impl LinkWorker {
    fn new(post: Arc<LinkPost>, state: Arc<ServerState>, tell: Tell) -> Result<Self, ServeError> {
        let poller =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(ServeError::system("make an epoll set"))?;
        epoll::add(&poller, &post.bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)
            .map_err(ServeError::system("add to an epoll set"))?;
        let (clients, awake, spin) = (HashMap::new(), Vec::new(), SpinPolicy::new(SpinMode::Auto));
        Ok(Self { post, state, tell, poller, clients, next: 2, awake, spin, begin: Instant::now() })
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    fn serve(mut self) {
        let mut tokens = Vec::with_capacity(EVENTS);
        let mut checked = Instant::now();
        let mut turns = 0_u32;
        // Pairs with the Release in `end`.
        while !self.post.is_ending.load(Ordering::Acquire) {
            if self.awake.is_empty() || turns % limits::LINK_TURNS == 0 {
                self.wait(&mut tokens);
                self.state.store.publish_now(unix_ms());
                tokens.drain(..).for_each(|token| self.wake(token));
                if checked.elapsed() >= GLANCE {
                    checked = Instant::now();
                    self.close_stalled();
                    self.close_absent();
                }
            }
            turns = turns.wrapping_add(1);
            self.turn();
        }
        // What has arrived is answered; clients learn of the end by their connections.
        let tokens: Vec<u64> = self.clients.keys().copied().collect();
        tokens.into_iter().for_each(|token| _ = self.advance(token));
    }

    fn wait(&self, tokens: &mut Vec<u64>) {
        let most = if self.awake.is_empty() { GLANCE } else { Duration::ZERO };
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
            return self.welcome();
        }
        if token % 2 != 0 {
            // Clients say nothing on their connection: it is at its end. What they asked before is done.
            let _ = self.advance(token - 1);
            return self.close(token - 1);
        }
        let now_ns = self.now_ns();
        if let Some(client) = self.clients.get_mut(&token) {
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
            let data = epoll::EventData::new_u64;
            let link =
                client.wait_fd().map(|fd| epoll::add(&self.poller, fd, data(token), epoll::EventFlags::IN));
            let ends = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
            let channel = epoll::add(&self.poller, client.as_fd(), data(token + 1), ends);
            self.clients.insert(token, client);
            match (link, channel) {
                (Some(Ok(())), Ok(())) => self.awake.push(token),
                _ => self.close(token),
            }
        }
    }

    /// Serves all clients that are awake. If they have nothing, spins or puts them to sleep, whatever pays.
    fn turn(&mut self) {
        let mut is_news = false;
        for index in (0..self.awake.len()).rev() {
            let token = self.awake[index];
            is_news |= self.advance(token);
        }
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
                    match self.clients.get_mut(&token).map(LinkClient::arm) {
                        Some(Ok(Armed::Wait)) | None => {}
                        Some(Ok(Armed::LookAgain)) => self.awake.push(token),
                        Some(Err(text)) => self.lose(token, &text),
                    }
                }
            }
        }
    }

    /// Serves a client once, and returns whether it had something.
    fn advance(&mut self, token: u64) -> bool {
        let Some(client) = self.clients.get_mut(&token) else { return false };
        match client.advance(&self.state) {
            Ok(is_news) => is_news,
            Err(text) => {
                self.lose(token, &text);
                true
            }
        }
    }

    /// Closes the link of a client that has not kept to the protocol, or whose link failed.
    fn lose(&mut self, token: u64, text: &str) {
        if let Some(client) = self.clients.get(&token).filter(|_| !text.is_empty()) {
            (self.tell)(&format!("{}: {text}: closed its link", client.name()));
        }
        self.close(token);
    }

    fn close(&mut self, token: u64) {
        self.awake.retain(|awake| *awake != token);
        // Closing the descriptors takes them out of the set, but others may have been made of them.
        if let Some(client) = self.clients.remove(&token) {
            client.wait_fd().into_iter().for_each(|fd| _ = epoll::delete(&self.poller, fd));
            let _ = epoll::delete(&self.poller, client.as_fd());
            self.post.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends the sessions of clients that have not come back.
    fn close_absent(&self) {
        let limit = caravan_store::limits::SESSION_ABSENT_MAX;
        if let Err(error) = self.state.sessions.close_absent(&self.state.store, limit) {
            (self.tell)(&format!("the session of a client that is gone stays: {error}"));
        }
    }

    fn close_stalled(&mut self) {
        let now = Instant::now();
        let is_stalled =
            |(_, client): &(&u64, &LinkClient)| client.is_stalled(now, limits::OUTPUT_STALLED_MAX);
        let stalled: Vec<u64> = self.clients.iter().filter(is_stalled).map(|(token, _)| *token).collect();
        for token in stalled {
            count(&self.state.counters.stalled, 1);
            let seconds = limits::OUTPUT_STALLED_MAX.as_secs();
            self.lose(token, &format!("it has read none of its replies for {seconds} s"));
        }
    }
}
