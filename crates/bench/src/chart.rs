//! The chart of every benchmark: bars in groups, as SVG, which browsers and GitHub show. In `curves`: one with
//! logarithmic axes.

pub mod curves;

use std::fmt::Write;

use crate::number::number;
use crate::stats::SampleSummary;

const WIDTH: f64 = 1320.0;
const INK: &str = "#222222";
const FAINT: &str = "#666e78";
const GRID: &str = "#e2e5e9";
const COLOURS: [&str; 4] = ["#d97a1e", "#3b8e8c", "#8a97a8", "#6f5a9c"];

/// The colours of Caravan, of a variant of it, and of a peer, as indices into [`COLOURS`].
pub const CARAVAN: usize = 0;
pub const VARIANT: usize = 1;
pub const PEER: usize = 2;

/// The top of the first group, below title and subtitle.
const TOP: f64 = 100.0;
/// Heights: a bar with the gap below it, the bar alone, a group's name, and the space below all groups.
const LINE: f64 = 26.0;
const BAR: f64 = 18.0;
const HEAD: f64 = 40.0;
const FOOT: f64 = 60.0;
/// The horizontal range of the bars; names are to the left, figures to the right.
const LEFT: f64 = 470.0;
const RIGHT: f64 = 1080.0;

/// A bar: the median, with a line from the least sample to the greatest.
#[derive(Clone, Debug)]
pub struct Bar {
    pub name: String,
    pub value: SampleSummary,
    /// An index into the colours, such as [`CARAVAN`].
    pub colour: usize,
    /// Text after the figure, such as a ratio.
    pub note: String,
}

/// Bars on one scale, under a name that may be empty.
#[derive(Clone, Debug)]
pub struct BarGroup {
    pub name: String,
    pub bars: Vec<Bar>,
}

/// A whole chart.
#[derive(Clone, Debug)]
pub struct BarChart {
    pub title: String,
    pub subtitle: String,
    pub groups: Vec<BarGroup>,
    pub footer: String,
}

impl BarGroup {
    fn head(&self) -> f64 {
        if self.name.is_empty() { 0.0 } else { HEAD }
    }
}

impl BarChart {
    /// Returns the chart as the text of an SVG file.
    pub fn svg(&self) -> String {
        let lines = |group: &BarGroup| group.bars.len() as f64 * LINE + group.head();
        let height = TOP + self.groups.iter().map(lines).sum::<f64>() + FOOT;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"'Noto Sans Mono', 'DejaVu Sans Mono', \
             Menlo, Consolas, monospace\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        );
        text(
            &mut svg,
            40.0,
            38.0,
            &self.title,
            &format!("font-size=\"23\" font-weight=\"bold\" fill=\"{INK}\""),
        );
        text(&mut svg, 40.0, 70.0, &self.subtitle, &format!("font-size=\"12\" fill=\"{FAINT}\""));
        let mut y = TOP;
        for group in &self.groups {
            let style = format!("font-size=\"15\" font-weight=\"bold\" fill=\"{INK}\"");
            text(&mut svg, 40.0, y + HEAD / 2.0, &group.name, &style);
            y += group.head();
            let highest = group.bars.iter().map(|bar| bar.value.max).fold(f64::MIN_POSITIVE, f64::max);
            rectangle(&mut svg, LEFT - 1.0, y, 1.0, group.bars.len() as f64 * LINE, GRID);
            for bar in &group.bars {
                bar.draw(&mut svg, y + LINE / 2.0, (RIGHT - LEFT) / highest);
                y += LINE;
            }
        }
        text(
            &mut svg,
            40.0,
            height - FOOT / 2.0,
            &self.footer,
            &format!("font-size=\"12\" fill=\"{FAINT}\""),
        );
        svg.push_str("</svg>\n");
        svg
    }
}

impl Bar {
    fn draw(&self, svg: &mut String, middle: f64, scale: f64) {
        let SampleSummary { median, min, max, .. } = self.value;
        let name = format!("font-size=\"12\" text-anchor=\"end\" fill=\"{INK}\"");
        text(svg, LEFT - 14.0, middle, &self.name, &name);
        rectangle(svg, LEFT, middle - BAR / 2.0, median * scale, BAR, COLOURS[self.colour % COLOURS.len()]);
        rectangle(svg, LEFT + min * scale, middle - 1.0, (max - min) * scale, 2.0, INK);
        let figure = format!("{} {}", number(median), self.note);
        let style = format!("font-size=\"12\" font-weight=\"bold\" fill=\"{INK}\"");
        text(svg, LEFT + max * scale + 10.0, middle, figure.trim_end(), &style);
    }
}

fn rectangle(svg: &mut String, x: f64, y: f64, width: f64, height: f64, fill: &str) {
    debug_assert!(x >= 0.0 && y >= 0.0 && width >= 0.0 && x + width <= WIDTH, "{x} {y} {width} {height}");
    // Writing into a String cannot fail.
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
    );
}

/// Writes text; `y` is the middle of the line.
fn text(svg: &mut String, x: f64, y: f64, text: &str, style: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ =
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style} dominant-baseline=\"central\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_bars_are_more_and_text_is_escaped() {
        let value = |x: f64| SampleSummary::of(vec![0.5 * x, x, 2.0 * x]).expect("samples");
        let bar = |name: &str, x: f64, colour| Bar {
            name: name.to_owned(),
            value: value(x),
            colour,
            note: "1.0x".to_owned(),
        };
        let chart = BarChart {
            title: "a < b & c".to_owned(),
            subtitle: "about".to_owned(),
            groups: vec![
                BarGroup { name: "veth".to_owned(), bars: vec![bar("caravan", 4.0, 0), bar("nc", 1.0, 2)] },
                BarGroup { name: String::new(), bars: vec![bar("caravan", 0.1, 1)] },
            ],
            footer: "machine".to_owned(),
        };
        let svg = chart.svg();
        for (width, colour) in [("305.0", 0), ("76.2", 2), ("305.0", 1)] {
            let expected = format!("width=\"{width}\" height=\"18.0\" fill=\"{}\"", COLOURS[colour]);
            assert!(svg.contains(&expected), "{expected}: {svg}");
        }
        assert!(svg.contains(">a &lt; b &amp; c</text>") && svg.contains(">4.00 1.0x</text>"), "{svg}");
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
    }
}
