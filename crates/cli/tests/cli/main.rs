//! Tests of the `caravan` command as users run it. They are one program, which is linked once. Each test starts processes
//! of its own, in a folder of its own, and changes nothing in this process: no variable, no signal, no directory.

mod carry;
mod census;
mod command;
mod common;
mod engine;
mod engine_bench;
mod engine_view;
mod erlang;
mod frames;
mod keeper;
mod limits;
mod pipe;
mod pipe_bench;
mod remote;
mod selftest;
mod sshd;
mod store;
mod store_bench;
mod store_cluster;
mod store_forged;
