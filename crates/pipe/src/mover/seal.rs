//! Frames sealed with AES-256-GCM.
//!
//! ```text
//! secret_0   = HKDF-Expand(secret, "caravan hop 1 " direction stream; 32)
//! key_n      = HKDF-Expand(secret_n, "caravan hop 1 key"; 32)
//! secret_n+1 = HKDF-Expand(secret_n, "caravan hop 1 next"; 32)
//! ```
//!
//! `secret` is the connection's, which is fresh; `direction` is one byte (0: forward), `stream` the number of the
//! stream as four bytes, little-endian. The nonce is the number of the frame under its key, counted from 0, as 96
//! bits big-endian. It is not sent: a frame out of order does not open. The header is authenticated with the
//! payload. After [`KEY_BLOCKS_MAX`] blocks, the next key is used.
//!
//! Sources: RFC 5116 and NIST SP 800-38D (AES-GCM), RFC 5869 (HKDF).

use aead::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag};
use aead::hkdf::{HKDF_SHA256, Prk};

use super::frame::TAG_BYTES;
use crate::Error;
use crate::connect::Secret;

/// The most blocks of 16 bytes that one key encrypts (64 GiB): an attacker's advantage stays below 2^-64.
const KEY_BLOCKS_MAX: u64 = 1 << 32;
const SECRET_BYTES: usize = 32;
const DIRECTION_INFO: &[u8] = b"caravan hop 1 ";
const KEY_INFO: &[u8] = b"caravan hop 1 key";
const NEXT_INFO: &[u8] = b"caravan hop 1 next";

/// The direction of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameDirection {
    Forward = 0,
    Backward = 1,
}

/// The keys of one stream in one direction, for the side that seals and the side that opens.
pub(super) struct Seal {
    secret: [u8; SECRET_BYTES],
    key: LessSafeKey,
    /// The number of frames under this key, which is the next nonce.
    sequence: u64,
    /// The number of blocks encrypted under this key.
    blocks: u64,
    blocks_max: u64,
}

impl Seal {
    /// Returns a seal with its first key.
    pub fn new(secret: &Secret, direction: FrameDirection, stream: u32) -> Result<Self, Error> {
        let from = Prk::new_less_safe(HKDF_SHA256, &secret.0);
        let secret = derive(&from, &[DIRECTION_INFO, &[direction as u8], &stream.to_le_bytes()])?;
        let key = key_of(&secret)?;
        Ok(Self { secret, key, sequence: 0, blocks: 0, blocks_max: KEY_BLOCKS_MAX })
    }

    /// Encrypts the next payload in place. Returns the tag, which authenticates `header`, too.
    pub fn seal(&mut self, header: &[u8], payload: &mut [u8]) -> Result<[u8; TAG_BYTES], Error> {
        let sealed = self.key.seal_in_place_separate_tag(self.nonce(), Aad::from(header), payload);
        let tag = sealed.map_err(|_| library("encrypts"))?;
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(tag.as_ref());
        self.advance(payload.len())?;
        Ok(bytes)
    }

    /// Decrypts the next payload in place.
    pub fn open(&mut self, header: &[u8], tag: [u8; TAG_BYTES], payload: &mut [u8]) -> Result<(), Error> {
        self.key
            .open_in_place_separate_tag(self.nonce(), Aad::from(header), Tag::from(tag), payload, 0..)
            .map_err(|_| {
                Error::Damaged(
                    "a frame is not as it was sealed: something between the hosts changes data".into(),
                )
            })?;
        self.advance(payload.len())
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&self.sequence.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn advance(&mut self, bytes: usize) -> Result<(), Error> {
        self.sequence += 1;
        // This counts at least the blocks of the payload, and the one that the tag takes.
        self.blocks += bytes as u64 / 16 + 2;
        if self.blocks >= self.blocks_max {
            self.secret = derive(&Prk::new_less_safe(HKDF_SHA256, &self.secret), &[NEXT_INFO])?;
            self.key = key_of(&self.secret)?;
            (self.sequence, self.blocks) = (0, 0);
        }
        Ok(())
    }
}

fn derive(from: &Prk, info: &[&[u8]]) -> Result<[u8; SECRET_BYTES], Error> {
    let mut secret = [0; SECRET_BYTES];
    from.expand(info, HKDF_SHA256)
        .and_then(|expanded| expanded.fill(&mut secret))
        .map_err(|_| library("derives a key"))?;
    Ok(secret)
}

fn key_of(secret: &[u8; SECRET_BYTES]) -> Result<LessSafeKey, Error> {
    let secret = Prk::new_less_safe(HKDF_SHA256, secret);
    let expanded = secret.expand(&[KEY_INFO], &AES_256_GCM).map_err(|_| library("derives a key"))?;
    Ok(LessSafeKey::new(expanded.into()))
}

fn library(what: &str) -> Error {
    Error::Damaged(format!("the library that {what} fails; please report it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(direction: FrameDirection, stream: u32) -> (Seal, Seal) {
        let seal = || Seal::new(&Secret([7; 32]), direction, stream).expect("a key");
        (seal(), seal())
    }

    #[test]
    fn what_is_sealed_opens_once_in_its_turn_in_its_direction() {
        let (mut near, mut far) = pair(FrameDirection::Forward, 0);
        for blocks_max in [KEY_BLOCKS_MAX, 5] {
            (near.blocks_max, far.blocks_max) = (blocks_max, blocks_max);
            for length in [0, 1, 15, 16, 100] {
                let mut payload = vec![9; length];
                let tag = near.seal(b"head", &mut payload).expect("sealed");
                far.open(b"head", tag, &mut payload).expect("opened");
                assert_eq!(payload, vec![9; length]);
                assert!(far.open(b"head", tag, &mut payload).is_err(), "twice");
            }
        }
        let mut payload = *b"abc";
        let tag = near.seal(b"head", &mut payload).expect("sealed");
        for (direction, stream) in [(FrameDirection::Backward, 0), (FrameDirection::Forward, 1)] {
            assert!(pair(direction, stream).1.open(b"head", tag, &mut payload.clone()).is_err());
        }
        assert!(far.open(b"heal", tag, &mut payload.clone()).is_err(), "another header");
        far.open(b"head", tag, &mut payload).expect("opened");
    }
}
