//! In which order the items of a layer stand, from top to bottom, so that few links cross.

use super::Diagram;
use super::layers::{Layers, LinkSegment};

/// Times that all layers are sorted, to and fro.
const SWEEPS: usize = 12;

/// The best order found.
pub fn ordered(network: &Diagram<'_>, mut layers: Layers) -> Layers {
    beside_their_apps(network, &mut layers);
    let segments = layers.segments(network);
    let ports = PortHeights(network);
    let mut best = layers.layers.clone();
    let mut fewest = crossings(&layers, &segments, &ports);
    for sweep in 0..SWEEPS {
        if fewest == 0 {
            break;
        }
        let count = layers.layers.len();
        for step in 0..count {
            let to_right = sweep % 2 == 0;
            let layer = if to_right { step } else { count - 1 - step };
            sort(&mut layers, layer, &segments, &ports, to_right);
            close_up(network, &mut layers, layer, &segments);
        }
        let now = crossings(&layers, &segments, &ports);
        if now < fewest {
            fewest = now;
            best.clone_from(&layers.layers);
        }
    }
    layers.layers = best;
    layers
}

/// A link that leads back starts and ends just below the apps that it links.
fn beside_their_apps(network: &Diagram<'_>, layers: &mut Layers) {
    let apart: Vec<_> = (0..layers.items.len()).map(|item| layers.app_beside(network, item)).collect();
    for layer in &mut layers.layers {
        let before = layer.clone();
        let place = |item: &usize| before.iter().position(|other| other == item);
        layer.sort_by_key(|item| match apart[*item] {
            Some(app) => (place(&app), true),
            None => (place(item), false),
        });
    }
}

struct PortHeights<'a>(&'a Diagram<'a>);

impl PortHeights<'_> {
    /// How far down its item a segment's end is, from 0 to 1.
    fn part(&self, (item, port): (usize, Option<usize>), of_inputs: bool) -> f64 {
        let Some((port, app)) = port.zip(self.0.apps.get(item)) else { return 0.5 };
        let count = if of_inputs { app.inputs.len() } else { app.outputs.len() };
        (port as f64 + 0.5) / count as f64
    }
}

/// Places of the ends of all segments, within their layers.
fn ends(layers: &Layers, segments: &[LinkSegment], ports: &PortHeights<'_>) -> Vec<(usize, f64, f64)> {
    let mut stands = vec![(0, 0.0); layers.items.len()];
    for (layer, items) in layers.layers.iter().enumerate() {
        for (place, item) in items.iter().enumerate() {
            stands[*item] = (layer, place as f64);
        }
    }
    let end = |segment: &LinkSegment| {
        let ((layer, left), (_, right)) = (stands[segment.left.0], stands[segment.right.0]);
        (layer, left + ports.part(segment.left, false), right + ports.part(segment.right, true))
    };
    segments.iter().map(end).collect()
}

fn crossings(layers: &Layers, segments: &[LinkSegment], ports: &PortHeights<'_>) -> usize {
    let ends = ends(layers, segments, ports);
    let cross = |one: &(usize, f64, f64), other: &(usize, f64, f64)| {
        one.0 == other.0 && (one.1 - other.1) * (one.2 - other.2) < 0.0
    };
    let pairs = ends.iter().enumerate().map(|(place, one)| {
        let later = &ends[place + 1..];
        later.iter().filter(|other| cross(one, other)).count()
    });
    pairs.sum()
}

/// Sorts one layer by the means of its neighbours' places; what has none keeps its own.
fn sort(
    layers: &mut Layers,
    layer: usize,
    segments: &[LinkSegment],
    ports: &PortHeights<'_>,
    to_right: bool,
) {
    let ends = ends(layers, segments, ports);
    let mean = |item: usize, place: usize| {
        let theirs = segments.iter().zip(&ends).filter_map(|(segment, (_, left, right))| match to_right {
            true if segment.right.0 == item => Some(*left),
            false if segment.left.0 == item => Some(*right),
            _ => None,
        });
        let theirs: Vec<_> = theirs.collect();
        if theirs.is_empty() { place as f64 } else { theirs.iter().sum::<f64>() / theirs.len() as f64 }
    };
    let mut means: Vec<_> =
        layers.layers[layer].iter().enumerate().map(|(place, item)| (mean(*item, place), *item)).collect();
    means.sort_by(|one, other| one.0.total_cmp(&other.0));
    layers.layers[layer] = means.into_iter().map(|(_, item)| item).collect();
}

/// Puts a link that leads back within one layer below its app again: it has no neighbours to go by.
fn close_up(network: &Diagram<'_>, layers: &mut Layers, layer: usize, segments: &[LinkSegment]) {
    let has_neighbours =
        |item: usize| segments.iter().any(|segment| segment.left.0 == item || segment.right.0 == item);
    let (stray, mut items): (Vec<_>, Vec<_>) = layers.layers[layer]
        .iter()
        .partition(|item| layers.app_beside(network, **item).is_some() && !has_neighbours(**item));
    for item in stray {
        let app = layers.app_beside(network, item);
        let below = items.iter().position(|other| Some(*other) == app).map_or(items.len(), |app| app + 1);
        items.insert(below, item);
    }
    layers.layers[layer] = items;
}
