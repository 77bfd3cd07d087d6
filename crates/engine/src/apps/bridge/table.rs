//! The port of each station, as learned from the frames that stations send.
//!
//! The table is bounded, as anybody can send from any address: the number of entries is limited, and so is that of one
//! port, so that the stations behind it cannot crowd out the others. It hashes with a secret of this process (SipHash),
//! so that nobody can choose addresses that collide.

use std::collections::HashMap;

/// How often the table looks for entries that are too old.
pub const SWEEP_NS: u64 = 1_000_000_000;

/// A station: an Ethernet address, with the VLAN in the 16 bits above it.
pub type StationAddress = u64;
/// A port, by its place among the bridge's ports.
pub type PortNumber = u16;

/// A station of an earlier table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownStation {
    pub address: StationAddress,
    /// Its port.
    pub port: PortNumber,
    pub seen_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StationEntry {
    port: PortNumber,
    seen_ns: u64,
}

/// The limits of a table.
#[derive(Clone, Copy, Debug)]
pub struct TableBounds {
    pub entries: usize,
    pub of_one_port: usize,
    pub age_ns: u64,
}

#[derive(Debug)]
pub struct StationTable {
    bounds: TableBounds,
    entries: HashMap<StationAddress, StationEntry>,
    /// The number of entries of each port.
    counts: Vec<usize>,
    now_ns: u64,
    swept_ns: u64,
    /// The last station that was learned, and the last that was found: valid until the time or an entry changes.
    /// Packets come in runs between the same two stations.
    learned: Option<(StationAddress, PortNumber)>,
    found: Option<(StationAddress, Option<PortNumber>)>,
    /// The number of times that a station changed its port.
    pub moved: u64,
    /// The number of stations that were not learned because there were too many.
    pub refused: u64,
}

impl StationTable {
    pub fn new(bounds: TableBounds) -> Self {
        Self {
            bounds,
            entries: HashMap::with_capacity(bounds.entries),
            counts: Vec::new(),
            now_ns: 0,
            swept_ns: 0,
            learned: None,
            found: None,
            moved: 0,
            refused: 0,
        }
    }

    /// Returns the number of entries, including old ones that have not been swept.
    pub fn length(&self) -> usize {
        self.entries.len()
    }

    /// Sets the time of the calls that follow.
    pub fn set_now(&mut self, now_ns: u64) {
        if now_ns == self.now_ns {
            return;
        }
        self.now_ns = now_ns;
        self.forget_last();
        if now_ns.saturating_sub(self.swept_ns) >= SWEEP_NS {
            self.swept_ns = now_ns;
            self.sweep();
        }
    }

    /// Notes that `address` is at a port. It stays unknown if there are too many entries already.
    #[inline]
    pub fn learn(&mut self, address: StationAddress, port: PortNumber) {
        if self.learned == Some((address, port)) {
            return;
        }
        match self.entries.get_mut(&address) {
            Some(entry) if entry.port == port => {
                entry.seen_ns = self.now_ns;
                // The entry may have been found too old.
                self.found = None;
            }
            Some(_) => self.move_to(address, port),
            None => self.add(address, port, self.now_ns),
        }
        self.learned = Some((address, port));
    }

    /// Returns the port of `address`, if that is known.
    #[inline]
    pub fn find(&mut self, address: StationAddress) -> Option<PortNumber> {
        if let Some((last, port)) = self.found {
            if last == address {
                return port;
            }
        }
        let entry = self.entries.get(&address).filter(|entry| self.is_fresh(entry));
        let port = entry.map(|entry| entry.port);
        self.found = Some((address, port));
        port
    }

    /// Adds a station that was last seen at `seen_ns`, if there is room.
    pub fn restore(&mut self, known: KnownStation) {
        if !self.entries.contains_key(&known.address) {
            self.add(known.address, known.port, known.seen_ns);
        }
    }

