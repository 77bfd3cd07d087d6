//! The chart: RPCs per second, transports side by side, and how many times better each figure is.

use super::plan::Better;
use super::results::{FigureResult, Results};
use crate::chart::{Anchor, Colour, Picture, Size};
use crate::number::number;

const WIDTH: u32 = 1320;
const HEIGHT: u32 = 640;
const COLOURS: [Colour; 3] = [[0x8a, 0x97, 0xa8], [0xd9, 0x7a, 0x1e], [0x3b, 0x8e, 0x8c]];
const INK: Colour = [0x22, 0x22, 0x22];
const FAINT: Colour = [0x66, 0x6e, 0x78];
const GRID: Colour = [0xe2, 0xe5, 0xe9];

/// The left panel's bars stand in here.
const BARS: Area = Area { left: 110.0, top: 150.0, right: 660.0, bottom: 540.0 };
/// The right panel's bars lie in here; their names are to the left of it.
const RATIOS: Area = Area { left: 960.0, top: 150.0, right: 1220.0, bottom: 540.0 };

struct Area {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

/// Draws the results.
pub fn draw(results: &Results) -> Picture {
    let mut picture = Picture::new(WIDTH, HEIGHT);
    let settings = &results.settings;
    picture.text(40.0, 38.0, "Erlang distribution: RPCs per second");
    picture.styled(Size::Title, true, Anchor::Start, INK);
    let subtitle = format!(
        "{} processes for each ordered pair of nodes, +S {}, OTP {}; medians of {} rounds, lines from least to most",
        settings.processes_per_ordered_pair, settings.schedulers, results.otp, settings.rounds
    );
    small(&mut picture, 40.0, 70.0, &subtitle, Anchor::Start);
    legend(&mut picture, results);
    bars(&mut picture, results);
    if results.transports.len() > 1 {
        ratios(&mut picture, results);
    }
    small(&mut picture, 40.0, 612.0, &results.machine.sentence(), Anchor::Start);
    picture
}

fn small(picture: &mut Picture, x: f64, y: f64, text: &str, anchor: Anchor) {
    picture.text(x, y, text).styled(Size::Small, false, anchor, FAINT);
}

fn legend(picture: &mut Picture, results: &Results) {
    let mut x = BARS.left;
    for (name, colour) in results.transports.iter().zip(COLOURS) {
        picture.rectangle(x, 98.0, 16.0, 16.0, colour);
        let carrier = results.carried.get(name).map_or("", |carried| &carried.transport);
        let text = if carrier == *name { (*name).to_owned() } else { format!("{name} ({carrier})") };
        picture.text(x + 24.0, 106.0, text.clone());
        x += 60.0 + 10.0 * text.len() as f64;
    }
}

/// RPCs per second, a group of bars for each size of the cluster.
fn bars(picture: &mut Picture, results: &Results) {
    let mut sizes = results.settings.sizes.clone();
    sizes.sort_unstable();
    let keys = sizes.iter().map(|size| (size, format!("rpc{size}_per_s")));
    let groups: Vec<_> = keys.filter_map(|(size, key)| Some((size, results.figure(&key)?))).collect();
    let highest = groups.iter().flat_map(|(_, figure)| figure.measured.values());
    let highest = highest.map(|summary| summary.max).fold(1.0, f64::max);
    let step = tick(highest);
    let top = (highest / step).ceil() * step;
    let y = |value: f64| BARS.bottom - (BARS.bottom - BARS.top) * value / top;
    for i in 0..=(top / step).round() as u32 {
        let value = f64::from(i) * step;
        picture.rectangle(BARS.left, y(value), BARS.right - BARS.left, 1.0, GRID);
        small(picture, BARS.left - 8.0, y(value), &axis(value), Anchor::End);
    }
    let group_width = (BARS.right - BARS.left) / groups.len().max(1) as f64;
    let bar_width = (group_width * 0.7 / results.transports.len() as f64).min(110.0);
    for (i, (size, figure)) in groups.iter().enumerate() {
        let middle = BARS.left + group_width * (i as f64 + 0.5);
        picture.text(middle, BARS.bottom + 24.0, format!("{size} nodes"));
        picture.styled(Size::Normal, true, Anchor::Middle, INK);
        let mut x = middle - bar_width * results.transports.len() as f64 / 2.0;
        for (name, colour) in results.transports.iter().zip(COLOURS) {
            if let Some(summary) = figure.measured.get(name) {
                let (height, centre) = (BARS.bottom - y(summary.median), x + bar_width / 2.0);
                picture.rectangle(x + 3.0, y(summary.median), bar_width - 6.0, height, colour);
                picture.rectangle(centre - 1.0, y(summary.max), 2.0, y(summary.min) - y(summary.max), INK);
                picture.text(centre, y(summary.max.max(summary.median)) - 12.0, number(summary.median));
                picture.styled(Size::Normal, true, Anchor::Middle, INK);
            }
            x += bar_width;
        }
    }
}

/// How many times better than the first transport, on a logarithmic scale.
fn ratios(picture: &mut Picture, results: &Results) {
    let base = results.transports[0];
    picture.text(740.0, 106.0, format!("Times better than {base} (log scale)"));
    picture.styled(Size::Normal, true, Anchor::Start, INK);
    let rows: Vec<_> = results.figures.iter().filter(|figure| is_shown(&figure.key)).collect();
    let all = rows.iter().flat_map(|figure| figure.ratios.values().map(|r| better(figure, r.median)));
    let all: Vec<_> = all.filter(|value| value.is_finite() && *value > 0.0).collect();
    let lowest = all.iter().copied().fold(1.0, f64::min).log2().floor();
    let highest = all.iter().copied().fold(2.0, f64::max).log2().ceil();
    let x = |value: f64| {
        let part = (value.max(1e-9).log2() - lowest) / (highest - lowest);
        RATIOS.left + (RATIOS.right - RATIOS.left) * part.clamp(0.0, 1.0)
    };
    for power in lowest as i32..=highest as i32 {
        let value = 2_f64.powi(power);
        let (width, colour) = if power == 0 { (2.0, FAINT) } else { (1.0, GRID) };
        picture.rectangle(x(value), RATIOS.top, width, RATIOS.bottom - RATIOS.top, colour);
        small(picture, x(value), RATIOS.bottom + 16.0, &axis(value), Anchor::Middle);
    }
    let row_height = (RATIOS.bottom - RATIOS.top) / rows.len().max(1) as f64;
    let bar_height = (row_height * 0.62 / (results.transports.len() - 1) as f64).min(30.0);
    for (i, figure) in rows.iter().enumerate() {
        let middle = RATIOS.top + row_height * (i as f64 + 0.5);
        picture.text(RATIOS.left - 12.0, middle, figure.figure.title.replace(", p50", " p50"));
        picture.styled(Size::Small, false, Anchor::End, INK);
        let others = results.transports[1..].iter().zip(&COLOURS[1..]);
        let mut y = middle - bar_height * (results.transports.len() - 1) as f64 / 2.0;
        for (name, &colour) in others {
            if let Some(ratio) = figure.ratios.get(name) {
                let value = better(figure, ratio.median);
                let (from, to) = (x(1.0).min(x(value)), x(1.0).max(x(value)));
                picture.rectangle(from, y + 1.0, to - from, bar_height - 2.0, colour);
                let label = format!("{}x", number(value));
                picture.text(to + 8.0, y + bar_height / 2.0, label);
                picture.styled(Size::Normal, true, Anchor::Start, INK);
            }
            y += bar_height;
        }
    }
}

/// The parts of another figure, and tails of few samples, stay in the table.
fn is_shown(key: &str) -> bool {
    !["_user_us", "_system_us", "_p99_us", "_cores"].iter().any(|end| key.ends_with(end))
}

/// A ratio turned so that more is better.
fn better(figure: &FigureResult, ratio: f64) -> f64 {
    match figure.figure.better {
        Better::Higher => ratio,
        Better::Lower => 1.0 / ratio,
    }
}

/// A number on an axis, where all are round: 0.5, 2, 20,000.
fn axis(value: f64) -> String {
    if value >= 1000.0 { number(value) } else { format!("{value}") }
}

/// A round step that makes four to eight lines up to `highest`.
fn tick(highest: f64) -> f64 {
    let power = 10_f64.powf((highest / 4.0).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| highest / step <= 6.0).unwrap_or(power)
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::example;
    use super::*;
    use crate::chart::{Shape, png, svg};

    fn texts(picture: &Picture) -> Vec<&str> {
        let texts = picture.shapes.iter().filter_map(|shape| match shape {
            Shape::Text { text, .. } => Some(text.as_str()),
            Shape::Rectangle { .. } => None,
        });
        texts.collect()
    }

    #[test]
    fn ticks_are_round_and_few() {
        for (highest, step) in [(1.0, 0.2), (104_000.0, 20_000.0), (300_000.0, 50_000.0)] {
            assert!((tick(highest) / step - 1.0).abs() < 1e-9, "{highest}: {}", tick(highest));
        }
    }

    #[test]
    fn both_transports_and_the_ratios_are_drawn() {
        let picture = draw(&example("", 4.0));
        let texts = texts(&picture);
        for expected in ["2 nodes", "4 nodes", "1,500", "6,000", "4.00x", "caravan (shm)"] {
            assert!(texts.contains(&expected), "{expected} in {texts:?}");
        }
        assert!(!texts.iter().any(|text| text.contains("p99")), "{texts:?}");
    }

    #[test]
    fn every_shape_lies_in_the_picture() {
        for (line, faster) in [("", 40.0), ("", 0.01), ("--transports tcp --nodes 2", 1.0)] {
            let picture = draw(&example(line, faster));
            for shape in &picture.shapes {
                let &Shape::Rectangle { x, y, width, height, .. } = shape else { continue };
                let inside = x >= 0.0 && y >= 0.0 && width >= 0.0 && height >= 0.0;
                let (right, bottom) = (f64::from(WIDTH), f64::from(HEIGHT));
                assert!(inside && x + width <= right && y + height <= bottom, "{shape:?}");
            }
            assert!(svg(&picture).len() > 1000 && png(&picture).is_ok());
        }
    }
}
