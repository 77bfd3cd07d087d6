//! Two connections over shared memory, with an emulator of the test's own.

use crate::node::{self, node_and_stranger, nodes, pair};
use caravan_driver::Error;
use caravan_driver::connection::{Next, RecordCounts};
use caravan_driver::limits::{LATE_NS, LATE_SPELL_NS_MIN};
use caravan_fabric::Link;
use proptest::prelude::*;

/// Returns a message that no header interpretation changes: it begins with bytes that the emulator would judge.
fn plain(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|i| if i == 0 { 1 } else { seed.wrapping_mul(31).wrapping_add(i as u8) }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Messages of any sizes, in both directions at once, through a ring smaller than many of them, with the turns
    /// taken in any order.
    #[test]
    fn messages_arrive_whole_and_in_order(
        steps in proptest::collection::vec((0u8..4, prop_oneof![1usize..200, 1usize..40_000]), 1..120),
        sealed in any::<bool>(),
    ) {
        let (mut a, mut b) = pair(sealed, 16 << 10, 8 << 10);
        let (mut to_b, mut to_a) = (Vec::new(), Vec::new());
        for (i, (what, length)) in steps.into_iter().enumerate() {
            let message = plain(i as u8, length);
            match what {
                0 if !a.emulator.busy => { a.send(&message).unwrap(); to_b.push(message); }
                1 if !b.emulator.busy => { b.send(&message).unwrap(); to_a.push(message); }
                2 => a.settle().unwrap(),
                _ => b.settle().unwrap(),
            }
            prop_assert!(a.emulator.queue.len() < (8 << 10) + 40_100, "the queue outgrows its limit");
        }
        while !a.emulator.queue.is_empty() || !b.emulator.queue.is_empty() {
            a.settle().unwrap();
            b.settle().unwrap();
        }
        a.settle().unwrap();
        b.settle().unwrap();
        prop_assert!(!a.emulator.busy && !b.emulator.busy);
        prop_assert_eq!(&b.emulator.delivered, &to_b);
        prop_assert_eq!(&a.emulator.delivered, &to_a);
        prop_assert_eq!(a.connection.records(), RecordCounts { received: to_a.len() as u64, sent: to_b.len() as u64 });
    }

    /// Bytes that a peer puts into the ring are delivered to the emulator, which judges them, or end
    /// the link with an error; nothing panics, and memory stays within the announced size.
    #[test]
    fn a_hostile_stream_ends_in_an_error_or_in_messages(
        bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(131), Just(68), Just(69), Just(70), any::<u8>()], 0..1000),
        cut in 1usize..300,
    ) {
        let (mut node, mut stranger) = node_and_stranger(64 << 10);
        node.emulator.memory = Some(1 << 20);
        for piece in bytes.chunks(cut) {
            prop_assert_eq!(stranger.append(piece).unwrap(), piece.len());
            stranger.publish().unwrap();
            if node.settle().is_err() {
                break;
            }
        }
    }
}

#[test]
fn a_busy_port_is_freed_when_the_peer_has_taken_enough() {
    let (mut a, mut b) = nodes(4 << 10, 16 << 10);
    for i in 0..40 {
        a.send(&plain(i, 1000)).unwrap();
    }
    assert!(a.emulator.busy);
    assert!(b.connection.row(&b.emulator, 0).value(1) == 0);
    while a.emulator.busy {
        b.settle().unwrap();
        a.settle().unwrap();
    }
    node::flow(&mut a, &mut b);
    assert_eq!(b.emulator.delivered.len(), 40);
    assert!(b.emulator.delivered.iter().enumerate().all(|(i, m)| *m == plain(i as u8, 1000)));
}

#[test]
fn nothing_is_read_before_the_node_is_up() {
    let (a, b) = Link::pair(4096).unwrap();
    let row = caravan_driver::counters::row("b@test", "a@test").unwrap();
    let mut early = caravan_driver::connection::Connection::new(b, row, caravan_fabric::SpinMode::Off, 4096);
    let mut emulator = node::TestEmulator::default();
    let mut peer = a;
    peer.append(&[2, 0, 0, 0, 7, 8]).unwrap();
    peer.publish().unwrap();
    early.poll(&mut emulator, 1).unwrap();
    early.bell(&mut emulator, 2).unwrap();
    assert!(emulator.delivered.is_empty());
    early.start();
    early.poll(&mut emulator, 3).unwrap();
    assert_eq!(emulator.delivered, [vec![7, 8]]);
}

