//! Bytes in shared words: copied and compared by relaxed loads of 8 bytes, stored by relaxed stores of 8
//! bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::protocol;

/// Returns the bytes of word `index`, zeroes outside.
#[inline]
fn word_bytes(words: &[AtomicU64], index: usize) -> [u8; 8] {
    words.get(index).map_or(0, |word| word.load(Ordering::Relaxed)).to_ne_bytes()
}

/// Appends the `count` bytes from `start` on to `to`.
#[inline]
pub(crate) fn copy_out(words: &[AtomicU64], start: usize, count: usize, to: &mut Vec<u8>) {
    let old = to.len();
    to.resize(old + count, 0);
    let mut rest = &mut to[old..];
    let mut index = start / 8;
    let skip = start % 8;
    if skip > 0 {
        let head = (8 - skip).min(rest.len());
        rest[..head].copy_from_slice(&word_bytes(words, index)[skip..skip + head]);
        rest = &mut rest[head..];
        index += 1;
    }
    let mut chunks = rest.chunks_exact_mut(8);
    let whole = words.get(index..).unwrap_or_default();
    for (chunk, word) in chunks.by_ref().zip(whole) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        index += 1;
    }
    let tail = chunks.into_remainder();
    tail.copy_from_slice(&word_bytes(words, index)[..tail.len()]);
}

/// Tells whether the bytes from `start` on are `expected`.
#[inline]
pub(crate) fn equal(words: &[AtomicU64], start: usize, expected: &[u8]) -> bool {
    let mut index = start / 8;
    let skip = start % 8;
    let mut rest = expected;
    if skip > 0 {
        let (head, after) = rest.split_at((8 - skip).min(rest.len()));
        if word_bytes(words, index)[skip..skip + head.len()] != *head {
            return false;
        }
        rest = after;
        index += 1;
    }
    let chunks = rest.chunks_exact(8);
    let tail = chunks.remainder();
    for chunk in chunks {
        if word_bytes(words, index) != *chunk {
            return false;
        }
        index += 1;
    }
    word_bytes(words, index)[..tail.len()] == *tail
}

/// Stores `from` into the first words, the last of which is filled up with zeroes. The bytes fit.
#[inline]
pub(crate) fn copy_in(words: &[AtomicU64], from: &[u8]) {
    let chunks = from.chunks_exact(8);
    let tail = chunks.remainder();
    for (word, chunk) in words.iter().zip(chunks) {
        protocol::set(word, u64::from_ne_bytes(chunk.try_into().unwrap_or_default()));
    }
    if !tail.is_empty() {
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        protocol::set(&words[from.len() / 8], u64::from_ne_bytes(last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_of_any_bytes_comes_back() {
        let bytes: Vec<u8> = (1..=40).collect();
        let words: Vec<AtomicU64> = (0..5).map(|_| AtomicU64::new(0)).collect();
        copy_in(&words, &bytes);
        for start in 0..40 {
            for count in 0..=40 - start {
                let mut part = vec![9];
                copy_out(&words, start, count, &mut part);
                assert_eq!(part[1..], bytes[start..start + count], "{start} {count}");
                assert!(equal(&words, start, &part[1..]));
                for wrong in 1..part.len() {
                    part[wrong] ^= 1;
                    assert!(!equal(&words, start, &part[1..]));
                    part[wrong] ^= 1;
                }
            }
        }
    }
}
