//! Blocks made smaller, each by itself.

use zstd::bulk::{Compressor, Decompressor};

use super::start::block_bytes;
use super::{Compression, HopOptions};
use crate::Error;

/// What zstd is asked for: 1 is the fastest of its ordinary levels, which keeps up with 10 Gbit/s on two cores.
const ZSTD_LEVEL: i32 = 1;
/// Blocks that are sent as they are after some that did not shrink: what is compressed already (most films,
/// pictures, archives) would cost time for nothing.
const SKIPPED_MAX: u32 = 15;
/// A block that shrinks by less than one part in so many goes as it is.
const GAIN_MIN: usize = 16;

/// Compresses for the sender.
pub(super) struct Shrinker {
    kind: Codec,
    to: Vec<u8>,
    /// Blocks to be skipped after the next failure, and now.
    skips: u32,
    skip: u32,
}

enum Codec {
    Zstd(Compressor<'static>),
    Lz4,
}

impl Shrinker {
    /// As the hop's options want it.
    pub fn new(options: &HopOptions) -> Result<Option<Self>, Error> {
        let bytes = block_bytes(options);
        let (kind, room) = match options.compression {
            None => return Ok(None),
            Some(Compression::Zstd) => {
                let compressor =
                    Compressor::new(ZSTD_LEVEL).map_err(|source| Error::System { call: "zstd", source })?;
                (Codec::Zstd(compressor), bytes)
            }
            Some(Compression::Lz4) => (Codec::Lz4, lz4_flex::block::get_maximum_output_size(bytes)),
        };
        Ok(Some(Self { kind, to: vec![0; room], skips: 1, skip: 0 }))
    }

    /// The block made smaller, if that is worth it.
    pub fn shrink(&mut self, block: &[u8]) -> Option<&mut [u8]> {
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        let most = block.len() - block.len().div_ceil(GAIN_MIN);
        let bytes = match &mut self.kind {
            // No room for more than is of use: then it gives up sooner.
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

/// Makes of compressed blocks, which are a stranger's, what they were.
pub(super) struct Expander(Option<Decompressor<'static>>);

impl Expander {
    /// For blocks of that kind.
    pub fn new(compression: Compression) -> Result<Self, Error> {
        match compression {
            Compression::Zstd => {
                let decompressor =
                    Decompressor::new().map_err(|source| Error::System { call: "zstd", source })?;
                Ok(Self(Some(decompressor)))
            }
            Compression::Lz4 => Ok(Self(None)),
        }
    }

    /// Fills all of `to`.
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
