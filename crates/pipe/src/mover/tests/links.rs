//! Hops over links: mapped memory, and a network that keeps no more than it has promised.

use caravan_fabric::sim::{Faults, Faulty, Network};
use caravan_fabric::{Link, shm};
use proptest::prelude::*;

use super::*;

const RING_BYTES: u64 = 64 << 10;
const FAULTS: Faults =
    Faults { full: 5, short_poll: 5, empty_look: 5, empty_wake: 5, end_at_call: 0, unmapped: false };

fn over(link: Link) -> DataConnection {
    DataConnection {
        channel: DataChannel::Link(Box::new(link)),
        secret: Secret([5; 32]),
        description: "a test".into(),
    }
}

/// Both ends of a hop through mapped memory.
fn mapped() -> (DataConnection, DataConnection) {
    let arena_bytes = Link::mapped_arena_bytes(RING_BYTES).expect("a size");
    let (listener, descriptor) = shm::Listener::listen(arena_bytes).expect("a doorway");
    let near = shm::connect(&descriptor).expect("connected");
    let far = listener.accept().expect("accepted");
    let link = |end| over(Link::new(Box::new(end), RING_BYTES).expect("a link"));
    (link(near), link(far))
}

/// Both ends of a hop over a simulated network, and the network.
fn simulated(seed: u64, faults: Faults) -> (DataConnection, DataConnection, Arc<Network>, JoinHandle<()>) {
    let arena_bytes = Link::arena_bytes(RING_BYTES).expect("a size");
    let (network, near, far) =
        Network::pair(seed, arena_bytes, Network::capabilities(seed)).expect("a network");
    let network = Arc::new(network);
    let carried = Arc::clone(&network);
    let carrier = std::thread::spawn(move || carried.carry());
    let near = Link::new(Box::new(Faulty::new(near, faults, seed)), RING_BYTES).expect("a link");
    let far = Link::new(Box::new(Faulty::new(far, FAULTS, !seed)), RING_BYTES).expect("a link");
    (over(near), over(far), network, carrier)
}

fn through(
    (near, far): (DataConnection, DataConnection),
    data: &[u8],
    options: &HopOptions,
) -> [MoverOutcome; 2] {
    let (inlet, feed) = fed();
    let (outlet, drain) = drained();
    let sender = Running::start(inlet, vec![to_hop(near, options)], MoverOptions::default());
    let receiver = Running::start(from_hop(far, options), vec![outlet], MoverOptions::default());
    let feeder = feeding(feed, data);
    assert!(all_of(drain) == data);
    feeder.join().expect("no panic");
    [sender.join(), receiver.join()]
}

#[test]
fn streams_arrive_through_mapped_memory() {
    for bytes in [0, 1, BLOCK as usize, 5 << 20] {
        for sealed in [false, true] {
            let options = HopOptions { sealed, ..OPTIONS };
            let outcomes = through(mapped(), &pattern(bytes), &options);
            assert!(outcomes.iter().all(is_complete), "{outcomes:?}");
        }
    }
}

#[test]
fn a_link_s_other_end_may_stop_or_idle() {
    let (near, far) = mapped();
    let (inlet, mut feed) = fed();
    let (outlet, mut drain) = drained();
    let sender = Running::start(inlet, vec![to_hop(near, &OPTIONS)], MoverOptions::default());
    let receiver = Running::start(from_hop(far, &OPTIONS), vec![outlet], MoverOptions::default());
    feed.write_all(b"y\n").expect("written");
    drain.read_exact(&mut [0; 2]).expect("read");
    // Nobody says that it is alive here, and nobody has to.
    std::thread::sleep(SILENCE * 3 / 2);
    drop(drain);
    for outcome in [sender.join(), receiver.join()] {
        assert!(matches!(outcome.inlet, Ok(InletEnd::Unread)), "{outcome:?}");
        assert!(matches!(outcome.outlets[..], [Ok(OutletEnd::Stopped)]), "{outcome:?}");
    }
}

