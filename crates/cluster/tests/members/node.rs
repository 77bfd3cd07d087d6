//! A simulated server: a `MemberWatch`, a clock, copies of parts, and what it has under way.

use std::collections::BTreeMap;

use caravan_cluster::{BootTime, MemberIdentity, MemberWatch, PartId};

/// The copy of a part in a server's memory.
#[derive(Clone, Debug, Default)]
pub struct Copy {
    /// How many commits it has.
    pub commits: u64,
    /// The filling in which it is written whole, and joined the stream.
    pub joined: Option<u64>,
}

pub struct Node {
    pub name: String,
    pub watch: Option<MemberWatch>,
    /// The number of its process: events of an earlier one are dropped.
    pub process: u64,
    pub is_alive: bool,
    /// Until when its process is stopped, in the world's time.
    pub stopped_until: u64,
    /// Its clock: where it began, and how fast it goes, in millionths more or less.
    pub clock_offset: u64,
    pub clock_drift: i64,
    pub copies: BTreeMap<PartId, Copy>,
    /// The epoch that it is closing, and when it has.
    pub closing: Option<(u64, u64)>,
    /// When it looks for something to fill the next time.
    pub fill_at: u64,
    /// When it commits the next time.
    pub work_at: u64,
    /// The tick that is planned.
    pub tick_at: u64,
    /// Who it was, when it lives no longer as a member.
    pub was: Option<MemberIdentity>,
}

impl Node {
    /// Returns what its clock says at a moment of the world.
    pub fn clock(&self, now: u64) -> BootTime {
        let passed = i128::from(now) * (1_000_000 + i128::from(self.clock_drift)) / 1_000_000;
        BootTime(self.clock_offset + passed as u64)
    }

    /// Returns after how much of the world's time its clock will say this.
    pub fn until(&self, now: u64, time: BootTime) -> u64 {
        let local = time.0.saturating_sub(self.clock(now).0);
        (i128::from(local) * 1_000_000 / (1_000_000 + i128::from(self.clock_drift))) as u64 + 1
    }

    pub fn runs(&self, now: u64) -> bool {
        self.is_alive && now >= self.stopped_until
    }

    pub fn watch(&self) -> &MemberWatch {
        self.watch.as_ref().expect("a node that is alive has a watch")
    }
}
