//! A hop over a link of a fabric: mapped memory or RDMA.
//!
//! A link is one thread's. Its end says nothing by itself to the other side, so whatever ends a hop is said
//! in a frame, and stays until it is on its way; that the other process is gone is asked for every
//! [`CHECK_INTERVAL`].

use std::io::IoSlice;
use std::time::{Duration, Instant};

use caravan_fabric::Link;
use caravan_fabric::contract::{Armed, Error as FabricError};
use rustix::event::PollFlags;

use super::wait::{WaitSet, Watch, Woken, is_there};
use super::wire::{Cut, HopWire, Want};
use crate::Error;

/// How often a side that waits asks whether the other is still there.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Bytes that are published at once, so that the other side reads while this one goes on.
const PUBLISH_BYTES: usize = 64 << 10;
/// How long a look at what is still under way takes.
const SETTLE_INTERVAL: Duration = Duration::from_millis(1);

/// A link as one stream.
pub(super) struct LinkWire {
    link: Link,
    /// Why the peer is gone.
    gone: Option<Cut>,
}

impl LinkWire {
    /// Over a link that nothing has been said on.
    pub fn new(link: Link) -> Self {
        Self { link, gone: None }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<usize, FabricError> {
        let mut appended = 0;
        let most = PUBLISH_BYTES.min(self.link.ring_bytes() as usize / 4);
        for piece in bytes.chunks(most.max(1)) {
            let taken = self.link.append(piece)?;
            self.link.publish()?;
            appended += taken;
            if taken < piece.len() {
                break;
            }
        }
        Ok(appended)
    }

    fn check(&mut self) {
        if let Err(error) = self.link.check_peer() {
            self.gone = Some(error.to_string());
        }
    }

    fn try_wait(
        &mut self,
        room: usize,
        other: Option<Watch>,
        waits: &WaitSet,
        until: Option<Instant>,
    ) -> Result<Woken, Error> {
        waits.check()?;
        if self.link.arm(room)? == Armed::LookAgain {
            return Ok(Woken::Ready);
        }
        let tick = Instant::now() + CHECK_INTERVAL;
        let next = until.map_or(tick, |until| until.min(tick));
        let woken = match self.link.wait_fd() {
            Some(bell) => waits.wait(Some((bell, PollFlags::IN)), other, Some(next)),
            None => Ok(Woken::Ready),
        };
        self.disarm();
        match woken? {
            Woken::Late if until.is_some_and(|until| until <= Instant::now()) => Ok(Woken::Late),
            Woken::Late => {
                self.check();
                Ok(Woken::Ready)
            }
            woken => Ok(woken),
        }
    }
}

impl HopWire for LinkWire {
    fn streams(&self) -> usize {
        1
    }

    fn read(&mut self, _stream: usize, to: &mut [u8]) -> Result<Option<usize>, Cut> {
        let unread = match self.link.unread() {
            0 => self.link.refresh().map_err(|error| error.to_string())?,
            unread => unread,
        };
        if unread == 0 {
            return self.gone.clone().map_or(Ok(None), Err);
        }
        let bytes = self.link.read(to);
        self.link.release().map_err(|error| error.to_string())?;
        Ok(Some(bytes))
    }

    fn write(&mut self, _stream: usize, parts: &[IoSlice]) -> Result<Option<usize>, Cut> {
        if let Some(why) = &self.gone {
            return Err(why.clone());
        }
        let mut sent = 0;
        let mut looked = false;
        for part in parts {
            let mut left = &part[..];
            while !left.is_empty() {
                let bytes = self.append(left).map_err(|error| error.to_string())?;
                (sent, left) = (sent + bytes, left.get(bytes..).unwrap_or_default());
                if left.is_empty() {
                    break;
                }
                if looked {
                    return Ok((sent > 0).then_some(sent));
                }
                // Room comes with what the peer says.
                self.link.refresh().map_err(|error| error.to_string())?;
                looked = true;
            }
        }
        Ok((sent > 0).then_some(sent))
    }

    fn wait(
        &mut self,
        _stream: usize,
        want: Want,
        other: Option<Watch>,
        waits: &WaitSet,
        until: Option<Instant>,
    ) -> Result<Woken, Error> {
        // For a quarter at once: a wake-up for each few bytes would cost more than they do.
        let room = if want == Want::Write { self.link.ring_bytes() as usize / 4 } else { 0 };
        match self.try_wait(room, other, waits, until) {
            Err(Error::Fabric(error)) => {
                self.gone = Some(error.to_string());
                Ok(Woken::Ready)
            }
            woken => woken,
        }
    }

    fn arm(&mut self) -> Result<bool, Cut> {
        let armed = self.link.arm(0).map_err(|error| error.to_string())?;
        Ok(armed == Armed::Wait)
    }

    fn news(&self) -> Option<Watch<'_>> {
        self.link.wait_fd().map(|bell| (bell, PollFlags::IN))
    }

    fn disarm(&mut self) {
        if self.news().is_some_and(is_there) {
            if let Err(error) = self.link.acknowledge() {
                self.gone = Some(error.to_string());
            }
        }
        self.link.awake();
        self.check();
    }

    fn hung_up(&self) -> Option<Watch<'_>> {
        None
    }

    fn hang_up(&mut self, waits: &WaitSet, until: Instant) {
        while let Ok(false) = self.link.is_delivered() {
            let next = Instant::now() + SETTLE_INTERVAL;
            if next > until || waits.wait(None, None, Some(next)).is_err() {
                break;
            }
        }
    }

    fn closes(&self) -> bool {
        false
    }
}
