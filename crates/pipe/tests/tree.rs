//! Tests both halves of a copy, joined by pipes.

#[path = "tree/common.rs"]
mod common;
#[path = "tree/cut.rs"]
mod cut;
#[path = "tree/hostile.rs"]
mod hostile;
#[path = "tree/places.rs"]
mod places;
#[path = "tree/random.rs"]
mod random;
#[path = "tree/siege.rs"]
mod siege;
