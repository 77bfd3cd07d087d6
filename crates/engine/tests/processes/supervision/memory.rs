//! Packets: memory for more of them, and engines with the fewest packets.

use caravan_engine::limits::{GRANT_PACKETS, PACKETS_DEFAULT};
use caravan_engine::{
    App, AppError, Config, Engine, EngineEvent, EngineOptions, Error, Io, Named, Packet, Restarts,
};
use caravan_segment::Pages;
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::json;

use super::{engine, flows, pair, poll_until, signal};

const CRASHES: usize = 2;

/// Holds the first packets that arrive, and as many empty ones as it can get, up to a limit for both.
pub struct Keeper {
    most: usize,
    held: Vec<Packet>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Most {
    most: usize,
}

impl App for Keeper {
    type Config = Most;
    const OUTPUTS: Named = Named::Only(&[]);

    fn start(config: Most, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self { most: config.most, held: Vec::new() })
    }

    fn pull(&mut self, io: &mut Io) {
        while io.inputs() == 0 && self.held.len() < self.most {
            let Some(packet) = io.allocate() else { return };
            self.held.push(packet);
        }
    }

    fn push(&mut self, io: &mut Io) {
        while let Some(packet) = io.receive(0) {
            match self.held.len() < self.most {
                true => self.held.push(packet),
                false => io.free(packet),
            }
        }
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("held", self.held.len() as u64)]
    }
}

fn options(packets_max: u32) -> EngineOptions {
    EngineOptions { packets_max, restarts: Restarts::Always, ..EngineOptions::default() }
}

pub fn crashes_of_a_consumer_do_not_starve_its_producer() {
    let mut engine = engine(options(2 * GRANT_PACKETS));
    let mut config = Config::new();
    config.app_in("left", "source", "source", json!({}));
    config.app_in("right", "keeper", "keeper", json!({ "most": 2 * GRANT_PACKETS }));
    config.link("source.output -> keeper.input").unwrap();
    engine.configure(&config).unwrap();
    let held =
        |engine: &mut Engine| engine.reports().unwrap().get("keeper").map_or(0, |figures| figures["held"]);
    for _ in 0..CRASHES {
        // The keeper has all of them, and owes half of them; the debt is forgotten when it dies.
        poll_until(&mut engine, |engine, _| held(engine) == u64::from(2 * GRANT_PACKETS));
        signal(&engine, "right", Signal::KILL);
        let restarted = |event: &EngineEvent| matches!(event, EngineEvent::Restarted { .. });
        poll_until(&mut engine, |_, events| events.iter().any(restarted));
    }
    poll_until(&mut engine, |engine, _| held(engine) > 0);
    engine.stop().unwrap();
}

pub fn too_few_packets_are_refused() {
    let mut config = Config::new();
    // The sink's worker is first by name, so it is given its packets first.
    config.app_in("b", "source", "source", json!({})).app_in("a", "highest", "highest", json!({}));
    config.link(super::LINK).unwrap();
    let mut short = engine(options(GRANT_PACKETS));
    let Err(Error::Refused(why)) = short.configure(&config) else { panic!("not refused") };
    assert_eq!(
        why,
        ["packets_max = 1024: 2 workers need at least 2048, 1024 each. Raise it, or have fewer workers"]
    );
    drop(short);
    let mut enough = engine(options(2 * GRANT_PACKETS));
    enough.configure(&config).unwrap();
    flows(&mut enough);
    enough.stop().unwrap();
}

pub fn a_shortage_is_told() {
    let mut engine = engine(options(3 * GRANT_PACKETS));
    let mut config = pair();
    config.app_in("bad", "keeper", "keeper", json!({ "most": PACKETS_DEFAULT }));
    engine.configure(&config).unwrap();
    let events = poll_until(&mut engine, |_, events| {
        events.iter().any(|event| matches!(event, EngineEvent::Short { .. }))
    });
    let told = events.iter().filter(|event| matches!(event, EngineEvent::Short { .. }));
    let expected = EngineEvent::Short {
        worker: "bad".into(),
        packets: 3 * GRANT_PACKETS,
        packets_max: 3 * GRANT_PACKETS,
    };
    assert_eq!(told.collect::<Vec<_>>(), [&expected]);
    // The other workers go on with the packets that they are sure of, and have all of them again after that.
    flows(&mut engine);
    engine.configure(&pair()).unwrap();
    flows(&mut engine);
    engine.stop().unwrap();
}

pub fn memory_grows_in_all_workers() {
    let mut engine = engine(EngineOptions::default());
    engine.configure(&pair()).unwrap();
    let at_fork = 2 * GRANT_PACKETS;
    // The link and both queues hold more than the first grants: the source asks for more.
    let highest = |engine: &mut Engine| engine.reports().unwrap()["highest"]["packet"];
    signal(&engine, "right", Signal::STOP);
    poll_until(&mut engine, |engine, _| engine.packets() > at_fork);
    signal(&engine, "right", Signal::CONT);
    poll_until(&mut engine, |engine, _| highest(engine) >= u64::from(at_fork));
    let right = engine.reports().unwrap();
    assert!(right["highest"]["sum"] > 0);
    engine.stop().unwrap();
}

pub fn huge_pages_are_a_wish() {
    let mut engine = engine(EngineOptions { pages: Pages::HugeIfOffered, ..EngineOptions::default() });
    engine.configure(&pair()).unwrap();
    flows(&mut engine);
    println!("pages: {:?}", engine.pages());
    engine.stop().unwrap();
}
