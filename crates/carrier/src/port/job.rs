//! What a port has done on a thread of the emulator's that may wait for a device, or for the peer.
//!
//! | step | who | what |
//! |---|---|---|
//! | begun | a control call, under the port's lock | [`Errand`] goes to `driver_async` |
//! | run | a thread of the emulator's, without the lock | [`Errand::run`] |
//! | back | `ready_async`, under the lock | [`Port::finished`](super::Port::finished), which sends `{Port, done, Reply}` |
//! | or dropped | the emulator, if the port has closed | everything that the errand holds goes with it |

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_fabric::Endpoint;
use caravan_fabric::contract::Exposure;
use caravan_fabric::verbs::{self, Pending};

use crate::error::Error;

/// What is to be done.
#[derive(Debug)]
pub enum Job {
    Offer,
    Connect { offer: Vec<u8>, exposure: Exposure },
    Accept { message: Vec<u8>, exposure: Exposure },
    Finish { pending: Pending, answer: Vec<u8>, limit: Duration },
}

/// What has been done.
#[derive(Debug)]
pub enum Done {
    /// This machine's ports, for the peer.
    Offer(Vec<u8>),
    /// Half of a connection, and a message for the peer.
    Half(Pending, Vec<u8>),
    /// The connection.
    Whole(Box<dyn Endpoint>),
}

impl Job {
    fn run(self) -> Result<Done, Error> {
        Ok(match self {
            Self::Offer => Done::Offer(verbs::offer()?),
            Self::Connect { offer, exposure } => half(verbs::connect(&offer, &exposure)?),
            Self::Accept { message, exposure } => half(verbs::accept(&message, &exposure)?),
            Self::Finish { pending, answer, limit } => Done::Whole(pending.finish(&answer, limit)?),
        })
    }
}

fn half((pending, message): (Pending, Vec<u8>)) -> Done {
    Done::Half(pending, message)
}

/// A job under way, as the port keeps it in mind. Dropping it means that nobody wants the job done.
#[derive(Debug)]
pub struct Ticket(Arc<AtomicBool>);

impl Drop for Ticket {
    fn drop(&mut self) {
        // Nothing else is told by it: Relaxed.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A job on its way to a thread, and back with what became of it.
#[derive(Debug)]
pub struct Errand {
    unwanted: Arc<AtomicBool>,
    job: Option<Job>,
    outcome: Option<Result<Done, Error>>,
}

impl Errand {
    /// A job, and what its port keeps.
    pub fn new(job: Job) -> (Self, Ticket) {
        let unwanted = Arc::new(AtomicBool::new(false));
        (Self { unwanted: unwanted.clone(), job: Some(job), outcome: None }, Ticket(unwanted))
    }

    /// Does it, unless nobody wants it any more.
    pub fn run(&mut self) {
        let Some(job) = self.job.take() else { return };
        if !self.unwanted.load(Ordering::Relaxed) {
            let outcome = catch_unwind(AssertUnwindSafe(|| job.run()));
            self.outcome = Some(outcome.unwrap_or(Err(Error::Panicked)));
        }
    }

    /// What became of it, for the port that began it and still wants it.
    pub fn outcome(self, ticket: &Ticket) -> Option<Result<Done, Error>> {
        if Arc::ptr_eq(&self.unwanted, &ticket.0) { self.outcome } else { None }
    }
}
