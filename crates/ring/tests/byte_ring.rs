//! The byte ring, by example.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use caravan_ring::record::{LengthReader, prefix};
use caravan_ring::{ByteConsumer, ByteProducer, Cursors, HEADER_BYTES, MappedBytes, MappedCursors, Wake};
use caravan_segment::barrier::Fences;
use caravan_segment::{Pages, Segment};

type Producer = ByteProducer<MappedCursors, MappedBytes>;
type Consumer = ByteConsumer<MappedCursors, MappedBytes>;

fn ring(capacity: u64) -> (Producer, Consumer) {
    let bytes = HEADER_BYTES as u64 + capacity;
    let segment = Arc::new(Segment::create("caravan-test", bytes, Pages::Small).unwrap());
    segment.grow(bytes).unwrap();
    let slice = segment.slice(0, bytes).unwrap();
    let cursors = MappedCursors::new(&slice, Fences::Symmetric).unwrap();
    let data = MappedBytes::new(slice.part(HEADER_BYTES as u64, capacity).unwrap()).unwrap();
    (ByteProducer::new(cursors.clone(), data.clone()), ByteConsumer::new(cursors, data))
}

#[test]
fn nothing_is_seen_before_it_is_published() {
    let (mut producer, mut consumer) = ring(64);
    assert_eq!(producer.append(b"first").unwrap(), 5);
    assert_eq!(consumer.refresh().unwrap(), 0);
    assert_eq!(producer.publish(), Wake::Quiet);
    assert_eq!(consumer.refresh().unwrap(), 5);
}

#[test]
fn a_full_ring_takes_what_fits_and_more_after_a_release() {
    let (mut producer, mut consumer) = ring(8);
    assert_eq!(producer.append(b"0123456789").unwrap(), 8);
    assert_eq!(producer.append(b"89").unwrap(), 0);
    assert_eq!(producer.publish(), Wake::Quiet);
    let mut some = [0; 3];
    assert_eq!(consumer.refresh().unwrap(), 8);
    assert_eq!(consumer.read(&mut some), 3);
    assert_eq!(producer.append(b"89").unwrap(), 0, "read is not released");
    assert_eq!(consumer.release(), Wake::Quiet);
    assert_eq!(producer.append(b"89").unwrap(), 2);
    assert_eq!(producer.publish(), Wake::Quiet);
    let mut rest = [0; 8];
    consumer.refresh().unwrap();
    assert_eq!((consumer.read(&mut rest), &rest[..7]), (7, &b"3456789"[..]));
}

#[test]
fn a_successor_goes_on_behind_what_was_published() {
    let (mut producer, mut consumer) = ring(16);
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

#[test]
fn a_sleeper_is_woken_once() {
    let (mut producer, mut consumer) = ring(8);
    assert!(consumer.cursor().sleep().unwrap());
    producer.append(b"a").unwrap();
    assert_eq!(producer.publish(), Wake::Bell);
    producer.append(b"b").unwrap();
    assert_eq!(producer.publish(), Wake::Quiet);
    assert!(!consumer.cursor().sleep().unwrap(), "there is something to read");
}

#[test]
fn a_blocked_producer_is_woken_once_there_is_the_room_it_wants() {
    let (mut producer, mut consumer) = ring(8);
    producer.append(b"01234567").unwrap();
    assert_eq!(producer.publish(), Wake::Quiet);
    assert!(producer.cursor().wait_for_room(4).unwrap());
    consumer.refresh().unwrap();
    consumer.skip(3);
    assert_eq!(consumer.release(), Wake::Quiet);
    consumer.skip(1);
    assert_eq!(consumer.release(), Wake::Bell);
    consumer.skip(1);
    assert_eq!(consumer.release(), Wake::Quiet);
    assert!(!producer.cursor().wait_for_room(4).unwrap());
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
    let (producer, _consumer) = ring(8);
    let (cursors, bytes) = (Refused(producer.position().shared().clone()), producer.bytes().clone());
    let mut consumer = ByteConsumer::new(cursors.clone(), bytes.clone());
    let mut producer = ByteProducer::new(cursors.clone(), bytes);
    assert!(!consumer.cursor().sleep().unwrap());
    producer.append(b"01234567").unwrap();
    assert_eq!(producer.publish(), Wake::Quiet, "it does not say that it sleeps");
    assert!(!producer.cursor().wait_for_room(4).unwrap());
    assert_eq!(cursors.producer_wants().load(Ordering::Relaxed), 0);
}

#[test]
fn records_larger_than_the_ring_flow_through() {
    let (mut producer, mut consumer) = ring(16);
    let record: Vec<u8> = (0..100).collect();
    let stream = [&prefix(100)[..], &record, &prefix(0), &prefix(1), b"z"].concat();
    let (mut sent, mut seen, mut lengths) = (0, Vec::new(), Vec::new());
    let mut reader = LengthReader::new(100);
    let mut missing = 0;
    while sent < stream.len() || seen.len() < 101 {
        sent += producer.append(&stream[sent..]).unwrap();
        let _ = producer.publish();
        consumer.refresh().unwrap();
        while consumer.unread() > 0 {
            if missing == 0 {
                if let Some(length) = reader.next(&mut consumer).unwrap() {
                    lengths.push(length);
                    missing = length as usize;
                }
            } else {
                let mut piece = vec![0; missing];
                let got = consumer.read(&mut piece);
                seen.extend_from_slice(&piece[..got]);
                missing -= got;
            }
        }
        let _ = consumer.release();
        assert!(producer.position().invariants() && consumer.position().invariants());
    }
    assert_eq!(lengths, [100, 0, 1]);
    assert_eq!(seen, [&record[..], b"z"].concat());
}

#[test]
fn impossible_positions_are_named_and_refused() {
    let (mut producer, mut consumer) = ring(16);
    producer.append(b"0123").unwrap();
    let _ = producer.publish();
    consumer.refresh().unwrap();
    for tail in [3, 17, u64::MAX, 1 << 63] {
        producer.position().shared().tail_position().store(tail, Ordering::Relaxed);
        let error = consumer.refresh().unwrap_err();
        assert_eq!((error.cursor, error.value), ("tail_position", tail));
    }
    for head in [5, u64::MAX] {
        producer.position().shared().head_position().store(head, Ordering::Relaxed);
        let error = producer.claim(16).unwrap_err();
        assert_eq!((error.cursor, error.value), ("head_position", head));
    }
}
