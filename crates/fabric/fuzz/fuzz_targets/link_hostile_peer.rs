//! A peer that writes anything wherever it can, against a working link.
#![no_main]
#![allow(dead_code, reason = "each target uses a part of what the tests share")]

#[path = "../../tests/common/hostile.rs"]
mod hostile;
#[path = "../../tests/common/pair.rs"]
mod pair;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    match input.split_first() {
        Some((choice, rest)) if choice % 2 == 0 => hostile::through_mapped_memory(rest),
        Some((_, rest)) => hostile::through_operations(rest),
        None => {}
    }
});
