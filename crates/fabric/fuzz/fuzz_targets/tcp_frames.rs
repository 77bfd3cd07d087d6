//! A peer over TCP that sends frames that nobody would.
#![no_main]
#![allow(dead_code, reason = "each target uses a part of what the tests share")]

#[path = "../../tests/common/tcp_liar.rs"]
mod tcp_liar;

libfuzzer_sys::fuzz_target!(|input: &[u8]| tcp_liar::as_frames(input));