#[test]
fn a_stream_goes_on_without_a_poller_that_comes_late() {
    let (mut a, mut b) = nodes(1 << 20, 1 << 20);
    let mut stream = |b: &mut node::Node, callback: bool, now: u64| {
        while a.emulator.queue.is_empty() {
            a.send(&plain(1, 50_000)).unwrap();
        }
        let next = match callback {
            false => b.connection.poll(&mut b.emulator, now).unwrap(),
            true => b.connection.bell(&mut b.emulator, now).unwrap(),
        };
        a.settle().unwrap();
        next
    };
    let mut now = b.now;
    assert_eq!(stream(&mut b, false, now), Next::Poll);
    now += LATE_NS / 2;
    assert_eq!(stream(&mut b, false, now), Next::Poll, "it came in time");
    now += LATE_NS;
    assert_eq!(stream(&mut b, false, now), Next::Ring);
    for _ in 0..10 {
        now += LATE_NS;
        assert_eq!(stream(&mut b, true, now), Next::Ring, "nobody waits for the poller");
    }
    now += LATE_SPELL_NS_MIN;
    assert_eq!(stream(&mut b, true, now), Next::Poll, "it gets another chance");
    assert_eq!(stream(&mut b, true, now), Next::Armed, "it has been called");
    now += LATE_NS;
    assert_eq!(stream(&mut b, false, now), Next::Ring);
    now += LATE_SPELL_NS_MIN;
    assert_eq!(stream(&mut b, true, now), Next::Ring, "now for twice as long");
    now += LATE_SPELL_NS_MIN;
    assert_eq!(stream(&mut b, true, now), Next::Poll);
}

#[test]
fn a_sender_whose_poller_comes_late_waits_for_the_bell() {
    let (mut a, mut b) = nodes(4 << 10, 1 << 20);
    a.settle().unwrap();
    assert_eq!(a.send(&plain(1, 5000)).unwrap(), Next::Poll, "the poller is called for the rest");
    a.now += LATE_NS;
    a.settle().unwrap();
    while !a.emulator.queue.is_empty() {
        b.settle().unwrap();
        a.connection.bell(&mut a.emulator, a.now).unwrap();
    }
    assert_eq!(a.send(&plain(2, 5000)).unwrap(), Next::Armed, "the bell says when there is room");
    b.settle().unwrap();
    assert!(bell_has_rung(&mut a), "nobody said so");
    a.connection.bell(&mut a.emulator, a.now).unwrap();
    b.settle().unwrap();
    assert_eq!(b.emulator.delivered, [plain(1, 5000), plain(2, 5000)]);
}

fn bell_has_rung(node: &mut node::Node) -> bool {
    let bell = node.connection.link().wait_fd().unwrap();
    let mut polled = [rustix::event::PollFd::new(&bell, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap() > 0
}

#[test]
fn ticks_count_and_are_not_delivered() {
    for sealed in [false, true] {
        let (mut a, mut b) = pair(sealed, 4096, 4096);
        a.connection.tick(&mut a.emulator).unwrap();
        b.settle().unwrap();
        assert!(b.emulator.delivered.is_empty());
        assert_eq!(
            (a.connection.records(), b.connection.records()),
            (RecordCounts { received: 0, sent: 1 }, RecordCounts { received: 1, sent: 0 })
        );
    }
}

#[test]
fn what_was_sent_before_the_end_is_delivered() {
    let (mut a, mut b) = nodes(4096, 4096);
    for i in 0..10 {
        a.send(&plain(i, 100)).unwrap();
    }
    drop(a);
    b.connection.drain(&mut b.emulator).unwrap();
    assert_eq!(b.emulator.delivered.len(), 10);
}

/// Ports that close with a full queue read no more, but both must come to rest.
fn both_close_with_full_rings(mut a: node::Node, mut b: node::Node) {
    for i in 0..30 {
        a.send(&plain(i, 1000)).unwrap();
        b.send(&plain(i, 1000)).unwrap();
    }
    a.connection.flush(&mut a.emulator, 1).unwrap();
    assert!(!a.emulator.queue.is_empty(), "there was room for everything");
    while !a.emulator.queue.is_empty() || !b.emulator.queue.is_empty() {
        let before = a.emulator.queue.len() + b.emulator.queue.len();
        b.connection.flush(&mut b.emulator, 1).unwrap();
        a.connection.flush(&mut a.emulator, 1).unwrap();
        assert!(a.emulator.queue.len() + b.emulator.queue.len() < before, "they wait for each other");
    }
    assert!(a.emulator.delivered.is_empty() && b.emulator.delivered.is_empty());
}

#[test]
fn both_sides_close_with_full_rings() {
    for sealed in [false, true] {
        let (a, b) = pair(sealed, 4 << 10, 16 << 10);
        both_close_with_full_rings(a, b);
    }
}

#[test]
fn an_absurd_length_is_refused_by_name() {
    let (mut node, mut stranger) = node_and_stranger(4096);
    stranger.append(&[0xff; 8]).unwrap();
    stranger.publish().unwrap();
    let error = node.settle().unwrap_err();
    assert!(matches!(error, Error::TooLong(_)));
    assert!(error.to_string().contains("4294967295"), "{error}");
}

#[test]
fn a_message_that_does_not_fit_into_memory_is_an_error_with_its_size() {
    let (mut node, mut stranger) = node_and_stranger(4096);
    node.emulator.memory = Some(10_000);
    stranger.append(&[0, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]).unwrap();
    stranger.publish().unwrap();
    assert_eq!(node.settle().unwrap_err().to_string(), "no memory for a message of 65536 bytes");
}
