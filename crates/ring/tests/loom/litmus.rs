//! One question each, to the last interleaving. No bell is needed: what a side was told is looked at when both have ended.

use std::sync::atomic::Ordering;

use caravan_ring::{ByteConsumer, ByteProducer, ConsumerCursor, Cursors, ProducerCursor, SharedWord, Wake};
use loom::thread;

use crate::world::{Fault, ModelBytes, ModelCursors, explore};

/// The kernel's barrier has many steps of its own, so there the switches are limited.
fn bound(fault: Fault) -> Option<usize> {
    fault.is_asymmetric().then_some(4)
}

fn cursors(fault: Fault, capacity: u64) -> (ProducerCursor<ModelCursors>, ConsumerCursor<ModelCursors>) {
    let (ours, theirs) = ModelCursors::pair(fault);
    (ProducerCursor::new(ours, capacity), ConsumerCursor::new(theirs, capacity))
}

/// A consumer that found nothing and sleeps, and a producer that published meanwhile: the consumer
/// saw it, or the producer was told to ring.
pub fn a_sleeping_consumer_is_belled(fault: Fault) {
    explore(bound(fault), move || {
        let (mut producer, mut consumer) = cursors(fault, 4);
        let producing = thread::spawn(move || {
            producer.commit(1);
            producer.publish()
        });
        let waits = consumer.sleep().unwrap();
        let wake = producing.join().unwrap();
        if waits {
            assert_eq!(wake, Wake::Bell, "lost wake-up of the consumer");
        } else {
            assert_eq!(consumer.available(), 1);
        }
    });
}

/// A producer that found no room and waits, and a consumer that released meanwhile.
pub fn a_blocked_producer_is_belled(fault: Fault) {
    explore(bound(fault), move || {
        let (mut producer, mut consumer) = cursors(fault, 2);
        producer.commit(2);
        let _ = producer.publish();
        let consuming = thread::spawn(move || {
            consumer.refresh().unwrap();
            let quiet = consumer.release(1);
            (quiet, consumer.release(1))
        });
        let waits = producer.wait_for_room(2).unwrap();
        let (early, wake) = consuming.join().unwrap();
        assert_eq!(early, Wake::Quiet, "woken for less room than it asked for");
        if waits {
            assert_eq!(wake, Wake::Bell, "lost wake-up of the producer");
        } else {
            assert_eq!(producer.used(), 0);
        }
    });
}

/// A consumer that sleeps once and then wakes by itself, against a producer that publishes twice:
/// of the one time that the flag was set, one side at most takes it back.
pub fn one_bell_for_each_sleep(fault: Fault) {
    explore(bound(fault), move || {
        let (mut producer, mut consumer) = cursors(fault, 4);
        consumer.shared().consumer_asleep().store(1, Ordering::Relaxed);
        let producing = thread::spawn(move || {
            let mut bells = 0;
            for _ in 0..2 {
                producer.commit(1);
                bells += usize::from(producer.publish() == Wake::Bell);
            }
            bells
        });
        let took_back = usize::from(consumer.wake());
        let bells = producing.join().unwrap();
        assert_eq!(bells + took_back, 1, "bells of one sleep");
        assert_eq!(consumer.shared().consumer_asleep().load(Ordering::Acquire), 0, "nobody sleeps any more");
    });
}

/// The same for a producer that stops waiting for room.
pub fn one_bell_for_each_wait(fault: Fault) {
    explore(bound(fault), move || {
        let (mut producer, mut consumer) = cursors(fault, 2);
        producer.commit(2);
        let _ = producer.publish();
        consumer.refresh().unwrap();
        producer.shared().producer_wants().store(1, Ordering::Relaxed);
        let consuming = thread::spawn(move || {
            let first = consumer.release(1);
            [first, consumer.release(1)].iter().filter(|wake| **wake == Wake::Bell).count()
        });
        let took_back = usize::from(producer.stop_waiting());
        let bells = consuming.join().unwrap();
        assert_eq!(bells + took_back, 1, "bells of one wait");
        assert_eq!(producer.shared().producer_wants().load(Ordering::Acquire), 0, "nobody waits any more");
    });
}

/// What is published has been written.
pub fn no_byte_is_seen_before_it_is_written(fault: Fault) {
    explore(bound(fault), move || {
        let ((ours, theirs), bytes) = (ModelCursors::pair(fault), ModelBytes::new(2));
        let mut producer = ByteProducer::new(ours, bytes.clone());
        let mut consumer = ByteConsumer::new(theirs, bytes);
        let producing = thread::spawn(move || {
            assert_eq!(producer.append(&[1, 2]).unwrap(), 2);
            let _ = producer.publish();
        });
        let mut seen = [0; 2];
        consumer.refresh().unwrap();
        let count = consumer.read(&mut seen);
        assert!(count == 0 || seen == [1, 2], "unwritten bytes were seen");
        producing.join().unwrap();
    });
}

/// What is released has been read.
pub fn no_unread_byte_is_overwritten(fault: Fault) {
    explore(bound(fault), move || {
        let ((ours, theirs), bytes) = (ModelCursors::pair(fault), ModelBytes::new(2));
        let mut producer = ByteProducer::new(ours, bytes.clone());
        let mut consumer = ByteConsumer::new(theirs, bytes);
        assert_eq!(producer.append(&[1, 2]).unwrap(), 2);
        let _ = producer.publish();
        consumer.refresh().unwrap();
        let producing = thread::spawn(move || {
            let count = producer.append(&[3, 4]).unwrap();
            let _ = producer.publish();
            count
        });
        let mut seen = [0; 1];
        consumer.read(&mut seen);
        assert_eq!(seen, [1], "an unread byte was overwritten");
        let _ = consumer.release();
        consumer.read(&mut seen);
        assert_eq!(seen, [2], "an unread byte was overwritten");
        assert!(producing.join().unwrap() <= 1, "more was claimed than was free");
    });
}

#[test]
fn consumer_sleeps() {
    a_sleeping_consumer_is_belled(Fault::None);
    a_sleeping_consumer_is_belled(Fault::Asymmetric);
}

#[test]
fn producer_waits() {
    a_blocked_producer_is_belled(Fault::None);
    a_blocked_producer_is_belled(Fault::Asymmetric);
}

#[test]
fn consumer_wakes_by_itself() {
    one_bell_for_each_sleep(Fault::None);
}

#[test]
fn producer_stops_waiting() {
    one_bell_for_each_wait(Fault::None);
}

#[test]
fn publish_and_poll() {
    no_byte_is_seen_before_it_is_written(Fault::None);
}

#[test]
fn release_and_claim() {
    no_unread_byte_is_overwritten(Fault::None);
}
