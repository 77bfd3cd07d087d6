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
use std::sync::atomic::{AtomicU64, Ordering};
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
use crate::{Error, lock};

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

    /// Starts an order about a hop, and reports what came of it; an attempt that connects reports itself.
    pub fn take(&self, hop: u32, attempt: u32, order: HopOrder) {
        match self.begin(hop, attempt, order) {
            Ok(report) => report.into_iter().for_each(|report| self.report(hop, attempt, report)),
            Err(error) => self.failed(hop, attempt, &error),
        }
    }

    fn begin(&self, hop: u32, attempt: u32, order: HopOrder) -> Result<Option<HopReport>, Error> {
        Ok(Some(match order {
            HopOrder::Listen { key, ports, streams } => {
                let listener = DataListener::open(ports)?;
                let port = listener.port();
                let accept = move |cancel: &Cancel| listener.accept(&key, streams, ACCEPT_LIMIT, cancel);
                self.attempt(hop, attempt, accept)?;
                HopReport::Listening(port)
            }
            HopOrder::Connect { key, mut addresses, names, streams } => {
                self.attempt(hop, attempt, move |cancel| {
                    addresses.extend(tcp::resolve(&names, CONNECT_LIMIT / 3));
                    tcp::connect(&addresses, &key, streams, CONNECT_LIMIT, cancel)
                })?;
                return Ok(None);
            }
            HopOrder::Initiate(offer) => self.half(hop, attempt, fabric::initiate(&offer)?),
            HopOrder::Accept(request) => self.half(hop, attempt, fabric::accept(&request)?),
            HopOrder::Finish { key, answer } => {
                let nothing = || Error::Protocol("finishes what it has not begun".to_owned());
                let half = self.end(hop, |end| end.half.take()).ok_or_else(nothing)?;
                self.attempt(hop, attempt, move |_| half.finish(&answer, &key, CONNECT_LIMIT))?;
                return Ok(None);
            }
            HopOrder::Open => {
                let (doorway, address) = Doorway::listen()?;
                self.renew(hop, attempt, |end| end.doorway = Some(doorway));
                HopReport::Doorway(address.to_bytes().to_vec())
            }
            HopOrder::Hand(doorway) => {
                let pipe = hand(&doorway)?;
                self.renew(hop, attempt, |end| end.pipe = Some(pipe));
                HopReport::Connected("pipe".to_owned())
            }
            HopOrder::Take => {
                let pipe = taken(self.end(hop, |end| end.doorway.take()))?;
                self.end(hop, |end| end.pipe = Some(pipe));
                HopReport::Connected("pipe".to_owned())
            }
            HopOrder::Relay => {
                let (connection, relay) = HopRelay::open(hop, &self.0.outbox)?;
                self.renew(hop, attempt, |end| end.relay = Some(relay));
                self.connected(hop, connection)
            }
        }))
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

    /// Begins an attempt, and ends any earlier one.
    fn renew(&self, hop: u32, attempt: u32, change: impl FnOnce(&mut HopEnd)) {
        self.end(hop, |end| {
            end.begin(attempt);
            change(end);
        });
    }

    /// Starts an attempt in a thread of its own, and ends any earlier one.
    fn attempt(
        &self,
        hop: u32,
        attempt: u32,
        way: impl FnOnce(&Cancel) -> Result<DataConnection, Error> + Send + 'static,
    ) -> Result<(), Error> {
        let cancel = Cancel::new()?;
        let ours = cancel.clone();
        self.renew(hop, attempt, |end| end.cancel = Some(cancel));
        let hops = self.clone();
        std::thread::spawn(move || {
            let result = way(&ours);
            if hops.end(hop, |end| end.attempt) != attempt {
                return;
            }
            match result {
                Ok(connection) => hops.report(hop, attempt, hops.connected(hop, connection)),
                Err(error) => hops.failed(hop, attempt, &error),
            }
        });
        Ok(())
    }

    fn half(&self, hop: u32, attempt: u32, (half, bytes): (FabricHalf, Vec<u8>)) -> HopReport {
        self.renew(hop, attempt, |end| end.half = Some(half));
        HopReport::Half(bytes)
    }

    fn connected(&self, hop: u32, connection: DataConnection) -> HopReport {
        let description = connection.description.clone();
        self.end(hop, |end| end.connection = Some(connection));
        HopReport::Connected(description)
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
    under_way: Arc<AtomicU64>,
    socket: UnixStream,
}

impl HopRelay {
    /// Returns the connection for the mover, and the relay that moves its bytes.
    pub fn open(hop: u32, outbox: &ReportOutbox) -> Result<(DataConnection, Self), Error> {
        let pair = UnixStream::pair();
        let both = pair.and_then(|(theirs, ours)| Ok((theirs, ours.try_clone()?, ours.try_clone()?, ours)));
        let (theirs, reading, mut writing, ours) = both.map_err(Error::system("socketpair"))?;
        let credit = Arc::new(Credit::new(RELAY_CREDIT_BYTES));
        let under_way = Arc::new(AtomicU64::new(0));
        let (sender, inbound) = mpsc::channel::<Vec<u8>>();
        let (given, out) = (Arc::clone(&credit), outbox.clone());
        std::thread::spawn(move || send(hop, reading, &given, &out));
        let (counted, out) = (Arc::clone(&under_way), outbox.clone());
        std::thread::spawn(move || {
            for bytes in inbound {
                // A mover that has closed takes nothing more, but the other side needs the credit all the same.
                let _ = writing.write_all(&bytes);
                let bytes = bytes.len() as u64;
                // Pairs with the fetch_add in take(); the count alone matters.
                counted.fetch_sub(bytes, Ordering::Relaxed);
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
        let before = self.under_way.fetch_add(bytes.len() as u64, Ordering::Relaxed);
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
