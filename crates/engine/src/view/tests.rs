//! Reads valid and invalid engine memory.

use std::sync::atomic::Ordering;

use caravan_ring::{Cursors, Slots};

use super::fake::Fake;
use super::*;
use crate::layout::{self, DropReason, LinkMode, LinkRing, WorkerStage, WorkerState, link, worker};
use crate::owner::{Owner, PacketHeader};

/// The JSON keys of a worker and a link, which other programs read.
const WORKER_KEYS: &str = "breath breaths breaths_per_s busy_part core drops drops_per_s free_packets \
    idle_breaths_per_s name pid restarts skipped sleeps_per_s stage state wanted_packets";
const LINK_KEYS: &str = "bits_per_s bytes drops drops_per_s empty from_worker full mode name packets \
    packets_per_s parked queued taken to_worker tracer waiting";

fn keys(object: &serde_json::Value) -> String {
    let mut keys: Vec<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys.join(" ")
}

#[test]
fn a_snapshot_has_every_word_and_two_of_them_have_rates() {
    let fake = Fake::new(10);
    let (left, right) = (fake.worker(3, "left", 77), fake.worker(1, "right", 78));
    let wire = fake.link(5, "a.output -> b.input", left, right);
    let local = fake.link(6, "b.output -> c.input", right, right);
    fake.start();
    let set = |word: &std::sync::atomic::AtomicU64, value| word.store(value, Ordering::Relaxed);
    set(fake.shared.worker(left, worker::STAGE), WorkerStage::Pushing as u64);
    set(fake.shared.worker(left, worker::CORE), 2);
    set(fake.shared.worker(left, worker::BREATHS), 100);
    set(fake.shared.worker(left, worker::HISTOGRAM + 8 * layout::bucket(100)), 100);
    set(fake.shared.worker(right, worker::STATE), WorkerState::Parked as u64);
    set(fake.shared.worker(right, worker::RESTARTS), 3);
    set(fake.shared.link(wire, link::COPY), 1);
    set(fake.shared.link(wire, link::PACKETS), 1000);
    let (cursors, slots) = fake.shared.ring(wire, LinkRing::Full).unwrap();
    set(cursors.tail_position(), 1100);
    set(cursors.head_position(), 1000);
    assert!(slots.capacity() >= 100);

    let mut before = Snapshot::read(&fake.found()).unwrap();
    assert_eq!(before.owners, Owners::default());
    assert_eq!((before.packets, before.packets_max, before.huge_pages), (10, 20, false));
    set(fake.shared.worker(left, worker::BREATHS), 150);
    set(fake.shared.worker(left, worker::BUSY_NS), 1_000_000_000);
    set(fake.shared.worker(left, worker::HISTOGRAM + 8 * layout::bucket(5000)), 50);
    set(fake.shared.worker(left, worker::DROPS + 8 * DropReason::Full as usize), 8);
    set(fake.shared.link(wire, link::PACKETS), 5000);
    set(fake.shared.link(wire, link::BYTES), 4000 * 60);
    set(fake.shared.link(wire, link::DROPS), 8);
    let mut now = Snapshot::read(&fake.found()).unwrap();
    (before.at_ns, now.at_ns, now.started_ns) = (1_000_000_000, 5_000_000_000, 0);

    let view = EngineView::between(&before, &now);
    assert_eq!((view.interval_seconds, view.uptime_seconds), (4.0, 5.0));
    let [first, second] = &view.workers[..] else { panic!("{view:?}") };
    assert_eq!(
        (first.now.name.as_str(), first.now.pid, first.now.core, first.now.stage),
        ("left", 77, Some(1), Some(WorkerStage::Pushing))
    );
    assert_eq!((first.breaths_per_s, first.busy_part, first.now.restarts), (Some(12.5), Some(0.25), 0));
    assert_eq!(
        (first.breath.count, layout::bucket(first.breath.p50_ns)),
        (50, layout::bucket(5000)),
        "of this interval"
    );
    assert_eq!(
        (first.now.drops[DropReason::Full as usize], &first.drops_per_s["full"], first.drops_per_s.len()),
        (8, &2.0, 1)
    );
    assert_eq!(
        (second.now.name.as_str(), second.now.state, second.now.restarts),
        ("right", Some(WorkerState::Parked), 3)
    );

    let [wire_view, local_view] = &view.links[..] else { panic!("{view:?}") };
    assert_eq!((wire_view.packets_per_s, wire_view.bits_per_s), (Some(1000.0), Some(8.0 * 60_000.0)));
    assert_eq!(
        (wire_view.drops_per_s, wire_view.now.full, wire_view.now.mode),
        (Some(2.0), 100, Some(LinkMode::Copy))
    );
    assert_eq!(
        (wire_view.from_worker.as_deref(), wire_view.to_worker.as_deref()),
        (Some("left"), Some("right"))
    );
    assert_eq!((local_view.now.mode, local_view.from_worker.as_deref()), (None, Some("right")));

    let json = serde_json::to_value(&view).unwrap();
    assert_eq!(keys(&json["workers"][0]), WORKER_KEYS);
    assert_eq!(keys(&json["links"][0]), LINK_KEYS);
    assert_eq!(json["workers"][0]["drops"], serde_json::json!({"full": 8}));
    assert_eq!((&json["links"][0]["mode"], &json["links"][1]["mode"]), (&"copy".into(), &().into()));

    // The worker was started again and has other counts; the link came meanwhile.
    set(fake.shared.worker(left, worker::BREATHS), 1);
    fake.link(7, "d.output -> c.second", left, right);
    set(fake.shared.link(local, link::STATE), 0);
    let view = EngineView::between(&now, &Snapshot::read(&fake.found()).unwrap());
    assert_eq!(view.workers[0].breaths_per_s, None);
    assert_eq!((view.links.len(), view.links[1].packets_per_s), (2, None));
}

