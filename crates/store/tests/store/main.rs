//! The store as its users see it.

mod basics;
mod growth;
mod memory;
mod model;
