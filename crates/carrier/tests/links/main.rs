//! Connections over shared memory, with an emulator of the tests' own: plain, fragmented and sealed.

#![forbid(unsafe_code)]

mod connection;
mod fragments;
mod node;
mod sealed;
