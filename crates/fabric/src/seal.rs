//! Messages sealed with AES-256-GCM, in the order in which they are sent.
//!
//! ```text
//! secret_0   = HKDF-Expand(secret, label; 32)
//! key_n      = HKDF-Expand(secret_n, "caravan hop 1 key"; 32)
//! secret_n+1 = HKDF-Expand(secret_n, "caravan hop 1 next"; 32)
//! ```
//!
//! `secret` is the connection's, which is fresh; `label` says what the messages are, and in which direction they go.
//! The nonce is the number of the message under its key, counted from 0, as 96 bits big-endian. It is not sent: a
//! message out of order does not open. The header is authenticated with the payload. After 2^32 blocks,
//! the next key is used.
//!
//! Sources: RFC 5116 and NIST SP 800-38D (AES-GCM), RFC 5869 (HKDF).

use aead::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag};
use aead::hkdf::{HKDF_SHA256, Prk};

/// The number of bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// The number of bytes of a connection's secret.
pub const SECRET_BYTES: usize = 32;
/// The most blocks of 16 bytes that one key encrypts (64 GiB): an attacker's advantage stays below 2^-64.
const KEY_BLOCKS_MAX: u64 = 1 << 32;
const KEY_INFO: &[u8] = b"caravan hop 1 key";
const NEXT_INFO: &[u8] = b"caravan hop 1 next";

/// Why a message cannot be sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The message is not as it was sealed, or not the next one, or was sealed with another secret.
    #[error("a message is not as it was sealed")]
    Forged,
    /// The library failed.
    #[error("the library that {0} fails; please report it")]
    Library(&'static str),
}

/// The keys of one direction, for the side that seals or for the side that opens.
pub struct Seal {
    secret: [u8; SECRET_BYTES],
    key: LessSafeKey,
    /// The number of messages under this key, which is the next nonce.
    sequence: u64,
    /// The number of blocks encrypted under this key.
    blocks: u64,
    blocks_max: u64,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Seal")
    }
}

impl Seal {
    /// Returns a seal with its first key. The parts of `label` are joined.
    pub fn new(secret: &[u8; SECRET_BYTES], label: &[&[u8]]) -> Result<Self, SealError> {
        let secret = derive(&Prk::new_less_safe(HKDF_SHA256, secret), label)?;
        let key = key_of(&secret)?;
        Ok(Self { secret, key, sequence: 0, blocks: 0, blocks_max: KEY_BLOCKS_MAX })
    }

    /// Makes a key last for so many blocks; for tests, on both sides.
    #[doc(hidden)]
    pub fn with_blocks_max(self, blocks_max: u64) -> Self {
        Self { blocks_max, ..self }
    }

    /// Encrypts the next payload in place. Returns the tag, which authenticates `header`, too.
    pub fn seal(&mut self, header: &[u8], payload: &mut [u8]) -> Result<[u8; TAG_BYTES], SealError> {
        let sealed = self.key.seal_in_place_separate_tag(self.nonce(), Aad::from(header), payload);
        let tag = sealed.map_err(|_| SealError::Library("encrypts"))?;
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(tag.as_ref());
        self.advance(payload.len())?;
        Ok(bytes)
    }

    /// Decrypts the next payload in place.
    pub fn open(&mut self, header: &[u8], tag: [u8; TAG_BYTES], payload: &mut [u8]) -> Result<(), SealError> {
        self.key
            .open_in_place_separate_tag(self.nonce(), Aad::from(header), Tag::from(tag), payload, 0..)
            .map_err(|_| SealError::Forged)?;
        self.advance(payload.len())
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&self.sequence.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn advance(&mut self, bytes: usize) -> Result<(), SealError> {
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

fn derive(from: &Prk, info: &[&[u8]]) -> Result<[u8; SECRET_BYTES], SealError> {
    let mut secret = [0; SECRET_BYTES];
    from.expand(info, HKDF_SHA256)
        .and_then(|expanded| expanded.fill(&mut secret))
        .map_err(|_| SealError::Library("derives a key"))?;
    Ok(secret)
}

fn key_of(secret: &[u8; SECRET_BYTES]) -> Result<LessSafeKey, SealError> {
    let secret = Prk::new_less_safe(HKDF_SHA256, secret);
    let expanded = secret.expand(&[KEY_INFO], &AES_256_GCM);
    Ok(LessSafeKey::new(expanded.map_err(|_| SealError::Library("derives a key"))?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_once_in_its_turn_under_its_label() {
        for blocks_max in [KEY_BLOCKS_MAX, 5] {
            let seal = |label: &[u8]| Seal::new(&[7; 32], &[label]).unwrap().with_blocks_max(blocks_max);
            let (mut near, mut far) = (seal(b"there"), seal(b"there"));
            for length in [0, 1, 15, 16, 100] {
                let mut payload = vec![9; length];
                let tag = near.seal(b"head", &mut payload).unwrap();
                assert_eq!(seal(b"back").open(b"head", tag, &mut payload.clone()), Err(SealError::Forged));
                assert_eq!(far.open(b"heal", tag, &mut payload.clone()), Err(SealError::Forged));
                far.open(b"head", tag, &mut payload).unwrap();
                assert_eq!(payload, vec![9; length]);
                assert_eq!(far.open(b"head", tag, &mut payload), Err(SealError::Forged), "twice");
            }
        }
    }
}
