//! The form of YUV4MPEG2, in which ffmpeg and others write and read frames of [`PixelFormat::Yuv420p`] on pipes: a line for the
//! stream, and before each frame a line.
//!
//! Source: yuv4mpeg(5) of mjpegtools.

use std::io::{self, BufRead, Write};

use crate::error::Error;
use crate::picture::{Picture, PixelFormat, Rate};

/// The longest line.
const LINE_BYTES_MAX: usize = 1024;

/// Reads the line of a stream.
pub fn read_header(input: &mut impl BufRead) -> Result<Picture, Error> {
    let wrong = |why: &str| Error::Y4m(why.to_owned());
    let line = read_line(input)?.ok_or_else(|| wrong("it is empty"))?;
    let mut words = line.split(' ');
    if words.next() != Some("YUV4MPEG2") {
        return Err(wrong("it does not begin with YUV4MPEG2; raw frames need --size and --format"));
    }
    let (mut width, mut height, mut rate) = (None, None, Rate { frames: 25, seconds: 1 });
    for word in words.filter(|word| !word.is_empty()) {
        let (key, value) = word.split_at_checked(1).unwrap_or(("", ""));
        match key {
            "W" => width = value.parse().ok(),
            "H" => height = value.parse().ok(),
            "F" => rate = value.parse()?,
            "C" if !matches!(value, "420" | "420jpeg" | "420mpeg2" | "420paldv") => {
                return Err(Error::Y4m(format!(
                    "its pixels are C{}, and only C420 with 8 bits is known; with ffmpeg, add -pix_fmt yuv420p",
                    caravan_segment::printable(value)
                )));
            }
            _ => {}
        }
    }
    let (Some(width), Some(height)) = (width, height) else {
        return Err(wrong("its first line has no width and height"));
    };
    Picture::new(width, height, PixelFormat::Yuv420p, rate)
}

/// Reads the line before a frame; false at the end of the input.
pub fn read_frame_line(input: &mut impl BufRead) -> Result<bool, Error> {
    match read_line(input)? {
        None => Ok(false),
        Some(line) if line == "FRAME" || line.starts_with("FRAME ") => Ok(true),
        Some(_) => Err(Error::Y4m("a frame does not begin with FRAME".to_owned())),
    }
}

fn read_line(input: &mut impl BufRead) -> Result<Option<String>, Error> {
    let mut line = Vec::new();
    let limit = LINE_BYTES_MAX as u64;
    io::Read::take(input, limit)
        .read_until(b'\n', &mut line)
        .map_err(|source| Error::System { call: "read", source })?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => {
            String::from_utf8(line).map(Some).map_err(|_| Error::Y4m("a line is no text".to_owned()))
        }
        Some(_) => Err(Error::Y4m("a line does not end".to_owned())),
    }
}

/// Writes the line of a stream.
pub fn write_header(picture: &Picture, output: &mut impl Write) -> io::Result<()> {
    let Rate { frames, seconds } = picture.rate;
    writeln!(output, "YUV4MPEG2 W{} H{} F{frames}:{seconds} Ip A1:1 C420jpeg", picture.width, picture.height)
}

/// Writes the line before a frame.
pub fn write_frame_line(output: &mut impl Write) -> io::Result<()> {
    output.write_all(b"FRAME\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_other_things_are_refused() {
        let rate = Rate { frames: 30_000, seconds: 1001 };
        let picture = Picture::new(640, 480, PixelFormat::Yuv420p, rate).unwrap();
        let mut text = Vec::new();
        write_header(&picture, &mut text).unwrap();
        write_frame_line(&mut text).unwrap();
        let mut input = &text[..];
        assert_eq!(read_header(&mut input).unwrap(), picture);
        assert!(read_frame_line(&mut input).unwrap());
        assert!(!read_frame_line(&mut input).unwrap());
        for wrong in [
            "",
            "RIFF\n",
            "YUV4MPEG2 W64\n",
            "YUV4MPEG2 W64 H64 C444\n",
            "YUV4MPEG2 W64 H64 F0:1\n",
            "YUV4MPEG2 W64",
        ] {
            assert!(read_header(&mut wrong.as_bytes()).is_err(), "{wrong}");
        }
        let long = [b'Y'; 2 * LINE_BYTES_MAX];
        assert!(read_header(&mut &long[..]).is_err());
    }
}
