//! An agent's ends of hops, until movers and commands take them, and relayed hops.
//!
//! If no other method connects the two sides, a hop is relayed: the mover gets one end of a socket pair, and two
//! threads carry its bytes to the coordinator and the coordinator's bytes to it. Each direction has a credit of
//! bytes that may be under way.

use std::collections::HashMap;
use std::io;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, mpsc};

use caravan_segment::passing;
use caravan_segment::passing::{Doorway, DoorwayAddress};
use rustix::pipe::{PipeFlags, pipe_with};

use super::ReportOutbox;
use crate::cancel::Cancel;
use crate::connect::fabric::FabricHalf;
use crate::connect::tcp::DataListener;
use crate::connect::{DataChannel, DataConnection, Secret, fabric, tcp};
use crate::control::{AgentReport, HopOrder, HopReport};
use crate::credit::Credit;
use crate::limits::{ACCEPT_LIMIT, CONNECT_LIMIT, RELAY_BYTES_MAX, RELAY_CREDIT_BYTES};
use crate::{Error, PipeKey, lock};

/// All ends of hops of this agent; the threads that wait for connections have clones.
#[derive(Clone)]
pub struct Hops(Arc<HopsShared>);

struct HopsShared {
    outbox: ReportOutbox,
    ends: Mutex<HashMap<u32, HopEnd>>,
}

