//! One open port: a link in the making, a connection, or a row of counters for a TCP connection.

use std::ffi::CStr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::OnceLock;
use std::time::Instant;

use caravan_fabric::{Link, shm};
use caravan_segment::counters::{Label, Row};

use super::abi::{ErlDrvPort, ErlDrvTermData};
use super::live::Live;
use super::{caller, duplicate, send, set_timer, unwatch, watch};
use crate::connection::{Connection, Next};
use crate::control::{Configuration, Control};
use crate::counters::{self, Counter, NAMES};
use crate::emulator::Emulator;
use crate::error::Error;
use crate::limits::FLUSH_MS;

/// An event without arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The timer went off.
    Timeout,
    /// The port is closing with something in its queue.
    Flush,
}

/// What a control call returns.
#[derive(Debug, Default)]
pub struct Reply(Vec<u8>);

impl Reply {
    /// As the emulator takes it.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn done(result: &[u8]) -> Self {
        Self([&[0], result].concat())
    }

    fn failed(error: &Error) -> Self {
        Self([&[1], error.to_string().as_bytes()].concat())
    }

    fn next(next: Next) -> Self {
        Self(if next == Next::Poll { vec![1] } else { Vec::new() })
    }
}

/// What the port is.
#[derive(Debug)]
enum Stage {
    Fresh,
    Listening(shm::Listener),
    Connected(Box<Connection<Live>>),
    TcpRow(Row),
}

/// One open port.
#[derive(Debug)]
pub struct Port {
    handle: ErlDrvPort,
    configuration: Option<Configuration>,
    reason: String,
    stage: Stage,
    /// The process that polls, and hears of errors.
    poller: Option<ErlDrvTermData>,
    /// The control connection, until it is watched.
    lifeline: Option<OwnedFd>,
    watched_bell: Option<RawFd>,
    watched_lifeline: Option<RawFd>,
    closing: bool,
    ended: Option<&'static CStr>,
}

impl Port {
    pub fn new(handle: ErlDrvPort) -> Self {
        Self {
            handle,
            configuration: None,
            reason: String::new(),
            stage: Stage::Fresh,
            poller: None,
            lifeline: None,
            watched_bell: None,
            watched_lifeline: None,
            closing: false,
            ended: None,
        }
    }

    pub fn handle(&self) -> ErlDrvPort {
        self.handle
    }

