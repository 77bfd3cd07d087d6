//! Which layer each app stands in, and the places that links take in the layers they pass.

use super::Diagram;

/// Something that stands in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// An app.
    App(usize),
    /// A link on its way past.
    Bend(usize),
}

/// Apps and bends, by layer from left to right and from top to bottom.
#[derive(Clone, Debug)]
pub struct Layers {
    /// What there is, by number; apps first, by their numbers.
    pub items: Vec<Stands>,
    /// Numbers of items.
    pub layers: Vec<Vec<usize>>,
    /// Each link's bends as it runs: to the right, or, where it closes a cycle, to the left.
    pub bends: Vec<Vec<usize>>,
    /// Whether a link runs to the left.
    pub is_back: Vec<bool>,
}

impl Layers {
    /// Puts every app right of those that send to it, as far as there are no cycles.
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

    /// The app beside which a bend stands, if it is one where a link that leads back starts or ends.
    pub fn app_beside(&self, network: &Diagram<'_>, item: usize) -> Option<usize> {
        let Stands::Bend(link) = self.items[item] else { return None };
        match (self.is_back[link], self.bends[link].as_slice()) {
            (true, [first, ..]) if *first == item => Some(network.links[link].from.0),
            (true, [.., last]) if *last == item => Some(network.links[link].to.0),
            _ => None,
        }
    }

    /// Pairs of neighbouring items, left and right, with the place of the link on each, as parts of the
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

/// A piece of a link between two items of neighbouring layers, each with the port if it is an app.
#[derive(Clone, Copy, Debug)]
pub struct LinkSegment {
    pub left: (usize, Option<usize>),
    pub right: (usize, Option<usize>),
}

/// All apps, so that few links lead back: what nothing sends to comes first; where all is in cycles,
/// what sends most and is sent least (Eades, Lin and Smyth 1993, but for sinks).
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
    // What sends, and is sent nothing, stands as near as it can to those that it sends to.
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