#[test]
fn every_packet_is_counted_under_one_owner() {
    let fake = Fake::new(12);
    let (left, right) = (fake.worker(0, "left", 1), fake.worker(1, "right", 2));
    let wire = fake.link(0, "a.output -> b.input", left, right);
    fake.start();
    let gone = |place| crate::owner::LinkId::new(place).unwrap();
    let owners = [
        Owner::Worker(left),
        Owner::Worker(left),
        Owner::Worker(right),
        Owner::Full(wire),
        Owner::Full(wire),
        Owner::Empty(wire),
        Owner::Parked(wire),
        Owner::Full(gone(9)),
        Owner::Parked(gone(9)),
    ];
    for (index, owner) in owners.into_iter().enumerate() {
        fake.packet(index as u32, PacketHeader::used(owner, 100, 60));
    }
    fake.packet(9, PacketHeader(0xbfff));
    let mut snapshot = Snapshot::read(&fake.found()).unwrap();
    snapshot.count_owners(&fake.found()).unwrap();
    let owners = snapshot.owners;
    assert_eq!((owners.total(), owners.pool, owners.impossible), (12, 2, 1), "{owners:?}");
    assert_eq!((owners.workers["left"], owners.workers["right"]), (2, 1));
    let name = "a.output -> b.input";
    assert_eq!((owners.full[name], owners.empty[name], owners.parked[name]), (2, 1, 1));
    assert_eq!(owners.lost["link 9"], 2);
}

#[test]
fn nonsense_is_figures_at_most() {
    let fake = Fake::new(4);
    let id = fake.worker(0, "evil\u{1b}[2J", 1);
    let wire = fake.link(0, "a.output -> b.input", id, id);
    fake.start();
    let slice = fake.segment.slice(0, layout::PACKETS_AT as u64).unwrap();
    let name = fake.shared.memory().part(layout::worker_at(id) as u64 + 64, 64).unwrap();
    let mut text = [0; 64];
    name.copy_out(0, &mut text);
    for at in (0..layout::PACKETS_AT).step_by(8) {
        slice.word(at).store(u64::MAX, Ordering::Relaxed);
    }
    name.copy_in(0, &text);
    fake.start();
    let set = |word: &std::sync::atomic::AtomicU64, value| word.store(value, Ordering::Relaxed);
    set(fake.shared.engine(layout::engine::PACKET_COUNT), 4);
    let (cursors, _) = fake.shared.ring(wire, LinkRing::Full).unwrap();
    set(cursors.head_position(), 5);
    let mut snapshot = Snapshot::read(&fake.found()).unwrap();
    snapshot.count_owners(&fake.found()).unwrap();
    assert_eq!((snapshot.owners.total(), snapshot.links.len()), (4, crate::limits::LINKS_MAX));
    assert_eq!((snapshot.workers[0].name.as_str(), snapshot.workers[0].state), ("evil\\u{1b}[2J", None));
    assert_eq!((snapshot.links[0].full, snapshot.links[1].full), (crate::limits::RING_PACKETS as u64, 0));
    let view = EngineView::between(&snapshot, &snapshot);
    assert!(serde_json::to_string(&view).is_ok());

    set(fake.shared.engine(layout::engine::PACKET_COUNT), u64::MAX);
    let mut snapshot = Snapshot::read(&fake.found()).unwrap();
    let refused = snapshot.count_owners(&fake.found()).unwrap_err().to_string();
    assert!(refused.contains("ended") || refused.contains("pread"), "{refused}");
}
