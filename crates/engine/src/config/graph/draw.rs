//! Draws the picture from a layout.

use std::fmt::Write;

use super::layers::{Layers, Stands, height, port};
use super::{Config, Diagram};

/// Pixels around the picture.
pub const MARGIN: f64 = 24.0;
/// Pixels between two layers at least, as links need room to turn.
const GAP: f64 = 72.0;
/// Additional pixels for each link between two layers, and the most of them.
const GAP_LINK: f64 = 5.0;
const GAP_LINKS_MAX: f64 = 90.0;
/// How far a link that turns round reaches out, and how much farther the next one, so that they do not
/// overlap.
const TURN: f64 = 26.0;
const TURN_NEXT: f64 = 9.0;
const TURNS: usize = 4;
/// The minimum width of an app, and the space left and right of its words.
const APP_WIDTH_MIN: f64 = 110.0;
const PADDING: f64 = 14.0;
/// The width of a letter as a part of the font's size: typical of fixed-width fonts.
const LETTER: f64 = 0.61;
const NAME_SIZE: f64 = 14.0;
const KIND_SIZE: f64 = 11.0;
const PORT_SIZE: f64 = 11.0;
/// Hues of workers that are easiest to tell apart; more follow by the golden angle.
const HUES: [u32; 8] = [210, 28, 140, 325, 265, 52, 180, 0];

/// The style of every picture. Links between workers stand out, as they cost most.
const STYLE: &str = "\
.ground{fill:#ffffff}.text{fill:#1f2328}.faint{fill:#57606a}.link{fill:none;stroke:#8c959f;stroke-width:1.4}\
.far{stroke:#3d4650;stroke-width:2.4}.copy{stroke-dasharray:7 4}.head{fill:#8c959f}.farhead{fill:#3d4650}\
.dot{fill:#57606a}.missing{fill:none;stroke:#cf222e;stroke-width:1.5;stroke-dasharray:5 4}\
.app{stroke-width:1.5}text{font-family:'Noto Sans Mono','DejaVu Sans Mono',Menlo,Consolas,monospace}\
.name{font-size:14px;font-weight:bold}.kind,.port{font-size:11px}.key{font-size:12px}";
const STYLE_DARK: &str = "\
.ground{fill:#0d1117}.text{fill:#e6edf3}.faint{fill:#9da7b1}.link{stroke:#6e7681}.far{stroke:#c9d1d9}\
.head{fill:#6e7681}.farhead{fill:#c9d1d9}.dot{fill:#9da7b1}.missing{stroke:#ff7b72}";

/// Draws everything at its place.
pub fn svg(config: &Config, network: &Diagram<'_>, layers: &Layers, middles: &[f64]) -> String {
    let workers: Vec<_> = config.workers_used().into_iter().collect();
    let columns = Columns::of(network, layers);
    let legend = Legend::of(config, network, &workers, columns.width);
    let bottom = |(item, middle): (&Stands, &f64)| middle + height(network, *item) / 2.0;
    let drawn = layers.items.iter().zip(middles).map(bottom).max_by(f64::total_cmp).unwrap_or(0.0);
    let down = 2.0 * MARGIN + legend.height();
    let (width, height) = (columns.width.max(legend.width()) + 2.0 * MARGIN, drawn + down + MARGIN);
    let mut out = String::new();
    head(&mut out, width, height, workers.len());
    let mut picture =
        DiagramPicture { out, network, layers, workers: &workers, columns: &columns, middles, down };
    (0..network.links.len()).for_each(|link| picture.link(link));
    (0..network.apps.len()).for_each(|app| picture.app(app));
    let mut out = picture.out;
    legend.draw(&mut out);
    out.push_str("</svg>\n");
    out
}

