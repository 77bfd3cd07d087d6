//! The chart: packets per second of each benchmark, a bar for each size, and the curve of N processes.

use super::results::{Figure, Results, Unit};
use super::sampler::NO_PLACEMENT;
use crate::chart::{Anchor, Colour, Picture, Size};
use crate::number::number;

const WIDTH: u32 = 1320;
const COLOURS: [Colour; 4] = [[0xd9, 0x7a, 0x1e], [0x3b, 0x8e, 0x8c], [0x8a, 0x97, 0xa8], [0x6f, 0x5a, 0x9c]];
const INK: Colour = [0x22, 0x22, 0x22];
const FAINT: Colour = [0x66, 0x6e, 0x78];
const GRID: Colour = [0xe2, 0xe5, 0xe9];

/// Below the title.
const TOP: f64 = 140.0;
const BAR: f64 = 14.0;
const GAP: f64 = 14.0;
/// The bars lie between these; their names are to the left of it.
const BARS: (f64, f64) = (250.0, 700.0);
const CURVE: (f64, f64) = (870.0, 1270.0);
const CURVE_HEIGHT: f64 = 380.0;
/// Bars and curves of a benchmark without sizes.
const BELOW: f64 = 80.0;

/// What stands beside one name: a bar for each size.
struct Group<'a> {
    name: String,
    bars: Vec<&'a Figure>,
}

/// Draws the results.
pub fn draw(results: &Results) -> Picture {
    let groups = groups(results);
    let sizes = sizes(results);
    let bars: f64 = groups.iter().map(|group| group.bars.len() as f64 * BAR + GAP).sum();
    let height = TOP + bars.max(CURVE_HEIGHT) + BELOW;
    let mut picture = Picture::new(WIDTH, height.ceil() as u32);
    picture.text(40.0, 38.0, "Packet engine: millions of packets per second");
    picture.styled(Size::Title, true, Anchor::Start, INK);
    let subtitle = format!(
        "medians of {} samples or more of {} s, lines from least to most; near, far: the two processes' cores",
        results.samples, results.seconds
    );
    small(&mut picture, 40.0, 70.0, &subtitle, Anchor::Start);
    legend(&mut picture, &sizes);
    draw_bars(&mut picture, &groups, &sizes);
    draw_curve(&mut picture, results, &sizes);
    if let Some(recovery) = results.figure("recovery", NO_PLACEMENT) {
        let ms = recovery.value.scaled(1e-6);
        let text = format!(
            "recovery of a killed worker: {} ms ({}..{})",
            number(ms.median),
            number(ms.min),
            number(ms.max)
        );
        picture.text(40.0, height - 56.0, text);
    }
    let about = format!(
        "{}; {} {}",
        results.machine.without_distance(),
        results.caravan,
        results.commit.as_deref().unwrap_or("")
    );
    small(&mut picture, 40.0, height - 28.0, &about, Anchor::Start);
    picture
}

fn small(picture: &mut Picture, x: f64, y: f64, text: &str, anchor: Anchor) {
    picture.text(x, y, text).styled(Size::Small, false, anchor, FAINT);
}

/// Packet rates but for the curve's, those of one name and placement together.
fn groups(results: &Results) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    let shown = |figure: &&Figure| figure.unit == Unit::NsPerPacket && figure.benchmark != "scale";
    for figure in results.figures.iter().filter(shown) {
        let without_size: Vec<_> =
            figure.key.split('/').filter(|part| part.parse::<usize>().is_err()).collect();
        let mut name = without_size.join(" ");
        if figure.placement != NO_PLACEMENT {
            name = format!("{name}, {}", figure.placement);
        }
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.bars.push(figure),
            None => groups.push(Group { name, bars: vec![figure] }),
        }
    }
    groups
}

