#![doc = include_str!("../README.md")]
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
pub use audit::Audit;
pub use config::Config;
pub use engine::{Changes, Engine, EngineEvent, EngineOptions, Restarts};
pub use error::Error;
pub use io::Io;
pub use packet::Packet;
