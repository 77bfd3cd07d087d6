//! Every interleaving of a producer and a consumer, and every value that the memory model lets
//! their loads return, as far as loom explores them.
//!
//! `litmus` asks one question each, exhaustively; `flow` runs both rings from end to end with
//! blocking waits, where a lost wake-up is a deadlock. `faults` weakens the memory one ordering at
//! a time and demands that the same models fail: each ordering is there for a reason, and each
//! model can fail.

#![deny(unsafe_code)]

mod faults;
mod flow;
mod litmus;
mod world;
