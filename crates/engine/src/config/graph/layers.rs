//! Finds the layer of each app, and the places of links in the layers that they pass.

use super::{Diagram, DiagramApp};

/// An item of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// An app.
    App(usize),
    /// A link that passes the layer.
    Bend(usize),
}

/// Apps and bends, by layer from left to right and from top to bottom.
#[derive(Clone, Debug)]
pub struct Layers {
    /// All items by number; apps come first, by their numbers.
    pub items: Vec<Stands>,
    /// The numbers of the items of each layer.
    pub layers: Vec<Vec<usize>>,
    /// Each link's bends along its way: to the right, or, if it closes a cycle, to the left.
    pub bends: Vec<Vec<usize>>,
    /// True for a link that runs to the left.
    pub is_back: Vec<bool>,
}

impl Layers {
    /// Puts every app right of the apps that send to it, as far as there are no cycles.
    pub fn of(network: &Diagram<'_>) -> Self {
        let order = sequence(network);
        let layer = layer_of_each(network, &order);
        let count = layer.iter().map(|layer| layer + 1).max().unwrap_or(0);
        let mut made = Self {
            items: (0..network.apps.len()).map(Stands::App).collect(),
            layers: vec![Vec::new(); count],
            bends: Vec::new(),
            is_back: Vec::new(),
        };
        for &app in &order {
            made.layers[layer[app]].push(app);
        }
        for (number, link) in network.links.iter().enumerate() {
            let (from, to) = (layer[link.from.0], layer[link.to.0]);
            let is_back = from >= to;
            let passed: Vec<_> = if is_back { (to..=from).rev().collect() } else { (from + 1..to).collect() };
            let bends = passed.into_iter().map(|layer| {
                let item = made.items.len();
                made.items.push(Stands::Bend(number));
                made.layers[layer].push(item);
                item
            });
            let bends = bends.collect();
            made.bends.push(bends);
            made.is_back.push(is_back);
        }
        made
    }

    /// Returns the app beside a bend, if a link that leads back starts or ends at that bend.
    pub fn app_beside(&self, network: &Diagram<'_>, item: usize) -> Option<usize> {
        let Stands::Bend(link) = self.items[item] else { return None };
        match (self.is_back[link], self.bends[link].as_slice()) {
            (true, [first, ..]) if *first == item => Some(network.links[link].from.0),
            (true, [.., last]) if *last == item => Some(network.links[link].to.0),
            _ => None,
        }
    }

    /// Returns the pairs of neighbouring items, left and right, with the place of the link on each, as parts of the
    /// item's height.
    pub fn segments(&self, network: &Diagram<'_>) -> Vec<LinkSegment> {
        let mut segments = Vec::new();
        for (number, link) in network.links.iter().enumerate() {
            let bends = self.bends[number].iter().map(|bend| (*bend, None));
            let mut chain: Vec<_> = bends.collect();
            if self.is_back[number] {
                chain.reverse();
            } else {
                chain.insert(0, (link.from.0, Some(link.from.1)));
                chain.push((link.to.0, Some(link.to.1)));
            }
            segments.extend(chain.windows(2).map(|pair| LinkSegment { left: pair[0], right: pair[1] }));
        }
        segments
    }
}

/// A piece of a link between two items of neighbouring layers. An item that is an app has its port with it.
#[derive(Clone, Copy, Debug)]
pub struct LinkSegment {
    pub left: (usize, Option<usize>),
    pub right: (usize, Option<usize>),
}

/// Returns all apps in an order in which few links lead back: an app to which no app sends comes first; in cycles,
/// the one that sends most and receives least (Eades, Lin and Smyth 1993, without sinks).
fn sequence(network: &Diagram<'_>) -> Vec<usize> {
    let mut left: Vec<_> = (0..network.apps.len()).collect();
    let mut sequence = Vec::new();
    let mut degrees = vec![(0_isize, 0_isize); left.len()];
    let between = |link: &super::DiagramLink| link.from.0 != link.to.0;
    for link in network.links.iter().filter(|link| between(link)) {
        degrees[link.from.0].1 += 1;
        degrees[link.to.0].0 += 1;
    }
    let rank = |(ins, outs): (isize, isize)| (ins > 0, ins - outs, ins);
    while let Some(next) = (0..left.len()).min_by_key(|place| (rank(degrees[left[*place]]), *place)) {
        let app = left.remove(next);
        for link in network.links.iter().filter(|link| between(link)) {
            if link.from.0 == app {
                degrees[link.to.0].0 -= 1;
            }
            if link.to.0 == app {
                degrees[link.from.0].1 -= 1;
            }
        }
        sequence.push(app);
    }
    sequence
}

