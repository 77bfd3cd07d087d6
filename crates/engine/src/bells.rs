//! What wakes a worker that sleeps: an eventfd for each place in the table of workers, and one for
//! the supervisor. All of them are made before the first fork, so that a worker can wake those that
//! come later.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::event::EventfdFlags;

use crate::error::{Error, system};
use crate::limits::WORKERS_MAX;
use crate::owner::WorkerId;

/// One bell. Rung any number of times, it is quiet again after one [`hush`](WorkerBell::hush).
#[derive(Debug)]
pub struct WorkerBell(OwnedFd);

impl WorkerBell {
    fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        rustix::event::eventfd(0, flags).map(Self).map_err(system("eventfd"))
    }

    /// Wakes whoever waits for it, or is about to.
    pub fn ring(&self) {
        // Full, it has been rung 2^64 times and is heard all the same.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes notice.
    pub fn hush(&self) {
        // Quiet already: nothing to take notice of.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for WorkerBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// All bells.
#[derive(Clone, Debug)]
pub struct EngineBells {
    workers: Rc<Vec<WorkerBell>>,
    supervisor: Rc<WorkerBell>,
}

impl EngineBells {
    /// Makes them.
    pub fn new() -> Result<Self, Error> {
        let workers: Result<Vec<_>, _> = (0..WORKERS_MAX).map(|_| WorkerBell::new()).collect();
        Ok(Self { workers: Rc::new(workers?), supervisor: Rc::new(WorkerBell::new()?) })
    }

    /// A worker's.
    pub fn worker(&self, worker: WorkerId) -> &WorkerBell {
        &self.workers[worker.place()]
    }

    /// The supervisor's.
    pub fn supervisor(&self) -> &WorkerBell {
        &self.supervisor
    }
}
