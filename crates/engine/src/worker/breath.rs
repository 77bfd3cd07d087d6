//! One breath of a worker, and its sleep.

use std::sync::atomic::Ordering;

use caravan_ring::{Turn, Wake};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{LinkEnd, Worker, WorkerApp, WorkerExit, WorkerLink};
use crate::control::EngineBells;
use crate::error::{Error, corrupt};
use crate::handover::MovedPackets;
use crate::io::{Io, now_ns};
use crate::layout::{self, SharedWords, WorkerStage, link, worker};
use crate::limits::{BATCH_PACKETS, GRANT_PACKETS, SHORT_PACKETS, STARVED_NS, SURPLUS_PACKETS};
use crate::owner::{LinkId, WorkerId};
use crate::queue::PacketQueue;

impl Worker<'_> {
    /// Takes packets, calls every app, and gives packets. Returns false if nothing moved.
    pub(super) fn breathe(&mut self) -> Result<bool, Error> {
        let mut moved = self.receive()?;
        self.stage(WorkerStage::Pulling);
        for slot in &mut self.apps {
            let mut io = Io::new(&slot.ports, &mut self.queues, &mut self.pool, self.now_ns);
            slot.app.pull(&mut io);
            moved += io.moved();
            trace(slot, &mut self.links, &self.queues, self.now_ns);
        }
        self.stage(WorkerStage::Pushing);
        for slot in &mut self.apps {
            let mut io = Io::new(&slot.ports, &mut self.queues, &mut self.pool, self.now_ns);
            slot.app.push(&mut io);
            moved += io.moved();
            trace(slot, &mut self.links, &self.queues, self.now_ns);
        }
        self.pool.collect_dropped();
        moved += self.give()?;
        self.grow_and_shrink();
        self.count(moved > 0);
        Ok(moved > 0)
    }

    /// Takes full and empty packets from other workers.
    fn receive(&mut self) -> Result<u64, Error> {
        self.stage(WorkerStage::Receiving);
        let mut moved = 0;
        for (link, queue) in self.links.iter_mut().zip(&mut self.queues) {
            let (came, side) = match &mut link.end {
                LinkEnd::Local => continue,
                LinkEnd::Producer(end) => (end.collect(&mut self.pool), link::CONSUMER),
                LinkEnd::Consumer(end) => (end.receive(queue, &mut self.pool), link::PRODUCER),
            };
            let came = came.map_err(corrupt(link.plan.id))?;
            moved += came.packets as u64;
            settle(&self.shared, &self.bells, self.id, link.plan.id, came, side);
        }
        Ok(moved)
    }

    /// Gives full and empty packets to other workers.
    fn give(&mut self) -> Result<u64, Error> {
        self.stage(WorkerStage::Sending);
        let mut moved = 0;
        for (link, queue) in self.links.iter_mut().zip(&mut self.queues) {
            let (went, side) = match &mut link.end {
                LinkEnd::Local => continue,
                LinkEnd::Producer(end) => (end.send(queue, self.pool.memory()), link::CONSUMER),
                LinkEnd::Consumer(end) => (end.repay(&mut self.pool), link::PRODUCER),
            };
            let went = went.map_err(corrupt(link.plan.id))?;
            moved += went.packets as u64;
            settle(&self.shared, &self.bells, self.id, link.plan.id, went, side);
        }
        Ok(moved)
    }

    /// Asks for packets if apps wanted more than there were; gives packets back if there are far too many.
    fn grow_and_shrink(&mut self) {
        if self.pool.take_starved() {
            let since = *self.starved_since.get_or_insert(self.now_ns);
            if self.now_ns.saturating_sub(since) < STARVED_NS {
                return;
            }
            let wanted = self.shared.worker(self.id, worker::WANTED);
            if wanted.load(Ordering::Relaxed) == 0 {
                // pairs with the Acquire in the supervisor's `grant_wanted`
                wanted.store(u64::from(GRANT_PACKETS), Ordering::Release);
                self.bells.supervisor().ring();
            }
            return;
        }
        self.starved_since = None;
        let free = self.pool.length();
        if free <= SHORT_PACKETS + BATCH_PACKETS {
            return;
        }
        // The word is only a hint: the supervisor rings once it is written.
        let is_short = self.shared.engine(layout::engine::SHORT).load(Ordering::Relaxed) != 0;
        let count = match is_short {
            true => free - SHORT_PACKETS,
            false if free > SURPLUS_PACKETS => GRANT_PACKETS as usize,
            false => return,
        };
        self.pool.give_back(count);
        // pairs with the Acquire in the supervisor's `collect_returned`
        self.shared.worker(self.id, worker::RETURNED).fetch_add(count as u64, Ordering::Release);
        if is_short {
            self.bells.supervisor().ring();
        }
    }

    /// Writes the words that viewers read.
    fn count(&mut self, progress: bool) {
        let end = now_ns();
        let took = end.saturating_sub(self.now_ns);
        self.now_ns = end;
        let (shared, id) = (&self.shared, self.id);
        let word = |offset| shared.worker(id, offset);
        if !progress {
            SharedWords::add(word(worker::IDLE_BREATHS), 1);
            return;
        }
        SharedWords::add(word(worker::BREATHS), 1);
        SharedWords::add(word(worker::BUSY_NS), took);
        SharedWords::add(word(worker::HISTOGRAM + 8 * layout::bucket(took)), 1);
        word(worker::FREE).store(self.pool.length() as u64, Ordering::Relaxed);
        self.count_drops();
        for (at, queue) in self.links.iter().zip(&self.queues) {
            count_link(shared, at, queue);
        }
    }

    /// Writes the counts of drops.
    #[inline]
    pub(super) fn count_drops(&self) {
        for (cause, (&drops, before)) in self.pool.drops().iter().zip(&self.drops_before).enumerate() {
            if drops > 0 {
                let word = self.shared.worker(self.id, worker::DROPS + 8 * cause);
                word.store(before + drops, Ordering::Relaxed);
            }
        }
    }
}

