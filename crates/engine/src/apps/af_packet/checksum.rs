//! Completing a checksum that the kernel left to the device.

use etherparse::checksum::Sum16BitWords;

/// Writes the Internet checksum (RFC 1071) of `frame` from `start` on to `start + field`, where the
/// sum over the pseudo header stands. False, and nothing done, if that is not inside.
pub(super) fn complete(frame: &mut [u8], start: usize, field: usize) -> bool {
    let Some(covered) = frame.get_mut(start..) else { return false };
    if covered.len() < field + 2 {
        return false;
    }
    // In UDP, 0 says that there is none. The sum is in the order of the words in memory.
    let checksum = Sum16BitWords::new().add_slice(covered).to_ones_complement_with_no_zero();
    covered[field..field + 2].copy_from_slice(&checksum.to_ne_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071_is_summed() {
        let mut frame = [9, 9, 0, 0, 0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert!(complete(&mut frame, 2, 0));
        assert_eq!(frame[..4], [9, 9, !0xdd, !0xf2]);
        let mut odd = [0, 0, 0x12];
        assert!(complete(&mut odd, 0, 0));
        assert_eq!(odd, [!0x12, !0, 0x12]);
    }

    #[test]
    fn a_checksum_is_never_zero() {
        let mut frame = [0xff, 0xff, 0, 0];
        assert!(complete(&mut frame, 0, 2));
        assert_eq!(frame, [0xff; 4]);
    }

    #[test]
    fn a_field_outside_is_refused() {
        let before: Vec<u8> = (0..20).collect();
        let mut frame = before.clone();
        let far = usize::from(u16::MAX);
        for (start, field) in [(19, 0), (20, 0), (21, 0), (0, 19), (far, far)] {
            assert!(!complete(&mut frame, start, field));
        }
        assert_eq!(frame, before);
        assert!(complete(&mut frame, 18, 0));
    }
}
