//! Digests of a stream, and compression block by block.

use std::fmt::Write as _;

use aead::digest::{Context, SHA256};
use twox_hash::XxHash3_128;
use zstd::bulk::{Compressor, Decompressor};

use super::{Compression, DigestKind, HopOptions, block_bytes};
use crate::Error;

/// The digests of one stream in progress, and its length.
pub(super) struct Digests {
    bytes: u64,
    xxh3: Option<XxHash3_128>,
    sha256: Option<Context>,
}

/// A digest of up to 32 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DigestBytes(Vec<u8>);

/// The length of a whole stream, and the digests that were wanted.
#[derive(Clone, Debug, Default)]
pub(super) struct Total {
    pub bytes: u64,
    xxh3: Option<DigestBytes>,
    sha256: Option<DigestBytes>,
}

impl Digests {
    /// Returns the digests of an empty stream.
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

    /// Adds the next bytes of the stream.
    pub fn update(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if let Some(xxh3) = &mut self.xxh3 {
            xxh3.write(bytes);
        }
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(bytes);
        }
    }

    /// Adds bytes to the length only: no digest is wanted.
    pub fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Returns the length so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends the stream. Returns its length and digests.
    pub fn finish(self) -> Total {
        Total {
            bytes: self.bytes,
            xxh3: self.xxh3.map(|xxh3| DigestBytes(xxh3.finish_128().to_be_bytes().to_vec())),
            sha256: self.sha256.map(|sha256| DigestBytes(sha256.finish().as_ref().to_vec())),
        }
    }
}

impl DigestBytes {
    /// The most bytes of a digest.
    pub const BYTES_MAX: usize = 32;
}

impl Total {
    /// Returns the payload of an `End`: the length, and the digest of that kind.
    pub fn encode(&self, kind: DigestKind) -> Vec<u8> {
        let mut bytes = self.bytes.to_le_bytes().to_vec();
        if let Some(digest) = self.digest(kind) {
            bytes.extend_from_slice(&digest.0);
        }
        bytes
    }

    /// Returns the digest of that kind in hexadecimal.
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

/// The level of zstd: 1 is the fastest of its ordinary levels, which keeps up with 10 Gbit/s on two cores.
const ZSTD_LEVEL: i32 = 1;
/// The most blocks that are sent uncompressed after some that did not shrink: data that are already compressed
/// (most films, pictures, archives) would cost time for nothing.
const SKIPPED_MAX: u32 = 15;
/// A block that shrinks by less than one part in this many is sent uncompressed.
const GAIN_MIN: usize = 16;

/// The sender's compressor.
pub(super) struct Shrinker {
    kind: Codec,
    to: Vec<u8>,
    /// The number of blocks to skip after the next failure, and now.
    skips: u32,
    skip: u32,
}

enum Codec {
    Zstd(Compressor<'static>),
    Lz4,
}

impl Shrinker {
    /// Returns the compressor that the hop's options ask for.
    pub fn new(options: &HopOptions) -> Result<Option<Self>, Error> {
        let bytes = block_bytes(options);
        let (kind, room) = match options.compression {
            None => return Ok(None),
            Some(Compression::Zstd) => {
                let compressor = Compressor::new(ZSTD_LEVEL).map_err(Error::system("zstd"))?;
                (Codec::Zstd(compressor), bytes)
            }
            Some(Compression::Lz4) => (Codec::Lz4, lz4_flex::block::get_maximum_output_size(bytes)),
        };
        Ok(Some(Self { kind, to: vec![0; room], skips: 1, skip: 0 }))
    }

