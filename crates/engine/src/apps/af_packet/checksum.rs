//! Completing a checksum that the kernel left to the device.

/// Writes the Internet checksum (RFC 1071) of `frame` from `start` on to `start + field`, where the
/// sum over the pseudo header stands. False, and nothing done, if that is not inside.
pub(super) fn complete(frame: &mut [u8], start: usize, field: usize) -> bool {
    let Some(covered) = frame.get_mut(start..) else { return false };
    if covered.len() < field + 2 {
        return false;
    }
    let checksum = match !fold(covered) {
        // In UDP, 0 says that there is none.
        0 => 0xffff,
        checksum => checksum,
    };
    covered[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// The sum of all 16-bit words, carries added back in.
fn fold(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071_is_summed() {
        assert_eq!(fold(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(fold(&[0x12]), 0x1200);
    }

    #[test]
    fn a_completed_checksum_sums_to_ones() {
        let mut frame: Vec<u8> = (0..61).collect();
        assert!(complete(&mut frame, 14, 6));
        // With its checksum taken out and the partial sum, which it replaced, put in.
        let partial = u16::from_be_bytes([20, 21]);
        let sum = u32::from(fold(&frame[14..])) + u32::from(partial);
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn a_field_outside_is_refused() {
        let before: Vec<u8> = (0..20).collect();
        let mut frame = before.clone();
        for (start, field) in
            [(19, 0), (20, 0), (21, 0), (0, 19), (usize::from(u16::MAX), usize::from(u16::MAX))]
        {
            assert!(!complete(&mut frame, start, field));
        }
        assert_eq!(frame, before);
        assert!(complete(&mut frame, 18, 0));
    }
}
