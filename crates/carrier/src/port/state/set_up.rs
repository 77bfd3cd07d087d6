//! How a port becomes a link or a row of counters; a link's bells; a port's reports.

use std::os::fd::OwnedFd;

use caravan_fabric::contract::Provider;
use caravan_fabric::{Link, shm};
use caravan_segment::counters::Label;
use rustix::event::{EventfdFlags, eventfd};

use super::super::{WatchedDescriptor, caller, duplicate, watch};
use super::{DriverPort, PortPhase, now};
use crate::connection::{Connection, RecordCounts};
use crate::control::{Configuration, PortControl};
use crate::counters::{self, Counter, NAMES};
use crate::emulator::Emulator;
use crate::error::Error;
use crate::seal::Sealing;

impl DriverPort {
    /// Does every operation but POLL, TICK and STAT. An error is the call's, not the link's.
    pub(super) fn set_up(&mut self, control: PortControl) -> Result<Vec<u8>, Error> {
        let misplaced = |operation, what| Err(Error::Control { operation, what });
        match control {
            PortControl::Configure(configuration) => {
                Link::mapped_arena_bytes(configuration.ring_bytes)?;
                self.configuration = Some(configuration);
            }
            PortControl::Listen => {
                let arena = Link::mapped_arena_bytes(self.configured(2)?.ring_bytes)?;
                let (listener, descriptor) = shm::Listener::listen(arena)?;
                self.phase = PortPhase::Listening(listener);
                return Ok([&self.configured(2)?.ring_bytes.to_be_bytes()[..], &descriptor].concat());
            }
            PortControl::Connect(descriptor) => {
                let cut = Error::Control { operation: 3, what: "the descriptor is cut off" };
                let (ring_bytes, descriptor) = descriptor.split_first_chunk().ok_or(cut)?;
                // The accepting side's choice of size holds for both sides.
                let ring_bytes = u64::from_be_bytes(*ring_bytes);
                if shm::offered_arena_bytes(descriptor)? != Link::mapped_arena_bytes(ring_bytes)? {
                    return misplaced(3, "the descriptor asks for memory that its rings do not need");
                }
                let endpoint = shm::connect(descriptor)?;
                self.connect(Link::new(Box::new(endpoint), ring_bytes)?, None, 3)?;
            }
            PortControl::Accept => match std::mem::replace(&mut self.phase, PortPhase::Fresh) {
                PortPhase::Listening(listener) => {
                    let ring_bytes = self.configured(4)?.ring_bytes;
                    let endpoint = listener.accept()?;
                    self.connect(Link::new(Box::new(endpoint), ring_bytes)?, None, 4)?;
                }
                _ => return misplaced(4, "there was no LISTEN before"),
            },
            PortControl::Lifeline(raw) => {
                let copy = duplicate(raw).map_err(|source| self.no_descriptor(source))?;
                self.lifeline = Some(copy);
            }
            PortControl::Start => self.start()?,
            PortControl::Info => return Ok(self.info()),
            PortControl::TcpRow(reason) => {
                let configured = self.configured(11)?;
                let row =
                    counters::row(&configured.me, &configured.peer).map_err(caravan_fabric::Error::from)?;
                row.set_label(Label::Transport, "tcp");
                row.set_label(Label::Reason, &reason);
                self.phase = PortPhase::TcpRow(row);
            }
            PortControl::TcpCounts(values) => match &self.phase {
                PortPhase::TcpRow(row) => {
                    use Counter::{ReceivedBytes, ReceivedMessages, SentBytes, SentMessages};
                    for (counter, value) in
                        [SentBytes, ReceivedBytes, SentMessages, ReceivedMessages].into_iter().zip(values)
                    {
                        row.set(counter as usize, value);
                    }
                }
                _ => return misplaced(12, "there was no TCP_ROW before"),
            },
            PortControl::Cancel => {
                self.phase = PortPhase::Fresh;
                self.under_way = None;
            }
            PortControl::Reason(reason) => {
                let live = self.live();
                if let PortPhase::Connected(connection) = &self.phase {
                    connection.row(&live, now()).set_label(Label::Reason, &reason);
                }
                self.reason = reason;
            }
            PortControl::Offer => self.rdma_offer()?,
            PortControl::RdmaConnect(offer) => self.rdma_connect(&offer)?,
            PortControl::RdmaAccept(message) => self.rdma_accept(&message)?,
            PortControl::RdmaFinish { limit, answer } => self.rdma_finish(limit, answer)?,
            PortControl::Device => {
                if let PortPhase::Connected(connection) = &mut self.phase {
                    return Ok(connection.link().description().into_bytes());
                }
            }
            PortControl::Poll | PortControl::Tick | PortControl::Stat => {
                return misplaced(8, "there is no link");
            }
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

    /// Does the last step before this side agrees to the link: after it, this side has everything that it needs.
    pub(super) fn connect(
        &mut self,
        link: Link,
        sealing: Option<Sealing>,
        operation: u32,
    ) -> Result<(), Error> {
        let bells = LinkBells::of(&link).map_err(|source| self.no_descriptor(source))?;
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
            // Bytes under way when the port closes must still get into the peer's memory.
            self.kept = self.live().keep();
        }
        self.bells = Some(bells);
        self.phase = PortPhase::Connected(Box::new(connection));
        Ok(())
    }

    /// Starts the connection, because the node is up: watches the bell and the control connection.
    fn start(&mut self) -> Result<(), Error> {
        const START: u32 = 6;
        if !matches!(self.phase, PortPhase::Connected(_)) {
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
        let PortPhase::Connected(connection) = &mut self.phase else { return Ok(()) };
        connection.start();
        Ok(())
    }

    pub(super) fn stat(&self) -> Vec<u8> {
        let live = self.live();
        let records = match &self.phase {
            PortPhase::Connected(connection) => connection.records(),
            _ => RecordCounts::default(),
        };
        [records.received, records.sent, live.queued_bytes() as u64]
            .iter()
            .flat_map(|value| value.to_be_bytes())
            .collect()
    }

    fn info(&self) -> Vec<u8> {
        let live = self.live();
        let row = match &self.phase {
            PortPhase::Connected(connection) => connection.row(&live, now()),
            PortPhase::TcpRow(row) => row,
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

/// The descriptors of a link's bells, until they are watched. They are taken before this side agrees to
/// the link: later the node may have no descriptors left.
#[derive(Debug)]
pub(super) struct LinkBells {
    links: OwnedFd,
    own: Option<OwnedFd>,
}

impl LinkBells {
    pub(super) fn of(link: &Link) -> std::io::Result<Self> {
        let links = link.wait_fd().ok_or(std::io::ErrorKind::Unsupported)?;
        let own = match link.provider() {
            // This side can ring the link's own bell.
            Provider::Shm => None,
            _ => Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        };
        // The emulator closes a watched descriptor at a time of its own choice, so it gets a duplicate.
        Ok(Self { links: links.try_clone_to_owned()?, own })
    }
}

impl DriverPort {
    /// Makes the emulator watch the bells. False if it refuses.
    pub(super) fn watch_bells(&mut self) -> bool {
        let Some(LinkBells { links, own }) = self.bells.take() else { return false };
        let has_own = own.is_some();
        self.watched_bell = watch(self.handle, links);
        self.own_bell = own.and_then(|own| watch(self.handle, own));
        self.watched_bell.is_some() && self.own_bell.is_some() == has_own
    }

    /// Rings a bell of this side's own: the emulator calls back after it has served its other
    /// ports and a process or two.
    pub(super) fn ring(&mut self) -> Result<(), Error> {
        let Some(bell) = self.own_bell.as_ref().or(self.watched_bell.as_ref()) else { return Ok(()) };
        match rustix::io::write(bell, &1u64.to_ne_bytes()) {
            // AGAIN: the counter is full, so the bell is rung already.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(source) => {
                Err(caravan_fabric::Error::System { call: "write(bell)", source: source.into() }.into())
            }
        }
    }
}

/// Makes a bell of this side's own unreadable again.
pub(super) fn silence(bell: &WatchedDescriptor) {
    // An empty counter is fine, too.
    let _ = rustix::io::read(bell, &mut [0; 8][..]);
}
