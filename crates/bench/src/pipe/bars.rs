//! A picture of named bars in groups.

use crate::chart::{Anchor, Colour, Picture, Size};
use crate::number::number;
use crate::stats::Summary;

const WIDTH: u32 = 1320;
const COLOURS: [Colour; 3] = [[0xd9, 0x7a, 0x1e], [0x3b, 0x8e, 0x8c], [0x8a, 0x97, 0xa8]];
const INK: Colour = [0x22, 0x22, 0x22];
const FAINT: Colour = [0x66, 0x6e, 0x78];
const GRID: Colour = [0xe2, 0xe5, 0xe9];

/// The first bar is here; above it is the head.
const TOP: f64 = 110.0;
/// A bar and what is between it and the next, a group's name, what is below all.
const LINE: f64 = 26.0;
const BAR: f64 = 18.0;
const HEAD: f64 = 40.0;
const FOOT: f64 = 60.0;
/// Bars lie between these; names are to the left, figures to the right.
const LEFT: f64 = 470.0;
const RIGHT: f64 = 1080.0;

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    pub name: String,
    pub value: Summary,
    /// 0 is ours, 1 is ours in another way, 2 is another's.
    pub colour: usize,
}

/// All of it. Bars of a group have one scale.
#[derive(Clone, Debug)]
pub struct Bars {
    pub title: String,
    pub subtitle: String,
    /// With their names, which may be empty.
    pub groups: Vec<(String, Vec<Bar>)>,
    pub footer: String,
}

impl Bars {
    pub fn draw(&self) -> Picture {
        let lines = |(name, bars): &(String, Vec<Bar>)| bars.len() as f64 * LINE + head(name);
        let height = TOP + self.groups.iter().map(lines).sum::<f64>() + FOOT;
        let mut picture = Picture::new(WIDTH, height.ceil() as u32);
        picture.text(40.0, 38.0, self.title.clone()).styled(Size::Title, true, Anchor::Start, INK);
        small(&mut picture, 70.0, &self.subtitle);
        let mut y = TOP;
        for (name, bars) in &self.groups {
            if !name.is_empty() {
                picture.text(40.0, y + HEAD / 2.0, name.clone());
                picture.styled(Size::Normal, true, Anchor::Start, INK);
            }
            y += head(name);
            let highest = bars.iter().map(|bar| bar.value.max).fold(f64::MIN_POSITIVE, f64::max);
            picture.rectangle(LEFT - 1.0, y, 1.0, bars.len() as f64 * LINE, GRID);
            for bar in bars {
                draw(&mut picture, bar, y + LINE / 2.0, (RIGHT - LEFT) / highest);
                y += LINE;
            }
        }
        small(&mut picture, height - FOOT / 2.0, &self.footer);
        picture
    }
}

fn head(name: &str) -> f64 {
    if name.is_empty() { 0.0 } else { HEAD }
}

fn small(picture: &mut Picture, y: f64, text: &str) {
    picture.text(40.0, y, text).styled(Size::Small, false, Anchor::Start, FAINT);
}

fn draw(picture: &mut Picture, bar: &Bar, middle: f64, scale: f64) {
    let Bar { name, value, colour } = bar;
    let colour = COLOURS.get(*colour).copied().unwrap_or(FAINT);
    picture.text(LEFT - 14.0, middle, name.clone()).styled(Size::Small, false, Anchor::End, INK);
    picture.rectangle(LEFT, middle - BAR / 2.0, value.median * scale, BAR, colour);
    picture.rectangle(LEFT + value.min * scale, middle - 1.0, (value.max - value.min) * scale, 2.0, INK);
    picture.text(LEFT + value.max * scale + 10.0, middle, number(value.median));
    picture.styled(Size::Small, true, Anchor::Start, INK);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Shape, png, svg};

    #[test]
    fn every_bar_is_inside_and_longer_is_more() {
        let value = |x: f64| Summary::of(vec![0.5 * x, x, 2.0 * x]).expect("samples");
        let bar = |name: &str, x: f64, colour| Bar { name: name.to_owned(), value: value(x), colour };
        let bars = Bars {
            title: "Title".to_owned(),
            subtitle: "about".to_owned(),
            groups: vec![
                ("veth".to_owned(), vec![bar("caravan", 4.0, 0), bar("nc", 1.0, 2)]),
                ("start".to_owned(), vec![bar("caravan", 0.1, 0)]),
            ],
            footer: "machine".to_owned(),
        };
        let picture = bars.draw();
        let mut lengths = Vec::new();
        for shape in &picture.shapes {
            let &Shape::Rectangle { x, y, width, height, .. } = shape else { continue };
            assert!(x >= 0.0 && y >= 0.0 && x + width <= f64::from(picture.width), "{shape:?}");
            assert!(y + height <= f64::from(picture.height), "{shape:?}");
            lengths.extend((height == BAR).then_some(width));
        }
        assert_eq!(lengths.len(), 3);
        assert!((lengths[0] / lengths[1] - 4.0).abs() < 1e-9 && lengths[2] > lengths[1], "{lengths:?}");
        assert!(svg(&picture).contains("veth") && png(&picture).is_ok());
    }
}
