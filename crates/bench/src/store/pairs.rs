//! The keys and values of all contenders: 16 and 32 bytes.

use std::io::Write;

pub const KEY_BYTES: usize = 16;
pub const VALUE_BYTES: usize = 32;
pub const VALUE: [u8; VALUE_BYTES] = [b'v'; VALUE_BYTES];

/// Returns `key:` and twelve digits, as `bench/store/lmdb_loop.c` makes them, too.
pub fn key(mut number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"key:000000000000";
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    key
}

/// Cheap random numbers (splitmix64).
#[derive(Clone, Copy, Debug)]
pub struct RandomNumbers {
    state: u64,
}

impl RandomNumbers {
    pub fn of(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.state;
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number below `count`.
    pub fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    /// Returns a number from 0 to 1, without 1.
    pub fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Random keys of those with which all contenders are filled.
#[derive(Clone, Copy, Debug)]
pub struct RandomKeys {
    numbers: RandomNumbers,
    keys: u64,
}

impl RandomKeys {
    /// Chooses among so many keys.
    pub fn of(keys: u64, seed: u64) -> Self {
        Self { numbers: RandomNumbers::of(seed), keys }
    }

    pub fn next(&mut self) -> [u8; KEY_BYTES] {
        key(self.numbers.below(self.keys))
    }
}

/// An operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairOperation {
    Get,
    Set,
}

/// A protocol of a server, of which requests and replies of one operation have a fixed length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairProtocol {
    /// Redis's, version 2.
    Resp,
    /// memcached's text protocol.
    Memcached,
}

impl PairProtocol {
    /// Appends a request.
    pub fn request(self, operation: PairOperation, key: &[u8; KEY_BYTES], to: &mut Vec<u8>) {
        let parts: [&[u8]; 5] = match (self, operation) {
            (Self::Resp, PairOperation::Get) => [b"*2\r\n$3\r\nGET\r\n$16\r\n", key, b"\r\n", b"", b""],
            (Self::Resp, PairOperation::Set) => {
                [b"*3\r\n$3\r\nSET\r\n$16\r\n", key, b"\r\n$32\r\n", &VALUE, b"\r\n"]
            }
            (Self::Memcached, PairOperation::Get) => [b"get ", key, b"\r\n", b"", b""],
            (Self::Memcached, PairOperation::Set) => [b"set ", key, b" 0 0 32\r\n", &VALUE, b"\r\n"],
        };
        parts.iter().for_each(|part| to.extend_from_slice(part));
    }

    /// Returns the reply to a request that succeeds.
    pub fn reply(self, operation: PairOperation, key: &[u8; KEY_BYTES]) -> Vec<u8> {
        let mut reply = Vec::new();
        // Writing into a Vec cannot fail.
        let _ = match (self, operation) {
            (Self::Resp, PairOperation::Get) => write!(reply, "$32\r\n").map(|()| reply.extend(VALUE)),
            (Self::Memcached, PairOperation::Get) => {
                reply.extend_from_slice(b"VALUE ");
                reply.extend_from_slice(key);
                write!(reply, " 0 32\r\n").map(|()| reply.extend(VALUE))
            }
            (Self::Resp, PairOperation::Set) => write!(reply, "+OK"),
            (Self::Memcached, PairOperation::Set) => write!(reply, "STORED"),
        };
        reply.extend_from_slice(b"\r\n");
        if (self, operation) == (Self::Memcached, PairOperation::Get) {
            reply.extend_from_slice(b"END\r\n");
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_twelve_digits() {
        assert_eq!(&key(0), b"key:000000000000");
        assert_eq!(&key(1_234_567), b"key:000001234567");
    }

    #[test]
    fn random_keys_are_below_the_limit_and_reach_all() {
        let mut random = RandomKeys::of(3, 7);
        let mut found: Vec<_> = (0..100).map(|_| random.next()).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, [key(0), key(1), key(2)]);
    }

    #[test]
    fn replies_of_an_operation_have_one_length() {
        for protocol in [PairProtocol::Resp, PairProtocol::Memcached] {
            for operation in [PairOperation::Get, PairOperation::Set] {
                let lengths = [0, 1_000_000].map(|number| protocol.reply(operation, &key(number)).len());
                assert_eq!(lengths[0], lengths[1]);
            }
        }
        let reply = PairProtocol::Memcached.reply(PairOperation::Get, &key(5));
        assert!(
            reply.starts_with(b"VALUE key:000000000005 0 32\r\nvvv") && reply.ends_with(b"vv\r\nEND\r\n")
        );
    }
}
