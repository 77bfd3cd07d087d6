//! What a port has done on a thread of the emulator's that may wait for a device, or for the peer.
//!
//! | step | who | what |
//! |---|---|---|
//! | begun | a control call, under the port's lock | [`Errand`] goes to `driver_async` |
//! | run | a thread of the emulator's, without the lock | [`Errand::run`] |
//! | or a part of it | the same | what waits for the peer does so for a moment, and then gets in line again |
//! | back | `ready_async`, under the lock | [`Port::finished`](super::Port::finished), which sends `{Port, done, Reply}` |
//! | or dropped | the emulator, if the port has closed | everything that the errand holds goes with it |
//!
//! The emulator has one such thread, unless `+A` says more. Were it to wait for one peer alone, three nodes
//! that connect in a ring at once could each wait for the next. One call waits all the same, and holds up
//! other ports' jobs: soft iWARP (siw) makes its TCP connection within rdma_connect(3), so that a firewall
//! which drops it costs the thread what `net.ipv4.tcp_syn_retries` allows. Devices do that by themselves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use caravan_fabric::Endpoint;
use caravan_fabric::contract::Exposure;
use caravan_fabric::verbs::{self, ConnectProgress, PendingEndpoint};

use crate::error::Error;
use crate::limits::JOB_SLICE_MS;

/// What is to be done.
#[derive(Debug)]
pub enum Job {
    Offer,
    Connect { offer: Vec<u8>, exposure: Exposure },
    Accept { message: Vec<u8>, exposure: Exposure },
    Finish { pending: PendingEndpoint, answer: Vec<u8>, limit: Duration, deadline: Instant },
}

/// What has been done.
#[derive(Debug)]
pub enum Done {
    /// This machine's ports, for the peer.
    Offer(Vec<u8>),
    /// Half of a connection, and a message for the peer.
    Half(PendingEndpoint, Vec<u8>),
    /// The connection.
    Whole(Box<dyn Endpoint>),
    /// Nothing yet: this is what remains to be done.
    Later(Job),
}

impl Job {
    fn run(self) -> Result<Done, Error> {
        Ok(match self {
            Self::Offer => Done::Offer(verbs::offer()?),
            Self::Connect { offer, exposure } => half(verbs::connect(&offer, &exposure)?),
            Self::Accept { message, exposure } => half(verbs::accept(&message, &exposure)?),
            Self::Finish { pending, answer, limit, deadline } => {
                let pause = Instant::now() + Duration::from_millis(JOB_SLICE_MS);
                match pending.advance(&answer, limit, pause)? {
                    ConnectProgress::Connected(endpoint) => Done::Whole(endpoint),
                    ConnectProgress::Waiting(pending) if Instant::now() < deadline => {
                        Done::Later(Self::Finish { pending, answer, limit, deadline })
                    }
                    ConnectProgress::Waiting(pending) => return Err(pending.unanswered(limit).into()),
                }
            }
        })
    }
}

fn half((pending, message): (PendingEndpoint, Vec<u8>)) -> Done {
    Done::Half(pending, message)
}

/// A job under way, as the port keeps it in mind. Dropping it means that nobody wants the job done.
#[derive(Debug)]
pub struct Ticket(Arc<AtomicBool>);

impl Ticket {
    /// What remains of the job.
    pub fn rest(&self, job: Job) -> Errand {
        Errand { unwanted: self.0.clone(), job: Some(job), outcome: None }
    }
}

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