/// One end of a hop.
#[derive(Default)]
struct HopEnd {
    /// The coordinator's number of the current attempt; results of an earlier attempt are dropped.
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
        Self(Arc::new(HopsShared { outbox, ends: Mutex::default() }))
    }

    /// Starts an order about a hop.
    pub fn take(&self, hop: u32, attempt: u32, order: HopOrder) {
        match order {
            HopOrder::Listen { key, ports, streams } => match DataListener::open(ports) {
                Ok(listener) => {
                    let port = listener.port();
                    let accept = move |cancel: &Cancel| listener.accept(&key, streams, ACCEPT_LIMIT, cancel);
                    self.attempt(hop, attempt, accept);
                    self.report(hop, attempt, HopReport::Listening(port));
                }
                Err(error) => self.failed(hop, attempt, &error),
            },
            HopOrder::Connect { key, mut addresses, names, streams } => {
                self.attempt(hop, attempt, move |cancel| {
                    addresses.extend(tcp::resolve(&names, CONNECT_LIMIT / 3));
                    tcp::connect(&addresses, &key, streams, CONNECT_LIMIT, cancel)
                });
            }
            HopOrder::Initiate(offer) => self.half(hop, attempt, fabric::initiate(&offer)),
            HopOrder::Accept(request) => self.half(hop, attempt, fabric::accept(&request)),
            HopOrder::Finish { key, answer } => self.finish(hop, attempt, key, answer),
            HopOrder::Open => self.open(hop, attempt),
            HopOrder::Hand(doorway) => {
                self.end(hop, |end| end.begin(attempt));
                self.piped(hop, attempt, hand(&doorway));
            }
            HopOrder::Take => {
                let doorway = self.end(hop, |end| end.doorway.take());
                self.piped(hop, attempt, taken(doorway));
            }
            HopOrder::Relay => match HopRelay::open(hop, &self.0.outbox) {
                Ok((connection, relay)) => {
                    self.end(hop, |end| {
                        end.begin(attempt);
                        end.relay = Some(relay);
                    });
                    self.connected(hop, attempt, connection);
                }
                Err(error) => self.failed(hop, attempt, &error),
            },
        }
    }

    /// Handles the end of a relayed hop's data from the other side.
    pub fn relay_end(&self, hop: u32) {
        self.end(hop, |end| end.relay.iter_mut().for_each(HopRelay::end));
    }

    /// Passes data on to a relayed hop.
    pub fn relayed(&self, hop: u32, bytes: Vec<u8>) {
        self.end(hop, |end| end.relay.iter_mut().for_each(|relay| relay.take(bytes.clone())));
    }

    /// Passes credit on to a relayed hop.
    pub fn credit(&self, hop: u32, bytes: u64) {
        self.end(hop, |end| end.relay.iter().for_each(|relay| relay.credit(bytes)));
    }

    /// Takes the hop's connection, once.
    pub fn connection(&self, hop: u32) -> Option<DataConnection> {
        self.end(hop, |end| end.connection.take())
    }

    /// Takes the hop's end of a pipe that was handed over, once.
    pub fn pipe(&self, hop: u32) -> Option<OwnedFd> {
        self.end(hop, |end| end.pipe.take())
    }

    /// Ends all attempts.
    pub fn cancel(&self) {
        let mut ends = lock(&self.0.ends);
        ends.drain().for_each(|(_, mut end)| end.begin(u32::MAX));
    }

    fn end<T>(&self, hop: u32, change: impl FnOnce(&mut HopEnd) -> T) -> T {
        change(lock(&self.0.ends).entry(hop).or_default())
    }

    /// Starts an attempt in a thread of its own, and ends any earlier one.
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
        self.end(hop, |end| {
            end.begin(attempt);
            end.cancel = Some(cancel);
        });
        let hops = self.clone();
        std::thread::spawn(move || {
            let result = way(&ours);
            if hops.end(hop, |end| end.attempt) != attempt {
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
                self.end(hop, |end| {
                    end.begin(attempt);
                    end.half = Some(half);
                });
                self.report(hop, attempt, HopReport::Half(bytes));
            }
            Err(error) => self.failed(hop, attempt, &error),
        }
    }

    fn finish(&self, hop: u32, attempt: u32, key: PipeKey, answer: Vec<u8>) {
        match self.end(hop, |end| end.half.take()) {
            Some(half) => self.attempt(hop, attempt, move |_| half.finish(&answer, &key, CONNECT_LIMIT)),
            None => {
                self.failed(hop, attempt, &Error::Protocol("finishes what it has not begun".to_owned()));
            }
        }
    }

    fn open(&self, hop: u32, attempt: u32) {
        match Doorway::listen() {
            Ok((doorway, address)) => {
                self.end(hop, |end| {
                    end.begin(attempt);
                    end.doorway = Some(doorway);
                });
                let bytes = address.to_bytes().to_vec();
                self.report(hop, attempt, HopReport::Doorway(bytes));
            }
            Err(error) => self.failed(hop, attempt, &error.into()),
        }
    }

    fn piped(&self, hop: u32, attempt: u32, pipe: Result<OwnedFd, Error>) {
        match pipe {
            Ok(pipe) => {
                self.end(hop, |end| end.pipe = Some(pipe));
                self.report(hop, attempt, HopReport::Connected("pipe".to_owned()));
            }
            Err(error) => self.failed(hop, attempt, &error),
        }
    }

    fn connected(&self, hop: u32, attempt: u32, connection: DataConnection) {
        let description = connection.description.clone();
        self.end(hop, |end| end.connection = Some(connection));
        self.report(hop, attempt, HopReport::Connected(description));
    }

    fn failed(&self, hop: u32, attempt: u32, error: &Error) {
        self.report(hop, attempt, HopReport::Unreachable(error.to_string()));
    }

    fn report(&self, hop: u32, attempt: u32, report: HopReport) {
        self.0.outbox.report(AgentReport::Hop { hop, attempt, report });
    }
}

impl HopEnd {
    /// Drops what belongs to the attempt before.
    fn begin(&mut self, attempt: u32) {
        if let Some(cancel) = self.cancel.take() {
            cancel.fire();
        }
        *self = Self { attempt, ..Self::default() };
    }
}

/// Returns the reading and the writing end of a new pipe, as a shell makes it.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    pipe_with(PipeFlags::CLOEXEC).map_err(Error::system("pipe"))
}

/// Returns the writing end of a new pipe, and hands its reading end to the process that opened `doorway`.
fn hand(doorway: &[u8]) -> Result<OwnedFd, Error> {
    let address = DoorwayAddress::from_bytes(doorway)?;
    let (reading, writing) = pipe()?;
    passing::send(&address, &[], &[reading.as_fd()])?;
    Ok(writing)
}

