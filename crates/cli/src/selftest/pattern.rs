//! Bytes that differ from place to place, so that a byte in the wrong place shows.

use super::trouble::Trouble;

/// The byte of a stream at a position: splitmix64 of its word.
fn byte(stream: u64, position: u64) -> u8 {
    let mut word = (stream << 56 ^ position / 8).wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((word ^ word >> 31) >> (8 * (position % 8))) as u8
}

/// Fills `bytes`, which begin at `position` of the stream.
pub fn fill(stream: u64, position: u64, bytes: &mut [u8]) {
    for (at, to) in (position..).zip(bytes) {
        *to = byte(stream, at);
    }
}

/// A failure that names the first byte that is wrong.
pub fn check(stream: u64, position: u64, bytes: &[u8]) -> Result<(), Trouble> {
    let wrong = (position..).zip(bytes).find(|(at, found)| **found != byte(stream, *at));
    match wrong {
        None => Ok(()),
        Some((at, found)) => Err(Trouble::failed(format!(
            "byte {at} came as {found:#04x} instead of {:#04x}",
            byte(stream, at)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_named() {
        let mut bytes = [0; 100];
        fill(1, 5, &mut bytes);
        assert!(check(1, 5, &bytes).is_ok());
        assert!(check(2, 5, &bytes).is_err() && check(1, 6, &bytes).is_err());
        bytes[40] ^= 1;
        let Err(Trouble::Failed(why)) = check(1, 5, &bytes) else { panic!("not found") };
        assert!(why.starts_with("byte 45 came as"), "{why}");
    }
}
