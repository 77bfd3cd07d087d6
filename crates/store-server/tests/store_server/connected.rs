//! Clients that attach to a server: `caravan_store::ConnectedStore`, mapped and over TCP.

mod children;
mod fixed;
mod futures;
mod hostile;
mod hunter;
mod model;
mod operations;
mod repeats;
mod rig;
mod stopped;
