//! Puts the emulator's messages into the ring.

mod sealed;

use caravan_fabric::Link;
use caravan_ring::record;

use crate::emulator::Emulator;
use crate::error::Error;
use crate::seal::{Direction, TAG_BYTES};
use sealed::Sealer;

/// How often, and for how long in total, a port was marked busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyCounts {
    /// The number of times that it was marked.
    pub count: u64,
    /// The number of nanoseconds that it was marked.
    pub nanoseconds: u64,
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct Outbound {
    busy_bytes: usize,
    busy_since: Option<u64>,
    busy_count: u64,
    busy_ns: u64,
    messages: u64,
    sealer: Option<Box<Sealer>>,
}

impl Outbound {
    /// Makes a half that marks the port busy once `busy_bytes` wait in its queue.
    pub fn new(busy_bytes: usize) -> Self {
        Self { busy_bytes, busy_since: None, busy_count: 0, busy_ns: 0, messages: 0, sealer: None }
    }

    /// Seals all records from now on. Nothing may have been sent yet.
    pub(crate) fn seal(&mut self, direction: Direction) {
        self.sealer = Some(Box::new(Sealer::new(direction)));
    }

    /// True if messages must be sealed, by [`send_sealed`](Self::send_sealed).
    #[inline]
    pub fn is_sealed(&self) -> bool {
        self.sealer.is_some()
    }

    /// Returns the number of records sent, ticks included.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Returns how often, and for how long, the port was marked busy.
    pub fn busy(&self, now: u64) -> BusyCounts {
        let lasting = self.busy_since.map_or(0, |since| now.saturating_sub(since));
        BusyCounts { count: self.busy_count, nanoseconds: self.busy_ns + lasting }
    }

    /// Sends one message in the clear, the concatenation of `parts`: as much as fits into the ring, and the
    /// rest into the port's queue.
    pub fn send<'a, E: Emulator>(
        &mut self,
        link: &mut Link,
        emulator: &mut E,
        parts: impl Iterator<Item = &'a [u8]>,
        length: usize,
        now: impl FnOnce() -> u64,
    ) -> Result<(), Error> {
        debug_assert!(!self.is_sealed(), "sent in the clear");
        self.messages += 1;
        let prefix = record::prefix(length as u32);
        if emulator.queued_bytes() > 0 {
            emulator.enqueue(&prefix);
            emulator.enqueue_output(0);
            self.mark_busy(emulator, now);
            return Ok(());
        }
        let mut sent = link.append(&prefix)?;
        if sent == prefix.len() {
            for part in parts {
                let appended = link.append(part)?;
                sent += appended;
                if appended < part.len() {
                    break;
                }
            }
        }
        link.publish()?;
        if sent < prefix.len() {
            emulator.enqueue(&prefix[sent..]);
            emulator.enqueue_output(0);
        } else if sent < prefix.len() + length {
            emulator.enqueue_output(sent - prefix.len());
        } else {
            return Ok(());
        }
        self.mark_busy(emulator, now);
        Ok(())
    }

    /// Sends a record of no bytes, if there is room: a peer that leaves no room needs no sign of life.
    pub fn tick<E: Emulator>(&mut self, link: &mut Link, emulator: &mut E) -> Result<(), Error> {
        let tag_bytes = self.sealer.as_ref().map_or(0, |_| TAG_BYTES);
        if emulator.queued_bytes() == 0 && link.room()? >= record::LENGTH_BYTES + tag_bytes {
            match &mut self.sealer {
                None => link.append(&record::prefix(0))?,
                Some(sealer) => sealer.send(link, 0, |_| {})?,
            };
            link.publish()?;
            self.messages += 1;
        }
        Ok(())
    }

    /// Moves as much of the queue as fits into the ring, and returns the number of bytes moved.
    pub fn flush<E: Emulator>(
        &mut self,
        link: &mut Link,
        emulator: &mut E,
        now: u64,
    ) -> Result<usize, Error> {
        if emulator.queued_bytes() == 0 {
            return Ok(0);
        }
        let moved = match &mut self.sealer {
            None => move_queued(link, emulator)?,
            Some(sealer) => sealer.flush(link, emulator)?,
        };
        link.publish()?;
        if self.busy_since.is_some() && emulator.queued_bytes() <= self.busy_bytes / 4 {
            self.mark_free(emulator, now);
        }
        Ok(moved)
    }

    fn mark_busy<E: Emulator>(&mut self, emulator: &mut E, now: impl FnOnce() -> u64) {
        if self.busy_since.is_none() && emulator.queued_bytes() >= self.busy_bytes {
            self.busy_since = Some(now());
            self.busy_count += 1;
            emulator.set_busy(true);
        }
    }

    fn mark_free<E: Emulator>(&mut self, emulator: &mut E, now: u64) {
        if let Some(since) = self.busy_since.take() {
            self.busy_ns += now.saturating_sub(since);
            emulator.set_busy(false);
        }
    }
}

/// Moves as much of the queue as fits into the ring, and returns the number of bytes moved.
fn move_queued<E: Emulator>(link: &mut Link, emulator: &mut E) -> Result<usize, Error> {
    let mut moved = 0;
    let mut failed = None;
    emulator.peek_queue(&mut |part| match link.append(part) {
        Ok(appended) => {
            moved += appended;
            appended == part.len()
        }
        Err(error) => {
            failed = Some(error);
            false
        }
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    emulator.dequeue(moved);
    Ok(moved)
}
