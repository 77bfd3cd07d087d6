//! The test pattern: moving colour bars in which every row carries the frame's number and time, so that a frame that is put
//! together from two is found, and in which people see both as digits.
//!
//! The first 16 bytes of each row of each plane are the number and the capture time, 64 bits each, little-endian. The rest follows
//! from the number and the place alone, so a receiver checks every byte.

use std::fmt;

use crate::error::Error;
use crate::picture::{Picture, PixelFormat, Plane};

/// The bytes at the begin of each row that hold the number and the time.
const STAMP_BYTES: usize = 16;
/// How many pixels the bars move from one frame to the next: an even number, because chroma has half of them.
const STEP_PIXELS: u64 = 8;
/// Digits are 5 cells wide and 7 high, with one free cell behind each.
const GLYPH_COLUMNS: usize = 5;
const GLYPH_ROWS: usize = 7;
/// `0000000001 0000012.345`: a number of 10 digits, seconds and milliseconds.
const LETTERS: usize = 22;
/// The pixels at the left of the digits.
const MARGIN: usize = 32;
/// Seven rows of five cells for each digit, the highest of the five bits at the left; then for a point.
const GLYPHS: [[u8; GLYPH_ROWS]; 11] = [
    [14, 17, 19, 21, 25, 17, 14],
    [4, 12, 4, 4, 4, 4, 14],
    [14, 17, 1, 2, 4, 8, 31],
    [31, 2, 4, 2, 1, 17, 14],
    [2, 6, 10, 18, 31, 2, 2],
    [31, 16, 30, 1, 1, 17, 14],
    [6, 8, 16, 30, 17, 17, 14],
    [31, 1, 2, 4, 8, 8, 8],
    [14, 17, 17, 14, 17, 17, 14],
    [14, 17, 17, 15, 1, 2, 12],
    [0, 0, 0, 0, 0, 12, 12],
];
/// Red, green and blue of the bars.
const BARS: [[u8; 3]; 8] = [
    [235, 235, 235],
    [235, 235, 16],
    [16, 235, 235],
    [16, 235, 16],
    [235, 16, 235],
    [235, 16, 16],
    [16, 16, 235],
    [16, 16, 16],
];

/// What is wrong with a frame that should be of the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternFault {
    /// Two rows have different numbers or times: the frame is put together from two.
    Torn {
        /// The number in the first row.
        first: u64,
        /// Another number.
        other: u64,
    },
    /// All rows have the same number, but it is that of another frame.
    Sequence {
        /// The number in the rows.
        found: u64,
    },
    /// A row has bytes that are not those of the pattern.
    Bytes {
        /// The number of the plane.
        plane: usize,
        /// The number of the row.
        row: usize,
    },
}

impl fmt::Display for PatternFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn { first, other } => {
                write!(f, "it is torn: it has rows of frame {first} and of frame {other}")
            }
            Self::Sequence { found } => write!(f, "its rows are those of frame {found}"),
            Self::Bytes { plane, row } => write!(f, "row {row} of plane {plane} is not that of the pattern"),
        }
    }
}

/// The pattern in one form of frames.
#[derive(Debug)]
pub struct Pattern {
    picture: Picture,
    planes: Vec<PatternPlane>,
    /// Pixels of a cell of a digit; 0 if digits do not fit.
    scale: usize,
}

/// A plane, and one row of it, twice in a row: every frame has a part of that in each row.
#[derive(Debug)]
struct PatternPlane {
    plane: Plane,
    row_twice: Vec<u8>,
}

impl Pattern {
    /// Makes the pattern; the rows of every plane must have at least 16 bytes.
    pub fn new(picture: Picture) -> Result<Self, Error> {
        let planes: Vec<_> = picture.planes();
        if planes.iter().any(|plane| plane.row_bytes < STAMP_BYTES) {
            return Err(Error::Picture(
                "the test pattern needs rows of at least 16 bytes in every plane".to_owned(),
            ));
        }
        let (width, height) = (picture.width as usize, picture.height as usize);
        let scale =
            (width.saturating_sub(MARGIN) / (LETTERS * (GLYPH_COLUMNS + 1))).min(height / (4 * GLYPH_ROWS));
        let planes =
            planes.into_iter().map(|plane| PatternPlane { plane, row_twice: row_twice(picture, plane) });
        Ok(Self { picture, planes: planes.collect(), scale })
    }

