//! The first word, whether the peer still lives, and why it does not.

use std::time::Instant;

use super::super::cm::Happened;
use super::super::fault::{Fault, SILENT};
use super::super::limits::SILENCE_MAX;
use super::super::work::Work;
use super::{Kind, VerbsEndpoint};
use crate::contract::{Endpoint, Error, Local};

impl VerbsEndpoint {
    /// Says the first word: once it has completed, the peer's device has it.
    pub(in super::super) fn greet(&mut self) -> Result<(), Error> {
        self.tell(0)?;
        self.flush()?;
        self.doorbell()
    }

    /// The peer has said its first word, and ours has arrived.
    pub(in super::super) fn is_greeted(&mut self) -> Result<(bool, bool), Error> {
        self.gather();
        self.check_fault()?;
        Ok((self.greeted, !self.awaits_flushed()))
    }

    /// An error if the connection manager has said that the connection has ended.
    pub(in super::super) fn check_manager(&mut self) -> Result<(), Error> {
        if let Some(id) = self.resources.managed() {
            while let Some(happened) = id.poll()? {
                if let Happened::Ended(why) = happened {
                    // The device may know why.
                    let cause = self.resources.trouble().map(|(event, text)| Fault::of_event(event, text));
                    self.fault.get_or_insert(cause.unwrap_or(Fault::PeerGone(why)));
                }
            }
        }
        self.check_fault()
    }

    /// Binds the memory window; the completion follows.
    pub(in super::super) fn bind(&mut self) -> Result<(), Error> {
        self.own(Work::Bind);
        self.flush()?;
        self.doorbell()
    }

    pub(super) fn check_fault(&self) -> Result<(), Error> {
        match &self.fault {
            Some(fault) => Err(fault.error(self.resources.context().name())),
            None => Ok(()),
        }
    }

    /// Has something under way that the peer's device must answer. Of no bytes, it reaches no memory.
    pub(super) fn probe(&mut self) -> Result<(), Error> {
        if !self.flights.is_empty() {
            return self.flush();
        }
        let nothing = Local { offset: 0, bytes: 0 };
        let work = Work::Write { from: nothing, to: self.peer.exposed.start, immediate: None };
        self.push(&[work], None, Kind::Write, true);
        self.ring()
    }

    /// A device gives up sooner by itself, but for one that cannot send at all.
    ///
    /// On iWARP a write completes once it is with this side's TCP. The probe makes that send, and so
    /// notice: after `net.ipv4.tcp_retries2`, a quarter of an hour. (A read would be answered by the
    /// peer's device; but it may read nothing here, and soft iWARP answers a read of no bytes with what it
    /// last sent: `siw_activate_tx`, Linux 6.1.)
    pub(super) fn check_silence(&mut self) {
        if self.flights.is_empty() {
            self.silent_since = None;
        } else if self.silent_since.get_or_insert_with(Instant::now).elapsed() > SILENCE_MAX {
            self.fault.get_or_insert(Fault::PeerGone(SILENT));
        }
    }
}
