//! What the models leave out: a ring that is handed over, and a kernel that refuses the barrier.

use std::sync::atomic::{AtomicU64, Ordering};

use caravan_ring::{ByteConsumer, ByteProducer, Cursors, MappedCursors, Wake};

use crate::{Producer, byte_ring};

#[test]
fn a_successor_goes_on_behind_what_was_published() {
    let (mut producer, mut consumer) = byte_ring(16);
    producer.append(b"whole").unwrap();
    assert_eq!(producer.publish(), Wake::Quiet);
    producer.append(b"half").unwrap();
    let (cursors, bytes) = (producer.position().shared().clone(), producer.bytes().clone());
    drop(producer);
    let mut successor = Producer::resume(cursors.clone(), bytes.clone()).unwrap();
    assert!(successor.append_whole([b" and ", b"more"]).unwrap());
    assert!(!successor.append_whole([b"too much"]).unwrap(), "what was read so far is known");
    assert_eq!(successor.publish(), Wake::Quiet);
    let mut all = [0; 16];
    consumer.refresh().unwrap();
    let length = consumer.read(&mut all);
    assert_eq!(&all[..length], b"whole and more");

    cursors.head_position().store(1000, Ordering::Relaxed);
    assert!(Producer::resume(cursors, bytes).is_err(), "a consumer that is ahead");
}

/// Words of a ring where the kernel refuses the barrier.
#[derive(Clone, Debug)]
struct Refused(MappedCursors);

impl Cursors for Refused {
    type Word = AtomicU64;
    fn tail_position(&self) -> &AtomicU64 {
        self.0.tail_position()
    }
    fn head_position(&self) -> &AtomicU64 {
        self.0.head_position()
    }
    fn consumer_asleep(&self) -> &AtomicU64 {
        self.0.consumer_asleep()
    }
    fn producer_wants(&self) -> &AtomicU64 {
        self.0.producer_wants()
    }
    fn fence(&self) {
        self.0.fence();
    }
    fn sleep_fence(&self) -> bool {
        false
    }
}

#[test]
fn nobody_sleeps_where_the_barrier_is_refused() {
    let (producer, _consumer) = byte_ring(8);
    let (cursors, bytes) = (Refused(producer.position().shared().clone()), producer.bytes().clone());
    let mut consumer = ByteConsumer::new(cursors.clone(), bytes.clone());
    let mut producer = ByteProducer::new(cursors.clone(), bytes);
    assert!(!consumer.cursor().sleep().unwrap());
    producer.append(b"01234567").unwrap();
    assert_eq!(producer.publish(), Wake::Quiet, "it does not say that it sleeps");
    assert!(!producer.cursor().wait_for_room(4).unwrap());
    assert_eq!(cursors.producer_wants().load(Ordering::Relaxed), 0);
}
