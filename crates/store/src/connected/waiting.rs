//! Who waits for answers, and how: whichever thread waits takes what has arrived for all of them.
//!
//! One thread at a time sleeps on the link's descriptor; the others sleep until it has had news. Futures are woken by
//! whoever takes their answers; if nobody waits, by a thread that this module starts, and that ends a second after the
//! last call.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use caravan_fabric::contract::Armed;
use caravan_fabric::{SpinMode, SpinPolicy, Turn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::address::ConnectOptions;
use super::attach::{AttachedLink, StoreGreeting, attach};
use super::board::{CallBoard, CallOutcome};
use super::one_sided::OneSidedReads;
use crate::error::StoreError;
use crate::limits;

/// The time between two attempts to reach a server again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

/// What all users of a connection share.
#[derive(Debug)]
pub(crate) struct SharedCalls {
    options: ConnectOptions,
    pub(crate) greeting: StoreGreeting,
    state: Mutex<SharedState>,
    /// Notified when a turn of the board had news, and when the descriptor is free to be slept on.
    news: Condvar,
    begin: Instant,
}

#[derive(Debug)]
struct SharedState {
    board: CallBoard,
    descriptors: Option<Arc<LinkDescriptors>>,
    spin: SpinPolicy,
    /// A thread sleeps on the descriptor: the link is armed.
    is_slept_on: bool,
    /// The threads that sleep until the former has had news.
    sleepers: usize,
    has_helper: bool,
}

/// What a waiting thread sleeps on.
#[derive(Debug)]
struct LinkDescriptors {
    bell: OwnedFd,
    channel: OwnedFd,
}

type SharedGuard<'s> = MutexGuard<'s, SharedState>;

impl SharedCalls {
    /// Connects; returns the memory of the store, too, if the server handed it over.
    pub(crate) fn connect(options: ConnectOptions) -> Result<(Self, Option<OwnedFd>), StoreError> {
        let attached = attach(&options)?;
        let greeting = attached.greeting;
        let mut state = SharedState {
            board: CallBoard::new(),
            descriptors: None,
            spin: SpinPolicy::new(SpinMode::Auto),
            is_slept_on: false,
            sleepers: 0,
            has_helper: false,
        };
        let memory = state.attach(attached)?;
        let (state, news) = (Mutex::new(state), Condvar::new());
        Ok((Self { options, greeting, state, news, begin: Instant::now() }, memory))
    }

    fn lock(&self) -> SharedGuard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    /// Starts a call by `start` once there is room for it. Connects again first if the connection was lost.
    pub(crate) fn start(&self, start: impl FnOnce(&mut CallBoard) -> u32) -> Result<u32, StoreError> {
        loop {
            let mut state = self.lock();
            if state.board.link.is_none() {
                self.reconnect(&mut state)?;
            }
            if state.board.has_room() {
                return Ok(start(&mut state.board));
            }
            drop(state);
            self.wait(|board| (board.has_room() || board.link.is_none()).then_some(()));
        }
    }

    fn reconnect(&self, state: &mut SharedState) -> Result<(), StoreError> {
        let begin = Instant::now();
        loop {
            match attach(&self.options) {
                Ok(attached) if attached.greeting != self.greeting => return Err(StoreError::Replaced),
                Ok(attached) => return state.attach(attached).map(drop),
                // The server is being started again, perhaps.
                Err(StoreError::Unreachable { .. } | StoreError::Link(_))
                    if begin.elapsed() < limits::RECONNECT_WAIT => {}
                Err(error) => return Err(error),
            }
            std::thread::sleep(RECONNECT_PAUSE);
        }
    }

    /// Sends what was started.
    pub(crate) fn flush(&self) {
        let mut state = self.lock();
        if state.board.flush().is_err() {
            self.detach(&mut state);
        }
    }

    /// Ends the connection, and all calls with it.
    fn detach(&self, state: &mut SharedState) {
        state.board.detach();
        state.descriptors = None;
        self.news.notify_all();
    }

    /// Waits until `look` returns something, which it does at the latest when the connection has ended.
    pub(crate) fn wait<T>(&self, mut look: impl FnMut(&mut CallBoard) -> Option<T>) -> T {
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state.board) {
                return found;
            }
            state = self.turn(state);
        }
    }

    /// Sends and receives once; if there is nothing, spins or sleeps, whatever pays.
    fn turn<'s>(&'s self, mut state: SharedGuard<'s>) -> SharedGuard<'s> {
        if state.is_slept_on {
            // What this thread has started may not have been sent yet.
            if state.board.flush().is_err() {
                self.detach(&mut state);
                return state;
            }
            state.sleepers += 1;
            let (mut state, _) =
                self.news.wait_timeout(state, limits::GLANCE).unwrap_or_else(PoisonError::into_inner);
            state.sleepers -= 1;
            return state;
        }
        match state.advance() {
            Ok(true) => {
                state.spin.found(self.now_ns());
                if state.sleepers > 0 {
                    self.news.notify_all();
                }
                return state;
            }
            Ok(false) => {}
            Err(_) => {
                self.detach(&mut state);
                return state;
            }
        }
        if state.spin.nothing(self.now_ns()) == Turn::Spin {
            drop(state);
            std::thread::yield_now();
            return self.lock();
        }
        match (state.board.arm(), state.descriptors.clone()) {
            (Ok(Armed::Wait), Some(descriptors)) => self.sleep(state, &descriptors),
            (Ok(_), Some(_)) => state,
            _ => {
                self.detach(&mut state);
                state
            }
        }
    }

    /// Sleeps until the link has news or the server is gone.
    fn sleep<'s>(&'s self, mut state: SharedGuard<'s>, descriptors: &LinkDescriptors) -> SharedGuard<'s> {
        state.is_slept_on = true;
        drop(state);
        let mut ready = [
            PollFd::from_borrowed_fd(descriptors.bell.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(descriptors.channel.as_fd(), PollFlags::IN | PollFlags::RDHUP),
        ];
        // An interrupted wait looks again.
        let _ = poll(&mut ready, Timespec::try_from(limits::GLANCE).ok().as_ref());
        let (has_rung, is_gone) = (!ready[0].revents().is_empty(), !ready[1].revents().is_empty());
        let mut state = self.lock();
        state.is_slept_on = false;
        if state.sleepers > 0 {
            self.news.notify_all();
        }
        let now_ns = self.now_ns();
        let SharedState { board, spin, .. } = &mut *state;
        if let Some(link) = &mut board.link {
            link.awake();
            if has_rung {
                spin.woken(now_ns);
            }
            // A server that is gone may have answered before.
            let result = if has_rung { link.acknowledge() } else { Ok(()) };
            let is_lost = result.is_err() || board.receive().is_err() || is_gone;
            if is_lost {
                self.detach(&mut state);
            }
        }
        state
    }

    /// Takes the outcome of a call, or has `waker` called when it is there.
    pub(crate) fn poll(self: &Arc<Self>, call: u32, waker: &Waker) -> Option<CallOutcome> {
        let mut state = self.lock();
        let advanced = if state.is_slept_on { state.board.flush().map(|()| false) } else { state.advance() };
        if advanced.is_err() {
            self.detach(&mut state);
        }
        let outcome = state.board.take(call);
        if outcome.is_none() {
            state.board.wake(call, waker);
            if state.has_helper {
                self.news.notify_all();
            } else {
                state.has_helper = self.start_helper();
            }
        }
        outcome
    }

    /// Starts the thread that waits while futures are under way. Without it, whoever waits next wakes them.
    fn start_helper(self: &Arc<Self>) -> bool {
        let shared = Arc::clone(self);
        let help = move || {
            loop {
                shared.wait(|board| (!board.is_busy()).then_some(()));
                let state = shared.lock();
                let idle = |state: &mut SharedState| !state.board.is_busy();
                let (mut state, _) = shared
                    .news
                    .wait_timeout_while(state, limits::GLANCE, idle)
                    .unwrap_or_else(PoisonError::into_inner);
                if !state.board.is_busy() {
                    state.has_helper = false;
                    return;
                }
            }
        };
        std::thread::Builder::new().name("store-futures".to_owned()).spawn(help).is_ok()
    }

    /// Says that nobody will take the outcome of a call.
    pub(crate) fn abandon(&self, call: u32) {
        let mut state = self.lock();
        state.board.abandon(call);
        if state.board.flush().is_err() {
            self.detach(&mut state);
        }
    }

    /// Runs `body` on the link and its one-sided reads, if they are there.
    pub(crate) fn with_board<T>(&self, body: impl FnOnce(&CallBoard) -> T) -> T {
        body(&self.lock().board)
    }
}

impl SharedState {
    fn attach(&mut self, attached: AttachedLink) -> Result<Option<OwnedFd>, StoreError> {
        let AttachedLink { link, channel, greeting, memory } = attached;
        let reads = match memory {
            Some(_) => None,
            None => Some(OneSidedReads::new(&link, greeting.layout())?),
        };
        let bell = link.wait_fd().ok_or(StoreError::Protocol("its link cannot be waited for"))?;
        let bell = bell.try_clone_to_owned().map_err(|source| StoreError::System { call: "dup", source })?;
        self.descriptors = Some(Arc::new(LinkDescriptors { bell, channel }));
        self.board.attach(link, reads);
        Ok(memory)
    }

    /// Sends and receives, and returns whether anything arrived.
    fn advance(&mut self) -> Result<bool, StoreError> {
        self.board.flush()?;
        let is_news = self.board.receive()?;
        if is_news {
            // What arrived may have led to further reads and calls.
            self.board.flush()?;
        }
        Ok(is_news)
    }
}
