//! A world of nodes and the network between them, all in one process and from one seed, for tests.
//!
//! A [`World`] has any number of nodes, each of which stands for a process on a host of its own. Two nodes that are
//! [connected](World::connect) have an endpoint each. The network does whatever a connection's [`Capabilities`] leave unpromised: the bytes of a write land in
//! pieces and in any order; writes and immediates overtake one another; a completion comes long
//! before its bytes arrive, and that of a write only together with others or after a flush; a compare-and-swap is
//! not atomic; nothing happens while the target does not poll. It keeps what is promised:
//!
//! | promise | always | with the bit |
//! |---|---|---|
//! | an immediate | after its own bytes; after those of writes whose completion had been polled when its own was posted | `immediates_ordered`: in order, and after the bytes of all writes before it |
//! | a completion | the source is not read any more, and what it wrote lands even if this side ends | |
//! | a read | its bytes come in any pieces and order | `reads_words_atomically`: never in pieces of a word |
//! | a region | only what is lent at that moment is reached; anything else ends the side that asked | |
//! | compare-and-swap | atomic among its kind | `atomic_with_processor`: against the processor too |
//! | the end of a side | the peer first sees everything that lands, then learns of the end | |
//! | the cut of a link | nothing passes; a connection that is not mended in time ends on both sides, with what had completed before | without `completes_early` |
//!
//! Everything that happens is a function of the seed and of the calls. Time is
//! [`World::step`]: the test says when the network moves on, or has a thread that
//! [carries](World::carry) all the time. [`World::mishap`] stops, kills and restarts nodes, and cuts and mends links. [`Faulty`] is the middleware for the faults that any backend may show
//! its user: a full queue, an empty wake-up, a short poll, an end.

mod endpoint;
mod faulty;
mod flight;
mod nodes;
mod party;
mod state;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::contract::{Capabilities, Error};

pub use endpoint::SimEndpoint;
pub use faulty::{Faults, Faulty, PlantedBreach};
pub use nodes::{Mishap, NodeLife};
use state::SimState;

/// Nodes, the network between them, and the random choices about both. Prints its seed if it is dropped
/// while a test fails.
#[derive(Debug)]
pub struct World {
    seed: u64,
    shared: Arc<SimShared>,
}

#[derive(Debug)]
pub(crate) struct SimShared {
    state: Mutex<SimState>,
    /// Notified when an operation was posted, or a side was armed or ended: there may be something to carry.
    stirred: Condvar,
}

impl SimShared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, SimState> {
        // If a test failed in one thread, the other threads must still be able to end.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stir(&self) {
        self.stirred.notify_all();
    }
}

impl World {
    /// Returns a world of nodes 0 to `nodes` - 1, which run and are not connected.
    pub fn new(seed: u64, nodes: usize) -> Self {
        let shared = SimShared { state: Mutex::new(SimState::new(seed, nodes)), stirred: Condvar::new() };
        Self { seed, shared: Arc::new(shared) }
    }

    /// Returns a world of two nodes, and the endpoints of a connection from node 0 to node 1.
    pub fn pair(
        seed: u64,
        arena_bytes: u64,
        capabilities: Capabilities,
    ) -> Result<(Self, SimEndpoint, SimEndpoint), Error> {
        let world = Self::new(seed, 2);
        let [left, right] = world.connect([0, 1], arena_bytes, capabilities)?;
        Ok((world, left, right))
    }

    /// Connects two nodes, and returns an endpoint of each, with arenas of `arena_bytes`, all zero. Returns
    /// [`Error::NotConnected`] if a node does not run or the link is cut. The world keeps the memory of all
    /// its connections.
    pub fn connect(
        &self,
        nodes: [usize; 2],
        arena_bytes: u64,
        capabilities: Capabilities,
    ) -> Result<[SimEndpoint; 2], Error> {
        let left = self.shared.lock().connect(nodes, arena_bytes, capabilities)?;
        Ok([SimEndpoint::new(left, &self.shared)?, SimEndpoint::new(left.peer(), &self.shared)?])
    }

    /// Returns capabilities that `seed` chooses.
    pub fn capabilities(seed: u64) -> Capabilities {
        let mut random = Random::new(seed ^ 0xCA9A_B117);
        let mut bit = || random.below(2) == 1;
        Capabilities {
            mapped: false,
            asymmetric_fences: false,
            immediates_ordered: bit(),
            compare_and_swap: bit(),
            atomic_with_processor: bit(),
            target_progress: bit(),
            memory_windows: false,
            revokes_for_certain: true,
            completes_early: bit(),
            operation_bytes_max: if bit() { u32::MAX } else { 4096 },
            reads_words_atomically: bit(),
        }
    }

    /// Lets one thing happen. False if nothing can happen before one of the nodes does
    /// something.
    pub fn step(&self) -> bool {
        self.shared.lock().step()
    }

    /// Ends a node at once, as SIGKILL does. A part of its operations under way lands; its peers learn
    /// of the end after a while.
    pub fn kill(&self, node: usize) {
        self.shared.lock().suffer(Mishap::Killed(node));
        self.shared.stir();
    }

    /// Lets a random mishap happen, and returns which.
    pub fn mishap(&self) -> Mishap {
        let mishap = self.shared.lock().mishap();
        self.shared.stir();
        mishap
    }

    /// Returns whether a node runs.
    pub fn life(&self, node: usize) -> NodeLife {
        self.shared.lock().nodes.life(node)
    }

    /// Returns a hash of everything that has happened so far: equal for two runs that did the same.
    pub fn digest(&self) -> u64 {
        self.shared.lock().digest
    }

    /// Steps until all endpoints have ended. Call it in a thread beside sides that wait.
    pub fn carry(&self) {
        let mut state = self.shared.lock();
        while !state.is_over() {
            if state.step() {
                // Lets the sides take the lock between any two steps.
                drop(state);
                std::thread::yield_now();
                state = self.shared.lock();
            } else {
                state = self.shared.stirred.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("sim: the failing world has seed {}", self.seed);
        }
    }
}

/// Pseudo-random numbers that are the same on every machine and in every version: splitmix64 (Steele, Lea,
/// Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Returns the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns any number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The bias of a remainder is far below what any test here could notice.
        self.number() % end
    }

    /// True once in `times` on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
