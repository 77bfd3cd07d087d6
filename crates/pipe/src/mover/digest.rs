//! Digests of a stream, made in passing.

use std::fmt::Write as _;

use aead::digest::{Context, SHA256};
use twox_hash::XxHash3_128;

use super::DigestKind;

/// The digests that somebody wants of one stream, and its length.
pub(super) struct Digests {
    bytes: u64,
    xxh3: Option<XxHash3_128>,
    sha256: Option<Context>,
}

/// A digest: up to 32 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DigestBytes(Vec<u8>);

/// How a stream ends: its length, and the digests that were wanted.
#[derive(Clone, Debug, Default)]
pub(super) struct Total {
    pub bytes: u64,
    xxh3: Option<DigestBytes>,
    sha256: Option<DigestBytes>,
}

impl Digests {
    /// Of an empty stream.
    pub fn new(kinds: impl IntoIterator<Item = DigestKind>) -> Self {
        let mut digests = Self { bytes: 0, xxh3: None, sha256: None };
        for kind in kinds {
            match kind {
                DigestKind::Xxh3 => digests.xxh3 = Some(XxHash3_128::new()),
                DigestKind::Sha256 => digests.sha256 = Some(Context::new(&SHA256)),
                DigestKind::Off => {}
            }
        }
        digests
    }

    /// The stream goes on with these.
    pub fn update(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if let Some(xxh3) = &mut self.xxh3 {
            xxh3.write(bytes);
        }
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(bytes);
        }
    }

    /// It goes on with so many that nobody looks at: no digest is wanted.
    pub fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Its length so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The stream has ended.
    pub fn finish(self) -> Total {
        Total {
            bytes: self.bytes,
            xxh3: self.xxh3.map(|xxh3| DigestBytes(xxh3.finish_128().to_be_bytes().to_vec())),
            sha256: self.sha256.map(|sha256| DigestBytes(sha256.finish().as_ref().to_vec())),
        }
    }
}

impl DigestBytes {
    /// The longest, in bytes.
    pub const BYTES_MAX: usize = 32;
}

impl Total {
    /// What an `End` carries: the length, and the digest of that kind.
    pub fn encode(&self, kind: DigestKind) -> Vec<u8> {
        let mut bytes = self.bytes.to_le_bytes().to_vec();
        if let Some(digest) = self.digest(kind) {
            bytes.extend_from_slice(&digest.0);
        }
        bytes
    }

    /// In hexadecimal.
    pub fn hex(&self, kind: DigestKind) -> Option<String> {
        let digest = self.digest(kind)?;
        Some(digest.0.iter().fold(String::new(), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        }))
    }

    fn digest(&self, kind: DigestKind) -> Option<&DigestBytes> {
        match kind {
            DigestKind::Xxh3 => self.xxh3.as_ref(),
            DigestKind::Sha256 => self.sha256.as_ref(),
            DigestKind::Off => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_that_other_programs_print() {
        let mut digests = Digests::new([DigestKind::Xxh3, DigestKind::Sha256]);
        digests.update(b"a");
        digests.update(b"bc");
        let total = digests.finish();
        assert_eq!(total.bytes, 3);
        // `xxhsum -H2` and `sha256sum` of "abc".
        assert_eq!(total.hex(DigestKind::Xxh3).as_deref(), Some("06b05ab6733a618578af5f94892f3950"));
        assert_eq!(
            total.hex(DigestKind::Sha256).as_deref(),
            Some("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        );
        assert_eq!(total.hex(DigestKind::Off), None);
        assert_eq!(total.encode(DigestKind::Off), [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(total.encode(DigestKind::Sha256).len(), 8 + DigestBytes::BYTES_MAX);
    }
}