    /// Draws the frame with this number and time.
    pub fn fill(&self, sequence: u64, captured_ns: u64, frame: &mut [u8]) {
        let text = text(sequence, captured_ns);
        for plane in &self.planes {
            let Plane { offset, row_bytes, rows, .. } = plane.plane;
            let rows = frame[offset..offset + row_bytes * rows].chunks_exact_mut(row_bytes);
            for (row, bytes) in rows.enumerate() {
                self.draw(plane, row, sequence, captured_ns, &text, bytes);
            }
        }
    }

    /// Checks a frame, which `read` copies out in pieces, given their offsets. Returns its number and time. `sequence` is the
    /// number that it should have, if that is known.
    pub fn check(
        &self,
        sequence: Option<u64>,
        mut read: impl FnMut(usize, &mut [u8]),
    ) -> Result<(u64, u64), PatternFault> {
        let mut first = None;
        let mut letters = Vec::new();
        for plane in &self.planes {
            let Plane { number, offset, row_bytes, rows } = plane.plane;
            let (mut found, mut wanted) = (vec![0; row_bytes], vec![0; row_bytes]);
            for row in 0..rows {
                read(offset + row * row_bytes, &mut found);
                let stamp = stamp_of(&found);
                let (number_found, time) = *first.get_or_insert_with(|| {
                    letters = text(stamp.0, stamp.1);
                    stamp
                });
                if stamp != (number_found, time) {
                    return Err(PatternFault::Torn { first: number_found, other: stamp.0 });
                }
                self.draw(plane, row, number_found, time, &letters, &mut wanted);
                if found != wanted {
                    return Err(PatternFault::Bytes { plane: number, row });
                }
            }
        }
        let (found, time) = first.unwrap_or_default();
        match sequence {
            Some(sequence) if sequence != found => Err(PatternFault::Sequence { found }),
            _ => Ok((found, time)),
        }
    }

    fn draw(
        &self,
        plane: &PatternPlane,
        row: usize,
        sequence: u64,
        time: u64,
        text: &[usize],
        to: &mut [u8],
    ) {
        let width = u64::from(self.picture.width);
        let pixels = (sequence.wrapping_mul(STEP_PIXELS) % width) as usize;
        let shift = match (self.picture.format, plane.plane.number) {
            (PixelFormat::Rgba, _) => 4 * pixels,
            (PixelFormat::Yuv420p, 0) => pixels,
            (PixelFormat::Yuv420p, _) => pixels / 2,
        };
        to.copy_from_slice(&plane.row_twice[shift..shift + to.len()]);
        if plane.plane.number == 0 {
            self.draw_digits(row, text, to);
        }
        to[..8].copy_from_slice(&sequence.to_le_bytes());
        to[8..STAMP_BYTES].copy_from_slice(&time.to_le_bytes());
    }

    fn draw_digits(&self, row: usize, text: &[usize], to: &mut [u8]) {
        let top = self.picture.height as usize / 8;
        let Some(line) = row.checked_sub(top).and_then(|row| row.checked_div(self.scale)) else { return };
        if line >= GLYPH_ROWS {
            return;
        }
        let pixel_bytes = if self.picture.format == PixelFormat::Rgba { 4 } else { 1 };
        let cell_bytes = self.scale * pixel_bytes;
        let mut at = MARGIN * pixel_bytes;
        for glyph in text {
            let cells = GLYPHS.get(*glyph).map_or(0, |rows| rows[line]);
            for column in 0..=GLYPH_COLUMNS {
                let is_lit = column < GLYPH_COLUMNS && cells >> (GLYPH_COLUMNS - 1 - column) & 1 == 1;
                to[at..at + cell_bytes].fill(if is_lit { 255 } else { 0 });
                at += cell_bytes;
            }
        }
    }
}

/// Returns the number and the time in a row.
fn stamp_of(row: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().unwrap_or_default());
    (word(0), word(8))
}

