//! What the colours and lines of the picture mean.

use std::fmt::Write;

use super::draw::{MARGIN, text, text_width};
use super::{Config, Diagram};

const KEY_SIZE: f64 = 12.0;
/// What stands in a line of the legend, however narrow the picture.
const LEGEND_ITEMS_MIN: usize = 3;
/// Between two lines of the legend.
const LEGEND_ROW: f64 = 22.0;

/// What the colours and lines mean.
pub struct Legend {
    workers: Vec<String>,
    /// Classes, marker and meaning of each kind of line that there is.
    lines: Vec<(&'static str, &'static str, &'static str)>,
    item_width: f64,
    in_row: usize,
}

impl Legend {
    /// What there is to explain, in lines about as wide as the picture.
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

    /// Pixels.
    pub fn width(&self) -> f64 {
        self.workers.len().min(self.in_row).max(self.lines.len()) as f64 * self.item_width
    }

    /// Pixels.
    pub fn height(&self) -> f64 {
        LEGEND_ROW * self.rows().iter().sum::<usize>() as f64
    }

    /// Draws it at the top.
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
