//! Pipes between hosts.
//!
//! A **pipeline** is a row of **stages**, commands on hosts, joined by **hops**. On each host an **agent**
//! runs the commands and the **movers**: a mover takes bytes from one place (a pipe, a file, a hop) and
//! puts them into others. The **coordinator** is the process that the user has started; it talks to
//! the agents over a control channel and never touches the data.
//!
//! A hop is a byte stream with an explicit end: length and digest. What carries it is a [`DataConnection`]:
//! TCP, a fabric's link, or the control channel itself where nothing else leads there. Stages of one host
//! are joined by a plain pipe, and nothing of this crate is in between.
//!
//! [`DataConnection`]: connect::DataConnection

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