fn head(out: &mut String, width: f64, height: f64, workers: usize) {
    // Writing into a String cannot fail, here and below.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\">\n<style>\n{STYLE}\n"
    );
    let colours = |out: &mut String, fill: &str, stroke: &str| {
        for worker in 0..workers {
            let hue = hue(worker);
            let _ = writeln!(out, ".w{worker}{{fill:hsl({hue},{fill});stroke:hsl({hue},{stroke})}}");
        }
    };
    colours(out, "70%,92%", "55%,45%");
    let _ = writeln!(out, "@media (prefers-color-scheme: dark){{{STYLE_DARK}");
    colours(out, "35%,19%", "50%,60%");
    let _ = write!(out, "}}\n</style>\n<defs>\n");
    for (id, class) in [("a", "head"), ("b", "farhead")] {
        let _ = writeln!(
            out,
            "<marker id=\"{id}\" markerUnits=\"userSpaceOnUse\" markerWidth=\"10\" markerHeight=\"10\" \
             refX=\"8.5\" refY=\"5\" orient=\"auto\"><path class=\"{class}\" d=\"M0 1L9 5L0 9z\"/></marker>"
        );
    }
    let _ = write!(out, "</defs>\n<rect class=\"ground\" width=\"{width:.0}\" height=\"{height:.0}\"/>\n");
}

fn hue(worker: usize) -> u32 {
    match HUES.get(worker) {
        Some(hue) => *hue,
        // Steps of 137.5 degrees keep a hue away from the ones just before.
        None => (worker * 1375 / 10 % 360) as u32,
    }
}

/// From left to right: the starts and widths of layers.
struct Columns {
    starts: Vec<(f64, f64)>,
    width: f64,
}

impl Columns {
    fn of(network: &Diagram<'_>, layers: &Layers) -> Self {
        let mut turns = vec![0_usize; layers.layers.len() + 1];
        let mut layer_of = vec![0; layers.items.len()];
        for (layer, items) in layers.layers.iter().enumerate() {
            items.iter().for_each(|item| layer_of[*item] = layer);
        }
        for segment in layers.segments(network) {
            turns[layer_of[segment.right.0]] += 1;
        }
        // A link that leads back also turns right of its start, and left of its end.
        for (link, is_back) in network.links.iter().zip(&layers.is_back) {
            if *is_back {
                turns[layer_of[link.from.0] + 1] += 2;
                turns[layer_of[link.to.0]] += 2;
            }
        }
        let room = |turns: usize| (GAP_LINK * turns as f64).min(GAP_LINKS_MAX);
        let mut starts = Vec::new();
        let mut x = if turns[0] > 0 { GAP / 1.5 } else { 0.0 };
        for (layer, items) in layers.layers.iter().enumerate() {
            if layer > 0 {
                x += GAP + room(turns[layer]);
            }
            let apps = items.iter().filter_map(|item| network.apps.get(*item));
            let width = apps.map(app_width).max_by(f64::total_cmp).unwrap_or(0.0);
            starts.push((x, width));
            x += width;
        }
        let last = turns.last().copied().unwrap_or(0);
        Self { starts, width: if last > 0 { x + GAP / 1.5 } else { x } }
    }
}

fn app_width(app: &super::DiagramApp<'_>) -> f64 {
    let longest = |ports: &[&str]| ports.iter().map(|port| text_width(port, PORT_SIZE)).fold(0.0, f64::max);
    let ports = longest(&app.inputs) + longest(&app.outputs) + PADDING;
    let kind = text_width(&kind(app), KIND_SIZE);
    let widest = text_width(app.name, NAME_SIZE).max(kind).max(ports);
    (widest + 2.0 * PADDING).max(APP_WIDTH_MIN)
}

fn kind(app: &super::DiagramApp<'_>) -> String {
    match app.is {
        Some((kind, worker)) => format!("{kind} in {worker}"),
        None => "not there".into(),
    }
}

/// Returns the approximate width of a text.
pub fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * LETTER
}

struct DiagramPicture<'a> {
    out: String,
    network: &'a Diagram<'a>,
    layers: &'a Layers,
    workers: &'a [&'a str],
    columns: &'a Columns,
    middles: &'a [f64],
    /// The distance from the top of the picture to the topmost item.
    down: f64,
}

