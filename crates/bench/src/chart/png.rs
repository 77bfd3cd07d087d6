//! PNG, drawn pixel by pixel.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};

use super::{Anchor, Colour, Picture, Shape, Size};

/// Stands for a letter that the font does not hold.
const UNKNOWN: char = '?';

/// The picture as the bytes of a file.
pub fn png(picture: &Picture) -> Result<Vec<u8>, png::EncodingError> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, picture.width, picture.height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(&Canvas::draw(picture).pixels)?;
    Ok(file)
}

struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Canvas {
    fn draw(picture: &Picture) -> Self {
        let (width, height) = (picture.width as usize, picture.height as usize);
        let mut canvas = Self { width, height, pixels: vec![255; 3 * width * height] };
        for shape in &picture.shapes {
            match shape {
                Shape::Rectangle { x, y, width, height, colour } => {
                    canvas.rectangle((*x, *y), (x + width, y + height), *colour);
                }
                Shape::Text { x, y, size, bold, anchor, colour, text } => {
                    canvas.text((*x, *y), (*size, *bold), *anchor, *colour, text);
                }
            }
        }
        canvas
    }

    /// Lays a colour over a pixel; `cover` of 255 hides what was there.
    fn mix(&mut self, x: usize, y: usize, colour: Colour, cover: u8) {
        if x >= self.width || y >= self.height {
            return;
        }
        let at = 3 * (y * self.width + x);
        for (old, new) in self.pixels[at..at + 3].iter_mut().zip(colour) {
            let (cover, below) = (u32::from(cover), u32::from(*old));
            // A mean of two bytes is a byte.
            *old = ((u32::from(new) * cover + below * (255 - cover) + 127) / 255) as u8;
        }
    }

    /// Whole pixels: edges of bars are sharp, and a line of one pixel stays one.
    fn rectangle(&mut self, (left, top): (f64, f64), (right, bottom): (f64, f64), colour: Colour) {
        let span = |from: f64, to: f64, limit: usize| {
            let from = from.round().max(0.0) as usize;
            from..(to.round().max(0.0) as usize).max(from + 1).min(limit)
        };
        for y in span(top, bottom, self.height) {
            for x in span(left, right, self.width) {
                self.mix(x, y, colour, 255);
            }
        }
    }

    fn text(
        &mut self,
        (x, y): (f64, f64),
        (size, bold): (Size, bool),
        anchor: Anchor,
        colour: Colour,
        text: &str,
    ) {
        let weight = if bold { FontWeight::Bold } else { FontWeight::Regular };
        let height = raster_height(size);
        let advance = get_raster_width(weight, height);
        let length = (advance * text.chars().count()) as f64;
        let start = match anchor {
            Anchor::Start => x,
            Anchor::Middle => x - length / 2.0,
            Anchor::End => x - length,
        };
        let left = start.round().max(0.0) as usize;
        let top = (y - height.val() as f64 / 2.0).round().max(0.0) as usize;
        for (place, letter) in text.chars().enumerate() {
            let raster = get_raster(letter, weight, height);
            let Some(raster) = raster.or_else(|| get_raster(UNKNOWN, weight, height)) else {
                continue;
            };
            for (row, line) in raster.rows().enumerate() {
                for (column, &cover) in line.iter().enumerate() {
                    self.mix(left + place * advance + column, top + row, colour, cover);
                }
            }
        }
    }
}

fn raster_height(size: Size) -> RasterHeight {
    match size {
        Size::Small => RasterHeight::Size16,
        Size::Normal => RasterHeight::Size20,
        Size::Title => RasterHeight::Size32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pixel(canvas: &Canvas, x: usize, y: usize) -> [u8; 3] {
        let at = 3 * (y * canvas.width + x);
        [canvas.pixels[at], canvas.pixels[at + 1], canvas.pixels[at + 2]]
    }

    #[test]
    fn rectangles_cover_their_pixels_and_no_others() {
        let mut picture = Picture::new(20, 10);
        picture.rectangle(2.0, 3.0, 5.0, 4.0, [1, 2, 3]);
        picture.rectangle(15.0, 8.0, 50.0, 50.0, [9, 9, 9]);
        let canvas = Canvas::draw(&picture);
        assert_eq!(pixel(&canvas, 2, 3), [1, 2, 3]);
        assert_eq!(pixel(&canvas, 6, 6), [1, 2, 3]);
        assert_eq!(pixel(&canvas, 7, 6), [255; 3]);
        assert_eq!(pixel(&canvas, 19, 9), [9, 9, 9]);
    }

    #[test]
    fn text_leaves_ink_where_its_anchor_says() {
        let ink = |anchor| {
            let mut picture = Picture::new(200, 40);
            picture.text(100.0, 20.0, "mmmm").styled(Size::Title, true, anchor, [0; 3]);
            let canvas = Canvas::draw(&picture);
            let dark = |x: usize| (0..40).any(|y| pixel(&canvas, x, y)[0] < 64);
            let columns: Vec<_> = (0..200).filter(|&x| dark(x)).collect();
            (columns[0], columns[columns.len() - 1])
        };
        let (start, middle, end) = (ink(Anchor::Start), ink(Anchor::Middle), ink(Anchor::End));
        assert!(start.0 >= 100 && end.1 <= 100, "{start:?} {end:?}");
        assert!(middle.0 < 100 && middle.1 > 100, "{middle:?}");
    }

    #[test]
    fn the_file_is_a_png_of_the_picture() {
        let mut picture = Picture::new(31, 17);
        picture.rectangle(0.0, 0.0, 31.0, 17.0, [10, 20, 30]);
        let file = png(&picture).expect("encoded");
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a PNG");
        let mut pixels = vec![0; reader.output_buffer_size().expect("small")];
        let info = reader.next_frame(&mut pixels).expect("a frame");
        assert_eq!((info.width, info.height), (31, 17));
        assert!(pixels.chunks(3).all(|pixel| pixel == [10, 20, 30]));
    }
}
