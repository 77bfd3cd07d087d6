//! Tests of `caravan pipe` as a user runs it: hosts are sshds of the tests on addresses of the loopback interface,
//! commands are real ones, and a census before and after shows what stays behind.

mod bytes;
mod chains;
mod ends;
mod examples;
mod fan;
mod files;
mod lines;
mod live;
mod missing;
mod rig;
mod same_host;
mod secrecy;
mod silence;
mod statuses;
mod streams;
