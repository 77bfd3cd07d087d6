#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod agent;
pub mod cancel;
pub mod connect;
pub mod control;
pub mod coordinator;
mod credit;
pub mod error;
pub mod framing;
pub mod limits;
pub mod mover;
pub mod place;
pub mod plan;
pub mod stage;
pub mod tree;

pub use connect::PipeKey;
pub use error::Error;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whether or not a thread has panicked while it held it: no value of this crate is left half changed.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