#[test]
fn a_busy_link_is_stopped_and_a_full_one_ends_when_it_is_told_to() {
    let zeros = || MoverInlet::Descriptor(std::fs::File::open("/dev/zero").expect("opened").into());
    let ((near, far), (outlet, mut drain)) = (mapped(), drained());
    let sender = Running::start(zeros(), vec![to_hop(near, &OPTIONS)], MoverOptions::default());
    let receiver = Running::start(from_hop(far, &OPTIONS), vec![outlet], MoverOptions::default());
    drain.read_exact(&mut [1; 70_000]).expect("read");
    drop(drain);
    for outcome in [sender.join(), receiver.join()] {
        assert!(matches!(outcome.inlet, Ok(InletEnd::Unread)), "{outcome:?}");
    }
    let (near, _far) = mapped();
    let sender = Running::start(zeros(), vec![to_hop(near, &OPTIONS)], MoverOptions::default());
    // It looks up now and then while there is no room.
    while sender.gauge.read()[3] == 0 {
        std::thread::yield_now();
    }
    sender.cancel.fire();
    assert!(matches!(sender.join().inlet, Err(Error::Cancelled)));
}

#[test]
fn several_outlets_share_a_stream_over_links() {
    let ((near, far), (next, last)) = (mapped(), mapped());
    let (inlet, feed) = fed();
    let ((outlet_a, drain_a), (outlet_b, drain_b)) = (drained(), drained());
    let first = Running::start(inlet, vec![to_hop(near, &OPTIONS)], MoverOptions::default());
    let outlets = vec![outlet_a, to_hop(next, &OPTIONS)];
    let middle = Running::start(from_hop(far, &OPTIONS), outlets, MoverOptions::default());
    let end = Running::start(from_hop(last, &OPTIONS), vec![outlet_b], MoverOptions::default());
    let data = pattern(2 << 20);
    let feeder = feeding(feed, &data);
    let got = [drain_a, drain_b].map(|drain| std::thread::spawn(|| all_of(drain)));
    assert!(got.into_iter().all(|got| got.join().expect("no panic") == data));
    let outcomes = [first.join(), middle.join(), end.join()];
    assert!(outcomes.iter().all(is_complete), "{outcomes:?}");
    feeder.join().expect("no panic");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn streams_arrive_over_any_network(seed in any::<u64>(), bytes in 0_usize..300_000, sealed in any::<bool>()) {
        let (near, far, _network, carrier) = simulated(seed, FAULTS);
        let outcomes = through((near, far), &pattern(bytes), &HopOptions { sealed, ..OPTIONS });
        prop_assert!(outcomes.iter().all(is_complete), "{outcomes:?}");
        carrier.join().expect("no panic");
    }

    #[test]
    fn a_network_that_ends_cuts_the_stream_off(seed in any::<u64>(), end_at_call in 1_u64..2000) {
        let (near, far, _network, carrier) = simulated(seed, Faults { end_at_call, ..FAULTS });
        let (inlet, feed) = fed();
        let (outlet, drain) = drained();
        let sender = Running::start(inlet, vec![to_hop(near, &OPTIONS)], MoverOptions::default());
        let receiver = Running::start(from_hop(far, &OPTIONS), vec![outlet], MoverOptions::default());
        let data = pattern(3 << 20);
        let feeder = feeding(feed, &data);
        let got = std::thread::spawn(|| all_of(drain));
        let (sent, received) = (sender.join(), receiver.join());
        let is_whole = is_complete(&received);
        drop(received);
        let got = got.join().expect("no panic");
        prop_assert!(data.starts_with(&got));
        prop_assert!(is_whole || matches!(sent.outlets[..], [Err(Error::Truncated { .. })]), "{sent:?}");
        feeder.join().expect("no panic");
        carrier.join().expect("no panic");
    }
}
