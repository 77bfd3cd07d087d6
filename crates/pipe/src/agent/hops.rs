//! An agent's ends of hops, until movers and commands take them.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use caravan_segment::passing::{self, Address, Doorway};
use rustix::pipe::{PipeFlags, pipe_with};

use super::outbox::ReportOutbox;
use super::relay::HopRelay;
use crate::cancel::Cancel;
use crate::connect::fabric::FabricHalf;
use crate::connect::tcp::DataListener;
use crate::connect::{DataConnection, fabric, tcp};
use crate::control::{AgentOrder, AgentReport};
use crate::limits::{ACCEPT_LIMIT, CONNECT_LIMIT};
use crate::{Error, PipeKey};

/// All of them; cloned into the threads that wait for connections.
#[derive(Clone)]
pub struct Hops(Arc<HopsShared>);

struct HopsShared {
    outbox: ReportOutbox,
    slots: Mutex<HashMap<u32, HopEnd>>,
}

/// One end of a hop.
#[derive(Default)]
struct HopEnd {
    /// The coordinator's number for the try at hand; what belongs to an earlier one is dropped.
    attempt: u32,
    cancel: Option<Cancel>,
    half: Option<FabricHalf>,
    doorway: Option<Doorway>,
    relay: Option<HopRelay>,
    connection: Option<DataConnection>,
    pipe: Option<OwnedFd>,
}

impl Hops {
    pub fn new(outbox: ReportOutbox) -> Self {
        Self(Arc::new(HopsShared { outbox, slots: Mutex::default() }))
    }

    /// An order about a hop; all others are none of its business.
    pub fn take(&self, order: AgentOrder) {
        match order {
            AgentOrder::Listen { hop, attempt, key, ports, streams, .. } => match DataListener::open(ports) {
                Ok(listener) => {
                    let port = listener.port();
                    let accept = move |cancel: &Cancel| listener.accept(&key, streams, ACCEPT_LIMIT, cancel);
                    self.attempt(hop, attempt, accept);
                    self.0.outbox.report(AgentReport::Listening { hop, port, attempt });
                }
                Err(error) => self.failed(hop, attempt, &error),
            },
            AgentOrder::Connect { hop, attempt, key, addresses, names, streams, .. } => {
                self.attempt(hop, attempt, move |cancel| {
                    let mut addresses = addresses;
                    addresses.extend(tcp::resolve(&names, CONNECT_LIMIT / 3));
                    tcp::connect(&addresses, &key, streams, CONNECT_LIMIT, cancel)
                });
            }
            AgentOrder::Initiate { hop, attempt, offer } => self.half(hop, attempt, fabric::initiate(&offer)),
            AgentOrder::Accept { hop, attempt, request } => self.half(hop, attempt, fabric::accept(&request)),
            AgentOrder::Finish { hop, attempt, key, answer, .. } => self.finish(hop, attempt, key, answer),
            AgentOrder::Open { hop, attempt } => self.open(hop, attempt),
            AgentOrder::Hand { hop, attempt, doorway } => {
                self.slot(hop, |slot| slot.begin(attempt));
                self.piped(hop, attempt, hand(&doorway));
            }
            AgentOrder::Take { hop, attempt } => {
                let doorway = self.slot(hop, |slot| slot.doorway.take());
                self.piped(hop, attempt, taken(doorway));
            }
            AgentOrder::Relay { hop, attempt } => match HopRelay::open(hop, &self.0.outbox) {
                Ok((connection, relay)) => {
                    self.slot(hop, |slot| {
                        slot.begin(attempt);
                        slot.relay = Some(relay);
                    });
                    self.connected(hop, attempt, connection);
                }
                Err(error) => self.failed(hop, attempt, &error),
            },
            AgentOrder::RelayEnd { hop } => {
                self.slot(hop, |slot| slot.relay.iter_mut().for_each(HopRelay::end));
            }
            _ => {}
        }
    }

    /// Data for a relayed hop.
    pub fn relayed(&self, hop: u32, bytes: Vec<u8>) {
        self.slot(hop, |slot| slot.relay.iter_mut().for_each(|relay| relay.take(bytes.clone())));
    }

    /// What was sent over a relayed hop has been taken.
    pub fn credit(&self, hop: u32, bytes: u64) {
        self.slot(hop, |slot| slot.relay.iter().for_each(|relay| relay.credit(bytes)));
    }

    /// Its connection, once.
    pub fn connection(&self, hop: u32) -> Option<DataConnection> {
        self.slot(hop, |slot| slot.connection.take())
    }

    /// Its end of a pipe that was handed over, once.
    pub fn pipe(&self, hop: u32) -> Option<OwnedFd> {
        self.slot(hop, |slot| slot.pipe.take())
    }