/// Copies the packets that an app has just sent, if the link is traced.
#[inline]
fn trace(slot: &WorkerApp, links: &mut [WorkerLink], queues: &[PacketQueue], now_ns: u64) {
    for &(_, place) in &slot.ports.outputs {
        let (at, queue) = (&mut links[place], &queues[place]);
        if !at.tap.is_wanted() {
            at.traced = None;
            continue;
        }
        let sent = queue.counts().packets;
        let news = sent - at.traced.replace(sent).unwrap_or(sent);
        if news > 0 {
            at.tap.record(queue.youngest(news as usize), now_ns);
        }
    }
}

pub(super) fn count_link(shared: &SharedWords, at: &WorkerLink, queue: &PacketQueue) {
    let word = |offset| shared.link(at.plan.id, offset);
    let store = |offset, value| word(offset).store(value, Ordering::Relaxed);
    let counts = queue.counts();
    if at.plan.role.sends() {
        store(link::PACKETS, counts.packets);
        store(link::BYTES, counts.bytes);
        store(link::DROPS, counts.drops);
    }
    match at.end {
        LinkEnd::Producer(_) => store(link::QUEUED, queue.length() as u64),
        LinkEnd::Local | LinkEnd::Consumer(_) => {
            store(link::TAKEN, at.taken_before + queue.taken());
            store(link::WAITING, queue.length() as u64);
        }
    }
}

/// Wakes the other side, the one whose word is at `other`, if it sleeps, and counts the numbers that were skipped.
#[inline]
fn settle(
    shared: &SharedWords,
    bells: &EngineBells,
    id: WorkerId,
    at: LinkId,
    moved: MovedPackets,
    other: usize,
) {
    if moved.skipped > 0 {
        SharedWords::add(shared.worker(id, worker::SKIPPED), moved.skipped as u64);
    }
    if moved.wake == Wake::Bell {
        ring(shared, bells, at, other);
    }
}

/// Wakes the worker that has the end of a link whose word is at `side`.
fn ring(shared: &SharedWords, bells: &EngineBells, at: LinkId, side: usize) {
    let place = shared.link(at, side).load(Ordering::Acquire) as usize;
    if let Some(worker) = place.checked_sub(1).and_then(WorkerId::new) {
        bells.worker(worker).ring();
    }
}

