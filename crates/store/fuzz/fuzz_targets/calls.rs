//! What a client sends over a link.
#![no_main]
#![allow(dead_code, reason = "each target uses a part of what the tests share")]

#[path = "../../tests/common/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    match input.split_first() {
        Some((choice, rest)) if choice % 4 == 0 => hostile::as_calls(rest),
        Some((_, rest)) => hostile::as_call_bodies(rest),
        None => {}
    }
});
