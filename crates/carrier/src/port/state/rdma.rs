//! How a port becomes an RDMA link: what is asked of the devices, and what the two sides tell each
//! other beside what `verbs` says to itself.
//!
//! | from whom | bytes |
//! |---|---|
//! | accepting side, OFFER | `<<RingBytes:64, HelloLen:8, Hello, Ports>>` |
//! | initiating side, RDMA_CONNECT | `<<HelloLen:8, Hello, Message>>` |
//! | accepting side, RDMA_ACCEPT | `<<Message>>` |
//!
//! `Hello` is half of a key exchange where the link is to be sealed, and empty where not. The
//! accepting side's choice of size holds for both.

use std::time::{Duration, Instant};

use caravan_fabric::contract::{Exposure, Provider};
use caravan_fabric::verbs::PendingEndpoint;
use caravan_fabric::{Endpoint, Link};

use super::super::abi::ErlDrvTermData;
use super::super::job::{Done, Errand, Job, Ticket};
use super::super::{begin, caller, send};
use super::{Port, Reply, Stage};
use crate::error::Error;
use crate::seal::{KeyExchange, Role, Sealing};

/// What a link is to be, once it is connected.
#[derive(Debug)]
pub(super) struct Terms {
    ring_bytes: u64,
    sealing: Option<Sealing>,
}

/// What a job is for: what the port becomes when it is done.
#[derive(Debug)]
enum Aim {
    Offer { exchange: Option<KeyExchange>, head: Vec<u8> },
    Half { terms: Terms, head: Vec<u8> },
    Whole { terms: Terms },
}

/// The job that a port has under way.
#[derive(Debug)]
pub(super) struct UnderWay {
    ticket: Ticket,
    aim: Aim,
    /// Who asked for it.
    caller: ErlDrvTermData,
}

/// Half of a link.
#[derive(Debug)]
pub(super) struct Half {
    pending: PendingEndpoint,
    terms: Terms,
}

const OFFER: u32 = 15;
const CONNECT: u32 = 16;
const ACCEPT: u32 = 17;
const FINISH: u32 = 18;
const NO_THREAD: &str = "the emulator has no thread for it";

impl Port {
    pub(super) fn rdma_offer(&mut self) -> Result<(), Error> {
        let configured = self.configured(OFFER)?;
        let mut head = configured.ring_bytes.to_be_bytes().to_vec();
        let exchange = match configured.seal {
            Some(_) => Some(KeyExchange::new(Role::Acceptor)?),
            None => None,
        };
        push_hello(&mut head, exchange.as_ref());
        self.errand(OFFER, Job::Offer, Aim::Offer { exchange, head })
    }

    pub(super) fn rdma_connect(&mut self, offer: &[u8]) -> Result<(), Error> {
        let configured = self.configured(CONNECT)?;
        let cut = || protocol("its offer is cut off");
        let (ring_bytes, rest) = offer.split_first_chunk().ok_or_else(cut)?;
        let ring_bytes = u64::from_be_bytes(*ring_bytes);
        let (hello, ports) = take_hello(rest, configured.seal.is_some())?;
        let (mut head, mut sealing) = (Vec::new(), None);
        match &configured.seal {
            Some(cookie) => {
                let exchange = KeyExchange::new(Role::Initiator)?;
                push_hello(&mut head, Some(&exchange));
                sealing = Some(exchange.agree(hello, cookie.bytes(), (&configured.me, &configured.peer))?);
            }
            None => push_hello(&mut head, None),
        }
        let job = Job::Connect { offer: ports.to_vec(), exposure: exposure(ring_bytes)? };
        self.errand(CONNECT, job, Aim::Half { terms: Terms { ring_bytes, sealing }, head })
    }

    pub(super) fn rdma_accept(&mut self, message: &[u8]) -> Result<(), Error> {
        let Stage::Offered(exchange) = std::mem::replace(&mut self.stage, Stage::Fresh) else {
            return Err(Error::Control { operation: ACCEPT, what: "there was no OFFER before" });
        };
        let configured = self.configured(ACCEPT)?;
        let ring_bytes = configured.ring_bytes;
        let (hello, message) = take_hello(message, exchange.is_some())?;
        let sealing = match (exchange, &configured.seal) {
            (Some(exchange), Some(cookie)) => {
                Some(exchange.agree(hello, cookie.bytes(), (&configured.peer, &configured.me))?)
            }
            _ => None,
        };
        let job = Job::Accept { message: message.to_vec(), exposure: exposure(ring_bytes)? };
        self.errand(ACCEPT, job, Aim::Half { terms: Terms { ring_bytes, sealing }, head: Vec::new() })
    }

