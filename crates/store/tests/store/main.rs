//! The store as its users see it, in one program: threads, processes and models.

#[path = "../common/hostile.rs"]
mod hostile_bytes;
#[path = "../common/lying_server.rs"]
mod lying_server;

mod basics;
mod branches;
mod children;
mod clocks;
mod copies;
mod copy_kills;
mod cut_cases;
mod cuts;
mod fixed;
mod growth;
mod hostile;
mod hunter;
mod kills;
mod litmus;
mod long_values;
mod memory;
mod model;
mod owner;
mod restart;
mod save;
mod sessions;
mod successors;
mod threads;
