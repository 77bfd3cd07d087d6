//! One distribution connection: a link, its two halves, and the times to poll it.
//!
//! | state | event that ends it | next state |
//! |---|---|---|
//! | fresh: linked, nothing read | START, after setnode | polling |
//! | polling: the poller process calls POLL again | POLL, when the policy says sleep and nothing came | armed |
//! | armed: waiting for the bell | the bell | armed, if all was taken and spinning does not pay; else polling |
//! | any | lifeline closed, link broken | ended: everything that had arrived is delivered first |
//!
//! No callback spins: a spin is many short POLLs, between which the emulator runs other processes.
//!
//! A stream does without a poller that comes late ([`late_poller`](crate::late_poller)): callbacks then do
//! its work, one turn each, after a bell that this side rings itself.

use caravan_fabric::contract::{Armed, Provider};
use caravan_fabric::{Link, SpinMode, SpinPolicy, Turn};
use caravan_segment::counters::CounterRow;

use crate::counters::Counter;
use crate::emulator::Emulator;
use crate::error::Error;
use crate::inbound::Inbound;
use crate::late_poller::LatePoller;
use crate::limits::{FLUSH_TURNS, TURN_BYTES};
use crate::outbound::Outbound;
use crate::seal::Sealing;

/// What the port must do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The poller must poll again.
    Poll,
    /// The port waits: the bell will ring.
    Armed,
    /// There is more to do, and the poller would come late: the port must ring the bell itself.
    Ring,
}

/// The numbers of a connection's records, as `dist_util` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// The number of records received, ticks included.
    pub received: u64,
    /// The number of records sent, ticks included.
    pub sent: u64,
}

/// One connection over a link.
#[derive(Debug)]
pub struct Connection<E: Emulator> {
    link: Link,
    inbound: Inbound<E::Binary>,
    outbound: Outbound,
    policy: SpinPolicy,
    late: LatePoller,
    row: CounterRow,
    started: bool,
    polling: bool,
    polls: u64,
    /// A device carries the link, and has counters of its own.
    over_device: bool,
}

impl<E: Emulator> Connection<E> {
    /// Makes a connection that reads nothing before [`start`](Self::start).
    pub fn new(link: Link, row: CounterRow, spin: SpinMode, busy_bytes: usize) -> Self {
        row.set(Counter::RingBytes as usize, link.ring_bytes());
        Self {
            over_device: link.provider() == Provider::Rdma,
            link,
            inbound: Inbound::default(),
            outbound: Outbound::new(busy_bytes),
            policy: SpinPolicy::new(spin),
            late: LatePoller::default(),
            row,
            started: false,
            polling: false,
            polls: 0,
        }
    }

    /// Makes the connection seal what it sends and open what it receives. The peer must do so, too, and nothing
    /// may have been sent yet.
    pub fn sealed(mut self, sealing: Sealing) -> Self {
        self.outbound.seal(sealing.outbound);
        self.inbound.open(sealing.inbound);
        self
    }

    /// Returns the link, for its descriptor.
    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Returns the row of counters, brought up to date.
    pub fn row(&self, emulator: &E, now: u64) -> &CounterRow {
        self.count(emulator, now);
        &self.row
    }

    /// Returns the numbers of records received and sent.
    pub fn records(&self) -> RecordCounts {
        RecordCounts { received: self.inbound.messages(), sent: self.outbound.messages() }
    }

    /// Starts to read the ring, because the node is up. The poller must begin.
    pub fn start(&mut self) {
        self.started = true;
        self.polling = true;
    }