    pub(super) fn rdma_finish(&mut self, limit: Duration, answer: Vec<u8>) -> Result<(), Error> {
        let Stage::Half(half) = std::mem::replace(&mut self.stage, Stage::Fresh) else {
            let what = "there was no RDMA_CONNECT or RDMA_ACCEPT before";
            return Err(Error::Control { operation: FINISH, what });
        };
        let Half { pending, terms } = *half;
        let deadline = Instant::now() + limit;
        self.errand(FINISH, Job::Finish { pending, answer, limit, deadline }, Aim::Whole { terms })
    }

    /// Begins a job. What the port was in the making, it is no more.
    fn errand(&mut self, operation: u32, job: Job, aim: Aim) -> Result<(), Error> {
        if self.under_way.is_some() {
            return Err(Error::Control { operation, what: "another one is under way" });
        }
        if self.poller.is_some() {
            return Err(Error::Control { operation, what: "there is a link already" });
        }
        self.stage = Stage::Fresh;
        let (errand, ticket) = Errand::new(job);
        if !begin(self.handle, errand) {
            return Err(Error::Control { operation, what: NO_THREAD });
        }
        self.under_way = Some(UnderWay { ticket, aim, caller: caller(self.handle) });
        Ok(())
    }

    /// A job is done: makes of it what it was for, and tells the process that asked.
    pub fn finished(&mut self, errand: Errand) -> Result<(), Error> {
        let Some(UnderWay { ticket, aim, caller }) = self.under_way.take() else { return Ok(()) };
        let Some(outcome) = errand.outcome(&ticket) else {
            // An earlier one, which was given up.
            self.under_way = Some(UnderWay { ticket, aim, caller });
            return Ok(());
        };
        let outcome = match outcome {
            Ok(Done::Later(job)) => {
                if begin(self.handle, ticket.rest(job)) {
                    self.under_way = Some(UnderWay { ticket, aim, caller });
                    return Ok(());
                }
                Err(Error::Control { operation: FINISH, what: NO_THREAD })
            }
            outcome => outcome,
        };
        let reply = match outcome.and_then(|done| self.become_of(aim, done)) {
            Ok(result) => Reply::done(&result),
            Err(error) => Reply::failed(&error),
        };
        send(self.handle, caller, c"done", Some(reply.bytes()));
        Ok(())
    }

    fn become_of(&mut self, aim: Aim, done: Done) -> Result<Vec<u8>, Error> {
        match (aim, done) {
            (Aim::Offer { exchange, mut head }, Done::Offer(ports)) => {
                self.stage = Stage::Offered(exchange);
                head.extend_from_slice(&ports);
                Ok(head)
            }
            (Aim::Half { terms, mut head }, Done::Half(pending, message)) => {
                self.stage = Stage::Half(Box::new(Half { pending, terms }));
                head.extend_from_slice(&message);
                Ok(head)
            }
            (Aim::Whole { terms: Terms { ring_bytes, sealing } }, Done::Whole(endpoint)) => {
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

/// The peer's half of the key exchange, and what follows it. Both sides know from the handshake
/// whether there is one; somebody between them could have told each something else.
fn take_hello(bytes: &[u8], sealed: bool) -> Result<(&[u8], &[u8]), Error> {
    let cut = || protocol("its message is cut off");
    let (length, rest) = bytes.split_first().ok_or_else(cut)?;
    let (hello, rest) = rest.split_at_checked(usize::from(*length)).ok_or_else(cut)?;
    match (hello.is_empty(), sealed) {
        (true, true) => Err(protocol("the link is to be encrypted, and it sent no key for that")),
        (false, false) => Err(protocol("it sent a key for a link that is not to be encrypted")),
        _ => Ok((hello, rest)),
    }
}

fn protocol(what: &str) -> Error {
    Error::Fabric(caravan_fabric::Error::Protocol(Provider::Rdma, what.to_owned()))
}
