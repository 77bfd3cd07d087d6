//! Versions whose neighbours nobody was told.
//!
//! A **run** is a sequence of versions of one key, each known to follow the one before immediately. So no version of another
//! run lies between two of its versions. The first run begins with the unwritten version, before all others. Of two other runs
//! the order is known if a transaction that wrote or read one ended before a transaction that wrote or read the other began.
//! This is how an acknowledged write is missed that no later value shows: nobody is told what follows it.

use std::collections::{BTreeMap, HashMap};

use super::cycles::{Judge, UNWRITTEN, Version};
use super::graph::Edge;

/// A run, and when transactions touched it.
struct Run<'h> {
    first: Version<'h>,
    last: Version<'h>,
    /// When the first transaction that wrote or read one of its versions had ended.
    ended_ns: u64,
    /// When the last transaction that wrote or read one of its versions began.
    begun_ns: u64,
}

impl Run<'_> {
    fn is_before(&self, other: &Self) -> bool {
        self.first.1 == UNWRITTEN || (other.first.1 != UNWRITTEN && self.ended_ns < other.begun_ns)
    }
}

impl<'h> Judge<'h> {
    /// Adds an edge from the last version of each run to the first one of each later run of its key.
    pub(super) fn connect_runs(&mut self) {
        let mut touched: HashMap<Version<'h>, Vec<usize>> = HashMap::new();
        let written = self.writers.iter().map(|(version, (writer, _))| (*version, *writer));
        for (version, writer) in written.filter(|(_, writer)| self.is_seen[*writer]) {
            touched.entry(version).or_default().push(writer);
        }
        for (reader, versions) in self.reads.iter().enumerate() {
            versions.iter().for_each(|version| touched.entry(*version).or_default().push(reader));
        }
        let mut runs: BTreeMap<usize, Vec<Run<'h>>> = BTreeMap::new();
        let unwritten = self.keys.values().map(|key| (*key, UNWRITTEN));
        let known = touched.keys().copied().filter(|version| version.1 != UNWRITTEN);
        for first in known.chain(unwritten).filter(|version| !self.before.contains_key(version)) {
            let mut run = Run { first, last: first, ended_ns: u64::MAX, begun_ns: 0 };
            let mut version = Some(first);
            while let Some(now) = version {
                for act in touched.get(&now).into_iter().flatten().map(|index| &self.acts[*index]) {
                    run.ended_ns = run.ended_ns.min(act.end_ns.unwrap_or(u64::MAX));
                    run.begun_ns = run.begun_ns.max(act.begin_ns);
                }
                run.last = now;
                version = self.next.get(&now).copied();
            }
            runs.entry(first.0).or_default().push(run);
        }
        for runs in runs.values() {
            for (index, run) in runs.iter().enumerate() {
                let others = runs.iter().enumerate().filter(|(other, _)| *other != index);
                for later in others.map(|(_, other)| other).filter(|other| run.is_before(other)) {
                    let writer = self.writer(later.first);
                    self.graph.add(self.writer(run.last), writer, Edge::WriteWrite);
                    for reader in touched.get(&run.last).into_iter().flatten() {
                        self.graph.add(Some(*reader), writer, Edge::ReadWrite);
                    }
                }
            }
        }
    }
}
