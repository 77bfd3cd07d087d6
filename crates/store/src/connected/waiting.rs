//! Who waits for answers, and how: whichever thread waits takes what has arrived for all of them.
//!
//! One thread at a time sleeps on the link's descriptor; the others sleep until it has had news. Futures are woken by
//! whoever takes their answers; if nobody waits, by a thread that this module starts, and that ends a second after the
//! last call.

use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use caravan_fabric::contract::{Armed, Provider};
use caravan_fabric::{SpinMode, SpinPolicy, Turn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::StoreTransport;
use super::address::ConnectOptions;
use super::attach::{AttachedLink, StoreGreeting, attach, attach_elsewhere};
use super::board::{CallBoard, CallOutcome};
use super::mapped::{MappedMemory, MappedReads};
use super::one_sided::OneSidedReads;
use crate::calls::RequestKind;
use crate::error::StoreError;
use crate::limits;

/// The time between two attempts to reach a server again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);

/// The waker of futures that [`SharedCalls::block_on`] brings on: nobody has to be woken. `Waker::noop()` would not do, because
/// that of another crate's code may be another one to `will_wake`.
static NOBODY: LazyLock<Waker> = LazyLock::new(|| Waker::from(Arc::new(Nobody)));

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

/// What all users of a connection share.
#[derive(Debug)]
pub(crate) struct SharedCalls {
    options: ConnectOptions,
    pub(crate) greeting: StoreGreeting,
    pub(crate) mapped: MappedReads,
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
    /// When a write was last started.
    wrote: Instant,
    /// When the connection was found lost, until there is another one.
    lost: Option<Instant>,
    /// When the server last said something, as far as a waiting thread has noticed.
    heard_ns: u64,
    /// Where the server was last.
    address: String,
    transport: StoreTransport,
    /// When other servers were last asked where the part is, and for how long they are not asked again.
    asked_ns: u64,
    patience: Duration,
}

/// What a waiting thread sleeps on.
#[derive(Debug)]
struct LinkDescriptors {
    bell: OwnedFd,
    channel: OwnedFd,
}

type SharedGuard<'s> = MutexGuard<'s, SharedState>;

impl SharedCalls {
    /// Connects, and maps the memory of the store if the server hands it over.
    pub(crate) fn connect(options: ConnectOptions) -> Result<Self, StoreError> {
        let (attached, address) = attach_first(&options)?;
        let greeting = attached.greeting;
        let mut state = SharedState {
            board: CallBoard::new(),
            descriptors: None,
            spin: SpinPolicy::new(SpinMode::Auto),
            is_slept_on: false,
            sleepers: 0,
            has_helper: false,
            wrote: Instant::now(),
            lost: None,
            heard_ns: 0,
            address,
            transport: StoreTransport::Mapped,
            asked_ns: 0,
            patience: limits::PART_SILENCE,
        };
        let mapped = MappedReads::new(state.attach(attached)?, options.part.is_some());
        let (state, news) = (Mutex::new(state), Condvar::new());
        Ok(Self { options, greeting, mapped, state, news, begin: Instant::now() })
    }

    /// Returns how the client reads.
    pub(crate) fn transport(&self) -> StoreTransport {
        self.lock().transport
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
            let room = self.wait(|board| (board.has_room() || board.link.is_none()).then_some(()));
            room.ok_or_else(|| self.no_answer(false))?;
        }
    }

    /// Starts a write once there is room for it, as [`start`](Self::start) does a call. It is repeated over later
    /// connections until it has an answer.
    pub(crate) fn start_write(
        &self,
        kind: RequestKind,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Result<u32, StoreError> {
        let may_start = |board: &CallBoard| board.has_room() && board.may_write();
        loop {
            let mut state = self.lock();
            // Nobody has looked at the connection of an idle client.
            let wrote = std::mem::replace(&mut state.wrote, Instant::now());
            if !state.board.is_busy() && wrote.elapsed() >= limits::GLANCE && state.is_hung_up() {
                self.detach(&mut state);
            }
            if state.board.link.is_none() {
                self.reconnect(&mut state)?;
            }
            if may_start(&state.board) {
                return Ok(state.board.start_write(kind, body));
            }
            state.board.ask_for_session();
            drop(state);
            let is_news =
                |board: &CallBoard| may_start(board) || board.link.is_none() || board.lacks_session();
            self.wait(|board| is_news(board).then_some(())).ok_or_else(|| self.no_answer(false))?;
        }
    }

    /// Starts a one-sided read of some bytes; `None` if they are not lent, or too many reads are under way.
    pub(crate) fn start_read(&self, place: u64, bytes: usize) -> Result<Option<u32>, StoreError> {
        let mut state = self.lock();
        if state.board.link.is_none() {
            self.reconnect(&mut state)?;
        }
        Ok(state.board.start_read(place, bytes))
    }

    /// Connects again. If that fails, writes without an answer end.
    fn reconnect(&self, state: &mut SharedState) -> Result<(), StoreError> {
        let result = self.try_reconnect(state);
        if let Err(error) = &result {
            let is_replaced = matches!(error, StoreError::Replaced);
            state
                .board
                .fail_writes(|| if is_replaced { StoreError::Replaced } else { StoreError::Disconnected });
        }
        self.news.notify_all();
        result
    }

    fn try_reconnect(&self, state: &mut SharedState) -> Result<(), StoreError> {
        let begin = state.lost.unwrap_or_else(Instant::now);
        // If that server is gone, another one may know where its part is.
        let candidates = self.options.candidates(&state.address);
        let mut turn = 0;
        loop {
            let round = (turn / candidates.len()) as u32;
            let answer_wait = self.options.answer_wait_in(round, candidates.len());
            let error = match attach(&self.options, &candidates[turn % candidates.len()], answer_wait) {
                Ok((attached, _)) if attached.greeting != self.greeting => return Err(StoreError::Replaced),
                Ok((attached, address)) => {
                    state.heard_ns = self.now_ns();
                    state.address = address;
                    return self.take(state, attached);
                }
                Err(error) => error,
            };
            // The server is being started again, perhaps, or many clients come back at the same moment.
            let is_passing = match &error {
                StoreError::Unreachable { .. } | StoreError::NoAnswer { .. } => true,
                StoreError::Link(_) | StoreError::Memory(_) => true,
                error => error.is_passing_refusal(),
            };
            turn += 1;
            // However long the connection has been lost, each of them is asked.
            let is_over = turn % candidates.len() == 0 && begin.elapsed() >= limits::RECONNECT_WAIT;
            if !is_passing || is_over {
                return Err(error);
            }
            // Nobody was kept busy by an attempt in vain to reach a server: the next one is asked at once.
            if turn % candidates.len() == 0 || !matches!(error, StoreError::Unreachable { .. }) {
                std::thread::sleep(RECONNECT_PAUSE);
            }
        }
    }

    /// Takes a later connection.
    fn take(&self, state: &mut SharedState, attached: AttachedLink) -> Result<(), StoreError> {
        self.mapped.exchange(state.attach(attached)?);
        Ok(())
    }

    /// Sends what was started.
    pub(crate) fn flush(&self) {
        let mut state = self.lock();
        if state.board.flush().is_err() {
            self.detach(&mut state);
        }
    }

    /// Ends the connection, and all calls with it but writes, which are repeated.
    fn detach(&self, state: &mut SharedState) {
        state.board.detach();
        state.descriptors = None;
        state.lost.get_or_insert_with(Instant::now);
        self.news.notify_all();
    }

    /// Waits until `look` returns something, which it does at the latest when the connection has ended, or for a write
    /// when it was not possible to connect again. Returns `None` once the server has said nothing for too long.
    pub(crate) fn wait<T>(&self, look: impl FnMut(&mut CallBoard) -> Option<T>) -> Option<T> {
        self.wait_from(&mut None, look)
    }

    /// Waits as [`wait`](Self::wait) does, on behalf of who has slept since `asleep_ns`.
    fn wait_from<T>(
        &self,
        asleep_ns: &mut Option<u64>,
        mut look: impl FnMut(&mut CallBoard) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state.board) {
                return Some(found);
            }
            if self.is_silent(&state, *asleep_ns) {
                return None;
            }
            self.follow_if_silent(&mut state, *asleep_ns);
            state = self.turn(state, asleep_ns);
        }
    }

    /// Runs a future that awaits operations of this client: this thread takes their answers off the link. Returns `None`
    /// once the server has said nothing for too long.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut context = Context::from_waker(&NOBODY);
        let mut asleep_ns = None;
        loop {
            let ended = self.lock().board.ended();
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return Some(value);
            }
            let mut state = self.lock();
            if self.is_silent(&state, asleep_ns) {
                return None;
            }
            self.follow_if_silent(&mut state, asleep_ns);
            // What the future waits for may have ended since it has looked, and nothing else would follow.
            if state.board.ended() == ended {
                drop(self.turn(state, &mut asleep_ns));
            }
        }
    }

    /// Tells whether the server has said nothing for too long to a thread that has slept; others do not look at the clock.
    fn is_silent(&self, state: &SharedState, asleep_ns: Option<u64>) -> bool {
        asleep_ns.is_some_and(|asleep_ns| {
            let silent_ns = self.now_ns().saturating_sub(state.heard_ns.max(asleep_ns));
            Duration::from_nanos(silent_ns) >= self.options.answer_wait
        })
    }

    /// Follows a part whose server says nothing: a host that is gone or cut off ends no connection. Other servers know whether the part
    /// is elsewhere by now; if not, the server may just take long, and is waited for.
    fn follow_if_silent(&self, state: &mut SharedState, asleep_ns: Option<u64>) {
        let Some(asleep_ns) = asleep_ns.filter(|_| self.options.part.is_some()) else { return };
        let now_ns = self.now_ns();
        if state.heard_ns > state.asked_ns {
            (state.asked_ns, state.patience) = (state.heard_ns, limits::PART_SILENCE);
        }
        let silent_ns = now_ns.saturating_sub(state.asked_ns.max(asleep_ns));
        if state.board.link.is_none() || Duration::from_nanos(silent_ns) < state.patience {
            return;
        }
        let found = attach_elsewhere(&self.options, &state.address);
        (state.asked_ns, state.patience) = (self.now_ns(), 2 * state.patience);
        if let Some((attached, address)) = found.filter(|(attached, _)| attached.greeting == self.greeting) {
            self.detach(state);
            state.address = address;
            // Without a link, whoever waits connects again.
            let _ = self.take(state, attached);
        }
    }

    /// Returns the error of who has waited too long.
    pub(crate) fn no_answer(&self, is_started: bool) -> StoreError {
        StoreError::NoAnswer { wait: self.options.answer_wait, is_started }
    }

    /// Returns how long one sleep takes.
    fn glance(&self) -> Duration {
        let glance = limits::GLANCE.min(self.options.answer_wait);
        if self.options.part.is_some() { glance.min(limits::PART_SILENCE) } else { glance }
    }

    /// Sends and receives once; if there is nothing, spins or sleeps, whatever pays. Connects again if there are
    /// writes to repeat. `asleep_ns` gets the time before the first sleep.
    fn turn<'s>(&'s self, mut state: SharedGuard<'s>, asleep_ns: &mut Option<u64>) -> SharedGuard<'s> {
        if state.board.link.is_none() && state.board.has_unanswered() {
            // If it fails, that is the outcome of the writes.
            let _ = self.reconnect(&mut state);
            return state;
        }
        if state.is_slept_on {
            // What this thread has started may not have been sent yet.
            if state.board.flush().is_err() {
                self.detach(&mut state);
                return state;
            }
            state.sleepers += 1;
            asleep_ns.get_or_insert_with(|| self.now_ns());
            let (mut state, _) =
                self.news.wait_timeout(state, self.glance()).unwrap_or_else(PoisonError::into_inner);
            state.sleepers -= 1;
            return state;
        }
        match state.advance() {
            Ok(true) => {
                self.note_news(&mut state);
                return state;
            }
            Ok(false) => {}
            Err(_) => {
                self.detach(&mut state);
                return state;
            }
        }
        let now_ns = self.now_ns();
        if state.spin.nothing(now_ns) == Turn::Spin {
            drop(state);
            std::thread::yield_now();
            return self.lock();
        }
        match (state.board.arm(), state.descriptors.clone()) {
            (Ok(Armed::Wait), Some(descriptors)) => {
                asleep_ns.get_or_insert(now_ns);
                self.sleep(state, &descriptors)
            }
            (Ok(_), Some(_)) => state,
            _ => {
                self.detach(&mut state);
                state
            }
        }
    }

    /// Notes that something has arrived while nobody slept.
    fn note_news(&self, state: &mut SharedState) {
        let now_ns = self.now_ns();
        state.heard_ns = now_ns;
        state.spin.found(now_ns);
        if state.sleepers > 0 {
            self.news.notify_all();
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
        let _ = poll(&mut ready, Timespec::try_from(self.glance()).ok().as_ref());
        let (has_rung, is_gone) = (!ready[0].revents().is_empty(), !ready[1].revents().is_empty());
        let mut state = self.lock();
        state.is_slept_on = false;
        if state.sleepers > 0 {
            self.news.notify_all();
        }
        let now_ns = self.now_ns();
        // Another thread may have connected again meanwhile.
        let is_same = |now: &Arc<LinkDescriptors>| std::ptr::eq(&**now, descriptors);
        if !state.descriptors.as_ref().is_some_and(is_same) {
            return state;
        }
        if has_rung {
            state.heard_ns = now_ns;
        }
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

    /// Takes the outcome of a call, or has `waker` called when it is there. `asleep_ns` gets the time of the first call
    /// in vain. Once the server has said nothing for too long, that is the outcome.
    pub(crate) fn poll(
        self: &Arc<Self>,
        call: u32,
        waker: &Waker,
        asleep_ns: &mut Option<u64>,
    ) -> Option<CallOutcome> {
        let mut state = self.lock();
        let advanced = if state.is_slept_on { state.board.flush().map(|()| false) } else { state.advance() };
        match advanced {
            // Else a thread in `block_on` would believe that it has waited in vain since its first call, and sleep.
            Ok(true) => self.note_news(&mut state),
            Ok(false) => {}
            Err(_) => self.detach(&mut state),
        }
        let outcome = state.board.take(call);
        if outcome.is_none() && self.is_silent(&state, *asleep_ns) {
            state.board.abandon(call);
            return Some(CallOutcome::Failed(self.no_answer(true)));
        }
        // `block_on` brings itself on, and knows how long it has waited.
        if outcome.is_none() && !waker.will_wake(&NOBODY) {
            asleep_ns.get_or_insert_with(|| self.now_ns());
            state.board.wake(call, waker);
            if state.has_helper {
                self.news.notify_all();
            } else {
                state.has_helper = self.start_helper();
            }
        }
        outcome
    }

    /// Returns whether there is a thread that waits for futures.
    pub(crate) fn has_helper(&self) -> bool {
        self.lock().has_helper
    }

    /// Starts the thread that waits while futures are under way. Without it, whoever waits next wakes them.
    fn start_helper(self: &Arc<Self>) -> bool {
        let shared = Arc::clone(self);
        let help = move || {
            loop {
                let is_idle = |board: &mut CallBoard| (!board.is_busy()).then_some(());
                let mut asleep_ns = None;
                while shared.wait_from(&mut asleep_ns, is_idle).is_none() {
                    // Each future looks whether it has waited too long itself; those that have not do so a glance later.
                    shared.lock().board.wake_all();
                    let next_ns = shared.now_ns() + shared.glance().as_nanos() as u64;
                    asleep_ns = Some(next_ns.saturating_sub(shared.options.answer_wait.as_nanos() as u64));
                }
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

/// Connects for the first time: to the first server that can be reached. While a server says that it is to be asked again, as
/// the part is just being taken over, or may just be slow, this asks all of them in turn.
fn attach_first(options: &ConnectOptions) -> Result<(AttachedLink, String), StoreError> {
    let begin = Instant::now();
    let candidates = options.candidates(&options.address);
    let mut round = 0;
    loop {
        let (mut first, mut is_to_ask_again) = (None, false);
        let answer_wait = options.answer_wait_in(round, candidates.len());
        for address in &candidates {
            match attach(options, address, answer_wait) {
                Err(error) if error.is_passing_refusal() => {
                    is_to_ask_again = true;
                    first = Some(error);
                }
                Err(error @ (StoreError::Unreachable { .. } | StoreError::NoAnswer { .. })) => {
                    is_to_ask_again |= matches!(error, StoreError::NoAnswer { .. });
                    first.get_or_insert(error);
                }
                outcome => return outcome,
            }
        }
        if !is_to_ask_again || begin.elapsed() >= options.connect_wait {
            return Err(first.unwrap_or(StoreError::Disconnected));
        }
        round += 1;
        std::thread::sleep(RECONNECT_PAUSE);
    }
}

impl Drop for SharedCalls {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.board.end_session();
        // If that does not arrive, the session ends after a while.
        let _ = state.board.flush();
    }
}

impl SharedState {
    fn attach(&mut self, attached: AttachedLink) -> Result<Option<MappedMemory>, StoreError> {
        let AttachedLink { link, channel, greeting, memory } = attached;
        let is_far = link.provider() != Provider::Shm;
        let reads = is_far.then(|| OneSidedReads::new(&link, greeting.layout())).transpose()?;
        let bell = link.wait_fd().ok_or(StoreError::Protocol("its link cannot be waited for"))?;
        let bell = bell.try_clone_to_owned().map_err(|source| StoreError::System { call: "dup", source })?;
        self.transport = match link.provider() {
            Provider::Shm => StoreTransport::Mapped,
            Provider::Rdma => StoreTransport::Rdma,
            _ => StoreTransport::Tcp,
        };
        self.descriptors = Some(Arc::new(LinkDescriptors { bell, channel }));
        self.board.attach(link, reads);
        self.lost = None;
        Ok(memory)
    }

    /// Returns whether the connection is at its end.
    fn is_hung_up(&self) -> bool {
        let Some(descriptors) = &self.descriptors else { return false };
        let mut ready = [PollFd::from_borrowed_fd(descriptors.channel.as_fd(), PollFlags::RDHUP)];
        poll(&mut ready, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
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
