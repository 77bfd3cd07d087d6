//! Packets for who asks: the supervisor alone makes the memory grow, and alone gives new packets
//! away.

use std::sync::atomic::Ordering;

use super::{Engine, Event};
use crate::handover::Headers;
use crate::layout::{self, engine, worker};
use crate::limits::{GRANT_PACKETS, WORKERS_MAX};
use crate::owner::{Header, Owner, WorkerId};

impl Engine {
    /// Gives packets to every worker that has asked for some.
    pub(super) fn grant_wanted(&mut self) {
        let ids: Vec<_> =
            self.workers.values().filter(|entry| entry.child.is_some()).map(|entry| entry.id).collect();
        for id in ids {
            let word = |offset| self.shared.worker(id, offset);
            // pairs with the Release in Worker::grow_and_shrink and Worker::take_grants
            let wanted = word(worker::WANTED).load(Ordering::Acquire);
            // What was given last is not taken over yet: the worker clears what it wanted then.
            let pending = word(worker::GRANTS).load(Ordering::Relaxed)
                != word(worker::GRANTS_TAKEN).load(Ordering::Acquire);
            if wanted > 0 && !pending {
                self.grant(id);
            }
        }
    }

    /// Gives a worker [`GRANT_PACKETS`] more, or as many as there are.
    pub(super) fn grant(&mut self, id: WorkerId) {
        if self.pool.is_empty() {
            self.collect_returned();
        }
        if self.pool.is_empty() {
            self.grow();
        }
        let count = self.pool.len().min(GRANT_PACKETS as usize);
        let given = self.pool.split_off(self.pool.len() - count);
        let (Some(&first), Some(&last)) = (given.iter().min(), given.iter().max()) else { return };
        for &index in &given {
            self.memory.store(index, Header::granted(Owner::Worker(id)));
        }
        let word = |offset| self.shared.worker(id, offset);
        word(worker::GRANT_FIRST).store(u64::from(first), Ordering::Relaxed);
        word(worker::GRANT_END).store(u64::from(last) + 1, Ordering::Relaxed);
        // pairs with the Acquire in Worker::take_grants
        word(worker::GRANTS).fetch_add(1, Ordering::Release);
        self.bells.worker(id).ring();
    }

    /// Backs more packets with memory, unless there are as many as there may be, or the machine has no
    /// more memory.
    fn grow(&mut self) {
        let more = GRANT_PACKETS.min(self.options.packets_max - self.packet_count);
        let packets = self.packet_count + more;
        if more == 0 || self.segment.grow(layout::bytes(packets)).is_err() {
            return;
        }
        // New memory is zero: the pool's.
        self.pool.extend(self.packet_count..packets);
        self.packet_count = packets;
        // pairs with the Acquire in Worker::new
        self.shared.engine(engine::PACKET_COUNT).store(u64::from(packets), Ordering::Release);
        self.events.push_back(Event::Grown { packets });
    }

    /// Looks for packets that workers gave back, if there are any.
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