impl DiagramPicture<'_> {
    /// Returns the left edge, upper edge, width and height of an item. All items of a layer have one width.
    fn place(&self, item: usize) -> (f64, f64, f64, f64) {
        let layer = self.layers.layers.iter().position(|items| items.contains(&item)).unwrap_or(0);
        let (x, width) = self.columns.starts[layer];
        let tall = height(self.network, self.layers.items[item]);
        (x + MARGIN, self.down + self.middles[item] - tall / 2.0, width, tall)
    }

    fn app(&mut self, number: usize) {
        let app = &self.network.apps[number];
        let (x, y, width, tall) = self.place(number);
        let class = match app.is {
            Some((_, worker)) => format!("app w{}", self.workers.partition_point(|other| *other < worker)),
            None => "missing".into(),
        };
        let _ = writeln!(
            self.out,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{tall:.1}\" rx=\"6\"/>"
        );
        let middle = x + width / 2.0;
        text(&mut self.out, "text name", "middle", middle, y + 18.0, app.name);
        text(&mut self.out, "faint kind", "middle", middle, y + 36.0, &kind(app));
        for (ports, edge, inner, anchor) in [
            (&app.inputs, x, x + PADDING / 1.5, "start"),
            (&app.outputs, x + width, x + width - PADDING / 1.5, "end"),
        ] {
            for (place, name) in ports.iter().enumerate() {
                let y = y + port(place);
                let _ =
                    writeln!(self.out, "<circle class=\"dot\" cx=\"{edge:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>");
                text(&mut self.out, "text port", anchor, inner, y, name);
            }
        }
    }

    /// Returns how many links that lead back start or end where this one does, and have lower numbers.
    fn backs_before(&self, number: usize) -> usize {
        let link = self.network.links[number];
        let meets = |other: &super::DiagramLink| other.from.0 == link.from.0 || other.to.0 == link.to.0;
        let before = self.network.links[..number].iter().zip(&self.layers.is_back);
        before.filter(|(other, is_back)| **is_back && meets(other)).count()
    }

    fn link(&mut self, number: usize) {
        let link = self.network.links[number];
        let (from, to) = (&self.network.apps[link.from.0], &self.network.apps[link.to.0]);
        let is_far = from.is.map(|is| is.1) != to.is.map(|is| is.1);
        let (x, y, width, _) = self.place(link.from.0);
        let mut at = CurveEnd { x: x + width, y: y + port(link.from.1), direction: 1.0 };
        let mut path = format!("M{:.1} {:.1}", at.x, at.y);
        let is_back = self.layers.is_back[number];
        let direction = if is_back { -1.0 } else { 1.0 };
        let reach = TURN + TURN_NEXT * (self.backs_before(number) % TURNS) as f64;
        for &bend in &self.layers.bends[number] {
            let (x, _, width, _) = self.place(bend);
            let y = self.down + self.middles[bend];
            let (start, end) = if is_back { (x + width, x) } else { (x, x + width) };
            curve(&mut path, at, CurveEnd { x: start, y, direction }, reach);
            let _ = write!(path, "L{end:.1} {y:.1}");
            at = CurveEnd { x: end, y, direction };
        }
        let (x, y, ..) = self.place(link.to.0);
        let end = CurveEnd { x: x - 2.0, y: y + port(link.to.1), direction: 1.0 };
        curve(&mut path, at, end, reach);
        let copies = if link.copies { " copy" } else { "" };
        let (class, marker) = if is_far { ("link far", "b") } else { ("link", "a") };
        let (output, input) = (from.outputs[link.from.1], to.inputs[link.to.1]);
        let name = escaped(&format!("{}.{output} -> {}.{input}", from.name, to.name));
        let _ = writeln!(
            self.out,
            "<path class=\"{class}{copies}\" marker-end=\"url(#{marker})\" d=\"{path}\"><title>{name}</title></path>"
        );
    }
}

/// The point where a curve starts or ends, and whether it runs to the right (1) or to the left (-1) there.
#[derive(Clone, Copy)]
struct CurveEnd {
    x: f64,
    y: f64,
    direction: f64,
}

/// Draws a curve from one point to another, which reaches out by `reach` where it turns round.
fn curve(path: &mut String, from: CurveEnd, to: CurveEnd, reach: f64) {
    let along = (to.x - from.x) * from.direction;
    let is_ahead = from.direction == to.direction && along > 0.0;
    let reach = if is_ahead { along / 2.0 } else { reach };
    let (first, second) = (from.x + from.direction * reach, to.x - to.direction * reach);
    let _ = write!(path, "C{first:.1} {:.1} {second:.1} {:.1} {:.1} {:.1}", from.y, to.y, to.x, to.y);
}

