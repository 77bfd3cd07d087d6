//! Servers of a store with several parts, and clients that find the parts.

mod apart;
mod commands;
mod like_redis;
pub mod mapped;
mod moves;
mod programs;
mod rig;
mod several_parts;
mod silent_copies;
