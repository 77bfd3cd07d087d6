//! A seat: the work of one thread, with which another thread goes on while the first one waits.
//!
//! A commit waits until it is at all copies of its part. Where a copy is stopped, or out of reach, that takes until it is removed. The
//! thread that runs the commit has other clients, too, which have nothing to do with that part. So a thread that serves clients holds
//! the lock of its seat all the time, but when it runs requests of a client: then it has taken that client out, and gives up the lock.
//! If it does not come back, [`Relief`] has another thread take the seat. The first one then serves its client to the end of what it
//! was doing, gives that back to the seat, and ends. It does not ask for the lock, which the other thread holds while it sleeps: who has
//! the seat is decided by the number of the absence.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::ServeError;
use crate::limits;
use crate::parts::ServedParts;

/// What a thread does in its seat.
pub(crate) trait SeatWork: Send + Sized + 'static {
    /// Does the work until its end, or until another thread has the seat.
    fn work(seated: Seated<'_, Self>);

    /// Lets go of what a thread that waits has taken out.
    fn let_go(&mut self) -> Result<(), ServeError>;
}

/// The work, and who does it.
pub(crate) struct Seat<W> {
    /// The name of its thread.
    name: String,
    /// Whether requests may wait for copies. Otherwise the lock is never given up.
    may_wait: bool,
    /// The number of the absence that the thread is in, 0 if it is there. Whoever sets that back to 0, the thread or one that takes
    /// its seat, has the seat.
    absence: AtomicU64,
    held: Mutex<HeldSeat<W>>,
}

struct HeldSeat<W> {
    work: W,
    absences: u64,
}

impl<W> std::fmt::Debug for Seat<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A seat that this thread has.
pub(crate) struct Seated<'s, W> {
    seat: &'s Seat<W>,
    held: MutexGuard<'s, HeldSeat<W>>,
}

impl<W> Deref for Seated<'_, W> {
    type Target = W;

    fn deref(&self) -> &W {
        &self.held.work
    }
}

impl<W> DerefMut for Seated<'_, W> {
    fn deref_mut(&mut self) -> &mut W {
        &mut self.held.work
    }
}

impl<W> Seated<'_, W> {
    /// Runs what may wait. Returns no seat if another thread has it now.
    #[inline]
    pub(crate) fn absent<T>(mut self, run: impl FnOnce() -> T) -> (T, Option<Self>) {
        if !self.seat.may_wait {
            return (run(), Some(self));
        }
        self.held.absences += 1;
        let (seat, absence) = (self.seat, self.held.absences);
        // Pairs with the Acquire in `take`. What the work is, is under the lock.
        seat.absence.store(absence, Ordering::Release);
        drop(self);
        let value = run();
        (value, seat.take(absence))
    }
}

impl<W> Seat<W> {
    pub(crate) fn new(name: String, work: W, may_wait: bool) -> Arc<Self> {
        let held = Mutex::new(HeldSeat { work, absences: 0 });
        Arc::new(Self { name, may_wait, absence: AtomicU64::new(0), held })
    }

    fn seated(&self) -> Seated<'_, W> {
        Seated { seat: self, held: self.held.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Ends this absence, which gives the calling thread the seat; `None` if another thread has ended it.
    fn take(&self, absence: u64) -> Option<Seated<'_, W>> {
        let ended = self.absence.compare_exchange(absence, 0, Ordering::AcqRel, Ordering::Relaxed);
        // The lock is free, or about to be.
        ended.is_ok().then(|| self.seated())
    }
}

impl<W: SeatWork> Seat<W> {
    /// Starts the first thread.
    pub(crate) fn start(self: &Arc<Self>) -> Result<JoinHandle<()>, ServeError> {
        let seat = Arc::clone(self);
        self.spawn(move || W::work(seat.seated()))
    }

