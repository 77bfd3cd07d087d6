//! A chart with logarithmic axes: a curve for each thing, and a dot at each measured point.

use std::fmt::Write;

use super::{FAINT, GRID, INK, text};

const WIDTH: f64 = 1320.0;
/// The plane of the curves; the names are to the right of it.
const LEFT: f64 = 110.0;
const RIGHT: f64 = 860.0;
const TOP: f64 = 90.0;
const BOTTOM: f64 = 640.0;
/// The height of a name, and the space below everything.
const LINE: f64 = 22.0;
const FOOT: f64 = 90.0;
const DOT: f64 = 3.5;
const COLOURS: [&str; 10] = [
    "#d97a1e", "#3b8e8c", "#6f5a9c", "#c0392b", "#2e6fb7", "#7a8b3a", "#b05a8c", "#8a97a8", "#8c5a2b",
    "#1f3f5b",
];

/// Points of one thing; all coordinates are above zero.
#[derive(Clone, Debug)]
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// An axis: its title, and how its numbers are written.
#[derive(Clone, Debug)]
pub struct LogAxis {
    pub title: String,
    pub label: fn(f64) -> String,
}

/// A whole chart.
#[derive(Clone, Debug)]
pub struct CurveChart {
    pub title: String,
    pub x: LogAxis,
    pub y: LogAxis,
    pub curves: Vec<Curve>,
    pub footer: String,
}

/// Decades of an axis, and where it lies on the chart.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Covers all values with whole decades.
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = values
            .map(f64::log10)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        match low <= high {
            true => Self { low: low.floor(), high: high.ceil().max(low.floor() + 1.0), from, to },
            false => Self { low: 0.0, high: 1.0, from, to },
        }
    }

    fn place(&self, value: f64) -> f64 {
        self.from + (value.log10() - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Returns the decades that get a line: at most 15.
    fn decades(&self) -> impl Iterator<Item = f64> + use<> {
        let (low, high) = (self.low as i32, self.high as i32);
        let step = ((high - low) / 15 + 1) as usize;
        (low..=high).step_by(step).map(|power| 10_f64.powi(power))
    }
}

impl CurveChart {
    /// Returns the chart as the text of an SVG file.
    pub fn svg(&self) -> String {
        let names = TOP + self.curves.len() as f64 * LINE;
        let height = names.max(BOTTOM) + FOOT;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"'Noto Sans Mono', 'DejaVu Sans Mono', \
             Menlo, Consolas, monospace\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
        );
        let title = format!("font-size=\"23\" font-weight=\"bold\" fill=\"{INK}\"");
        text(&mut svg, 40.0, 38.0, &self.title, &title);
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let x = Scale::of(points().map(|point| point.0), LEFT, RIGHT);
        let y = Scale::of(points().map(|point| point.1), BOTTOM, TOP);
        self.draw_grid(&mut svg, &x, &y);
        for (number, curve) in self.curves.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            curve.draw(&mut svg, &x, &y, colour);
            let middle = TOP + number as f64 * LINE + LINE / 2.0;
            dot(&mut svg, RIGHT + 40.0, middle, colour);
            text(&mut svg, RIGHT + 55.0, middle, &curve.name, &format!("font-size=\"12\" fill=\"{INK}\""));
        }
        text(&mut svg, 40.0, height - 25.0, &self.footer, &format!("font-size=\"12\" fill=\"{FAINT}\""));
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_grid(&self, svg: &mut String, x: &Scale, y: &Scale) {
        let style = |anchor: &str| format!("font-size=\"12\" text-anchor=\"{anchor}\" fill=\"{INK}\"");
        for value in x.decades() {
            let place = x.place(value);
            line(svg, &[(place, TOP), (place, BOTTOM)], GRID, 1.0);
            text(svg, place, BOTTOM + 16.0, &(self.x.label)(value), &style("middle"));
        }
        for value in y.decades() {
            let place = y.place(value);
            line(svg, &[(LEFT, place), (RIGHT, place)], GRID, 1.0);
            text(svg, LEFT - 8.0, place, &(self.y.label)(value), &style("end"));
        }
        let title = format!("font-size=\"13\" text-anchor=\"middle\" fill=\"{FAINT}\"");
        text(svg, (LEFT + RIGHT) / 2.0, BOTTOM + 40.0, &self.x.title, &title);
        text(svg, LEFT, TOP - 18.0, &self.y.title, &format!("font-size=\"13\" fill=\"{FAINT}\""));
    }
}

impl Curve {
    /// Draws all points, and a line through the highest of each place.
    fn draw(&self, svg: &mut String, x: &Scale, y: &Scale, colour: &str) {
        let mut places: Vec<_> =
            self.points.iter().map(|point| (x.place(point.0), y.place(point.1))).collect();
        // Upwards is towards smaller numbers.
        places.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        for (x, y) in &places {
            dot(svg, *x, *y, colour);
        }
        places.dedup_by(|next, kept| next.0 == kept.0);
        if places.len() > 1 {
            line(svg, &places, colour, 2.0);
        }
    }
}

// Writing into a String cannot fail.

fn dot(svg: &mut String, x: f64, y: f64, colour: &str) {
    let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{DOT}\" fill=\"{colour}\"/>");
}

fn line(svg: &mut String, places: &[(f64, f64)], colour: &str, width: f64) {
    let places: Vec<_> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
        places.join(" ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(curves: Vec<Curve>) -> String {
        let axis = |title: &str| LogAxis { title: title.into(), label: |value| format!("<{value}>") };
        CurveChart { title: "a & b".into(), x: axis("x"), y: axis("y"), curves, footer: String::new() }.svg()
    }

    #[test]
    fn each_point_has_a_dot_and_a_decade_has_one_width() {
        let points = vec![(1.0, 10.0), (10.0, 1e3), (100.0, 1e3), (10.0, 500.0)];
        let svg = chart(vec![
            Curve { name: "disk".into(), points },
            Curve { name: "camel".into(), points: vec![(5.0, 20.0)] },
        ]);
        assert_eq!(svg.matches("<circle").count(), 5 + 2);
        // The lowest point is at the lower left, and the line passes through the higher one of two.
        let middle = (LEFT + RIGHT) / 2.0;
        let expected = format!("points=\"{LEFT:.1},{BOTTOM:.1} {middle:.1},{TOP:.1} {RIGHT:.1},{TOP:.1}\"");
        assert!(svg.contains(&expected), "{expected}: {svg}");
        assert!(svg.contains(">a &amp; b</text>") && svg.contains(">&lt;100&gt;</text>"));
    }

    #[test]
    fn a_chart_of_nothing_is_one() {
        assert!(chart(Vec::new()).ends_with("</svg>\n"));
    }
}
