//! A descriptor that the peer makes up.
#![no_main]
#![allow(dead_code, reason = "each target uses a part of what the tests share")]

#[path = "../../tests/common/hostile.rs"]
mod hostile;
#[path = "../../tests/common/pair.rs"]
mod pair;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    hostile::as_descriptor(input);
    // Also tries the input after the right beginning, which a fuzzer is slow to find.
    hostile::as_descriptor(&[b"caravan\x03", input].concat());
});
