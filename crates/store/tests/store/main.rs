//! The store as its users see it, in one program: threads, processes and models.

mod basics;
mod children;
mod fixed;
mod growth;
mod hunter;
mod litmus;
mod memory;
mod model;
mod owner;
mod threads;
