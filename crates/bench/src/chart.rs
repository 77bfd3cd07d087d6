//! Pictures of rectangles and text, written as SVG and as PNG from one description.
//!
//! Charts of bars need no more. The PNG's letters come with the program, so that it looks the same
//! on a machine without fonts.

mod png;
mod svg;

pub use self::png::png;
pub use self::svg::svg;

/// An opaque colour: red, green, blue.
pub type Colour = [u8; 3];

/// Heights of a line of text in pixels; the letters' size is about three quarters of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Small,
    Normal,
    Title,
}

/// Which point of a text its x is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Something drawn; what comes later lies on top.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    Rectangle {
        x: f64,
        y: f64,
        width: f64,
        height: f64,
        colour: Colour,
    },
    /// `y` is the middle of the line.
    Text {
        x: f64,
        y: f64,
        size: Size,
        bold: bool,
        anchor: Anchor,
        colour: Colour,
        text: String,
    },
}

/// A picture on white.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    pub width: u32,
    pub height: u32,
    pub shapes: Vec<Shape>,
}

impl Picture {
    pub fn new(width: u32, height: u32) -> Self {
        Self { width, height, shapes: Vec::new() }
    }

    pub fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, colour: Colour) {
        self.shapes.push(Shape::Rectangle { x, y, width, height, colour });
    }

    pub fn text(&mut self, x: f64, y: f64, text: impl Into<String>) -> &mut Self {
        self.shapes.push(Shape::Text {
            x,
            y,
            size: Size::Normal,
            bold: false,
            anchor: Anchor::Start,
            colour: [0x22, 0x22, 0x22],
            text: text.into(),
        });
        self
    }

    /// Changes the text just added.
    pub fn styled(&mut self, new_size: Size, is_bold: bool, new_anchor: Anchor, new_colour: Colour) {
        if let Some(Shape::Text { size, bold, anchor, colour, .. }) = self.shapes.last_mut() {
            (*size, *bold, *anchor, *colour) = (new_size, is_bold, new_anchor, new_colour);
        }
    }
}
