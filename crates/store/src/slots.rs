//! Hash slots: which part of a store a key belongs to. As in Redis Cluster, so that its clients compute the same.

/// The number of hash slots of a store.
pub const SLOTS: u16 = 16_384;

/// Returns the hash slot of a key: the CRC16 (XMODEM) of the key modulo 16,384.
///
/// If the key has a hash tag, which is what stands between its first `{` and the first `}` behind that, and if the tag is
/// not empty, the tag alone is hashed. So keys with the same tag are in the same part.
///
/// ```
/// use caravan_store::slot_of;
///
/// assert_eq!(slot_of(b"foo"), 12182);
/// assert_eq!(slot_of(b"{user1}.following"), slot_of(b"{user1}.followers"));
/// ```
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(tag_of(key).unwrap_or(key)) % SLOTS
}

/// Returns the hash tag of a key.
fn tag_of(key: &[u8]) -> Option<&[u8]> {
    let behind = &key[key.iter().position(|byte| *byte == b'{')? + 1..];
    let end = behind.iter().position(|byte| *byte == b'}')?;
    (end > 0).then(|| &behind[..end])
}

/// CRC16/XMODEM: polynomial 0x1021, initial value 0, nothing reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC16/XMODEM, and slots that Redis Cluster's specification and `CLUSTER KEYSLOT` give.
    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [
            (&b""[..], 0),
            (b"foo", 12182),
            (b"bar", 5061),
            (b"hello", 866),
            (b"somekey", 11058),
            (b"foo{hash_tag}", 2515),
            (b"bar{hash_tag}", 2515),
            (b"hash_tag", 2515),
            (b"123456789", 12739),
        ] {
            assert_eq!(slot_of(key), slot, "{}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn a_tag_is_hashed_alone_unless_it_is_empty() {
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
        for whole in [&b"foo{}{bar}"[..], b"foo{bar", b"foo}bar{", b"{}"] {
            assert_eq!(slot_of(whole), crc16(whole) % SLOTS);
        }
    }
}
