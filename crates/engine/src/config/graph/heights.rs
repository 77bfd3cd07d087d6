//! How high each item stands: as near to its neighbours as the order within its layer allows.

use super::layers::{Layers, Stands};
use super::{Diagram, DiagramApp};

/// Pixels of an app above its first port.
pub const HEAD: f64 = 48.0;
/// Pixels between two ports of an app.
pub const ROW: f64 = 18.0;
/// Pixels of an app below its last port's middle.
const FOOT: f64 = 14.0;
/// Pixels that a link takes which passes a layer.
const BEND: f64 = 8.0;
/// Pixels between two apps.
const GAP: f64 = 26.0;
/// Pixels between a link that passes and what is above or below.
const GAP_BEND: f64 = 10.0;
/// Times that all layers are placed, to and fro.
const SWEEPS: usize = 16;
/// How much straighter a link shall be where it passes a layer than where it ends.
const WEIGHT_BEND: f64 = 6.0;

/// Middles of all items, by number. The topmost one's upper edge is at 0.
pub fn heights(network: &Diagram<'_>, layers: &Layers) -> Vec<f64> {
    let tall: Vec<_> = layers.items.iter().map(|item| height(network, *item)).collect();
    let mut middles = vec![0.0; tall.len()];
    for layer in &layers.layers {
        place(layer, &layers.items, &tall, &vec![(0.0, 1.0); layer.len()], &mut middles);
    }
    for sweep in 0..SWEEPS {
        for step in 0..layers.layers.len() {
            let to_right = sweep % 2 == 0;
            let layer = &layers.layers[if to_right { step } else { layers.layers.len() - 1 - step }];
            // In the end all neighbours count: an app stands between those on its left and right.
            let both = sweep + 2 >= SWEEPS;
            let wanted = wanted(network, layers, layer, &middles, both || to_right, both || !to_right);
            place(layer, &layers.items, &tall, &wanted, &mut middles);
        }
    }
    let top = middles.iter().zip(&tall).map(|(middle, tall)| middle - tall / 2.0);
    let top = top.min_by(f64::total_cmp).unwrap_or(0.0);
    middles.iter().map(|middle| middle - top).collect()
}

/// Pixels of an item.
pub fn height(network: &Diagram<'_>, item: Stands) -> f64 {
    match item {
        Stands::App(app) => height_of_app(&network.apps[app]),
        Stands::Bend(_) => BEND,
    }
}

/// How far below an app's upper edge the middle of a port is.
pub fn port(place: usize) -> f64 {
    HEAD + ROW * (place as f64 + 0.5)
}

fn height_of_app(app: &DiagramApp<'_>) -> f64 {
    let rows = app.inputs.len().max(app.outputs.len());
    HEAD + ROW * rows as f64 + if rows == 0 { 0.0 } else { FOOT - ROW / 2.0 }
}

/// Where the items of a layer would be best, and how much that counts.
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
        // Nobody asks: it stays, or stays near its app, and gives way.
        (_, 0.0) => match layers.app_beside(network, *item) {
            Some(app) => (middles[app] + height(network, layers.items[app]) / 2.0, 0.01),
            None => (middles[*item], 0.01),
        },
        (sum, weight) => (sum / weight, weight),
    };
    layer.iter().map(wanted).collect()
}

/// Sets the middles of a layer's items so that the weighted sum of squares of their distances from what is
/// wanted is least and none overlap: isotonic regression, by pooling neighbours that violate the order.
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
    // Each pool: the mean of what its items want, less how far below the first they stand.
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
