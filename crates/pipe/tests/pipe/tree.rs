//! Tests both halves of a copy, joined by pipes.

mod common;
mod cut;
mod hostile;
mod places;
mod random;
mod siege;