fn layer_of_each(network: &Diagram<'_>, sequence: &[usize]) -> Vec<usize> {
    let mut turn = vec![0; sequence.len()];
    for (place, app) in sequence.iter().enumerate() {
        turn[*app] = place;
    }
    let forward = |link: &&super::DiagramLink| turn[link.from.0] < turn[link.to.0];
    let mut layer = vec![0; sequence.len()];
    for &app in sequence {
        for link in network.links.iter().filter(forward).filter(|link| link.from.0 == app) {
            layer[link.to.0] = layer[link.to.0].max(layer[app] + 1);
        }
    }
    // An app that sends and receives nothing stands as near as it can to those that it sends to.
    for &app in sequence.iter().rev() {
        let mut links = network.links.iter().filter(forward);
        if links.clone().any(|link| link.to.0 == app) {
            continue;
        }
        let nearest = links.by_ref().filter(|link| link.from.0 == app).map(|link| layer[link.to.0]).min();
        layer[app] = nearest.map_or(0, |nearest| nearest - 1);
    }
    layer
}

/// The number of times that all layers are sorted, to and fro.
const SWEEPS: usize = 12;

/// Returns the best order found.
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

/// Puts the start and end of a link that leads back just below the apps that it links.
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
    /// Returns the position of a segment's end on its item, from 0 (top) to 1.
    fn part(&self, (item, port): (usize, Option<usize>), of_inputs: bool) -> f64 {
        let Some((port, app)) = port.zip(self.0.apps.get(item)) else { return 0.5 };
        let count = if of_inputs { app.inputs.len() } else { app.outputs.len() };
        (port as f64 + 0.5) / count as f64
    }
}

/// Returns the places of the ends of all segments, within their layers.
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

/// Sorts one layer by the means of its neighbours' places; an item without neighbours keeps its own place.
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

/// Puts a link that leads back within one layer below its app again, as it has no neighbours to be sorted by.
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

/// Pixels of an app above its first port.
pub const HEAD: f64 = 48.0;
/// Pixels between two ports of an app.
pub const ROW: f64 = 18.0;
/// Pixels of an app below its last port's middle.
const FOOT: f64 = 14.0;
/// Pixels that a link takes in a layer that it passes.
const BEND: f64 = 8.0;
/// Pixels between two apps.
const GAP: f64 = 26.0;
/// Pixels between a link that passes and the items above and below.
const GAP_BEND: f64 = 10.0;
/// The number of times that all layers are placed, to and fro.
const HEIGHT_SWEEPS: usize = 16;
/// The weight of straightness where a link passes a layer, relative to its ends.
const WEIGHT_BEND: f64 = 6.0;

/// Returns the middles of all items, by number. The topmost item's upper edge is at 0.
pub fn heights(network: &Diagram<'_>, layers: &Layers) -> Vec<f64> {
    let tall: Vec<_> = layers.items.iter().map(|item| height(network, *item)).collect();
    let mut middles = vec![0.0; tall.len()];
    for layer in &layers.layers {
        place(layer, &layers.items, &tall, &vec![(0.0, 1.0); layer.len()], &mut middles);
    }
    for sweep in 0..HEIGHT_SWEEPS {
        for step in 0..layers.layers.len() {
            let to_right = sweep % 2 == 0;
            let layer = &layers.layers[if to_right { step } else { layers.layers.len() - 1 - step }];
            // In the last sweeps all neighbours count: an app stands between those on its left and right.
            let both = sweep + 2 >= HEIGHT_SWEEPS;
            let wanted = wanted(network, layers, layer, &middles, both || to_right, both || !to_right);
            place(layer, &layers.items, &tall, &wanted, &mut middles);
        }
    }
    let top = middles.iter().zip(&tall).map(|(middle, tall)| middle - tall / 2.0);
    let top = top.min_by(f64::total_cmp).unwrap_or(0.0);
    middles.iter().map(|middle| middle - top).collect()
}

