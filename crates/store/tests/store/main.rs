//! The store as its users see it.

mod basics;
mod model;
