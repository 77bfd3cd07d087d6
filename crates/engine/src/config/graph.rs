//! Draws a configuration: apps from left to right in the direction of packets, in the colours of their
//! workers, and links with the names of their ports.
//!
//! The layout is of the layered kind (Sugiyama, Tagawa and Toda 1981) in its simplest form: cycles are
//! broken by leaving out few links, each app stands right of all that send to it, links that pass a
//! layer get a place in it, orders are sorted by means of neighbours, and heights are as near to
//! neighbours' as the order allows. The same configuration gives the same picture, byte for byte.

mod draw;
mod layers;

use std::collections::BTreeMap;

use super::Config;
use crate::layout::LinkMode;

/// Returns the picture as the text of an SVG file, light or dark as its viewer prefers. It needs only a font
/// of fixed width. It also draws configurations that [`check`](super::check) would refuse: an app that a link
/// names and that does not exist is an empty box.
pub fn svg(config: &Config) -> String {
    let network = Diagram::of(config);
    let layers = layers::Layers::of(&network);
    let layers = layers::ordered(&network, layers);
    let heights = layers::heights(&network, &layers);
    draw::svg(config, &network, &layers, &heights)
}

/// The apps and links of a configuration by number, in the order of their names.
#[derive(Debug)]
struct Diagram<'a> {
    apps: Vec<DiagramApp<'a>>,
    links: Vec<DiagramLink>,
}

#[derive(Debug)]
struct DiagramApp<'a> {
    name: &'a str,
    /// Its kind and worker; none if the app does not exist.
    is: Option<(&'a str, &'a str)>,
    /// The names of the inputs that are linked.
    inputs: Vec<&'a str>,
    outputs: Vec<&'a str>,
}

#[derive(Clone, Copy, Debug)]
struct DiagramLink {
    /// The app, and the place among the app's outputs.
    from: (usize, usize),
    /// The app, and the place among the app's inputs.
    to: (usize, usize),
    copies: bool,
}

impl<'a> Diagram<'a> {
    fn of(config: &'a Config) -> Self {
        let mut named: BTreeMap<&str, DiagramApp<'a>> = BTreeMap::new();
        let is_there = |name| config.apps.get(name).map(|app| (app.kind.as_str(), app.worker.as_str()));
        let blank = |name| DiagramApp { name, is: is_there(name), inputs: Vec::new(), outputs: Vec::new() };
        for name in config.apps.keys() {
            named.insert(name, blank(name));
        }
        for link in config.links.keys() {
            let (from, to) = (&link.from, &link.to);
            named.entry(&from.app).or_insert_with(|| blank(&from.app)).outputs.push(&from.port);
            named.entry(&to.app).or_insert_with(|| blank(&to.app)).inputs.push(&to.port);
        }
        for app in named.values_mut() {
            for ports in [&mut app.inputs, &mut app.outputs] {
                ports.sort_unstable();
                ports.dedup();
            }
        }
        let apps: Vec<_> = named.into_values().collect();
        let number = |name: &str| apps.partition_point(|app| app.name < name);
        let place = |ports: &[&str], port: &str| ports.partition_point(|other| *other < port);
        let link = |(name, mode): (&super::LinkName, &LinkMode)| {
            let (from, to) = (number(&name.from.app), number(&name.to.app));
            DiagramLink {
                from: (from, place(&apps[from].outputs, &name.from.port)),
                to: (to, place(&apps[to].inputs, &name.to.port)),
                copies: *mode == LinkMode::Copy,
            }
        };
        let links = config.links.iter().map(link).collect();
        Self { apps, links }
    }
}

#[cfg(test)]
mod tests;