    /// Why the port must be closed, if it must.
    pub fn ended_for(&self) -> Option<&'static CStr> {
        self.ended
    }

    /// Remembers why the port must be closed, and tells the poller, who logs it.
    pub fn end(&mut self, error: &Error) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(error.exit_reason());
        let orderly = matches!(error, Error::PeerClosed);
        if let (false, Some(poller)) = (orderly, self.poller) {
            send(self.handle, poller, c"error", Some(&error.to_string()));
        }
    }

    /// A watched descriptor is readable.
    pub fn ready(&mut self, descriptor: RawFd) -> Result<(), Error> {
        let mut live = Live::new(self.handle);
        let Stage::Connected(connection) = &mut self.stage else { return Ok(()) };
        if self.ended.is_some() {
            return Ok(());
        }
        if Some(descriptor) == self.watched_bell {
            if self.closing {
                connection.link().acknowledge()?;
                return connection.flush(&mut live, now());
            }
            let next = connection.bell(&mut live, now())?;
            return self.go_on(next);
        }
        match lifeline_state(descriptor) {
            None => Ok(()),
            Some(error) => {
                // What the peer sent before it ended arrives before its end, as over TCP.
                connection.drain(&mut live)?;
                Err(error)
            }
        }
    }

    pub fn event(&mut self, event: Event) -> Result<(), Error> {
        let mut live = Live::new(self.handle);
        match (event, &mut self.stage) {
            (Event::Flush, Stage::Connected(connection)) if self.ended.is_none() => {
                self.closing = true;
                set_timer(self.handle, FLUSH_MS);
                connection.flush(&mut live, now())
            }
            // A peer that takes nothing, or is gone, must not keep the port from closing.
            _ => {
                if self.closing || event == Event::Flush {
                    live.dequeue(live.queued_bytes());
                }
                Ok(())
            }
        }
    }

    /// The emulator sends a message.
    pub fn output<'a>(
        &mut self,
        mut live: Live,
        parts: impl Iterator<Item = &'a [u8]>,
        length: usize,
    ) -> Result<(), Error> {
        let Stage::Connected(connection) = &mut self.stage else {
            return Err(Error::Control { operation: 0, what: "there is no link to send over" });
        };
        if self.ended.is_some() {
            return Ok(());
        }
        let next = connection.send(&mut live, parts, length, now)?;
        self.go_on(next)
    }

    /// After a turn that was not the poller's.
    fn go_on(&self, next: Next) -> Result<(), Error> {
        match (next, self.poller) {
            (Next::Poll, Some(poller)) => send(self.handle, poller, c"poll", None),
            (Next::Ring, _) => self.ring()?,
            _ => {}
        }
        Ok(())
    }

    /// Rings this side's own bell: the emulator calls back when it has looked after its other
    /// ports and a process or two.
    fn ring(&self) -> Result<(), Error> {
        let Some(bell) = self.watched_bell else { return Ok(()) };
        let rung = duplicate(bell).and_then(|bell| Ok(rustix::io::write(&bell, &1u64.to_ne_bytes())?));
        match rung {
            Ok(_) => Ok(()),
            // It has not been answered yet, and is as loud as it can be.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            Err(source) => Err(caravan_fabric::Error::System { call: "write(bell)", source }.into()),
        }
    }

    /// A control call. An error of the link itself ends the port; one of the call is its reply.
    pub fn control(&mut self, operation: u32, data: &[u8]) -> Result<Reply, Error> {
        let control = match Control::parse(operation, data) {
            Ok(control) => control,
            Err(error) => return Ok(Reply::failed(&error)),
        };
        let mut live = Live::new(self.handle);
        match (&control, &mut self.stage) {
            (Control::Poll, Stage::Connected(connection)) if self.ended.is_none() => {
                let next = connection.poll(&mut live, now())?;
                if next == Next::Ring {
                    self.ring()?;
                }
                Ok(Reply::next(next))
            }
            (Control::Poll, _) => Ok(Reply::next(Next::Armed)),
            (Control::Tick, Stage::Connected(connection)) => {
                connection.tick(&mut live)?;
                Ok(Reply::done(&[]))
            }
            _ => Ok(match self.set_up(control) {
                Ok(result) => Reply::done(&result),
                Err(error) => Reply::failed(&error),
            }),
        }
    }

    fn set_up(&mut self, control: Control) -> Result<Vec<u8>, Error> {
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
                self.connect(Link::new(Box::new(endpoint), ring_bytes)?, 3)?;
            }
            Control::Accept => match std::mem::replace(&mut self.stage, Stage::Fresh) {
                Stage::Listening(listener) => {
                    let ring_bytes = self.configured(4)?.ring_bytes;
                    let endpoint = listener.accept()?;
                    self.connect(Link::new(Box::new(endpoint), ring_bytes)?, 4)?;
                }
                _ => return misplaced(4, "there was no LISTEN before"),
            },
            Control::Lifeline(raw) => {
                let copy = duplicate(raw)
                    .map_err(|source| caravan_fabric::Error::System { call: "dup(lifeline)", source })?;
                self.lifeline = Some(copy);
            }
            Control::Start => self.start()?,
            Control::Stat => return Ok(self.stat()),
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
                self.lifeline = None;
            }
            Control::Reason(reason) => {
                let live = Live::new(self.handle);
                if let Stage::Connected(connection) = &self.stage {
                    connection.row(&live, now()).set_label(Label::Reason, &reason);
                }
                self.reason = reason;
            }
            Control::Poll | Control::Tick => return misplaced(8, "there is no link"),
        }
        Ok(Vec::new())
    }

    fn configured(&self, operation: u32) -> Result<&Configuration, Error> {
        self.configuration.as_ref().ok_or(Error::Control { operation, what: "there was no CONFIGURE before" })
    }

    fn connect(&mut self, link: Link, operation: u32) -> Result<(), Error> {
        let configured = self.configured(operation)?;
        let row = counters::row(&configured.me, &configured.peer).map_err(caravan_fabric::Error::from)?;
        row.set_label(Label::Transport, link.provider().name());
        row.set_label(Label::Reason, &self.reason);
        let busy_bytes = usize::try_from(configured.busy_bytes).unwrap_or(usize::MAX);
        let connection = Connection::new(link, row, configured.spin, busy_bytes);
        self.stage = Stage::Connected(Box::new(connection));
        Ok(())
    }

    /// The node is up: watches the bell and the control connection.
    fn start(&mut self) -> Result<(), Error> {
        const START: u32 = 6;
        let Stage::Connected(connection) = &mut self.stage else {
            return Err(Error::Control { operation: START, what: "there is no link" });
        };
        let Some(lifeline) = self.lifeline.take() else {
            return Err(Error::Control { operation: START, what: "there was no LIFELINE before" });
        };
        let unwatched =
            Error::Control { operation: START, what: "the emulator does not watch the descriptors" };
        // The emulator closes what it watched at a time of its own: it gets a descriptor of its own.
        let bell = match connection.link().wait_fd() {
            Some(bell) => bell.try_clone_to_owned(),
            None => Err(std::io::Error::from(std::io::ErrorKind::Unsupported)),
        };
        let bell = bell.map_err(|source| caravan_fabric::Error::System { call: "dup(bell)", source })?;
        self.poller = Some(caller(self.handle));
        self.watched_bell = watch(self.handle, bell);
        self.watched_lifeline = watch(self.handle, lifeline);
        if self.watched_bell.is_none() || self.watched_lifeline.is_none() {
            return Err(unwatched);
        }
        connection.start();
        Ok(())
    }

    fn stat(&self) -> Vec<u8> {
        let live = Live::new(self.handle);
        let (received, sent) = match &self.stage {
            Stage::Connected(connection) => connection.records(),
            _ => (0, 0),
        };
        [received, sent, live.queued_bytes() as u64].iter().flat_map(|value| value.to_be_bytes()).collect()
    }

    fn info(&self) -> Vec<u8> {
        let live = Live::new(self.handle);
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

impl Drop for Port {
    fn drop(&mut self) {
        for raw in [self.watched_bell, self.watched_lifeline].into_iter().flatten() {
            unwatch(self.handle, raw);
        }
    }
}

/// What is wrong with the control connection, if anything.
fn lifeline_state(descriptor: RawFd) -> Option<Error> {
    use rustix::net::RecvFlags;
    let Ok(socket) = duplicate(descriptor) else { return Some(Error::PeerClosed) };
    match rustix::net::recv(&socket, &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Some(Error::PeerClosed),
        Ok(_) => Some(Error::LifelineData),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
        Err(_) => Some(Error::PeerClosed),
    }
}

/// Nanoseconds of a monotonic clock.
pub fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // Not 0 at first: the policy's pauses and gaps are differences.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1_000_000_000
}