/// Wakes the workers that have an end of a link.
pub fn ring_both(shared: &SharedWords, bells: &EngineBells, at: LinkId) {
    [link::PRODUCER, link::CONSUMER].into_iter().for_each(|side| ring(shared, bells, at, side));
}

/// Polls that found nothing after which a spinning worker yields the core between two polls.
const LOOKS_ALONE: u32 = 64;

impl Worker<'_> {
    /// Lets some time pass: briefly, if spinning has paid off lately; otherwise until the worker is woken.
    pub(super) fn rest(&mut self) -> Result<(), WorkerExit> {
        self.idle_looks += 1;
        if self.idle_looks < LOOKS_ALONE {
            std::hint::spin_loop();
            return Ok(());
        }
        match self.spin.nothing(self.now_ns) {
            Turn::Spin => std::thread::yield_now(),
            Turn::Sleep => {
                self.stage(WorkerStage::Idle);
                let sleeps = self.fall_asleep().map_err(WorkerExit::Broken)?;
                if sleeps {
                    SharedWords::add(self.shared.worker(self.id, worker::SLEEPS), 1);
                    // Packets come without a breath, too: as a grant, or from a process that crashed.
                    let free = self.shared.worker(self.id, worker::FREE);
                    free.store(self.pool.length() as u64, Ordering::Relaxed);
                    self.wait()?;
                }
                self.wake();
                self.now_ns = now_ns();
                if sleeps {
                    self.spin.woken(self.now_ns);
                }
            }
        }
        Ok(())
    }

    /// Announces on all ends that this side is about to wait. Returns false if an end has something to do.
    fn fall_asleep(&mut self) -> Result<bool, Error> {
        let free = self.pool.length();
        for (link, queue) in self.links.iter_mut().zip(&self.queues) {
            let sleeps = match &mut link.end {
                LinkEnd::Local => Ok(true),
                LinkEnd::Producer(end) => end.sleep(queue.length(), free == 0),
                // A full queue waits for its app: if the app does not take packets, the app waits for others.
                LinkEnd::Consumer(end) if queue.room() > 0 => end.sleep(free),
                LinkEnd::Consumer(_) => Ok(true),
            };
            if !sleeps.map_err(corrupt(link.plan.id))? {
                return Ok(false);
            }
        }
        // The supervisor writes these words before it rings.
        let word = |offset| self.shared.worker(self.id, offset).load(Ordering::Acquire);
        Ok(word(worker::ORDERS) == self.orders_seen && word(worker::GRANTS) == self.grants_seen)
    }

    /// Sleeps until the bell rings, a descriptor of an app is readable, or an app's time has come.
    fn wait(&mut self) -> Result<(), WorkerExit> {
        let due = self.apps.iter().filter_map(|slot| slot.app.wake_ns());
        // A worker that has asked for packets is woken when they are there.
        let asked = self.shared.worker(self.id, worker::WANTED).load(Ordering::Relaxed) > 0;
        let starved = self.starved_since.filter(|_| !asked).map(|since| since + STARVED_NS);
        let due = due.chain(starved).min();
        let left = due.map(|due| {
            let ns = due.saturating_sub(now_ns());
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
        });
        let bell = self.bells.worker(self.id);
        let mut set = vec![PollFd::new(bell, PollFlags::IN), PollFd::new(&self.channel, PollFlags::IN)];
        let devices: Vec<_> = self.apps.iter().flat_map(|slot| slot.app.descriptors()).collect();
        set.extend(devices.iter().map(|device| PollFd::new(device, PollFlags::IN)));
        // An interrupted sleep counts as woken.
        let _ = rustix::event::poll(&mut set, left.as_ref());
        let gone = set[1].revents().contains(PollFlags::HUP);
        bell.hush();
        if gone { Err(WorkerExit::Alone) } else { Ok(()) }
    }

    fn wake(&mut self) {
        for link in &mut self.links {
            match &mut link.end {
                LinkEnd::Local => {}
                LinkEnd::Producer(end) => end.wake(),
                LinkEnd::Consumer(end) => end.wake(),
            }
        }
    }
}
