//! One open port: a link in the making, a connection, or a row of counters for a TCP connection.

mod ending;
mod rdma;
mod set_up;

use std::ffi::CStr;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::OnceLock;
use std::time::Instant;

use caravan_fabric::contract::Provider;
use caravan_fabric::shm;
use caravan_segment::counters::CounterRow;

use super::abi::{ErlDrvPort, ErlDrvTermData};
use super::live::LiveEmulator;
use super::{WatchedDescriptor, send, set_timer};
use crate::connection::{Connection, Next};
use crate::control::{Configuration, PortControl};
use crate::error::Error;
use crate::limits::FLUSH_MS;
use crate::seal::KeyExchange;

pub use rdma::Errand;

/// An event without arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// The timer went off.
    Timeout,
    /// The port is closing with something in its queue.
    Flush,
}

/// The reply of a control call.
#[derive(Debug, Default)]
pub struct ControlReply(Vec<u8>);

impl ControlReply {
    /// Returns the reply as the emulator takes it.
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

/// What the port is: a link in the making, a connection or a row of counters.
#[derive(Debug)]
enum PortPhase {
    Fresh,
    Listening(shm::Listener),
    /// The port has offered its RDMA ports and its half of the key exchange.
    Offered(Option<KeyExchange>),
    PendingLink(Box<rdma::PendingLink>),
    Connected(Box<Connection<LiveEmulator>>),
    TcpRow(CounterRow),
}

/// One open port.
#[derive(Debug)]
pub struct DriverPort {
    handle: ErlDrvPort,
    configuration: Option<Configuration>,
    reason: String,
    phase: PortPhase,
    /// The job that a thread does for this port now.
    under_way: Option<rdma::UnderWay>,
    /// The process that polls, and that is told of errors.
    poller: Option<ErlDrvTermData>,
    /// The control connection, until the emulator watches it.
    lifeline: Option<OwnedFd>,
    /// The bells, until the emulator watches them.
    bells: Option<set_up::LinkBells>,
    watched_bell: Option<WatchedDescriptor>,
    /// A bell of this side's own, if this side cannot ring the link's bell.
    own_bell: Option<WatchedDescriptor>,
    watched_lifeline: Option<WatchedDescriptor>,
    /// The number of bytes in the emulator's queue that keep the port from closing at once.
    kept: usize,
    closing: bool,
    /// The queue is empty, but not all bytes sent are in the peer's memory.
    settling: bool,
    /// Why the port is to end, if the control connection reports no orderly end first.
    doubt: Option<Error>,
    ended: Option<&'static CStr>,
    /// The port has ended because the peer is gone, and what the peer had sent is not yet delivered.
    peer_is_gone: bool,
}

impl DriverPort {
    pub fn new(handle: ErlDrvPort) -> Self {
        Self {
            handle,
            configuration: None,
            reason: String::new(),
            phase: PortPhase::Fresh,
            under_way: None,
            poller: None,
            lifeline: None,
            bells: None,
            watched_bell: None,
            own_bell: None,
            watched_lifeline: None,
            kept: 0,
            closing: false,
            settling: false,
            doubt: None,
            ended: None,
            peer_is_gone: false,
        }
    }

    pub fn handle(&self) -> ErlDrvPort {
        self.handle
    }

    /// Returns why the port must be closed, if it must.
    pub fn ended_for(&self) -> Option<&'static CStr> {
        self.ended
    }

    /// Returns the emulator, for this callback.
    pub fn live(&self) -> LiveEmulator {
        LiveEmulator::new(self.handle, self.kept)
    }

    /// Handles a watched descriptor that is readable.
    pub fn ready(&mut self, descriptor: RawFd) -> Result<(), Error> {
        let mut live = self.live();
        if self.is_over() {
            return self.ready_at_the_end(descriptor);
        }
        let PortPhase::Connected(connection) = &mut self.phase else { return Ok(()) };
        if let Some(bell) = self.own_bell.as_ref().filter(|bell| bell.is(descriptor)) {
            set_up::silence(bell);
            if self.closing {
                return Ok(());
            }
            let next = connection.rung(&mut live, now())?;
            return self.go_on(next);
        }
        if self.watched_bell.as_ref().is_some_and(|bell| bell.is(descriptor)) {
            if self.closing {
                connection.link().acknowledge()?;
                return self.leave();
            }
            let next = connection.bell(&mut live, now())?;
            return self.go_on(next);
        }
        match self.watched_lifeline.as_ref().and_then(ending::lifeline_state) {
            None => Ok(()),
            Some(error) => {
                // As over TCP, what the peer sent is delivered before its end.
                connection.drain(&mut live)?;
                Err(error)
            }
        }
    }