    /// Sends one message. Returns [`Next::Poll`] if the poller must be started: a message waits for room.
    pub fn send<'a>(
        &mut self,
        emulator: &mut E,
        parts: impl Iterator<Item = &'a [u8]>,
        length: usize,
        now: impl FnOnce() -> u64 + Copy,
    ) -> Result<Next, Error> {
        if self.outbound.is_sealed() {
            return self.send_sealed(emulator, parts, length, now);
        }
        self.outbound.send(&mut self.link, emulator, parts, length, now)?;
        self.sent(emulator, now)
    }

    /// A separate function, so that a link that is not sealed pays for one comparison only.
    #[cold]
    #[inline(never)]
    fn send_sealed<'a>(
        &mut self,
        emulator: &mut E,
        parts: impl Iterator<Item = &'a [u8]>,
        length: usize,
        now: impl FnOnce() -> u64 + Copy,
    ) -> Result<Next, Error> {
        self.outbound.send_sealed(&mut self.link, emulator, parts, length, now)?;
        self.sent(emulator, now)
    }

    #[inline(always)]
    fn sent(&mut self, emulator: &mut E, now: impl FnOnce() -> u64) -> Result<Next, Error> {
        self.row.set(Counter::SentBytes as usize, self.link.counts().sent_bytes);
        self.row.set(Counter::SentMessages as usize, self.outbound.messages());
        if emulator.queued_bytes() == 0 || self.polling || !self.started {
            return Ok(Next::Armed);
        }
        let now = now();
        if self.late.is_late(now) {
            return self.arm(emulator, now);
        }
        Ok(self.leave(Next::Poll, now))
    }

    /// Sends a record of no bytes, as a sign of life.
    pub fn tick(&mut self, emulator: &mut E) -> Result<(), Error> {
        self.outbound.tick(&mut self.link, emulator)
    }

    /// Does the poller's turn.
    pub fn poll(&mut self, emulator: &mut E, now: u64) -> Result<Next, Error> {
        if !self.started {
            return Ok(Next::Armed);
        }
        self.polls += 1;
        self.late.came(now);
        self.turn(emulator, now)
    }

    /// Handles the link's bell. Returns [`Next::Poll`] if the poller must be started.
    pub fn bell(&mut self, emulator: &mut E, now: u64) -> Result<Next, Error> {
        self.link.acknowledge()?;
        self.rung(emulator, now)
    }

    /// Handles a bell that is not the link's own: the port rings it after [`Next::Ring`] if this side cannot
    /// ring the link's bell.
    pub fn rung(&mut self, emulator: &mut E, now: u64) -> Result<Next, Error> {
        if self.polling || !self.started {
            return Ok(Next::Armed);
        }
        self.link.awake();
        self.policy.woken(now);
        self.turn(emulator, now)
    }

    /// Delivers everything that the peer, which is gone, had sent. The ring is finite, so this ends.
    pub fn drain(&mut self, emulator: &mut E) -> Result<(), Error> {
        if !self.started {
            return Ok(());
        }
        let mut left = 2 * self.link.ring_bytes();
        loop {
            let taken = self.inbound.turn(&mut self.link, emulator)?;
            left = left.saturating_sub(taken.bytes as u64);
            if taken.bytes == 0 || left == 0 {
                return Ok(());
            }
        }
    }

    /// Moves what the peer has room for while the port is closing, and asks for the bell for the rest of
    /// the queue. Drops what the peer sends meanwhile: unread bytes would keep this side from waiting, and a
    /// peer that closes, too, from ending.
    pub fn flush(&mut self, emulator: &mut E, now: u64) -> Result<(), Error> {
        let mut in_vain = 0;
        while emulator.queued_bytes() > 0 {
            let moved = self.outbound.flush(&mut self.link, emulator, now)?;
            let unread = self.link.refresh()?;
            self.link.skip(unread);
            self.link.release()?;
            if moved > 0 {
                continue;
            }
            if self.link.arm(self.room_wanted(emulator))? == Armed::Wait {
                break;
            }
            in_vain += 1;
            if in_vain == FLUSH_TURNS {
                // The peer sends without end, and does not read.
                emulator.dequeue(emulator.queued_bytes());
            }
        }
        Ok(())
    }

    /// True once all bytes sent are in the peer's memory, while the port is closing with an empty queue. With
    /// shared memory they are there already; a device needs this side's memory until it has written them, and one that
    /// reports that early, as iWARP's do, until the peer has released them. If false, the bell rings when that may have
    /// changed.
    pub fn settle(&mut self) -> Result<bool, Error> {
        for _ in 0..FLUSH_TURNS {
            // Drops what the peer sends, as in `flush`.
            let unread = self.link.refresh()?;
            self.link.skip(unread);
            self.link.release()?;
            // The last step, so that the device reports everything under way.
            if self.link.is_delivered()? {
                return Ok(true);
            }
            if self.link.arm(0)? == Armed::Wait {
                return Ok(false);
            }
        }
        // The peer sends without end.
        Ok(true)
    }

    fn turn(&mut self, emulator: &mut E, now: u64) -> Result<Next, Error> {
        let moved = self.outbound.flush(&mut self.link, emulator, now)?;
        let taken = self.inbound.turn(&mut self.link, emulator)?;
        self.count(emulator, now);
        if moved > 0 || taken.bytes > 0 {
            self.policy.found(now);
        }
        if taken.more {
            // Ringing costs system calls, which pay for a stream but not for many small messages.
            let stream = taken.bytes >= TURN_BYTES && self.late.is_late(now);
            return Ok(self.leave(if stream { Next::Ring } else { Next::Poll }, now));
        }
        if self.policy.nothing(now) == Turn::Spin {
            return Ok(self.leave(Next::Poll, now));
        }
        self.arm(emulator, now)
    }

    fn arm(&mut self, emulator: &E, now: u64) -> Result<Next, Error> {
        let next = match self.link.arm(self.room_wanted(emulator))? {
            Armed::Wait => Next::Armed,
            Armed::LookAgain if emulator.queued_bytes() > 0 && self.late.is_late(now) => Next::Ring,
            Armed::LookAgain => Next::Poll,
        };
        Ok(self.leave(next, now))
    }

    fn leave(&mut self, next: Next, now: u64) -> Next {
        self.polling = next == Next::Poll;
        if self.polling {
            self.late.called(now);
        }
        next
    }

    /// Returns the room that is worth a wake-up: what is queued, but not so much that the peer runs out of
    /// bytes to read first.
    fn room_wanted(&self, emulator: &E) -> usize {
        emulator.queued_bytes().min(self.link.ring_bytes() as usize / 2)
    }

    fn count(&self, emulator: &E, now: u64) {
        let counts = self.link.counts();
        let busy = self.outbound.busy(now);
        for (counter, value) in [
            (Counter::SentBytes, counts.sent_bytes),
            (Counter::ReceivedBytes, counts.received_bytes),
            (Counter::SentMessages, self.outbound.messages()),
            (Counter::ReceivedMessages, self.inbound.messages()),
            (Counter::OutboundUsedBytes, self.link.outbound_used_bytes()),
            (Counter::InboundUsedBytes, self.link.inbound_used_bytes()),
            (Counter::QueuedBytes, emulator.queued_bytes() as u64),
            (Counter::WakeupsSent, counts.wakeups_sent),
            (Counter::WakeupsReceived, counts.wakeups_received),
            (Counter::Polls, self.polls),
            (Counter::Spins, self.policy.spins()),
            (Counter::SpinHits, self.policy.hits()),
            (Counter::BusyCount, busy.count),
            (Counter::BusyNs, busy.nanoseconds),
            (Counter::Reassembled, self.inbound.reassembled()),
        ] {
            self.row.set(counter as usize, value);
        }
        if self.over_device {
            let device = self.link.endpoint_counts();
            self.row.set(Counter::Doorbells as usize, device.doorbells);
            self.row.set(Counter::Completions as usize, device.completions);
            self.row.set(Counter::RegisteredBytes as usize, device.registered_bytes);
        }
    }
}
