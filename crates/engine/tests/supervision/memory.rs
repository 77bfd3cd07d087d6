//! Packets: memory for more of them.

use caravan_engine::limits::GRANT_PACKETS;
use caravan_engine::{Engine, Options};
use caravan_segment::Pages;
use rustix::process::Signal;

use crate::{engine, flows, pair, poll_until, signal};

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
