//! Packets are handed from one process to another, in every interleaving of giver and taker. Each of
//! them is killed after any number of its stores, and recovered while the other goes on.
//!
//! `link` is the model: it handles packets by the engine's own code, and breaks the
//! memory, or the order of steps, one at a time, and demands that the model fails.

#![deny(unsafe_code)]

// The memory comes from the ring's own models, which use more of it.
#[allow(dead_code)]
#[path = "../../../ring/tests/loom/kernel.rs"]
mod kernel;
mod link;
mod mortal;
#[allow(dead_code, unsafe_code)]
#[path = "../../../ring/tests/loom/world.rs"]
mod world;
