//! Apps move between workers while packets pass, or wait for a consumer that takes none: no packet is lost,
//! duplicated or overtaken.
//!
//! Every app here checks the room before it sends, and takes its state along. CARAVAN_MOVES sets the number of moves.

use std::time::{Duration, Instant};

use caravan_engine::layout::LinkMode;
use caravan_engine::{App, AppError, Config, Engine, EngineEvent, EngineOptions, Io, Registry};
use serde_json::json;

use crate::random::Random;

/// The number of moves, unless CARAVAN_MOVES sets it.
const MOVES: u64 = 400;
/// How long the rest of the packets may take to arrive.
const PATIENCE: Duration = Duration::from_secs(60);
const WORKERS: [&str; 3] = ["a", "b", "c"];
const APPS: [(&str, &str); 4] =
    [("numbers", "numbers"), ("first", "join"), ("second", "join"), ("checker", "numbers")];
const LINKS: [&str; 3] =
    ["numbers.output -> first.input", "first.output -> second.input", "second.output -> checker.input"];

/// Decodes the number in an app's state.
fn known(state: Option<Vec<u8>>) -> u64 {
    state.map_or(0, |state| u64::from_le_bytes(state.try_into().expect("eight bytes")))
}

/// Sends packets numbered from 0 to its output, or expects them in order at its input.
struct Numbers {
    next: u64,
    config: NumbersConfig,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NumbersConfig {
    /// The number to stop before; without it, the app goes on.
    end: Option<u64>,
    /// True to take no packets.
    stalls: bool,
}

impl App for Numbers {
    type Config = NumbersConfig;

    fn start(config: NumbersConfig, state: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self { next: known(state), config })
    }

    fn pull(&mut self, io: &mut Io) {
        let left = self.config.end.map_or(64, |end| end.saturating_sub(self.next).min(64));
        io.generate(0, left as usize, |packet| {
            packet.append(&self.next.to_le_bytes());
            self.next += 1;
        });
    }

    fn push(&mut self, io: &mut Io) {
        if self.config.stalls {
            return;
        }
        while let Some(packet) = io.receive(0) {
            // A worker that panics is a crash, which the test does not allow.
            assert_eq!(packet.data(), self.next.to_le_bytes(), "the next packet is number {}", self.next);
            self.next += 1;
            io.free(packet);
        }
    }

    fn stop(&mut self, _: &mut Io) -> Option<Vec<u8>> {
        Some(self.next.to_le_bytes().to_vec())
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("next", self.next)]
    }
}

fn config(places: &[usize], modes: &[LinkMode], end: Option<u64>, stalls: bool) -> Config {
    let mut config = Config::new();
    for ((name, kind), place) in APPS.into_iter().zip(places) {
        let own = match kind {
            "numbers" => json!({ "end": end, "stalls": stalls }),
            _ => json!(null),
        };
        config.app_in(WORKERS[*place], name, kind, own);
    }
    for (link, mode) in LINKS.into_iter().zip(modes) {
        config.link_by(link, *mode).unwrap();
    }
    config
}

fn poll(engine: &mut Engine, time: Duration) {
    engine.run_for(time, |event| assert!(matches!(event, EngineEvent::Grown { .. }), "{event:?}")).unwrap();
}

fn next(engine: &mut Engine, app: &str) -> u64 {
    engine.reports().unwrap()[app]["next"]
}

/// Moves apps at random.
pub fn run() {
    let moves =
        std::env::var("CARAVAN_MOVES").map_or(MOVES, |moves| moves.parse().expect("a number of moves"));
    let seed = Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id()) << 20 | 1;
    println!("moves: {moves}, seed {seed}");
    let mut rng = Random(seed);
    let mut registry = Registry::standard();
    registry.add::<Numbers>("numbers");
    let mut engine = Engine::start(registry, EngineOptions::default()).unwrap();
    let (mut places, mut modes) = ([0; APPS.len()], [LinkMode::Swap; LINKS.len()]);
    engine.configure(&config(&places, &modes, None, false)).unwrap();
    for number in 0..moves {
        // Towards the end the checker takes nothing, and all links fill.
        let stalls = number >= moves - moves / 8;
        places[rng.below(APPS.len() as u64) as usize] = rng.below(WORKERS.len() as u64) as usize;
        if rng.once_in(4) {
            modes[rng.below(LINKS.len() as u64) as usize] =
                if rng.once_in(2) { LinkMode::Copy } else { LinkMode::Swap };
        }
        let changes = engine.configure(&config(&places, &modes, None, stalls)).unwrap();
        assert_eq!(changes.lost, 0);
        poll(&mut engine, Duration::from_micros(rng.below(3000)));
    }
    let end = next(&mut engine, "numbers") + 10_000;
    engine.configure(&config(&places, &modes, Some(end), false)).unwrap();
    let start = Instant::now();
    while next(&mut engine, "checker") < end {
        assert!(start.elapsed() < PATIENCE, "{} of {end} have arrived", next(&mut engine, "checker"));
        poll(&mut engine, Duration::from_millis(5));
    }
    println!("moves: {end} packets arrived once each, in order");
    engine.stop().unwrap();
}
