//! How a port becomes an RDMA link: the messages of the two sides beyond those of `verbs`, and the
//! jobs that a thread of the emulator does meanwhile, because they may wait for a device or for the peer.
//!
//! | sender | bytes |
//! |---|---|
//! | accepting side, OFFER | `<<RingBytes:64, HelloLen:8, Hello, Ports>>` |
//! | initiating side, RDMA_CONNECT | `<<HelloLen:8, Hello, Message>>` |
//! | accepting side, RDMA_ACCEPT | `<<Message>>` |
//!
//! `Hello` is half of a key exchange if the link is to be sealed, and empty otherwise. The accepting
//! side's choice of size holds for both.
//!
//! | step of a job | who | what |
//! |---|---|---|
//! | begun | a control call, under the port's lock | [`Errand`] goes to `driver_async` |
//! | run | a thread of the emulator's, without the lock | [`Errand::run`] |
//! | run in part | the same thread | a job that waits for the peer does so for a moment, and then gets in line again |
//! | back | `ready_async`, under the lock | [`DriverPort::finished`], which sends `{Port, done, Reply}` |
//! | dropped | the emulator, if the port has closed | everything that the errand holds goes with it |
//!
//! The emulator has one such thread, unless `+A` says more. If it waited for one peer alone, three nodes
//! that connect in a ring at once could each wait for the next. One call still waits, and holds up
//! other ports' jobs: soft iWARP (siw) makes its TCP connection within rdma_connect(3), so a firewall
//! that drops its packets costs the thread what `net.ipv4.tcp_syn_retries` allows. Hardware does that by itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use caravan_fabric::byte_reader::ByteReader;
use caravan_fabric::contract::{Exposure, Provider};
use caravan_fabric::verbs::{self, ConnectProgress, PendingEndpoint};
use caravan_fabric::{Endpoint, Link};

use super::super::abi::ErlDrvTermData;
use super::super::{begin, caller, send};
use super::{ControlReply, DriverPort, PortPhase};
use crate::error::Error;
use crate::limits::JOB_SLICE_MS;
use crate::seal::{KeyExchange, KeyRole, NodeNames, Sealing};

/// The properties of a link that is not connected yet.
#[derive(Debug)]
pub(super) struct LinkTerms {
    ring_bytes: u64,
    sealing: Option<Sealing>,
}

/// The purpose of a job: what the port becomes when the job is done.
#[derive(Debug)]
enum Aim {
    Offer { exchange: Option<KeyExchange>, head: Vec<u8> },
    Half { terms: LinkTerms, head: Vec<u8> },
    Whole { terms: LinkTerms },
}

/// The job that a port has under way.
#[derive(Debug)]
pub(super) struct UnderWay {
    ticket: Ticket,
    aim: Aim,
    /// The process that asked for the job.
    caller: ErlDrvTermData,
}

/// A half of a link.
#[derive(Debug)]
pub(super) struct PendingLink {
    pending: PendingEndpoint,
    terms: LinkTerms,
}

const OFFER: u32 = 15;
const CONNECT: u32 = 16;
const ACCEPT: u32 = 17;
const FINISH: u32 = 18;
const NO_THREAD: &str = "the emulator has no thread for it";

impl DriverPort {
    pub(super) fn rdma_offer(&mut self) -> Result<(), Error> {
        let configured = self.configured(OFFER)?;
        let mut head = configured.ring_bytes.to_be_bytes().to_vec();
        let exchange = match configured.seal {
            Some(_) => Some(KeyExchange::new(KeyRole::Acceptor)?),
            None => None,
        };
        push_hello(&mut head, exchange.as_ref());
        self.errand(OFFER, PortJob::Offer, Aim::Offer { exchange, head })
    }

    pub(super) fn rdma_connect(&mut self, offer: &[u8]) -> Result<(), Error> {
        let configured = self.configured(CONNECT)?;
        let mut offer = ByteReader::new(offer);
        let ring_bytes = offer.u64().ok_or_else(|| protocol("its offer is cut off"))?;
        let hello = take_hello(&mut offer, configured.seal.is_some())?;
        let (mut head, mut sealing) = (Vec::new(), None);
        match &configured.seal {
            Some(cookie) => {
                let exchange = KeyExchange::new(KeyRole::Initiator)?;
                push_hello(&mut head, Some(&exchange));
                sealing = Some(exchange.agree(
                    hello,
                    cookie.bytes(),
                    NodeNames { initiator: &configured.me, acceptor: &configured.peer },
                )?);
            }
            None => push_hello(&mut head, None),
        }
        let job = PortJob::Connect { offer: offer.rest().to_vec(), exposure: exposure(ring_bytes)? };
        self.errand(CONNECT, job, Aim::Half { terms: LinkTerms { ring_bytes, sealing }, head })
    }

