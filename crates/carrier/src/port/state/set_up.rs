//! What a port is asked before, and beside, sending and receiving: how it becomes a link or a row,
//! and what it has counted.

use caravan_fabric::contract::Provider;
use caravan_fabric::{Link, shm};
use caravan_segment::counters::Label;

use super::super::{caller, duplicate, watch};
use super::bell::Bells;
use super::{Port, Stage, now};
use crate::connection::Connection;
use crate::control::{Configuration, Control};
use crate::counters::{self, Counter, NAMES};
use crate::emulator::Emulator;
use crate::error::Error;
use crate::seal::Sealing;

impl Port {
    /// Every operation but POLL, TICK and STAT. An error is the call's, not the link's.
    pub(super) fn set_up(&mut self, control: Control) -> Result<Vec<u8>, Error> {
        let misplaced = |operation, what| Err(Error::Control { operation, what });
        match control {
            Control::Configure(configuration) => {
                Link::mapped_arena_bytes(configuration.ring_bytes)?;
                self.configuration = Some(configuration);
            }
            Control::Listen => {
                let arena = Link::mapped_arena_bytes(self.configured(2)?.ring_bytes)?;
                let (listener, descriptor) = shm::Listener::listen(arena)?;
                self.stage = Stage::Listening(listener);
                return Ok([&self.configured(2)?.ring_bytes.to_be_bytes()[..], &descriptor].concat());
            }
            Control::Connect(descriptor) => {
                let cut = Error::Control { operation: 3, what: "the descriptor is cut off" };
                let (ring_bytes, descriptor) = descriptor.split_first_chunk().ok_or(cut)?;
                // The accepting side's choice of size holds for both.
                let ring_bytes = u64::from_be_bytes(*ring_bytes);
                if shm::offered_arena_bytes(descriptor)? != Link::mapped_arena_bytes(ring_bytes)? {
                    return misplaced(3, "the descriptor asks for memory that its rings do not need");
                }
                let endpoint = shm::connect(descriptor)?;
                self.connect(Link::new(Box::new(endpoint), ring_bytes)?, None, 3)?;
            }
            Control::Accept => match std::mem::replace(&mut self.stage, Stage::Fresh) {
                Stage::Listening(listener) => {
                    let ring_bytes = self.configured(4)?.ring_bytes;
                    let endpoint = listener.accept()?;
                    self.connect(Link::new(Box::new(endpoint), ring_bytes)?, None, 4)?;
                }
                _ => return misplaced(4, "there was no LISTEN before"),
            },
            Control::Lifeline(raw) => {
                let copy = duplicate(raw).map_err(|source| self.no_descriptor(source))?;
                self.lifeline = Some(copy);
            }
            Control::Start => self.start()?,
            Control::Info => return Ok(self.info()),
            Control::TcpRow(reason) => {
                let configured = self.configured(11)?;
                let row =
                    counters::row(&configured.me, &configured.peer).map_err(caravan_fabric::Error::from)?;
                row.set_label(Label::Transport, "tcp");
                row.set_label(Label::Reason, &reason);
                self.stage = Stage::TcpRow(row);
            }
            Control::TcpCounts(values) => match &self.stage {
                Stage::TcpRow(row) => {
                    use Counter::{ReceivedBytes, ReceivedMessages, SentBytes, SentMessages};
                    for (counter, value) in
                        [SentBytes, ReceivedBytes, SentMessages, ReceivedMessages].into_iter().zip(values)
                    {
                        row.set(counter as usize, value);
                    }
                }
                _ => return misplaced(12, "there was no TCP_ROW before"),
            },
            Control::Cancel => {
                self.stage = Stage::Fresh;
                self.under_way = None;
            }
            Control::Reason(reason) => {
                let live = self.live();
                if let Stage::Connected(connection) = &self.stage {
                    connection.row(&live, now()).set_label(Label::Reason, &reason);
                }
                self.reason = reason;
            }
            Control::Offer => self.rdma_offer()?,
            Control::RdmaConnect(offer) => self.rdma_connect(&offer)?,
            Control::RdmaAccept(message) => self.rdma_accept(&message)?,
            Control::RdmaFinish { limit, answer } => self.rdma_finish(limit, answer)?,
            Control::Device => {
                if let Stage::Connected(connection) = &mut self.stage {
                    return Ok(connection.link().description().into_bytes());
                }
            }
            Control::Poll | Control::Tick | Control::Stat => return misplaced(8, "there is no link"),
        }
        Ok(Vec::new())
    }

    pub(super) fn configured(&self, operation: u32) -> Result<&Configuration, Error> {
        self.configuration.as_ref().ok_or(Error::Control { operation, what: "there was no CONFIGURE before" })
    }

    fn no_descriptor(&self, source: std::io::Error) -> Error {
        let node = self.configuration.as_ref().map_or("this node", |configured| &configured.me);
        Error::NoDescriptor { node: node.to_owned(), source }
    }

    /// The last step before this side agrees to the link: whatever it needs, it has after this.
    pub(super) fn connect(
        &mut self,
        link: Link,
        sealing: Option<Sealing>,
        operation: u32,
    ) -> Result<(), Error> {
        let bells = Bells::of(&link).map_err(|source| self.no_descriptor(source))?;
        let configured = self.configured(operation)?;
        let row = counters::row(&configured.me, &configured.peer).map_err(caravan_fabric::Error::from)?;
        row.set_label(Label::Transport, link.provider().name());
        row.set_label(Label::Reason, &self.reason);
        let busy_bytes = usize::try_from(configured.busy_bytes).unwrap_or(usize::MAX);
        let mut connection = Connection::new(link, row, configured.spin, busy_bytes);
        if let Some(sealing) = sealing {
            connection = connection.sealed(sealing);
        }
        if connection.link().provider() != Provider::Shm {
            // What is under way when the port closes must still get into the peer's memory.
            self.kept = self.live().keep();
        }
        self.bells = Some(bells);
        self.stage = Stage::Connected(Box::new(connection));
        Ok(())
    }

    /// The node is up: watches the bell and the control connection.
    fn start(&mut self) -> Result<(), Error> {
        const START: u32 = 6;
        if !matches!(self.stage, Stage::Connected(_)) {
            return Err(Error::Control { operation: START, what: "there is no link" });
        }
        let Some(lifeline) = self.lifeline.take() else {
            return Err(Error::Control { operation: START, what: "there was no LIFELINE before" });
        };
        self.poller = Some(caller(self.handle));
        self.watched_lifeline = watch(self.handle, lifeline);
        if !self.watch_bells() || self.watched_lifeline.is_none() {
            let what = "the emulator does not watch the descriptors";
            return Err(Error::Control { operation: START, what });
        }
        let Stage::Connected(connection) = &mut self.stage else { return Ok(()) };
        connection.start();
        Ok(())
    }

    pub(super) fn stat(&self) -> Vec<u8> {
        let live = self.live();
        let (received, sent) = match &self.stage {
            Stage::Connected(connection) => connection.records(),
            _ => (0, 0),
        };
        [received, sent, live.queued_bytes() as u64].iter().flat_map(|value| value.to_be_bytes()).collect()
    }

    fn info(&self) -> Vec<u8> {
        let live = self.live();
        let row = match &self.stage {
            Stage::Connected(connection) => connection.row(&live, now()),
            Stage::TcpRow(row) => row,
            _ => return Vec::new(),
        };
        let mut info = Vec::new();
        for (i, name) in NAMES.iter().enumerate() {
            info.push(name.len() as u8);
            info.extend_from_slice(name.as_bytes());
            info.extend_from_slice(&row.value(i).to_be_bytes());
        }
        info
    }
}
