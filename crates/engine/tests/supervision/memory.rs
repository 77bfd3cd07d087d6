//! Packets: memory for more of them, and who holds them.

use caravan_engine::limits::GRANT_PACKETS;
use caravan_engine::{App, Engine, Io, Named, Options, Packet, Trouble};
use caravan_segment::Pages;
use rustix::process::Signal;
use serde::Deserialize;

use crate::{engine, flows, pair, poll_until, signal};

/// Holds the first packets that arrive, and as many empty ones as it can get, up to a number of both.
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

    fn start(config: Most, _: Option<Vec<u8>>) -> Result<Self, Trouble> {
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

pub fn memory_grows_in_all_workers() {
    let mut engine = engine(Options::default());
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
    let mut engine = engine(Options { pages: Pages::HugeIfOffered, ..Options::default() });
    engine.configure(&pair()).unwrap();
    flows(&mut engine);
    println!("pages: {:?}", engine.pages());
    engine.stop().unwrap();
}
