use proptest::prelude::*;

use super::layers::{Layers, Stands};
use super::*;

fn network_of(links: &[&str]) -> Config {
    let mut config = Config::new();
    for link in links {
        config.link(link).expect("a link");
    }
    let apps: Vec<_> =
        config.links.keys().flat_map(|link| [link.from.app.clone(), link.to.app.clone()]).collect();
    for app in apps {
        config.app(&app, "kind", ());
    }
    config
}

/// Returns the names of each layer, top to bottom, with a dot for each link that passes.
fn layers_of(config: &Config) -> Vec<Vec<String>> {
    let network = Diagram::of(config);
    let layers = layers::ordered(&network, Layers::of(&network));
    let name = |item: &usize| match layers.items[*item] {
        Stands::App(app) => network.apps[app].name.to_owned(),
        Stands::Bend(_) => ".".to_owned(),
    };
    layers.layers.iter().map(|layer| layer.iter().map(name).collect()).collect()
}

#[test]
fn each_app_stands_right_of_those_that_send_to_it() {
    for (links, expected) in [
        (&[][..], &[][..]),
        (&["a.o -> b.i", "b.o -> c.i"], &["a", "b", "c"]),
        // A link passes b. Nothing sends to c, so c stands near the app that it sends to.
        (&["a.o -> b.i", "b.o -> d.i", "a.p -> d.j", "c.o -> d.k"], &["a", "b . c", "d"]),
        // Crossed names, but uncrossed places.
        (&["a.o -> z.i", "b.o -> y.i"], &["a b", "z y"]),
        // A link leads back past b.
        (&["a.o -> b.i", "b.o -> c.i", "c.o -> a.i"], &["a .", "b .", "c ."]),
        // A link from an app to itself.
        (&["a.o -> a.i", "a.p -> b.i"], &["a .", "b"]),
        // Links both ways, with the middle app in the middle.
        (&["l.o -> m.l", "m.l -> l.i", "r.o -> m.r", "m.r -> r.i"], &["l .", "m . .", "r ."]),
    ] {
        let layers: Vec<_> = layers_of(&network_of(links)).iter().map(|layer| layer.join(" ")).collect();
        assert_eq!(layers, expected, "{links:?}");
    }
}

#[test]
fn what_is_aligned_is_drawn_straight() {
    let config = network_of(&["a.o -> b.i", "b.o -> c.i", "b.p -> d.i"]);
    let network = Diagram::of(&config);
    let layers = layers::ordered(&network, Layers::of(&network));
    let heights = layers::heights(&network, &layers);
    let [a, b, c, d] = [0, 1, 2, 3].map(|app| heights[app]);
    // Ports of apps of different heights are at the same height below the upper edge.
    let top = |app: usize, middle: f64| middle - layers::height(&network, Stands::App(app)) / 2.0;
    assert!((top(0, a) - top(1, b)).abs() < 1.0, "{heights:?}");
    assert!(c < b && b < d, "{heights:?}");
}

/// Checks elements and attributes as XML wants them, enough to see that text stays text.
fn is_well_formed(svg: &str) -> bool {
    let mut open = Vec::new();
    let mut rest = svg;
    while let Some((text, after)) = rest.split_once('<') {
        if text.replace("&lt;", "").replace("&gt;", "").replace("&amp;", "").contains(['&', '>'])
            && open.last() != Some(&"style")
        {
            return false;
        }
        let Some((tag, after)) = after.split_once('>') else { return false };
        match (tag.strip_prefix('/'), tag.strip_suffix('/')) {
            (Some(name), _) if open.pop() == Some(name) => {}
            (Some(_), _) => return false,
            (None, Some(_)) => {}
            (None, None) => open.push(tag.split([' ', '\n']).next().unwrap_or_default()),
        }
        rest = after;
    }
    open.is_empty() && rest == "\n"
}

#[test]
fn everything_is_drawn_and_named() {
    let mut config = network_of(&["a.out -> b.in1", "b.back -> a.in2"]);
    config.app_in("left", "a", "source", ()).core("left", 3);
    config.link_by("a.more -> c.in", LinkMode::Copy).expect("a link");
    let svg = svg(&config);
    assert!(is_well_formed(&svg), "{svg}");
    for expected in [
        ">a</text>",
        ">source in left</text>",
        ">left (core 3)</text>",
        ">main</text>",
        ">not there</text>",
        ">in1</text>",
        ">out</text>",
        "<path class=\"link far copy\"",
        "<title>a.out -&gt; b.in1</title>",
        ">between workers</text>",
        ">packets are copied</text>",
        "@media (prefers-color-scheme: dark)",
    ] {
        assert!(svg.contains(expected), "{expected}: {svg}");
    }
    assert!(!svg.contains("within a worker"), "no such link is there");
    assert_eq!(svg, super::svg(&config.clone()), "the same each time");
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-e]", 1 => "[<>&\"']{1,4}", 1 => any::<String>()]
}

proptest! {
    // Each case draws a whole picture, without optimization.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any network gives a picture with everything in it, within its frame, whose text is text.
    #[test]
    fn any_network_is_drawn(
        apps in prop::collection::vec((name(), name()), 0..8),
        links in prop::collection::vec((name(), name(), name(), name()), 0..20),
    ) {
        let mut config = Config::new();
        for (worker, app) in &apps {
            config.app_in(worker, app, "kind", ());
        }
        for (a, b, c, d) in links {
            let (from, to) = (super::super::AppPort { app: a, port: b }, super::super::AppPort { app: c, port: d });
            config.links.insert(super::super::LinkName { from, to }, LinkMode::Swap);
        }
        let svg = svg(&config);
        prop_assert!(is_well_formed(&svg), "{svg}");
        prop_assert_eq!(svg.matches("<title>").count(), config.links.len());
        prop_assert_eq!(svg.matches("class=\"text name\"").count(), Diagram::of(&config).apps.len());
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        prop_assert!(!svg.contains(|letter: char| letter.is_control() && letter != '\n'));

        let network = Diagram::of(&config);
        let layers = layers::ordered(&network, Layers::of(&network));
        let heights = layers::heights(&network, &layers);
        for layer in &layers.layers {
            for pair in layer.windows(2) {
                let room = (layers::height(&network, layers.items[pair[0]])
                    + layers::height(&network, layers.items[pair[1]])) / 2.0;
                prop_assert!(heights[pair[1]] - heights[pair[0]] >= room, "{layers:?} {heights:?}");
            }
        }
        let mut standing: Vec<_> = layers.layers.concat();
        standing.sort_unstable();
        prop_assert_eq!(standing, (0..layers.items.len()).collect::<Vec<_>>());
    }
}