/// Draws a line of text around the height `y`.
pub fn text(out: &mut String, class: &str, anchor: &str, x: f64, y: f64, words: &str) {
    let _ = writeln!(
        out,
        "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\" dy=\".35em\">{}</text>",
        escaped(words)
    );
}

/// Returns text as a literal in XML 1.0, which has no control characters and some other gaps.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

const KEY_SIZE: f64 = 12.0;
/// Items in a line of the legend at least, however narrow the picture.
const LEGEND_ITEMS_MIN: usize = 3;
/// Pixels between two lines of the legend.
const LEGEND_ROW: f64 = 22.0;

/// Explains the colours and lines.
pub struct Legend {
    workers: Vec<String>,
    /// Classes, marker and meaning of each kind of line in the picture.
    lines: Vec<(&'static str, &'static str, &'static str)>,
    item_width: f64,
    in_row: usize,
}

impl Legend {
    /// Makes the legend of a picture, in lines about as wide as the picture.
    pub fn of(config: &Config, network: &Diagram<'_>, workers: &[&str], width: f64) -> Self {
        let core = |worker: &str| config.workers.get(worker).and_then(|worker| worker.core);
        let named = |worker: &&str| match core(worker) {
            Some(core) => format!("{worker} (core {core})"),
            None => (*worker).to_owned(),
        };
        let worker = |app: usize| network.apps[app].is.map(|is| is.1);
        let is_far = |link: &&super::DiagramLink| worker(link.from.0) != worker(link.to.0);
        let mut lines = Vec::new();
        if network.links.iter().any(|link| !is_far(&link)) {
            lines.push(("link", "a", "within a worker"));
        }
        if network.links.iter().any(|link| is_far(&link)) {
            lines.push(("link far", "b", "between workers"));
        }
        if network.links.iter().any(|link| link.copies) {
            lines.push(("link far copy", "b", "packets are copied"));
        }
        let workers: Vec<_> = workers.iter().map(named).collect();
        let words = workers.iter().map(String::as_str).chain(lines.iter().map(|line| line.2));
        let item_width = words.map(|word| text_width(word, KEY_SIZE)).fold(0.0, f64::max) + 56.0;
        let in_row = ((width / item_width) as usize).max(LEGEND_ITEMS_MIN);
        Self { workers, lines, item_width, in_row }
    }

    fn rows(&self) -> [usize; 2] {
        [self.workers.len().div_ceil(self.in_row), usize::from(!self.lines.is_empty())]
    }

    /// Returns the width in pixels.
    pub fn width(&self) -> f64 {
        self.workers.len().min(self.in_row).max(self.lines.len()) as f64 * self.item_width
    }

    /// Returns the height in pixels.
    pub fn height(&self) -> f64 {
        LEGEND_ROW * self.rows().iter().sum::<usize>() as f64
    }

    /// Draws the legend at the top.
    pub fn draw(&self, out: &mut String) {
        let at = |place: usize, row: usize| {
            (MARGIN + place as f64 * self.item_width, MARGIN + LEGEND_ROW * (row as f64 + 0.5))
        };
        for (number, worker) in self.workers.iter().enumerate() {
            let (x, y) = at(number % self.in_row, number / self.in_row);
            let _ = writeln!(
                out,
                "<rect class=\"app w{number}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"24\" height=\"14\" rx=\"3\"/>",
                y - 7.0
            );
            text(out, "text key", "start", x + 32.0, y, worker);
        }
        for (place, (class, marker, words)) in self.lines.iter().enumerate() {
            let (x, y) = at(place, self.rows()[0]);
            let _ = writeln!(
                out,
                "<path class=\"{class}\" marker-end=\"url(#{marker})\" d=\"M{x:.1} {y:.1}L{:.1} {y:.1}\"/>",
                x + 26.0
            );
            text(out, "faint key", "start", x + 32.0, y, words);
        }
    }
}
