//! Whose the packets are: how many each owner has. A leak is an owner that has more and more, or
//! one that is not there.

use std::collections::BTreeMap;

use super::memory::EngineMemory;
use super::snapshot::Snapshot;
use crate::error::Error;
use crate::layout::packet_at;
use crate::owner::{Owner, PacketHeader};

/// Packets by owner. Every packet is counted once, under what its word said when it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Owners {
    /// Nobody's: the supervisor gives them to who asks.
    pub pool: u64,
    /// Of each worker, free and in use.
    pub workers: BTreeMap<String, u64>,
    /// In each link, on the way to the receiver.
    pub full: BTreeMap<String, u64>,
    /// In each link, empty, on the way back.
    pub empty: BTreeMap<String, u64>,
    /// In each link, waiting for an end that moves.
    pub parked: BTreeMap<String, u64>,
    /// Of a worker or link that is not there, by its number: nobody will ever free them.
    pub lost: BTreeMap<String, u64>,
    /// Of nobody that can be written.
    pub impossible: u64,
}

impl Owners {
    /// All packets.
    pub fn total(&self) -> u64 {
        let named = [&self.workers, &self.full, &self.empty, &self.parked, &self.lost];
        self.pool + self.impossible + named.into_iter().flat_map(BTreeMap::values).sum::<u64>()
    }

    pub(super) fn read(memory: &EngineMemory, snapshot: &Snapshot) -> Result<Self, Error> {
        let mut codes: BTreeMap<u16, u64> = BTreeMap::new();
        for index in 0..snapshot.packets {
            let header = PacketHeader(memory.word(packet_at(index))?);
            *codes.entry(header.owner_code()).or_default() += 1;
        }
        let mut owners = Self::default();
        for (code, count) in codes {
            owners.add(snapshot, code, count);
        }
        Ok(owners)
    }

    fn add(&mut self, snapshot: &Snapshot, code: u16, count: u64) {
        let (counts, name, number) = match Owner::of_code(code) {
            Some(Owner::Pool) => return self.pool += count,
            None => return self.impossible += count,
            Some(Owner::Worker(id)) => {
                (&mut self.workers, snapshot.worker_name(id), format!("worker {}", id.place()))
            }
            Some(Owner::Full(id)) => (&mut self.full, snapshot.link_name(id), format!("link {}", id.place())),
            Some(Owner::Empty(id)) => {
                (&mut self.empty, snapshot.link_name(id), format!("link {}", id.place()))
            }
            Some(Owner::Parked(id)) => {
                (&mut self.parked, snapshot.link_name(id), format!("link {}", id.place()))
            }
        };
        match name {
            Some(name) => *counts.entry(name.to_owned()).or_default() += count,
            None => *self.lost.entry(number).or_default() += count,
        }
    }
}
