//! Clients that attach to a server: `caravan_store::ConnectedStore`, mapped and over TCP.

pub mod children;
mod fixed;
mod futures;
mod hostile;
mod hunter;
mod model;
mod operations;
pub mod repeats;
mod rig;
mod stopped;
