//! The network that runs while workers are killed: a row of three relays between two sources and two sinks, each
//! link doubled and in the other direction too, with branches to the side.
//!
//! ```text
//! left: source, rsink     w1: a, ra     w2: b, rb     w3: c, rc     right: sink, rsource
//!
//! source =s0,s1,s2=> a =s0,s1,s2=> b =s0,s1,s2=> c =s0,s1,s2=> sink
//! rsink <=s0,s1= ra <=s0,s1= rb <=s0,s1= rc <=s0,s1= rsource
//! a -side-> sidesink (w3)      b -side-> backsink (left)      hoarder (extra)
//! ```

use caravan_engine::Config;
use caravan_engine::layout::LinkMode;
use serde_json::json;

use super::apps::CHECKERS;
use crate::random::Random;

/// Workers that always exist.
pub const WORKERS: [&str; 5] = ["left", "w1", "w2", "w3", "right"];
/// The worker that comes and goes.
pub const EXTRA: &str = "extra";
/// The apps that check the packets that arrive, by number.
pub const SINKS: [&str; CHECKERS] = ["sink", "rsink", "sidesink", "backsink"];

/// One of the possible networks.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The worker of each relay.
    relays: [(&'static str, &'static str); 6],
    /// True if the row has its third link; the next two, for copying the second link and for the hoarder.
    third: bool,
    copied: bool,
    hoarder: bool,
    sources: bool,
}

impl Shape {
    /// Returns the network of the picture.
    pub fn first() -> Self {
        let relays = [("a", "w1"), ("b", "w2"), ("c", "w3"), ("ra", "w1"), ("rb", "w2"), ("rc", "w3")];
        Self { relays, third: true, copied: true, hoarder: true, sources: true }
    }

    /// Returns the same network without the app that takes all the packets that there may be.
    pub fn steady(mut self) -> Self {
        self.hoarder = false;
        self
    }

    /// Returns another network: some relays move, some links come and go.
    pub fn changed(mut self, rng: &mut Random) -> Self {
        let moved = rng.below(self.relays.len() as u64) as usize;
        for place in [moved, rng.below(6) as usize] {
            // There are nearly always three workers in a row.
            self.relays[place].1 = match rng.below(8) {
                0 => "left",
                1 => "right",
                other => ["w1", "w2", "w3"][other as usize % 3],
            };
        }
        // Each of the three has an app, or it would end: only `extra` may end.
        for (place, worker) in ["w1", "w2", "w3"].into_iter().enumerate() {
            if !self.relays.iter().any(|(_, at)| *at == worker) {
                self.relays[place].1 = worker;
                self.relays[place + 3].1 = worker;
            }
        }
        self.third ^= rng.once_in(3);
        self.copied ^= rng.once_in(3);
        self.hoarder ^= rng.once_in(4);
        self
    }

    /// Returns the same network without apps that make packets.
    pub fn draining(mut self) -> Self {
        (self.sources, self.hoarder) = (false, false);
        self
    }

    /// Returns the network as a configuration.
    pub fn config(&self) -> Config {
        let mut config = Config::new();
        if self.sources {
            config.app_in("left", "source", "stamper", json!({ "number": 0 }));
            config.app_in("right", "rsource", "stamper", json!({ "number": 4 }));
        }
        let workers = ["right", "left", "w3", "left"];
        for ((number, name), worker) in SINKS.into_iter().enumerate().zip(workers) {
            config.app_in(worker, name, "checker", json!({ "number": number }));
        }
        // An app stays there, so that the worker does not end.
        config.app_in("left", "anchor", "checker", json!({ "number": 0 }));
        for (name, worker) in self.relays {
            config.app_in(worker, name, "relay", json!({ "number": 0 }));
        }
        if self.hoarder {
            config.app_in(EXTRA, "hoarder", "hoarder", json!({ "number": 20_000 }));
        }
        let mut row = |apps: &[&str], streams: &[&str]| {
            for pair in apps.windows(2).filter(|pair| self.sources || !pair[0].ends_with("source")) {
                for stream in streams {
                    let mode = if *stream == "s1" && self.copied { LinkMode::Copy } else { LinkMode::Swap };
                    config.link_by(&format!("{}.{stream} -> {}.{stream}", pair[0], pair[1]), mode).unwrap();
                }
            }
        };
        row(&["source", "a", "b", "c", "sink"], if self.third { &["s0", "s1", "s2"] } else { &["s0", "s1"] });
        row(&["rsource", "rc", "rb", "ra", "rsink"], &["s0", "s1"]);
        config.link("a.side -> sidesink.input").unwrap().link("b.side -> backsink.input").unwrap();
        config
    }
}