/// Returns the height of an item in pixels.
pub fn height(network: &Diagram<'_>, item: Stands) -> f64 {
    match item {
        Stands::App(app) => height_of_app(&network.apps[app]),
        Stands::Bend(_) => BEND,
    }
}

/// Returns the distance from an app's upper edge to the middle of a port.
pub fn port(place: usize) -> f64 {
    HEAD + ROW * (place as f64 + 0.5)
}

fn height_of_app(app: &DiagramApp<'_>) -> f64 {
    let rows = app.inputs.len().max(app.outputs.len());
    HEAD + ROW * rows as f64 + if rows == 0 { 0.0 } else { FOOT - ROW / 2.0 }
}

/// Returns the best places of the items of a layer, and their weights.
fn wanted(
    network: &Diagram<'_>,
    layers: &Layers,
    layer: &[usize],
    middles: &[f64],
    by_left: bool,
    by_right: bool,
) -> Vec<(f64, f64)> {
    let mut sums = vec![(0.0, 0.0); middles.len()];
    let offset = |(item, place): (usize, Option<usize>)| match place {
        Some(place) => port(place) - height(network, layers.items[item]) / 2.0,
        None => 0.0,
    };
    for segment in layers.segments(network) {
        let (left, right) = (segment.left, segment.right);
        let bends = [left, right].iter().filter(|end| end.1.is_none()).count();
        let weight = WEIGHT_BEND.powi(bends as i32);
        let mut want = |item: usize, at: f64| {
            sums[item].0 += weight * at;
            sums[item].1 += weight;
        };
        let between = offset(left) - offset(right);
        if by_left {
            want(right.0, middles[left.0] + between);
        }
        if by_right {
            want(left.0, middles[right.0] - between);
        }
    }
    let wanted = |item: &usize| match sums[*item] {
        // An item without neighbours stays, or stays near its app, and gives way.
        (_, 0.0) => match layers.app_beside(network, *item) {
            Some(app) => (middles[app] + height(network, layers.items[app]) / 2.0, 0.01),
            None => (middles[*item], 0.01),
        },
        (sum, weight) => (sum / weight, weight),
    };
    layer.iter().map(wanted).collect()
}

/// Sets the middles of a layer's items so that the weighted sum of squares of their distances from the wanted
/// places is least and no items overlap: isotonic regression, by pooling neighbours that violate the order.
fn place(layer: &[usize], items: &[Stands], tall: &[f64], wanted: &[(f64, f64)], middles: &mut [f64]) {
    let mut below = Vec::with_capacity(layer.len());
    let mut down = 0.0;
    for (place, item) in layer.iter().enumerate() {
        if let Some(above) = place.checked_sub(1).map(|above| layer[above]) {
            let apps = [above, *item].iter().all(|item| matches!(items[*item], Stands::App(_)));
            down += (tall[above] + tall[*item]) / 2.0 + if apps { GAP } else { GAP_BEND };
        }
        below.push(down);
    }
    // Each pool: the mean of the places that its items want, less their distance below the first item.
    let mut pools: Vec<(f64, f64, usize)> = Vec::new();
    for ((at, weight), below) in wanted.iter().zip(&below) {
        let mut pool = (at - below, *weight, 1);
        while let Some(&above) = pools.last().filter(|above| above.0 > pool.0) {
            pools.pop();
            let weight = above.1 + pool.1;
            pool = ((above.0 * above.1 + pool.0 * pool.1) / weight, weight, above.2 + pool.2);
        }
        pools.push(pool);
    }
    let firsts = pools.iter().flat_map(|pool| std::iter::repeat_n(pool.0, pool.2));
    for ((item, first), below) in layer.iter().zip(firsts).zip(&below) {
        middles[*item] = first + below;
    }
}
