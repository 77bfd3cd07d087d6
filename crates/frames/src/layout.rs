//! Where things are in a stream's memory.
//!
//! | offset | holds |
//! |---|---|
//! | 0 | magic, which is stored last |
//! | 8 | bytes of the memory |
//! | 16 | slots |
//! | 24, 32, 40 | width, height, pixel format |
//! | 48, 56 | frames in so many seconds |
//! | 64 | how frames are delivered: 0 newest first, 1 lossless |
//! | 128 | head: the number of the newest frame, shifted by one; bit 0 says that the stream has ended |
//! | 4096 + n * 256 | slot n: version, capture time, digest, whether there is a digest |
//! | from the next page on | the bytes of slot 0, slot 1, ..., each from a page on |

use crate::error::Error;
use crate::limits::{SLOTS_MAX, SLOTS_MIN};
use crate::picture::{Picture, PixelFormat, Rate};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"frames/1");
pub(crate) const MEMORY_BYTES_AT: usize = 8;
pub(crate) const SLOTS_AT: usize = 16;
pub(crate) const WIDTH_AT: usize = 24;
pub(crate) const HEIGHT_AT: usize = 32;
pub(crate) const FORMAT_AT: usize = 40;
pub(crate) const RATE_FRAMES_AT: usize = 48;
pub(crate) const RATE_SECONDS_AT: usize = 56;
pub(crate) const DELIVERY_AT: usize = 64;
pub(crate) const HEAD_AT: usize = 128;
/// The half of the head that changes with every frame, on which consumers sleep.
pub(crate) const HEAD_HALF_AT: usize = if cfg!(target_endian = "big") { HEAD_AT + 4 } else { HEAD_AT };
const SLOT_WORDS_AT: usize = 4096;
const SLOT_WORDS_BYTES: usize = 256;
/// In a slot's words.
pub(crate) const CAPTURED: usize = 8;
pub(crate) const DIGEST: usize = 16;
pub(crate) const HAS_DIGEST: usize = 24;
/// The least memory of which the first words are looked at.
pub(crate) const HEADER_BYTES: u64 = SLOT_WORDS_AT as u64;
/// The bytes of the smallest page of any machine.
pub(crate) const PAGE_BYTES: usize = 4096;

/// The places of a stream's memory, which follow from the picture and the number of slots alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamLayout {
    pub picture: Picture,
    pub slots: u32,
}

impl StreamLayout {
    pub fn new(picture: Picture, slots: u32) -> Result<Self, Error> {
        match slots {
            SLOTS_MIN..=SLOTS_MAX => Ok(Self { picture, slots }),
            _ => Err(Error::Slots(slots)),
        }
    }

    /// Reads the layout from a stream's memory, of which nothing is trusted.
    pub fn read(load: impl Fn(usize) -> u64) -> Result<Self, Error> {
        let number =
            |at| u32::try_from(load(at)).map_err(|_| Error::Protocol("a number in its memory is too large"));
        let format = PixelFormat::from_code(load(FORMAT_AT))
            .ok_or(Error::Protocol("its pixel format is not known"))?;
        let rate = Rate { frames: number(RATE_FRAMES_AT)?, seconds: number(RATE_SECONDS_AT)? };
        let picture = Picture::new(number(WIDTH_AT)?, number(HEIGHT_AT)?, format, rate)?;
        let layout = Self::new(picture, number(SLOTS_AT)?)?;
        match load(0) == MAGIC && load(MEMORY_BYTES_AT) == layout.memory_bytes() {
            true => Ok(layout),
            false => Err(Error::Protocol("it is of another version of Caravan")),
        }
    }

    /// Returns the slot of a frame.
    pub fn slot_of(&self, sequence: u64) -> usize {
        (sequence % u64::from(self.slots)) as usize
    }

    /// Returns where a slot's words begin; the first one is its version.
    pub fn words_at(&self, slot: usize) -> usize {
        SLOT_WORDS_AT + slot * SLOT_WORDS_BYTES
    }

    /// Returns where a slot's bytes begin.
    pub fn bytes_at(&self, slot: usize) -> usize {
        let first = (SLOT_WORDS_AT + self.slots as usize * SLOT_WORDS_BYTES).next_multiple_of(PAGE_BYTES);
        first + slot * self.frame_bytes().next_multiple_of(PAGE_BYTES)
    }

    pub fn frame_bytes(&self) -> usize {
        self.picture.frame_bytes() as usize
    }

    pub fn memory_bytes(&self) -> u64 {
        self.bytes_at(self.slots as usize) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap_and_nothing_wrong_is_read() {
        let rate = Rate { frames: 60, seconds: 1 };
        let picture = Picture::new(33, 7, PixelFormat::Yuv420p, rate).unwrap();
        let layout = StreamLayout::new(picture, 20).unwrap();
        assert!(layout.words_at(20) <= layout.bytes_at(0));
        for slot in 0..20 {
            assert!(layout.bytes_at(slot) + layout.frame_bytes() <= layout.bytes_at(slot + 1));
        }
        let words = [MAGIC, layout.memory_bytes(), 20, 33, 7, 2, 60, 1, 0];
        assert_eq!(StreamLayout::read(|at| words[at / 8]).unwrap(), layout);
        for (place, value) in [(0, 1), (1, 1), (2, 2), (3, 0), (4, u64::MAX), (5, 3), (6, 0), (7, 1 << 40)] {
            let mut wrong = words;
            wrong[place] = value;
            assert!(StreamLayout::read(|at| wrong[at / 8]).is_err(), "{place}");
        }
    }
}
