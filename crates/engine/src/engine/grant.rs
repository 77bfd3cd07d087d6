//! Grants of packets to workers that ask: only the supervisor makes the memory grow and gives new packets
//! away.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Engine, EngineEvent};
use crate::handover::PacketHeaders;
use crate::layout::{self, engine, worker};
use crate::limits::{GRANT_PACKETS, SHORT_TOLD, WORKERS_MAX};
use crate::owner::{Owner, PacketHeader, WorkerId};

/// A period in which some worker waits for packets and the pool is empty.
#[derive(Debug)]
pub(super) struct Shortage {
    since: Instant,
    told: bool,
}

impl Shortage {
    /// Returns when the shortage will have lasted long enough to be reported.
    pub(super) fn to_be_told(&self) -> Option<Instant> {
        (!self.told).then(|| self.since + SHORT_TOLD)
    }
}

impl Engine {
    /// Gives packets to every worker that has asked for some. While the pool is empty, it asks the others to
    /// give back packets that they do not need.
    pub(super) fn grant_wanted(&mut self) {
        let workers = self.workers.iter().filter(|(_, entry)| entry.child.is_some());
        let workers: Vec<_> = workers.map(|(name, entry)| (name.clone(), entry.id)).collect();
        let mut waiting = None;
        for (name, id) in workers {
            let word = |offset| self.shared.worker(id, offset);
            // pairs with the Release in Worker::grow_and_shrink and Worker::take_grants
            let wanted = word(worker::WANTED).load(Ordering::Acquire);
            // The worker has not taken over its last grant yet; it clears what it wanted then.
            let pending = word(worker::GRANTS).load(Ordering::Relaxed)
                != word(worker::GRANTS_TAKEN).load(Ordering::Acquire);
            if wanted > 0 && !pending && !self.grant(id) {
                waiting.get_or_insert(name);
            }
        }
        self.see_to_shortage(waiting);
    }

    /// Reports a worker that has waited for packets too long, once until none waits.
    fn see_to_shortage(&mut self, waiting: Option<String>) {
        let is_new = self.shortage.is_none();
        self.shared.engine(engine::SHORT).store(u64::from(waiting.is_some()), Ordering::Relaxed);
        let Some(worker) = waiting else {
            self.shortage = None;
            return;
        };
        let shortage = self.shortage.get_or_insert(Shortage { since: Instant::now(), told: false });
        if !shortage.told && shortage.since.elapsed() >= SHORT_TOLD {
            shortage.told = true;
            let (packets, packets_max) = (self.packet_count, self.options.packets_max);
            self.events.push_back(EngineEvent::Short { worker, packets, packets_max });
        }
        if is_new {
            // Sleeping workers must look, too.
            self.workers.values().for_each(|entry| self.bells.worker(entry.id).ring());
        }
    }

    /// Gives a worker [`GRANT_PACKETS`] more, or all that are left. Returns false if none is left.
    pub(super) fn grant(&mut self, id: WorkerId) -> bool {
        if self.pool.is_empty() {
            self.collect_returned();
        }
        if self.pool.is_empty() {
            self.grow();
        }
        let count = self.pool.len().min(GRANT_PACKETS as usize);
        let given = self.pool.split_off(self.pool.len() - count);
        let (Some(&first), Some(&last)) = (given.iter().min(), given.iter().max()) else { return false };
        for &index in &given {
            self.memory.store(index, PacketHeader::granted(Owner::Worker(id)));
        }
        let word = |offset| self.shared.worker(id, offset);
        word(worker::GRANT_FIRST).store(u64::from(first), Ordering::Relaxed);
        word(worker::GRANT_END).store(u64::from(last) + 1, Ordering::Relaxed);
        // pairs with the Acquire in Worker::take_grants
        word(worker::GRANTS).fetch_add(1, Ordering::Release);
        self.bells.worker(id).ring();
        true
    }

    /// Backs more packets with memory, unless there are as many as there may be, or the machine has no
    /// more memory.
    fn grow(&mut self) {
        let more = GRANT_PACKETS.min(self.options.packets_max - self.packet_count);
        let packets = self.packet_count + more;
        if more == 0 || self.segment.grow(layout::bytes(packets)).is_err() {
            return;
        }
        // New memory is zero, so its packets name the pool.
        self.pool.extend(self.packet_count..packets);
        self.packet_count = packets;
        // pairs with the Acquire in Worker::new
        self.shared.engine(engine::PACKET_COUNT).store(u64::from(packets), Ordering::Release);
        self.events.push_back(EngineEvent::Grown { packets });
    }

    /// Collects the packets that workers gave back, if there are any.
    fn collect_returned(&mut self) {
        let word = |id| self.shared.worker(id, worker::RETURNED).load(Ordering::Acquire);
        let returned = (0..WORKERS_MAX).filter_map(WorkerId::new).map(word).fold(0, u64::wrapping_add);
        if returned == self.returned_seen {
            return;
        }
        self.returned_seen = returned;
        let nobodys = |index: &u32| self.memory.load(*index).owner_code() == Owner::Pool.code();
        self.pool = (0..self.packet_count).filter(nobodys).collect();
    }
}
