//! Packets handed from one process to another, in every interleaving of giver and taker, each of
//! them killed after any number of its stores, and recovered while the other goes on.
//!
//! `link` is the model: what it does with packets is the engine's own code. `faults` breaks the
//! memory, or the order of steps, one at a time, and demands that the model fails.

#![deny(unsafe_code)]

// The memory is that of the ring's own models, which need more of it.
#[allow(dead_code)]
#[path = "../../../ring/tests/loom/kernel.rs"]
mod kernel;
mod link;
mod mortal;
#[allow(dead_code, unsafe_code)]
#[path = "../../../ring/tests/loom/world.rs"]
mod world;
