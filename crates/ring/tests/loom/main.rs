//! Every interleaving of a producer and a consumer, and every value that the memory model lets
//! their loads return, as far as loom explores them.
//!
//! `litmus` asks one question each, exhaustively; `flow` runs both rings from end to end with
//! blocking waits, where a lost wake-up is a deadlock. `faults` weakens the memory one ordering at
//! a time and demands that the same models fail: each ordering is there for a reason, and each
//! model can fail. `kernel` is the barrier that lets only the sleeper pay for the fences, and every
//! question about waiting is asked with it, too.

#![deny(unsafe_code)]

mod faults;
mod flow;
mod kernel;
mod litmus;
mod world;