    /// Returns the known stations, and when they were last seen.
    pub fn iter(&self) -> impl Iterator<Item = KnownStation> + '_ {
        let known = |(&address, entry): (&_, &StationEntry)| KnownStation {
            address,
            port: entry.port,
            seen_ns: entry.seen_ns,
        };
        self.entries.iter().map(known)
    }

    /// Gives ports new numbers by `port`. Stations at ports for which it returns `None` are forgotten.
    pub fn renumber(&mut self, port: impl Fn(PortNumber) -> Option<PortNumber>) {
        self.entries.retain(|_, entry| port(entry.port).map(|port| entry.port = port).is_some());
        self.recount();
    }

    #[inline]
    fn is_fresh(&self, entry: &StationEntry) -> bool {
        self.now_ns.saturating_sub(entry.seen_ns) < self.bounds.age_ns
    }

    #[inline]
    fn forget_last(&mut self) {
        self.learned = None;
        self.found = None;
    }

    fn add(&mut self, address: StationAddress, port: PortNumber, seen_ns: u64) {
        if self.entries.len() >= self.bounds.entries || self.count(port) >= self.bounds.of_one_port {
            self.refused += 1;
            return;
        }
        self.forget_last();
        *self.count_mut(port) += 1;
        self.entries.insert(address, StationEntry { port, seen_ns });
    }

    /// Moves a station to another port. It leaves the old port even if there is no room for it at the new one: then
    /// frames for it are flooded, and reach it.
    fn move_to(&mut self, address: StationAddress, port: PortNumber) {
        self.forget_last();
        if let Some(old) = self.entries.remove(&address) {
            *self.count_mut(old.port) -= 1;
            self.moved += 1;
        }
        self.add(address, port, self.now_ns);
    }

    fn sweep(&mut self) {
        let (now_ns, age_ns) = (self.now_ns, self.bounds.age_ns);
        // A time in the future comes from an invalid state.
        self.entries.retain(|_, entry| now_ns.checked_sub(entry.seen_ns).is_some_and(|age| age < age_ns));
        self.recount();
    }

    fn recount(&mut self) {
        self.forget_last();
        self.counts.fill(0);
        let places: Vec<_> = self.entries.values().map(|entry| entry.port).collect();
        places.into_iter().for_each(|port| *self.count_mut(port) += 1);
    }

    fn count(&self, port: PortNumber) -> usize {
        self.counts.get(usize::from(port)).copied().unwrap_or(0)
    }

    fn count_mut(&mut self, port: PortNumber) -> &mut usize {
        let port = usize::from(port);
        if port >= self.counts.len() {
            self.counts.resize(port + 1, 0);
        }
        &mut self.counts[port]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const BOUNDS: TableBounds = TableBounds { entries: 8, of_one_port: 5, age_ns: 10 * SWEEP_NS };

    #[derive(Clone, Debug)]
    enum Step {
        Learn(StationAddress, PortNumber),
        Find(StationAddress),
        Wait(u64),
        Unplug(PortNumber),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..12_u64, 0..3_u16).prop_map(|(address, port)| Step::Learn(address, port)),
            6 => (0..12_u64).prop_map(Step::Find),
            2 => (0..4 * SWEEP_NS).prop_map(Step::Wait),
            1 => (0..3_u16).prop_map(Step::Unplug),
        ]
    }

    proptest! {
        /// Compares the table with one that looks through all of its entries each time.
        #[test]
        fn a_table_knows_what_was_learned_last(steps in prop::collection::vec(step(), 1..200)) {
            let mut table = StationTable::new(BOUNDS);
            let mut plain: BTreeMap<StationAddress, (PortNumber, u64)> = BTreeMap::new();
            let (mut now_ns, mut swept_ns) = (0, 0);
            for step in steps {
                match step {
                    Step::Learn(address, port) => {
                        table.learn(address, port);
                        if plain.get(&address).is_some_and(|&(old, _)| old != port) {
                            plain.remove(&address);
                        }
                        let there = plain.values().filter(|&&(at, _)| at == port).count();
                        let room = plain.len() < BOUNDS.entries && there < BOUNDS.of_one_port;
                        if plain.contains_key(&address) || room {
                            plain.insert(address, (port, now_ns));
                        }
                    }
                    Step::Find(address) => {
                        let fresh = plain.get(&address).filter(|&&(_, seen_ns)| now_ns - seen_ns < BOUNDS.age_ns);
                        prop_assert_eq!(table.find(address), fresh.map(|&(port, _)| port));
                    }
                    Step::Wait(ns) => {
                        now_ns += ns;
                        table.set_now(now_ns);
                        if now_ns - swept_ns >= SWEEP_NS {
                            swept_ns = now_ns;
                            plain.retain(|_, &mut (_, seen_ns)| now_ns - seen_ns < BOUNDS.age_ns);
                        }
                    }
                    Step::Unplug(gone) => {
                        table.renumber(|port| (port != gone).then_some(port));
                        plain.retain(|_, &mut (port, _)| port != gone);
                    }
                }
                prop_assert_eq!(table.length(), plain.len());
                prop_assert!(table.iter().all(|known| plain.get(&known.address) == Some(&(known.port, known.seen_ns))));
            }
        }
    }
}
