//! The multi-process engine: apps in forked workers, packets through shared memory, crashes
//! survived.
//!
//! In the words of Snabb: an **app** takes **packets** from its input **links**, and sends them on
//! its output links. A [`Config`] says which apps there are, in which **worker** each runs, and how
//! they are linked; [`Engine::configure`] carries out what differs from before, while the rest
//! goes on. A worker is a process. A link between two apps of one worker is a queue; between two
//! workers it is a ring of packets' numbers in shared memory each way, full packets there and empty
//! ones back.
//!
//! - [`App`]: what to implement; [`apps`]: what there is.
//! - [`Packet`]: move-only, owned by one process at any instant ([`owner`]).
//! - [`view`]: what runs, seen from another process.

#![deny(unsafe_code)]

mod app;
pub mod apps;
mod audit;
pub mod config;
mod control;
mod device;
#[allow(unsafe_code)]
mod ends;
mod engine;
mod error;
#[allow(unsafe_code)]
mod fork;
pub mod handover;
mod io;
pub mod layout;
pub mod limits;
pub mod owner;
#[allow(unsafe_code)]
mod packet;
mod plan;
#[allow(unsafe_code)]
mod pool;
mod queue;
pub mod recovery;
pub mod testing;
pub mod trace;
pub mod view;
mod worker;

pub use app::{App, AppError, Named, Registry};
pub use audit::{Audit, Violation};
pub use config::Config;
pub use engine::{Changes, Engine, EngineEvent, EngineOptions, Restarts};
pub use error::Error;
pub use io::Io;
pub use packet::Packet;
