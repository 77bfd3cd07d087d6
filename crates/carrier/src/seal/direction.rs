//! The state of one direction, with which one side seals and the other opens: a key, a count, and the next key.

use aead::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag};
use aead::hkdf::{HKDF_SHA256, KeyType, Prk};

use super::{Error, KEY_BLOCKS_MAX, TAG_BYTES};

/// The number of bytes of a secret from which keys are derived.
pub(crate) const SECRET_BYTES: usize = 32;

const KEY_INFO: &[u8] = b"caravan seal 1 key";
const NEXT_INFO: &[u8] = b"caravan seal 1 next";
const BLOCK_BYTES: u64 = 16;

/// One direction of a link: the sealing and the opening side have the same.
pub(crate) struct Direction {
    secret: [u8; SECRET_BYTES],
    key: LessSafeKey,
    /// The number of parts done under this key: the next nonce.
    sequence: u64,
    /// The number of blocks encrypted under this key.
    blocks: u64,
    blocks_max: u64,
    /// The number of parts done under any key.
    parts: u64,
}

// Written by hand: logs must not contain keys.
impl std::fmt::Debug for Direction {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Direction").field("parts", &self.parts).finish_non_exhaustive()
    }
}

impl Direction {
    /// Begins with the key that is derived from `secret`.
    pub(crate) fn new(secret: [u8; SECRET_BYTES]) -> Result<Self, Error> {
        let key = key_of(&secret)?;
        Ok(Self { secret, key, sequence: 0, blocks: 0, blocks_max: KEY_BLOCKS_MAX, parts: 0 })
    }

    /// Makes each key serve for `blocks` blocks only.
    #[cfg(test)]
    pub(crate) fn keys_last(&mut self, blocks: u64) {
        self.blocks_max = blocks;
    }

    /// Encrypts the next part in place, and returns its tag, which authenticates `additional`, too.
    #[inline]
    pub(crate) fn seal(&mut self, additional: &[u8], part: &mut [u8]) -> Result<[u8; TAG_BYTES], Error> {
        let tag = self
            .key
            .seal_in_place_separate_tag(self.nonce(), Aad::from(additional), part)
            .map_err(|_| Error::Library { what: "seal a part" })?;
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(tag.as_ref());
        self.advance(part.len())?;
        Ok(bytes)
    }

    /// Decrypts the next part in place, if `tag` authenticates it and `additional`. After an error
    /// its bytes mean nothing. Nobody else may write them meanwhile.
    #[inline]
    pub(crate) fn open(
        &mut self,
        additional: &[u8],
        tag: [u8; TAG_BYTES],
        part: &mut [u8],
    ) -> Result<(), Error> {
        self.key
            .open_in_place_separate_tag(self.nonce(), Aad::from(additional), Tag::from(tag), part, 0..)
            .map_err(|_| match self.parts {
            0 => Error::Stranger,
            part => Error::Altered { part },
        })?;
        self.advance(part.len())
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&self.sequence.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    #[inline]
    fn advance(&mut self, bytes: usize) -> Result<(), Error> {
        self.sequence += 1;
        self.parts += 1;
        // At least the blocks of the bytes, and the one that the tag takes.
        self.blocks += bytes as u64 / BLOCK_BYTES + 2;
        if self.blocks < self.blocks_max {
            return Ok(());
        }
        self.secret = secret_of(&Prk::new_less_safe(HKDF_SHA256, &self.secret), &[NEXT_INFO])?;
        self.key = key_of(&self.secret)?;
        (self.sequence, self.blocks) = (0, 0);
        Ok(())
    }
}

/// Derives the secret from `from` for the use that `info` names.
pub(crate) fn secret_of(from: &Prk, info: &[&[u8]]) -> Result<[u8; SECRET_BYTES], Error> {
    struct SecretLength;
    impl KeyType for SecretLength {
        fn len(&self) -> usize {
            SECRET_BYTES
        }
    }
    let mut secret = [0; SECRET_BYTES];
    from.expand(info, SecretLength)
        .and_then(|expanded| expanded.fill(&mut secret))
        .map_err(|_| NOT_DERIVED)?;
    Ok(secret)
}

fn key_of(secret: &[u8; SECRET_BYTES]) -> Result<LessSafeKey, Error> {
    let secret = Prk::new_less_safe(HKDF_SHA256, secret);
    let expanded = secret.expand(&[KEY_INFO], &AES_256_GCM).map_err(|_| NOT_DERIVED)?;
    Ok(LessSafeKey::new(expanded.into()))
}

const NOT_DERIVED: Error = Error::Library { what: "derive a key" };