/// Returns the indices of the glyphs of a number and a time; a space has none.
fn text(sequence: u64, captured_ns: u64) -> Vec<usize> {
    let milliseconds = captured_ns / 1_000_000;
    let seconds = milliseconds / 1000 % 10_000_000;
    let text = format!("{:010} {seconds:07}.{:03}", sequence % 10_000_000_000, milliseconds % 1000);
    let glyph = |letter: char| {
        letter.to_digit(10).map_or(if letter == '.' { 10 } else { 99 }, |digit| digit as usize)
    };
    text.chars().map(glyph).collect()
}

/// Returns the bars of a row, twice in a row.
fn row_twice(picture: Picture, plane: Plane) -> Vec<u8> {
    let width = picture.width as usize;
    let bar = |pixel: usize| BARS[pixel % width * BARS.len() / width];
    let luma = |[r, g, b]: [u8; 3]| (66 * i32::from(r) + 129 * i32::from(g) + 25 * i32::from(b)) / 256 + 16;
    let chroma = |number: usize, [r, g, b]: [u8; 3]| match number {
        1 => (-38 * i32::from(r) - 74 * i32::from(g) + 112 * i32::from(b)) / 256 + 128,
        _ => (112 * i32::from(r) - 94 * i32::from(g) - 18 * i32::from(b)) / 256 + 128,
    };
    match (picture.format, plane.number) {
        (PixelFormat::Rgba, _) => (0..2 * width)
            .flat_map(|pixel| {
                let [r, g, b] = bar(pixel);
                [r, g, b, 255]
            })
            .collect(),
        (PixelFormat::Yuv420p, 0) => (0..2 * width).map(|pixel| luma(bar(pixel)) as u8).collect(),
        (PixelFormat::Yuv420p, number) => {
            (0..2 * plane.row_bytes).map(|pixel| chroma(number, bar(2 * pixel)) as u8).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Rate;

    fn picture(width: u32, height: u32, format: PixelFormat) -> Picture {
        Picture::new(width, height, format, Rate { frames: 60, seconds: 1 }).unwrap()
    }

    #[test]
    fn every_changed_byte_is_found_and_two_halves_are_torn() {
        for (width, height, format) in
            [(64, 8, PixelFormat::Rgba), (320, 57, PixelFormat::Rgba), (321, 57, PixelFormat::Yuv420p)]
        {
            let picture = picture(width, height, format);
            let pattern = Pattern::new(picture).unwrap();
            let frame = |sequence| {
                let mut bytes = vec![0; picture.frame_bytes() as usize];
                pattern.fill(sequence, 1_234_567_890, &mut bytes);
                bytes
            };
            let check = |bytes: &[u8], sequence| {
                pattern.check(sequence, |at, to| to.copy_from_slice(&bytes[at..at + to.len()]))
            };
            let good = frame(7);
            assert_eq!(check(&good, Some(7)), Ok((7, 1_234_567_890)));
            assert_eq!(check(&good, Some(8)), Err(PatternFault::Sequence { found: 7 }));
            for at in (0..good.len()).step_by(97) {
                let mut bad = good.clone();
                bad[at] ^= 1;
                assert!(check(&bad, None).is_err(), "byte {at} of {picture}");
            }
            let next = frame(8);
            let half = picture.planes()[0].row_bytes * 5;
            let torn = [&next[..half], &good[half..]].concat();
            assert_eq!(check(&torn, None), Err(PatternFault::Torn { first: 8, other: 7 }));
        }
        assert!(Pattern::new(picture(30, 8, PixelFormat::Yuv420p)).is_err());
    }

    #[test]
    fn frames_show_their_number() {
        let picture = picture(320, 120, PixelFormat::Yuv420p);
        let pattern = Pattern::new(picture).unwrap();
        let mut bytes = vec![0; picture.frame_bytes() as usize];
        pattern.fill(1, 0, &mut bytes);
        assert_eq!(pattern.scale, 2);
        // The last digit of the number, 1, has its stem in the middle column of its cells.
        let row: Vec<_> =
            (0..5).map(|cell| bytes[(15 + 2 * 3) * 320 + MARGIN + (9 * 6 + cell) * 2]).collect();
        assert_eq!(row, [0, 0, 255, 0, 0]);
    }
}