    pub fn event(&mut self, event: PortEvent) -> Result<(), Error> {
        let is_over = self.is_over();
        if let (PortEvent::Flush, PortPhase::Connected(_), false) = (event, &self.phase, is_over) {
            self.closing = true;
            set_timer(self.handle, FLUSH_MS);
            return self.leave();
        }
        // A peer that takes nothing, or is gone, must not keep the port from closing.
        if self.closing || event == PortEvent::Flush {
            self.live().let_go();
        }
        if let (PortEvent::Timeout, Some(error)) = (event, self.doubt.take()) {
            self.ended(error);
        }
        Ok(())
    }

    /// Handles a message that the emulator sends.
    pub fn output<'a>(
        &mut self,
        mut live: LiveEmulator,
        parts: impl Iterator<Item = &'a [u8]>,
        length: usize,
    ) -> Result<(), Error> {
        let over = self.is_over();
        let PortPhase::Connected(connection) = &mut self.phase else {
            return Err(Error::Control { operation: 0, what: "there is no link to send over" });
        };
        if over {
            return Ok(());
        }
        let next = connection.send(&mut live, parts, length, now)?;
        self.go_on(next)
    }

    /// Continues after a turn that was not the poller's.
    fn go_on(&mut self, next: Next) -> Result<(), Error> {
        match (next, self.poller) {
            (Next::Poll, Some(poller)) => send(self.handle, poller, c"poll", None),
            (Next::Ring, _) => self.ring()?,
            _ => {}
        }
        Ok(())
    }

    /// Handles a control call. An error of the link ends the port; an error of the call is its reply.
    pub fn control(&mut self, operation: u32, data: &[u8]) -> Result<ControlReply, Error> {
        let control = match PortControl::parse(operation, data) {
            Ok(control) => control,
            Err(error) => return Ok(ControlReply::failed(&error)),
        };
        let (mut live, over) = (self.live(), self.is_over());
        match (&control, &mut self.phase) {
            (PortControl::Poll, PortPhase::Connected(connection)) if !over => {
                let next = connection.poll(&mut live, now())?;
                if next == Next::Ring {
                    self.ring()?;
                }
                Ok(ControlReply::next(next))
            }
            (PortControl::Poll, _) => Ok(ControlReply::next(Next::Armed)),
            // The port reports its end, which may still be in doubt; these calls do not.
            (PortControl::Tick, PortPhase::Connected(connection)) => {
                if !over {
                    let ticked = check_peer(connection).and_then(|()| connection.tick(&mut live));
                    let _ = ticked.map_err(|error| self.end(error));
                }
                Ok(ControlReply::done(&[]))
            }
            (PortControl::Stat, phase) => {
                if let (PortPhase::Connected(connection), false) = (phase, over) {
                    let _ = check_peer(connection).map_err(|error| self.end(error));
                }
                Ok(ControlReply::done(&self.stat()))
            }
            _ => Ok(match self.set_up(control) {
                Ok(result) => ControlReply::done(&result),
                Err(error) => ControlReply::failed(&error),
            }),
        }
    }
}

/// Checks the peer with every sign of life: a device does not report a peer that is silently gone, while for
/// shared memory the control connection does.
fn check_peer(connection: &mut Connection<LiveEmulator>) -> Result<(), Error> {
    match connection.link().provider() {
        Provider::Shm => Ok(()),
        _ => Ok(connection.link().check_peer()?),
    }
}

/// Returns the nanoseconds of a monotonic clock.
pub fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // The clock does not begin at 0: the policy's pauses and gaps are differences.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1_000_000_000
}