    /// Nobody waits for connections any more.
    pub fn cancel(&self) {
        let mut slots = self.0.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.drain().for_each(|(_, mut slot)| slot.begin(u32::MAX));
    }

    fn slot<T>(&self, hop: u32, change: impl FnOnce(&mut HopEnd) -> T) -> T {
        change(self.0.slots.lock().unwrap_or_else(PoisonError::into_inner).entry(hop).or_default())
    }

    /// Tries one way in a thread of its own, instead of any that is being tried.
    fn attempt(
        &self,
        hop: u32,
        attempt: u32,
        way: impl FnOnce(&Cancel) -> Result<DataConnection, Error> + Send + 'static,
    ) {
        let cancel = match Cancel::new() {
            Ok(cancel) => cancel,
            Err(error) => return self.failed(hop, attempt, &error),
        };
        let ours = cancel.clone();
        self.slot(hop, |slot| {
            slot.begin(attempt);
            slot.cancel = Some(cancel);
        });
        let hops = self.clone();
        std::thread::spawn(move || {
            let result = way(&ours);
            if hops.slot(hop, |slot| slot.attempt) != attempt {
                return;
            }
            match result {
                Ok(connection) => hops.connected(hop, attempt, connection),
                Err(error) => hops.failed(hop, attempt, &error),
            }
        });
    }

    fn half(&self, hop: u32, attempt: u32, made: Result<(FabricHalf, Vec<u8>), Error>) {
        match made {
            Ok((half, bytes)) => {
                self.slot(hop, |slot| {
                    slot.begin(attempt);
                    slot.half = Some(half);
                });
                self.0.outbox.report(AgentReport::Half { hop, bytes, attempt });
            }
            Err(error) => self.failed(hop, attempt, &error),
        }
    }

    fn finish(&self, hop: u32, attempt: u32, key: PipeKey, answer: Vec<u8>) {
        match self.slot(hop, |slot| slot.half.take()) {
            Some(half) => self.attempt(hop, attempt, move |_| half.finish(&answer, &key, CONNECT_LIMIT)),
            None => {
                self.failed(hop, attempt, &Error::Protocol("finishes what it has not begun".to_owned()));
            }
        }
    }

    fn open(&self, hop: u32, attempt: u32) {
        match Doorway::listen() {
            Ok((doorway, address)) => {
                self.slot(hop, |slot| {
                    slot.begin(attempt);
                    slot.doorway = Some(doorway);
                });
                let bytes = address.to_bytes().to_vec();
                self.0.outbox.report(AgentReport::Doorway { hop, bytes, attempt });
            }
            Err(error) => self.failed(hop, attempt, &error.into()),
        }
    }

    fn piped(&self, hop: u32, attempt: u32, end: Result<OwnedFd, Error>) {
        match end {
            Ok(end) => {
                self.slot(hop, |slot| slot.pipe = Some(end));
                let description = "pipe".to_owned();
                self.0.outbox.report(AgentReport::Connected { hop, description, attempt });
            }
            Err(error) => self.failed(hop, attempt, &error),
        }
    }

    fn connected(&self, hop: u32, attempt: u32, connection: DataConnection) {
        let description = connection.description.clone();
        self.slot(hop, |slot| slot.connection = Some(connection));
        self.0.outbox.report(AgentReport::Connected { hop, description, attempt });
    }

    fn failed(&self, hop: u32, attempt: u32, error: &Error) {
        self.0.outbox.report(AgentReport::Unreachable { hop, why: error.to_string(), attempt });
    }
}

impl HopEnd {
    /// Drops what belongs to the try before.
    fn begin(&mut self, attempt: u32) {
        if let Some(cancel) = self.cancel.take() {
            cancel.fire();
        }
        *self = Self { attempt, ..Self::default() };
    }
}

/// A pipe as a shell makes it.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    pipe_with(PipeFlags::CLOEXEC).map_err(|source| Error::System { call: "pipe", source: source.into() })
}

/// The writing end of a pipe whose reading end is handed to whoever opened that doorway.
fn hand(doorway: &[u8]) -> Result<OwnedFd, Error> {
    let address = Address::from_bytes(doorway)?;
    let (reading, writing) = pipe()?;
    passing::send(&address, &[], &[reading.as_fd()])?;
    Ok(writing)
}

fn taken(doorway: Option<Doorway>) -> Result<OwnedFd, Error> {
    let nothing = || Error::Protocol("hands over nothing".to_owned());
    let delivery = doorway.ok_or_else(nothing)?.accept()?;
    delivery.descriptors.into_iter().next().ok_or_else(nothing)
}