    pub(super) fn rdma_accept(&mut self, message: &[u8]) -> Result<(), Error> {
        let PortPhase::Offered(exchange) = std::mem::replace(&mut self.phase, PortPhase::Fresh) else {
            return Err(Error::Control { operation: ACCEPT, what: "there was no OFFER before" });
        };
        let configured = self.configured(ACCEPT)?;
        let ring_bytes = configured.ring_bytes;
        let mut message = ByteReader::new(message);
        let hello = take_hello(&mut message, exchange.is_some())?;
        let sealing = match (exchange, &configured.seal) {
            (Some(exchange), Some(cookie)) => Some(exchange.agree(
                hello,
                cookie.bytes(),
                NodeNames { initiator: &configured.peer, acceptor: &configured.me },
            )?),
            _ => None,
        };
        let job = PortJob::Accept { message: message.rest().to_vec(), exposure: exposure(ring_bytes)? };
        self.errand(ACCEPT, job, Aim::Half { terms: LinkTerms { ring_bytes, sealing }, head: Vec::new() })
    }

    pub(super) fn rdma_finish(&mut self, limit: Duration, answer: Vec<u8>) -> Result<(), Error> {
        let PortPhase::PendingLink(half) = std::mem::replace(&mut self.phase, PortPhase::Fresh) else {
            let what = "there was no RDMA_CONNECT or RDMA_ACCEPT before";
            return Err(Error::Control { operation: FINISH, what });
        };
        let PendingLink { pending, terms } = *half;
        let deadline = Instant::now() + limit;
        self.errand(FINISH, PortJob::Finish { pending, answer, limit, deadline }, Aim::Whole { terms })
    }

    /// Begins a job. The port gives up whatever link it was making.
    fn errand(&mut self, operation: u32, job: PortJob, aim: Aim) -> Result<(), Error> {
        if self.under_way.is_some() {
            return Err(Error::Control { operation, what: "another one is under way" });
        }
        if self.poller.is_some() {
            return Err(Error::Control { operation, what: "there is a link already" });
        }
        self.phase = PortPhase::Fresh;
        let (errand, ticket) = Errand::new(job);
        if !begin(self.handle, errand) {
            return Err(Error::Control { operation, what: NO_THREAD });
        }
        self.under_way = Some(UnderWay { ticket, aim, caller: caller(self.handle) });
        Ok(())
    }

    /// Ends a job that is done: the port becomes what the job was for, and tells the process that asked for it.
    pub fn finished(&mut self, errand: Errand) -> Result<(), Error> {
        let Some(UnderWay { ticket, aim, caller }) = self.under_way.take() else { return Ok(()) };
        let Some(outcome) = errand.outcome(&ticket) else {
            // The errand is of an earlier job, which was given up.
            self.under_way = Some(UnderWay { ticket, aim, caller });
            return Ok(());
        };
        let outcome = match outcome {
            Ok(JobResult::Later(job)) => {
                if begin(self.handle, ticket.rest(job)) {
                    self.under_way = Some(UnderWay { ticket, aim, caller });
                    return Ok(());
                }
                Err(Error::Control { operation: FINISH, what: NO_THREAD })
            }
            outcome => outcome,
        };
        let reply = match outcome.and_then(|done| self.become_of(aim, done)) {
            Ok(result) => ControlReply::done(&result),
            Err(error) => ControlReply::failed(&error),
        };
        send(self.handle, caller, c"done", Some(reply.bytes()));
        Ok(())
    }

    fn become_of(&mut self, aim: Aim, done: JobResult) -> Result<Vec<u8>, Error> {
        match (aim, done) {
            (Aim::Offer { exchange, mut head }, JobResult::Offer(ports)) => {
                self.phase = PortPhase::Offered(exchange);
                head.extend_from_slice(&ports);
                Ok(head)
            }
            (Aim::Half { terms, mut head }, JobResult::Half { pending, message }) => {
                self.phase = PortPhase::PendingLink(Box::new(PendingLink { pending, terms }));
                head.extend_from_slice(&message);
                Ok(head)
            }
            (Aim::Whole { terms: LinkTerms { ring_bytes, sealing } }, JobResult::Whole(endpoint)) => {
                self.connect_over(endpoint, ring_bytes, sealing)?;
                Ok(Vec::new())
            }
            _ => Err(Error::Panicked),
        }
    }

    fn connect_over(
        &mut self,
        endpoint: Box<dyn Endpoint>,
        ring_bytes: u64,
        sealing: Option<Sealing>,
    ) -> Result<(), Error> {
        self.connect(Link::new(endpoint, ring_bytes)?, sealing, FINISH)
    }
}