fn sizes(results: &Results) -> Vec<usize> {
    let mut sizes: Vec<_> = results.figures.iter().filter_map(|figure| figure.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn colour(sizes: &[usize], figure: &Figure) -> Colour {
    let place = sizes.iter().position(|size| Some(*size) == figure.bytes).unwrap_or(0);
    COLOURS[place % COLOURS.len()]
}

fn legend(picture: &mut Picture, sizes: &[usize]) {
    let mut x = BARS.0;
    for (size, colour) in sizes.iter().zip(COLOURS.iter().cycle()) {
        picture.rectangle(x, 98.0, 16.0, 16.0, *colour);
        picture.text(x + 24.0, 106.0, format!("{size} B"));
        x += 110.0;
    }
}

fn mpps(figure: &Figure) -> (f64, f64, f64) {
    figure.mpps.as_ref().map_or((0.0, 0.0, 0.0), |mpps| (mpps.median, mpps.min, mpps.max))
}

fn highest<'a>(figures: impl Iterator<Item = &'a Figure>) -> f64 {
    figures.map(|figure| mpps(figure).2).fold(1.0, f64::max)
}

fn draw_bars(picture: &mut Picture, groups: &[Group], sizes: &[usize]) {
    let (left, right) = BARS;
    let most = highest(groups.iter().flat_map(|group| group.bars.iter().copied()));
    let x = |value: f64| left + (right - left) * value / most;
    let mut y = TOP;
    for group in groups {
        let middle = y + group.bars.len() as f64 * BAR / 2.0;
        picture.text(left - 12.0, middle, group.name.clone());
        picture.styled(Size::Small, false, Anchor::End, INK);
        for figure in &group.bars {
            let (median, min, max) = mpps(figure);
            picture.rectangle(left, y + 1.0, x(median) - left, BAR - 2.0, colour(sizes, figure));
            picture.rectangle(x(min), y + BAR / 2.0 - 1.0, x(max) - x(min), 2.0, INK);
            small(picture, x(max) + 8.0, y + BAR / 2.0, &number(median), Anchor::Start);
            y += BAR;
        }
        y += GAP;
    }
}

/// All processes' packets together, by their number.
fn draw_curve(picture: &mut Picture, results: &Results, sizes: &[usize]) {
    let points: Vec<(usize, &Figure)> = results
        .figures
        .iter()
        .filter(|figure| figure.benchmark == "scale")
        .filter_map(|figure| Some((figure.key.rsplit('/').next()?.parse().ok()?, figure)))
        .collect();
    let Some(last) = points.iter().map(|(processes, _)| *processes).max() else { return };
    let (left, right) = CURVE;
    let bottom = TOP + CURVE_HEIGHT - 40.0;
    let most = highest(points.iter().map(|(_, figure)| *figure));
    let x = |processes: usize| left + (right - left) * processes as f64 / last as f64;
    let y = |value: f64| bottom - (bottom - TOP - 20.0) * value / most;
    picture.text(
        left - 40.0,
        106.0,
        format!("tunnels in N processes, all together ({} cores)", results.machine.cores),
    );
    picture.styled(Size::Normal, true, Anchor::Start, INK);
    for part in [0.0, 0.5, 1.0] {
        picture.rectangle(left, y(most * part), right - left, 1.0, GRID);
        small(picture, left - 8.0, y(most * part), &number(most * part), Anchor::End);
    }
    for &(processes, _) in points.iter().filter(|(_, figure)| figure.bytes == points[0].1.bytes) {
        small(picture, x(processes), bottom + 16.0, &processes.to_string(), Anchor::Middle);
    }
    for size in sizes {
        let own: Vec<_> = points.iter().filter(|(_, figure)| figure.bytes == Some(*size)).collect();
        for pair in own.windows(2) {
            let [from, to] = [pair[0], pair[1]].map(|(processes, figure)| (x(*processes), y(mpps(figure).0)));
            line(picture, from, to, colour(sizes, pair[0].1));
        }
        for (processes, figure) in own {
            let (median, min, max) = mpps(figure);
            picture.rectangle(x(*processes) - 1.0, y(max), 2.0, y(min) - y(max), INK);
            picture.rectangle(x(*processes) - 4.0, y(median) - 4.0, 8.0, 8.0, colour(sizes, figure));
        }
    }
}

/// A picture has rectangles alone: one for each step to the right, from height to height.
fn line(picture: &mut Picture, from: (f64, f64), to: (f64, f64), colour: Colour) {
    let steps = (to.0 - from.0).round().max(1.0);
    let at = |step: f64| from.1 + (to.1 - from.1) * step / steps;
    for step in 0..steps as usize {
        let (a, b) = (at(step as f64), at(step as f64 + 1.0));
        picture.rectangle(from.0 + step as f64, a.min(b) - 1.0, 1.0, (a - b).abs() + 2.0, colour);
    }
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
    fn sizes_share_a_name_and_the_curve_names_its_processes() {
        let picture = draw(&example("--only interlink,scale,swap"));
        let texts = texts(&picture);
        for expected in
            ["interlink swap, near", "interlink copy, far", "swap c-loop, near", "60 B", "1500 B", "4"]
        {
            assert_eq!(texts.iter().filter(|text| **text == expected).count(), 1, "{expected} in {texts:?}");
        }
    }

    #[test]
    fn every_shape_lies_in_the_picture() {
        for line in ["", "--only recovery", "--only scale --sizes 60", "--only basic1"] {
            let picture = draw(&example(line));
            for shape in &picture.shapes {
                let &Shape::Rectangle { x, y, width, height, .. } = shape else { continue };
                let inside = x >= 0.0 && y >= 0.0 && width >= 0.0 && height >= 0.0;
                let (right, bottom) = (f64::from(picture.width), f64::from(picture.height));
                assert!(inside && x + width <= right && y + height <= bottom, "{shape:?}");
            }
            assert!(svg(&picture).contains("Packet engine") && png(&picture).is_ok());
        }
    }
}
