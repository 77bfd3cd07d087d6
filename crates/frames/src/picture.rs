//! What a frame looks like: size, pixel format, rate, and the planes of its bytes.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::limits::{EDGE_MAX, FRAME_BYTES_MAX};

/// How pixels are laid out in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelFormat {
    /// Red, green, blue and alpha, a byte each.
    Rgba,
    /// A plane of luma, then two of chroma with half the width and half the height.
    Yuv420p,
}

impl PixelFormat {
    pub(crate) fn code(self) -> u64 {
        match self {
            Self::Rgba => 1,
            Self::Yuv420p => 2,
        }
    }

    pub(crate) fn from_code(code: u64) -> Option<Self> {
        [Self::Rgba, Self::Yuv420p].into_iter().find(|format| format.code() == code)
    }
}

impl fmt::Display for PixelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rgba => "rgba",
            Self::Yuv420p => "yuv420p",
        })
    }
}

impl FromStr for PixelFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "rgba" => Ok(Self::Rgba),
            "yuv420p" => Ok(Self::Yuv420p),
            _ => {
                Err(Error::Picture(format!("there is no pixel format `{text}`: rgba and yuv420p are known")))
            }
        }
    }
}

/// Frames in so many seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The number of frames.
    pub frames: u32,
    /// In so many seconds.
    pub seconds: u32,
}

impl Rate {
    /// Returns the nanoseconds from the first frame to the one with this number, which begins at 0.
    pub fn offset_ns(self, number: u64) -> u64 {
        let ns = u128::from(number) * 1_000_000_000 * u128::from(self.seconds) / u128::from(self.frames);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Returns the number of frames a second.
    pub fn per_second(self) -> f64 {
        f64::from(self.frames) / f64::from(self.seconds)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seconds {
            1 => write!(f, "{}", self.frames),
            seconds => write!(f, "{}/{seconds}", self.frames),
        }
    }
}

impl FromStr for Rate {
    type Err = Error;

    /// Parses `60` or `30000/1001`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (frames, seconds) = text.split_once(['/', ':']).unwrap_or((text, "1"));
        match (frames.parse(), seconds.parse()) {
            (Ok(frames @ 1..=1_000_000), Ok(seconds @ 1..=1_000_000)) => Ok(Self { frames, seconds }),
            _ => Err(Error::Picture(format!(
                "`{text}` is no rate: it takes frames a second, such as 60 or 30000/1001"
            ))),
        }
    }
}

/// The form of all frames of a stream. All numbers are within the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// The layout of the pixels.
    pub format: PixelFormat,
    /// Frames a second.
    pub rate: Rate,
}

/// A part of a frame's bytes: rows of the same length, without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// The number of the plane: 0; with [`PixelFormat::Yuv420p`] also 1 and 2.
    pub number: usize,
    /// The offset of the first row in the frame.
    pub offset: usize,
    /// The bytes of a row.
    pub row_bytes: usize,
    /// The number of rows.
    pub rows: usize,
}

impl Picture {
    /// Checks the numbers, and returns the picture.
    pub fn new(width: u32, height: u32, format: PixelFormat, rate: Rate) -> Result<Self, Error> {
        let refused = |why: String| Err(Error::Picture(why));
        if !(1..=EDGE_MAX).contains(&width) || !(1..=EDGE_MAX).contains(&height) {
            return refused(format!("{width}x{height} is outside 1x1 to {EDGE_MAX}x{EDGE_MAX} pixels"));
        }
        if rate.frames == 0 || rate.seconds == 0 {
            return refused("its rate is 0".to_owned());
        }
        let picture = Self { width, height, format, rate };
        if picture.frame_bytes() > FRAME_BYTES_MAX {
            return refused(format!("a frame would have more than {FRAME_BYTES_MAX} bytes"));
        }
        Ok(picture)
    }

    /// Returns the planes in the order of their bytes.
    pub fn planes(&self) -> Vec<Plane> {
        let (width, height) = (self.width as usize, self.height as usize);
        match self.format {
            PixelFormat::Rgba => vec![Plane { number: 0, offset: 0, row_bytes: 4 * width, rows: height }],
            PixelFormat::Yuv420p => {
                let (row_bytes, rows) = (width.div_ceil(2), height.div_ceil(2));
                let first = Plane { number: 0, offset: 0, row_bytes: width, rows: height };
                let chroma = |number| Plane {
                    number,
                    offset: width * height + (number - 1) * row_bytes * rows,
                    row_bytes,
                    rows,
                };
                vec![first, chroma(1), chroma(2)]
            }
        }
    }

    /// Returns the bytes of a frame.
    pub fn frame_bytes(&self) -> u64 {
        self.planes().iter().map(|plane| plane.row_bytes as u64 * plane.rows as u64).sum()
    }
}

impl fmt::Display for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{} {} {}/s", self.width, self.height, self.format, self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_the_bytes_of_its_planes() {
        let rate: Rate = "60".parse().unwrap();
        let bytes = |width, height, format| Picture::new(width, height, format, rate).unwrap().frame_bytes();
        assert_eq!(bytes(3840, 2160, PixelFormat::Rgba), 33_177_600);
        assert_eq!(bytes(3840, 2160, PixelFormat::Yuv420p), 12_441_600);
        // Odd edges have chroma for the last column and row, too.
        assert_eq!(bytes(3, 3, PixelFormat::Yuv420p), 9 + 4 + 4);
        assert!(Picture::new(0, 1, PixelFormat::Rgba, rate).is_err());
        assert!(Picture::new(EDGE_MAX, EDGE_MAX, PixelFormat::Rgba, rate).is_err());
    }

    #[test]
    fn rates_are_fractions_and_do_not_drift() {
        let rate: Rate = "30000/1001".parse().unwrap();
        assert_eq!((rate.to_string(), rate.offset_ns(30_000)), ("30000/1001".to_owned(), 1_001_000_000_000));
        for wrong in ["", "0", "60/0", "x", "-1", "60/1/1"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }
}
