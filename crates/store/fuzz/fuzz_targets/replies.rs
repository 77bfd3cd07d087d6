//! A server that lies to its client.
#![no_main]

#[path = "../../tests/common/lying_server.rs"]
mod lying_server;

libfuzzer_sys::fuzz_target!(|input: &[u8]| lying_server::as_replies(input));