fn taken(doorway: Option<Doorway>) -> Result<OwnedFd, Error> {
    let nothing = || Error::Protocol("hands over nothing".to_owned());
    let delivery = doorway.ok_or_else(nothing)?.accept()?;
    delivery.descriptors.into_iter().next().ok_or_else(nothing)
}

/// This side's end of a relayed hop.
pub struct HopRelay {
    /// The coordinator's credit for what this side sends.
    credit: Arc<Credit>,
    /// A queue that holds no more than the credit that this side has given.
    inbound: Option<Sender<Vec<u8>>>,
    /// Bytes that came and were not yet taken; this finds a coordinator that sends more than its credit.
    under_way: Arc<std::sync::atomic::AtomicU64>,
    socket: UnixStream,
}

impl HopRelay {
    /// Returns the connection for the mover, and the relay that moves its bytes.
    pub fn open(hop: u32, outbox: &ReportOutbox) -> Result<(DataConnection, Self), Error> {
        let failed = |source: io::Error| Error::system("socketpair")(source);
        let (theirs, ours) = UnixStream::pair().map_err(failed)?;
        let (reading, writing) = (ours.try_clone().map_err(failed)?, ours.try_clone().map_err(failed)?);
        let credit = Arc::new(Credit::new(RELAY_CREDIT_BYTES));
        let under_way = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let (sender, inbound) = mpsc::channel::<Vec<u8>>();
        let (given, out) = (Arc::clone(&credit), outbox.clone());
        std::thread::spawn(move || send(hop, reading, &given, &out));
        let (counted, out) = (Arc::clone(&under_way), outbox.clone());
        std::thread::spawn(move || {
            let mut writing = writing;
            for bytes in inbound {
                // A mover that has closed takes nothing more, but the other side needs the credit all the same.
                let _ = writing.write_all(&bytes);
                let bytes = bytes.len() as u64;
                // Pairs with the fetch_add in take(); the count alone matters.
                counted.fetch_sub(bytes, std::sync::atomic::Ordering::Relaxed);
                out.report(AgentReport::Credit { hop, bytes });
            }
            let _ = writing.shutdown(Shutdown::Write);
        });
        let connection = DataConnection {
            channel: DataChannel::Streams(vec![OwnedFd::from(theirs)]),
            secret: Secret::none(),
            description: "ssh".to_owned(),
        };
        Ok((connection, Self { credit, inbound: Some(sender), under_way, socket: ours }))
    }

    /// Takes bytes from the other side.
    pub fn take(&mut self, bytes: Vec<u8>) {
        let before = self.under_way.fetch_add(bytes.len() as u64, std::sync::atomic::Ordering::Relaxed);
        if before + bytes.len() as u64 > RELAY_CREDIT_BYTES {
            // The bytes exceed the credit: this is not a coordinator of this protocol.
            return self.close();
        }
        if let Some(inbound) = &self.inbound {
            let _ = inbound.send(bytes);
        }
    }

    /// Takes credit from the other side.
    pub fn credit(&self, bytes: u64) {
        self.credit.give(bytes);
    }

    /// Handles the end of the data from the other side.
    pub fn end(&mut self) {
        self.inbound = None;
    }

    fn close(&mut self) {
        self.inbound = None;
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Drop for HopRelay {
    fn drop(&mut self) {
        self.credit.close();
        self.close();
    }
}

fn send(hop: u32, mut from: UnixStream, credit: &Credit, outbox: &ReportOutbox) {
    let mut buffer = vec![0; RELAY_BYTES_MAX];
    while let Some(room) = credit.take(RELAY_BYTES_MAX as u64) {
        let room = usize::try_from(room).map_or(RELAY_BYTES_MAX, |room| room.min(RELAY_BYTES_MAX));
        let Some(piece) = buffer.get_mut(..room) else { break };
        match from.read(piece) {
            Ok(0) => break,
            Ok(got) => {
                credit.give((room - got) as u64);
                outbox.data(hop, piece.iter().take(got).copied().collect());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => credit.give(room as u64),
            Err(_) => break,
        }
    }
    outbox.report(AgentReport::RelayEnd { hop });
}