    /// Returns the compressed block, if that saves enough.
    pub fn shrink(&mut self, block: &[u8]) -> Option<&mut [u8]> {
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        let most = block.len() - block.len().div_ceil(GAIN_MIN);
        let bytes = match &mut self.kind {
            // The room ends where compression saves too little: then zstd gives up sooner.
            Codec::Zstd(zstd) => {
                self.to.get_mut(..most).and_then(|to| zstd.compress_to_buffer(block, to).ok())
            }
            Codec::Lz4 => lz4_flex::block::compress_into(block, &mut self.to).ok(),
        };
        match bytes.filter(|bytes| (1..=most).contains(bytes)) {
            Some(bytes) => {
                self.skips = 1;
                self.to.get_mut(..bytes)
            }
            None => {
                self.skip = self.skips;
                self.skips = (2 * self.skips + 1).min(SKIPPED_MAX);
                None
            }
        }
    }
}

/// The receiver's decompressor, whose input is not trusted.
pub(super) struct Expander(Option<Decompressor<'static>>);

impl Expander {
    /// Returns the decompressor for that kind of compression.
    pub fn new(compression: Compression) -> Result<Self, Error> {
        match compression {
            Compression::Zstd => {
                let decompressor = Decompressor::new().map_err(Error::system("zstd"))?;
                Ok(Self(Some(decompressor)))
            }
            Compression::Lz4 => Ok(Self(None)),
        }
    }

    /// Decompresses a block, which must fill all of `to`.
    pub fn expand(&mut self, block: &[u8], to: &mut [u8]) -> Result<(), Error> {
        let bytes = match &mut self.0 {
            Some(zstd) => zstd.decompress_to_buffer(block, to).ok(),
            None => lz4_flex::block::decompress_into(block, to).ok(),
        };
        match bytes {
            Some(bytes) if bytes == to.len() => Ok(()),
            _ => Err(Error::Damaged("a compressed block is none: send it again".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::DigestKind;
    use super::*;

    #[test]
    fn digests_are_those_that_other_programs_print() {
        let mut digests = Digests::new([DigestKind::Xxh3, DigestKind::Sha256]);
        digests.update(b"a");
        digests.update(b"bc");
        let total = digests.finish();
        assert_eq!(total.bytes, 3);
        // The values are those of `xxhsum -H2` and `sha256sum` for "abc".
        assert_eq!(total.hex(DigestKind::Xxh3).as_deref(), Some("06b05ab6733a618578af5f94892f3950"));
        assert_eq!(
            total.hex(DigestKind::Sha256).as_deref(),
            Some("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        );
        assert_eq!(total.hex(DigestKind::Off), None);
        assert_eq!(total.encode(DigestKind::Off), [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(total.encode(DigestKind::Sha256).len(), 8 + DigestBytes::BYTES_MAX);
    }

    #[test]
    fn what_shrinks_comes_back_and_what_does_not_is_left_alone() {
        let text: Vec<u8> = (0..100_000_u32).map(|at| (at / 100) as u8).collect();
        let mut state = 1_u64;
        let noise: Vec<u8> = (0..100_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        for compression in [Compression::Zstd, Compression::Lz4] {
            let options = HopOptions {
                digest: DigestKind::Off,
                sealed: false,
                compression: Some(compression),
                block_bytes: 1 << 17,
                silence: None,
            };
            let mut shrinker = Shrinker::new(&options).expect("a compressor").expect("one");
            let mut expander = Expander::new(compression).expect("a decompressor");
            let small = shrinker.shrink(&text).expect("it shrinks").to_vec();
            assert!(small.len() < text.len() / 10);
            let mut back = vec![0; text.len()];
            expander.expand(&small, &mut back).expect("expanded");
            assert!(back == text);
            for to in [text.len() - 1, text.len() + 1] {
                assert!(expander.expand(&small, &mut vec![0; to]).is_err(), "of another length");
            }
            assert!(expander.expand(&noise, &mut back).is_err(), "not a block at all");
            assert!(shrinker.shrink(&noise).is_none() && shrinker.shrink(&[7]).is_none());
            let tried = (0..100).filter(|_| shrinker.shrink(&noise).is_none() && shrinker.skip > 0).count();
            assert!(tried > 80, "noise is hardly tried again");
            while shrinker.skip > 0 {
                assert!(shrinker.shrink(&text).is_none());
            }
            assert!(shrinker.shrink(&text).is_some(), "text is found again");
        }
    }
}
