//! Two connected endpoints of any backend, in one process.

use std::time::Duration;

use caravan_fabric::contract::{Armed, Endpoint, Event, Operation};
use caravan_fabric::sim::{Faults, Faulty, PlantedBreach, World};
use caravan_fabric::tcp::{self, TcpSealing};
use caravan_fabric::{Error, Exposure, Link, shm, verbs};

/// How long nothing may move before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The number of polls of both ends that may find nothing before a test gives up.
const EMPTY_ROUNDS_MAX: u32 = 20_000;

/// Both ends, and the events that they have polled.
#[derive(Debug)]
pub struct Pair {
    pub ends: [Box<dyn Endpoint>; 2],
    pub seen: [Vec<Event>; 2],
    pub world: Option<World>,
}

impl Pair {
    fn new(left: impl Endpoint + 'static, right: impl Endpoint + 'static, world: Option<World>) -> Self {
        Self { ends: [Box::new(left), Box::new(right)], seen: [Vec::new(), Vec::new()], world }
    }

    /// Makes a pair over a network whose promises and habits the seed chooses.
    pub fn sim(seed: u64, arena_bytes: u64) -> Self {
        let (world, left, right) = World::pair(seed, arena_bytes, World::capabilities(seed)).unwrap();
        let faults = Faults { full: 5, short_poll: 5, empty_look: 5, empty_wake: 5, ..Faults::default() };
        Self::new(Faulty::new(left, faults, seed), Faulty::new(right, faults, !seed), Some(world))
    }

    /// Makes a pair over a network whose promises and habits the seed chooses, with a breach planted at both ends.
    pub fn planted_sim(breach: PlantedBreach, seed: u64, arena_bytes: u64) -> Self {
        let (world, left, right) = World::pair(seed, arena_bytes, World::capabilities(seed)).unwrap();
        Self::new(Faulty::planted(left, breach), Faulty::planted(right, breach), Some(world))
    }

    /// Makes a pair through mapped memory, with a breach planted at both ends.
    pub fn planted_shm(breach: PlantedBreach, arena_bytes: u64) -> Self {
        let (left, right) = shm_ends(arena_bytes);
        Self::new(Faulty::planted(left, breach), Faulty::planted(right, breach), None)
    }

    /// Makes a pair through mapped memory, each side with a mapping of its own.
    pub fn shm(arena_bytes: u64) -> Self {
        let (left, right) = shm_ends(arena_bytes);
        Self::new(left, right, None)
    }

    /// Makes a pair through mapped memory, with faults in front of it.
    pub fn faulty_shm(faults: Faults, seed: u64, arena_bytes: u64) -> Self {
        let (left, right) = shm_ends(arena_bytes);
        Self::new(Faulty::new(left, faults, seed), Faulty::new(right, faults, !seed), None)
    }

    /// Makes a pair over TCP within this machine.
    pub fn tcp(sealing: TcpSealing, exposure: &Exposure) -> Self {
        let (left, right) = tcp::pair(exposure, sealing).unwrap();
        Self::new(left, right, None)
    }

    /// Makes a pair over TCP, with faults in front of it.
    pub fn faulty_tcp(faults: Faults, seed: u64, exposure: &Exposure) -> Self {
        let (left, right) = tcp::pair(exposure, TcpSealing::Plain).unwrap();
        Self::new(Faulty::new(left, faults, seed), Faulty::new(right, faults, !seed), None)
    }

    /// Makes a pair over an RDMA device of this machine.
    pub fn verbs(exposure: &Exposure) -> Self {
        let [left, right] = verbs_ends(exposure);
        Self { ends: [left, right], seen: [Vec::new(), Vec::new()], world: None }
    }

    /// Makes a pair over an RDMA device of this machine, its first end in a domain.
    pub fn verbs_in(domain: &verbs::Domain, exposure: &Exposure) -> Self {
        let [left, right] = verbs_ends_in(domain, exposure);
        Self { ends: [left, right], seen: [Vec::new(), Vec::new()], world: None }
    }

    /// Polls both ends until `done`. Panics if nothing more comes before that.
    pub fn until(&mut self, mut done: impl FnMut(&[Vec<Event>; 2]) -> bool) {
        let mut empty = 0;
        while !done(&self.seen) {
            let mut came = 0;
            for (end, seen) in self.ends.iter_mut().zip(&mut self.seen) {
                came += end.poll(seen, 16).unwrap();
            }
            if came == 0 {
                // Completions may be gathered.
                self.ends.iter_mut().for_each(|end| end.flush().unwrap());
            }
            empty = if came == 0 { empty + 1 } else { 0 };
            assert!(empty < EMPTY_ROUNDS_MAX, "nothing comes any more; so far {:?}", self.seen);
        }
    }

    /// Posts and starts one operation at an end; polls while its queue is full.
    pub fn start(&mut self, end: usize, operation: Operation) {
        loop {
            match self.ends[end].post(operation) {
                Ok(()) => return self.ends[end].doorbell().unwrap(),
                Err(Error::Full(_)) => {
                    for (end, seen) in self.ends.iter_mut().zip(&mut self.seen) {
                        end.poll(seen, 16).unwrap();
                    }
                }
                Err(error) => panic!("{operation:?}: {error}"),
            }
        }
    }

    /// Polls an end until it may wait.
    pub fn arm(&mut self, end: usize) {
        for _ in 0..EMPTY_ROUNDS_MAX {
            self.ends[end].poll(&mut self.seen[end], 16).unwrap();
            if self.ends[end].arm().unwrap() == Armed::Wait {
                return;
            }
        }
        panic!("it never says that it may be waited for");
    }

    /// Makes a link on each end.
    pub fn links(self, ring_bytes: u64) -> ([Link; 2], Option<World>) {
        let links = self.ends.map(|end| Link::new(end, ring_bytes).unwrap());
        (links, self.world)
    }
}

/// Makes two endpoints on one memfd.
pub fn shm_ends(arena_bytes: u64) -> (shm::ShmEndpoint, shm::ShmEndpoint) {
    shm::pair(arena_bytes).unwrap()
}

/// Makes two endpoints over an RDMA device, each in a thread of its own as two processes would.
pub fn verbs_ends(exposure: &Exposure) -> [Box<dyn Endpoint>; 2] {
    verbs_ends_in(&verbs::Domain::new(), exposure)
}

/// Makes two endpoints over an RDMA device, the first one in a domain.
pub fn verbs_ends_in(domain: &verbs::Domain, exposure: &Exposure) -> [Box<dyn Endpoint>; 2] {
    let (pending, request) = domain.connect(&verbs::offer().unwrap(), exposure).unwrap();
    let (accepting, answer) = verbs::accept(&request, exposure).unwrap();
    std::thread::scope(|scope| {
        let right = scope.spawn(|| accepting.finish(&[], PATIENCE).unwrap());
        let left = pending.finish(&answer, PATIENCE).unwrap();
        [left, right.join().unwrap()]
    })
}
