//! Writes a configuration as a graph in the DOT language, which Graphviz draws: apps from left to right in the
//! colours of their workers, and links with the names of their ports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use caravan_segment::printable;

use super::{AppPort, Config};
use crate::layout::LinkMode;

/// The style that SVG needs in order to follow a dark theme. It works on pictures of the graphs of [`dot`].
pub const STYLE_DARK: &str = "<style>@media (prefers-color-scheme: dark){\
    svg{background:#0d1117}text{fill:#e6edf3}.node polygon,.node path{fill-opacity:.25}\
    .edge path{stroke:#9da7b1}.edge polygon{fill:#9da7b1;stroke:#9da7b1}}</style>";

/// The first worker's hue, as a part of the colour circle.
const HUE_FIRST: f64 = 0.58;
/// The step from a worker's hue to the next one's: the golden angle keeps a hue away from those just before.
const HUE_STEP: f64 = 0.382;

/// The ports of an app that are linked.
#[derive(Default)]
struct LinkedPorts<'a> {
    inputs: BTreeSet<&'a str>,
    outputs: BTreeSet<&'a str>,
}

/// Returns the graph. It also has what [`check`](super::check) would refuse: an app that a link names and that does
/// not exist has a dashed frame. The same configuration gives the same text.
pub fn dot(config: &Config) -> String {
    let mut apps: BTreeMap<&str, LinkedPorts> =
        config.apps.keys().map(|name| (name.as_str(), LinkedPorts::default())).collect();
    for link in config.links.keys() {
        apps.entry(&link.from.app).or_default().outputs.insert(&link.from.port);
        apps.entry(&link.to.app).or_default().inputs.insert(&link.to.port);
    }
    let mut out = String::from(
        "digraph engine {\n  rankdir=LR; bgcolor=transparent; labelloc=t; fontname=monospace; ranksep=1;\n  \
         node [shape=record, style=\"rounded,filled\", fontname=monospace]; edge [color=\"#6e7781\"];\n",
    );
    let hue = |(number, worker)| (worker, (HUE_FIRST + HUE_STEP * number as f64).fract());
    let hues = config.workers_used().into_iter().enumerate().map(hue).collect();
    for (name, ports) in &apps {
        write_app(&mut out, config, &hues, name, ports);
    }
    let (mut crosses, mut copies) = (false, false);
    for (link, mode) in &config.links {
        let worker = |port: &AppPort| config.apps.get(&port.app).map(|app| &app.worker);
        let mut style = format!("tooltip={}", quoted(&link.to_string()));
        if worker(&link.from) != worker(&link.to) {
            crosses = true;
            style += ", penwidth=2.4";
        }
        if *mode == LinkMode::Copy {
            copies = true;
            style += ", style=dashed";
        }
        let (from, to) = (&link.from, &link.to);
        let end = |port: &AppPort, side, at| format!("{}:{}:{at}", quoted(&port.app), id(side, &port.port));
        // Writing into a String cannot fail, here and below.
        let _ = writeln!(out, "  {} -> {} [{style}];", end(from, "o", "e"), end(to, "i", "w"));
    }
    let legend = [(crosses, "thick: between workers"), (copies, "dashed: packets are copied")];
    let legend: Vec<_> = legend.into_iter().filter_map(|(is_there, text)| is_there.then_some(text)).collect();
    let _ = writeln!(out, "  label={};\n}}", quoted(&legend.join(", ")));
    out
}

