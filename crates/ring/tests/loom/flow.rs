//! Both rings from end to end: two threads, a bell each, more data than the ring holds. A side that
//! sleeps and is never belled is a deadlock, which loom reports.

use caravan_ring::{ByteConsumer, ByteProducer, SlotConsumer, SlotProducer, Wake};
use loom::thread;

use crate::kernel::Presence;
use crate::world::{Bell, Fault, ModelBytes, ModelCursors, ModelSlots, explore};

/// Sends `stream` through a ring of `capacity` bytes, a publish for each `batch` bytes.
pub fn bytes(
    fault: Fault,
    capacity: usize,
    stream: &'static [u8],
    batch: usize,
    preemptions: usize,
) -> usize {
    explore(Some(preemptions), move || {
        let ((ours, theirs), data) = (ModelCursors::pair(fault), ModelBytes::new(capacity));
        let (producer_waits, consumer_waits) = (ours.presence(), theirs.presence());
        let mut producer = ByteProducer::new(ours, data.clone());
        let mut consumer = ByteConsumer::new(theirs, data);
        let (to_consumer, to_producer) = (Bell::new(), Bell::new());
        let (consumer_bell, producer_bell) = (to_consumer.clone(), to_producer.clone());
        let producing = thread::spawn(move || {
            for piece in stream.chunks(batch) {
                let mut sent = 0;
                while sent < piece.len() {
                    let count = producer.append(&piece[sent..]).unwrap();
                    if count > 0 && producer.publish() == Wake::Bell {
                        consumer_bell.ring();
                    }
                    sent += count;
                    if count == 0 && producer.cursor().wait_for_room(1).unwrap() {
                        wait(fault, &producer_waits, &producer_bell);
                    }
                    assert!(producer.position().invariants());
                }
            }
        });
        let mut seen = Vec::new();
        while seen.len() < stream.len() {
            if consumer.refresh().unwrap() == 0 && consumer.cursor().sleep().unwrap() {
                wait(fault, &consumer_waits, &to_consumer);
            }
            let mut some = [0; 2];
            let count = consumer.read(&mut some);
            seen.extend_from_slice(&some[..count]);
            if consumer.release() == Wake::Bell {
                to_producer.ring();
            }
            assert!(consumer.position().invariants());
        }
        assert_eq!(seen, stream);
        producing.join().unwrap();
    })
}

/// Sends the items `1..=count` through a ring of `capacity` slots.
pub fn slots(fault: Fault, capacity: usize, count: u32, preemptions: usize) -> usize {
    explore(Some(preemptions), move || {
        let ((ours, theirs), data) = (ModelCursors::pair(fault), ModelSlots::new(capacity));
        let (producer_waits, consumer_waits) = (ours.presence(), theirs.presence());
        let mut producer = SlotProducer::new(ours, data.clone());
        let mut consumer = SlotConsumer::new(theirs, data);
        let (to_consumer, to_producer) = (Bell::new(), Bell::new());
        let (consumer_bell, producer_bell) = (to_consumer.clone(), to_producer.clone());
        let producing = thread::spawn(move || {
            for item in 1..=count {
                while !producer.push(item).unwrap() {
                    if producer.cursor().wait_for_room(1).unwrap() {
                        wait(fault, &producer_waits, &producer_bell);
                    }
                }
                if producer.publish() == Wake::Bell {
                    consumer_bell.ring();
                }
            }
        });
        let mut expected = 1;
        while expected <= count {
            let each = |item| {
                assert_eq!(item, expected, "another item than the next one");
                expected += 1;
            };
            let (found, wake) = consumer.drain(2, each).unwrap();
            if wake == Wake::Bell {
                to_producer.ring();
            }
            if found == 0 && consumer.cursor().sleep().unwrap() {
                wait(fault, &consumer_waits, &to_consumer);
            }
        }
        producing.join().unwrap();
    })
}

fn wait(fault: Fault, presence: &Presence, bell: &Bell) {
    if fault.is_asymmetric() { presence.away(|| bell.wait()) } else { bell.wait() }
}

#[test]
fn a_stream_where_only_the_sleeper_fences() {
    thorough(bytes(Fault::Asymmetric, 2, &[1, 2, 3], 1, 2));
}

/// A model that explored next to nothing would pass too.
fn thorough(interleavings: usize) {
    assert!(interleavings > 1_000, "only {interleavings} interleavings");
}

#[test]
fn a_stream_through_a_ring_of_two_bytes() {
    thorough(bytes(Fault::None, 2, &[1, 2, 3, 4], 1, 3));
}

#[test]
fn a_stream_in_pieces_larger_than_the_ring() {
    thorough(bytes(Fault::None, 2, &[1, 2, 3, 4, 5], 5, 3));
}

#[test]
fn items_through_a_ring_of_two_slots() {
    thorough(slots(Fault::None, 2, 4, 3));
}

#[test]
fn items_through_a_ring_of_one_slot() {
    thorough(slots(Fault::None, 1, 3, 3));
}