fn exposure(ring_bytes: u64) -> Result<Exposure, Error> {
    Ok(Link::exposure(ring_bytes)?)
}

fn push_hello(head: &mut Vec<u8>, exchange: Option<&KeyExchange>) {
    match exchange {
        Some(exchange) => {
            let hello = exchange.public();
            head.push(hello.len() as u8);
            head.extend_from_slice(&hello);
        }
        None => head.push(0),
    }
}

/// Takes the peer's half of the key exchange from its message. Both sides know from the handshake whether
/// there is one; a process between them could have told each something else.
fn take_hello<'a>(message: &mut ByteReader<'a>, sealed: bool) -> Result<&'a [u8], Error> {
    let hello = message.u8().and_then(|length| message.bytes(length.into()));
    let hello = hello.ok_or_else(|| protocol("its message is cut off"))?;
    match (hello.is_empty(), sealed) {
        (true, true) => Err(protocol("the link is to be encrypted, and it sent no key for that")),
        (false, false) => Err(protocol("it sent a key for a link that is not to be encrypted")),
        _ => Ok(hello),
    }
}

fn protocol(what: &str) -> Error {
    Error::Fabric(caravan_fabric::Error::Protocol(Provider::Rdma, what.to_owned()))
}

/// The job to do.
#[derive(Debug)]
pub enum PortJob {
    Offer,
    Connect { offer: Vec<u8>, exposure: Exposure },
    Accept { message: Vec<u8>, exposure: Exposure },
    Finish { pending: PendingEndpoint, answer: Vec<u8>, limit: Duration, deadline: Instant },
}

/// The result of a job.
#[derive(Debug)]
pub enum JobResult {
    /// This machine's ports, for the peer.
    Offer(Vec<u8>),
    /// Half of a connection, and a message for the peer.
    Half { pending: PendingEndpoint, message: Vec<u8> },
    /// The connection.
    Whole(Box<dyn Endpoint>),
    /// There is no result yet: this job remains.
    Later(PortJob),
}

impl PortJob {
    fn run(self) -> Result<JobResult, Error> {
        Ok(match self {
            Self::Offer => JobResult::Offer(verbs::offer()?),
            Self::Connect { offer, exposure } => half(verbs::connect(&offer, &exposure)?),
            Self::Accept { message, exposure } => half(verbs::accept(&message, &exposure)?),
            Self::Finish { pending, answer, limit, deadline } => {
                let pause = Instant::now() + Duration::from_millis(JOB_SLICE_MS);
                match pending.advance(&answer, limit, pause)? {
                    ConnectProgress::Connected(endpoint) => JobResult::Whole(endpoint),
                    ConnectProgress::Waiting(pending) if Instant::now() < deadline => {
                        JobResult::Later(Self::Finish { pending, answer, limit, deadline })
                    }
                    ConnectProgress::Waiting(pending) => return Err(pending.unanswered(limit).into()),
                }
            }
        })
    }
}

fn half((pending, message): (PendingEndpoint, Vec<u8>)) -> JobResult {
    JobResult::Half { pending, message }
}

/// A port's handle of its job under way. Dropping it means that nobody wants the job done.
#[derive(Debug)]
pub struct Ticket(Arc<AtomicBool>);

impl Ticket {
    /// Returns an errand for the rest of the job.
    pub fn rest(&self, job: PortJob) -> Errand {
        Errand { unwanted: self.0.clone(), job: Some(job), outcome: None }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // The flag orders no other memory: Relaxed.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A job on its way to a thread, or back with its result.
#[derive(Debug)]
pub struct Errand {
    unwanted: Arc<AtomicBool>,
    job: Option<PortJob>,
    outcome: Option<Result<JobResult, Error>>,
}

impl Errand {
    /// Makes an errand of a job, and the ticket that its port keeps.
    pub fn new(job: PortJob) -> (Self, Ticket) {
        let unwanted = Arc::new(AtomicBool::new(false));
        (Self { unwanted: unwanted.clone(), job: Some(job), outcome: None }, Ticket(unwanted))
    }

    /// Does the job, unless nobody wants it any more.
    pub fn run(&mut self) {
        let Some(job) = self.job.take() else { return };
        if !self.unwanted.load(Ordering::Relaxed) {
            let outcome = catch_unwind(AssertUnwindSafe(|| job.run()));
            self.outcome = Some(outcome.unwrap_or(Err(Error::Panicked)));
        }
    }

    /// Returns the job's result, if the port that holds `ticket` has begun the job.
    pub fn outcome(self, ticket: &Ticket) -> Option<Result<JobResult, Error>> {
        if Arc::ptr_eq(&self.unwanted, &ticket.0) { self.outcome } else { None }
    }
}