fn write_app(out: &mut String, config: &Config, hues: &BTreeMap<&str, f64>, name: &str, ports: &LinkedPorts) {
    let (kind, style) = match config.apps.get(name) {
        Some(app) => {
            let core = config.workers.get(&app.worker).and_then(|worker| worker.core);
            let core = core.map_or(String::new(), |core| format!(" (core {core})"));
            let hue = hues.get(app.worker.as_str()).copied().unwrap_or(0.0);
            let colours = format!("color=\"{hue:.3} 0.55 0.65\", fillcolor=\"{hue:.3} 0.16 0.98\"");
            (format!("{} in {}{core}", app.kind, app.worker), colours)
        }
        None => ("not there".to_owned(), "color=\"#cf222e\", style=\"rounded,dashed\"".to_owned()),
    };
    let column = |side, names: &BTreeSet<&str>| {
        let fields = names.iter().map(|name| format!("<{}> {}", id(side, name), field(name)));
        fields.collect::<Vec<_>>().join("|")
    };
    let (inputs, outputs) = (column("i", &ports.inputs), column("o", &ports.outputs));
    let label = format!("{{{{{inputs}}}|{}\\n{}|{{{outputs}}}}}", field(name), field(&kind));
    let _ = writeln!(out, "  {} [label=\"{label}\", {style}];", quoted(name));
}

/// Returns the identifier of a port in its app's label, where only letters and digits are safe.
fn id(side: &str, port: &str) -> String {
    let bytes: String = port.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("{side}{bytes}")
}

/// Returns a text as a string of DOT. Characters that no terminal or XML file should get are shown by their codes.
fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text, "\\\""))
}

/// Returns a text as a part of a record's label, in which more characters have a meaning.
fn field(text: &str) -> String {
    escaped(text, "\\\"{}|<> ")
}

fn escaped(text: &str, special: &str) -> String {
    let mut out = String::new();
    for letter in printable(text).chars() {
        match letter {
            '&' => out += "&amp;",
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            letter => {
                out.extend(special.contains(letter).then_some('\\'));
                out.push(letter);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::check::tests::any_config;

    #[test]
    fn everything_is_drawn_and_named() {
        let mut config = Config::new();
        config.app_in("left", "a", "source", ()).core("left", 3).app("b", "kind", ());
        config
            .link("a.out -> b.in1")
            .unwrap()
            .link("b.back -> a.in2")
            .unwrap()
            .link("b.own -> b.own")
            .unwrap();
        config.link_by("a.more -> c.in", LinkMode::Copy).unwrap();
        let dot = dot(&config);
        for expected in [
            "|a\\nsource\\ in\\ left\\ (core\\ 3)|",
            "|b\\nkind\\ in\\ main|",
            "|c\\nnot\\ there|",
            "{{<i696e31> in1|<i6f776e> own}|",
            "\"a\":o6f7574:e -> \"b\":i696e31:w [tooltip=\"a.out -> b.in1\", penwidth=2.4];",
            "\"b\":o6f776e:e -> \"b\":i6f776e:w [tooltip=\"b.own -> b.own\"];",
            "[tooltip=\"a.more -> c.in\", penwidth=2.4, style=dashed];",
            "label=\"thick: between workers, dashed: packets are copied\";",
        ] {
            assert!(dot.contains(expected), "{expected}: {dot}");
        }
        assert_eq!(dot, super::dot(&config.clone()), "the same each time");
    }

    proptest! {
        /// Any network gives a graph with everything in it, whose text is text.
        #[test]
        fn any_network_is_drawn(config in any_config()) {
            let dot = dot(&config);
            prop_assert!(!dot.contains(|letter: char| letter.is_control() && letter != '\n'));
            let ends = config.links.keys().flat_map(|link| [&link.from.app, &link.to.app]);
            let apps: BTreeSet<_> = config.apps.keys().chain(ends).collect();
            // Outside of strings, there are as many nodes and edges as there should be.
            let bare = dot.replace("\\\\", "").replace("\\\"", "");
            let outside: String = bare.split('"').step_by(2).collect();
            prop_assert_eq!(outside.matches(" -> ").count(), config.links.len());
            prop_assert_eq!(outside.matches(" [label=").count(), apps.len());
            prop_assert_eq!(bare.matches('"').count() % 2, 0);
        }
    }
}
