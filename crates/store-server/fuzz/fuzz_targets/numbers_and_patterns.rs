//! Numbers and patterns in commands.
#![no_main]
#![allow(dead_code, reason = "each target uses a part of what the tests share")]

#[path = "../../tests/store_server/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|input: &[u8]| hostile::as_numbers_and_patterns(input));
