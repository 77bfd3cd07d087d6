//! SVG 1.1.

use std::fmt::Write;

use super::{Anchor, Colour, Picture, Shape, Size};

/// The picture as the text of a file.
pub fn svg(picture: &Picture) -> String {
    let Picture { width, height, shapes } = picture;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"'Noto Sans Mono', 'DejaVu Sans Mono', \
         Menlo, Consolas, monospace\">\n<rect width=\"{width}\" height=\"{height}\" \
         fill=\"#ffffff\"/>\n"
    );
    for shape in shapes {
        draw(&mut text, shape);
    }
    text.push_str("</svg>\n");
    text
}

fn draw(out: &mut String, shape: &Shape) {
    // Writing into a String cannot fail.
    let _ = match shape {
        Shape::Rectangle { x, y, width, height, colour } => writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\"/>",
            hex(*colour)
        ),
        Shape::Text { x, y, size, bold, anchor, colour, text } => writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{}\"{} text-anchor=\"{}\" \
             dominant-baseline=\"central\" fill=\"{}\" xml:space=\"preserve\">{}</text>",
            font_size(*size),
            if *bold { " font-weight=\"bold\"" } else { "" },
            match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            },
            hex(*colour),
            escaped(text)
        ),
    };
}

/// Letters as large as the PNG's.
fn font_size(size: Size) -> u32 {
    match size {
        Size::Small => 12,
        Size::Normal => 15,
        Size::Title => 23,
    }
}

fn hex([red, green, blue]: Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Text that stands for itself in XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_written_and_text_is_escaped() {
        let mut picture = Picture::new(100, 50);
        picture.rectangle(1.0, 2.0, 3.0, 4.0, [255, 0, 16]);
        picture.text(5.0, 6.0, "a < b & c").styled(Size::Title, true, Anchor::End, [0, 0, 0]);
        let text = svg(&picture);
        assert!(text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"100\""));
        assert!(text.contains("<rect x=\"1.0\" y=\"2.0\" width=\"3.0\" height=\"4.0\" fill=\"#ff0010\"/>"));
        assert!(text.contains("text-anchor=\"end\"") && text.contains(">a &lt; b &amp; c</text>"));
        assert!(text.contains("font-size=\"23\" font-weight=\"bold\""));
        assert!(text.ends_with("</svg>\n"));
    }
}
