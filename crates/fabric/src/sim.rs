//! A seeded network between two endpoints of one process, for tests.
//!
//! It does whatever a connection's [`Capabilities`] leave unpromised: the bytes of a write land in
//! pieces and in any order; writes and immediates overtake one another; a completion comes long
//! before its bytes arrive, and that of a write only together with others or after a flush; a compare-and-swap is
//! not atomic; nothing happens while the target does not poll. It keeps what is promised:
//!
//! | promise | always | with the bit |
//! |---|---|---|
//! | an immediate | after its own bytes; after those of writes whose completion had been polled when its own was posted | `immediates_ordered`: in order, and after the bytes of all writes before it |
//! | a completion | the source is not read any more, and what it wrote lands even if this side ends | |
//! | a read | its bytes come in any pieces and order | `reads_words_atomically`: never in pieces of a word; `reads_ordered`: after those of earlier reads |
//! | a region | only what is lent at that moment is reached; anything else ends the side that asked | |
//! | compare-and-swap | atomic among its kind | `atomic_with_processor`: against the processor too |
//! | the end of a side | the peer first sees everything that lands, then learns of the end | |
//!
//! Everything that happens is a function of the seed and of the calls. Time is
//! [`Network::step`]: the test says when the network moves on, or has a thread that
//! [carries](Network::carry) all the time. [`Faulty`] is the middleware for the faults that any backend may show
//! its user: a full queue, an empty wake-up, a short poll, an end.

mod endpoint;
mod faulty;
mod state;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::contract::{Capabilities, Error};

pub use endpoint::SimEndpoint;
pub use faulty::{Faults, Faulty};
use state::SimState;

/// One of the two sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NetworkSide {
    /// The first endpoint of [`Network::pair`].
    Left,
    /// The second endpoint of [`Network::pair`].
    Right,
}

impl NetworkSide {
    /// Returns the other side.
    pub fn peer(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// The wire between two endpoints, and the random choices about it. Prints its seed if it is dropped
/// while a test fails.
#[derive(Debug)]
pub struct Network {
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

impl Network {
    /// Returns two connected endpoints with arenas of `arena_bytes`, all zero.
    pub fn pair(
        seed: u64,
        arena_bytes: u64,
        capabilities: Capabilities,
    ) -> Result<(Self, SimEndpoint, SimEndpoint), Error> {
        let state = SimState::new(seed, arena_bytes, capabilities)?;
        let shared = Arc::new(SimShared { state: Mutex::new(state), stirred: Condvar::new() });
        let left = SimEndpoint::new(NetworkSide::Left, &shared)?;
        let right = SimEndpoint::new(NetworkSide::Right, &shared)?;
        Ok((Self { seed, shared }, left, right))
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
            reads_ordered: bit(),
        }
    }

    /// Lets one thing happen. False if nothing can happen before one of the sides does
    /// something.
    pub fn step(&self) -> bool {
        self.shared.lock().step()
    }

    /// Ends a side at once, as SIGKILL does. A part of its operations under way lands; its peer learns
    /// of the end after a while.
    pub fn kill(&self, side: NetworkSide) {
        self.shared.lock().end(side);
        self.shared.stir();
    }

    /// Steps for as long as both sides live. Call it in a thread beside two sides that wait.
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

impl Drop for Network {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("sim: the failing network has seed {}", self.seed);
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