    fn spawn(&self, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ServeError> {
        let spawned = std::thread::Builder::new().name(self.name.clone()).spawn(body);
        spawned.map_err(ServeError::system("start a thread"))
    }

    /// Has a new thread take the seat if its own one is in the same absence as at the last look, whose number was `seen`.
    fn relieve(self: &Arc<Self>, seen: &mut u64) -> Option<JoinHandle<()>> {
        let absence = self.absence.load(Ordering::Relaxed);
        if std::mem::replace(seen, absence) != absence || absence == 0 {
            return None;
        }
        let seat = Arc::clone(self);
        let relieve = move || {
            let Some(mut seated) = seat.take(absence) else { return };
            // Without this, what was taken out would wake the new thread again and again, which costs time only.
            let _ = seated.let_go();
            W::work(seated);
        };
        self.spawn(relieve).ok()
    }
}

/// What commits that wait for long tell the thread `store-relief`.
#[derive(Debug, Default)]
pub(crate) struct WaitBell {
    /// A commit of some part has waited for long, and may wait still.
    waits: AtomicBool,
    rung: Mutex<BellState>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct BellState {
    is_rung: bool,
    is_ending: bool,
}

impl WaitBell {
    /// Tells whether commits of a part may wait: then it is worth asking which.
    #[inline]
    pub(crate) fn may_wait(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, BellState> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that a commit waits.
    pub(crate) fn ring(&self) {
        let mut state = self.state();
        state.is_rung = true;
        self.waits.store(true, Ordering::Relaxed);
        drop(state);
        self.news.notify_all();
    }

    /// Waits for the next ring; `false` at the end.
    fn wait(&self) -> bool {
        let mut state = self.state();
        while !state.is_rung && !state.is_ending {
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_rung = false;
        !state.is_ending
    }

    /// Notes that no commit waits, unless one has said so since the ring before; returns whether that is so.
    fn rest(&self) -> bool {
        let mut state = self.state();
        if std::mem::take(&mut state.is_rung) && !state.is_ending {
            return false;
        }
        self.waits.store(false, Ordering::Relaxed);
        true
    }
}

/// Looks at a seat, and relieves its thread if that is absent.
pub(crate) type SeatLook = Box<dyn FnMut() -> Option<JoinHandle<()>> + Send>;

/// The thread `store-relief`: while commits wait for copies, it has other threads take the seats of those that wait.
#[derive(Debug)]
pub(crate) struct Relief {
    parts: Arc<ServedParts>,
    thread: Option<JoinHandle<Vec<JoinHandle<()>>>>,
}

/// Returns how a seat is looked at.
pub(crate) fn look_at<W: SeatWork>(seat: &Arc<Seat<W>>) -> SeatLook {
    let (seat, mut seen) = (Arc::clone(seat), 0);
    Box::new(move || seat.relieve(&mut seen))
}

impl Relief {
    /// Starts the thread for all seats of a server.
    pub(crate) fn start(parts: &Arc<ServedParts>, looks: Vec<SeatLook>) -> Result<Self, ServeError> {
        let own = Arc::clone(parts);
        let thread = std::thread::Builder::new().name("store-relief".to_owned());
        let thread = thread.spawn(move || relieve_all(&own, looks));
        let thread = thread.map_err(ServeError::system("start a thread"))?;
        Ok(Self { parts: Arc::clone(parts), thread: Some(thread) })
    }

    /// Ends the thread, and returns those that it has started.
    pub(crate) fn end(&mut self) -> Vec<JoinHandle<()>> {
        self.parts.waits.state().is_ending = true;
        self.parts.waits.news.notify_all();
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

fn relieve_all(parts: &ServedParts, mut looks: Vec<SeatLook>) -> Vec<JoinHandle<()>> {
    let mut started: Vec<JoinHandle<()>> = Vec::new();
    while parts.waits.wait() {
        loop {
            started.retain(|thread| !thread.is_finished());
            for look in &mut looks {
                if started.len() < limits::RELIEF_THREADS_MAX {
                    started.extend(look());
                }
            }
            parts.table().hurry_readers();
            std::thread::sleep(limits::RELIEF_LOOK);
            if !parts.table().stores().any(|store| store.commits_wait()) && parts.waits.rest() {
                break;
            }
            if parts.waits.state().is_ending {
                return started;
            }
        }
        parts.table().hurry_readers();
    }
    started
}
