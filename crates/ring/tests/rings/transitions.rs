//! The table of changes at the head of `cursor.rs`, run: each of its rows happens here, and no
//! write that is not in it, or not to the side's own position, happens under random use.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use caravan_ring::{ConsumerCursor, Cursors, ProducerCursor, SharedWord, Wake};
use proptest::prelude::*;

const SOURCE: &str = include_str!("../../src/cursor.rs");
const CAPACITY: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Producer,
    Consumer,
}
use Side::{Consumer, Producer};

/// Who changed what: the word, whether it was 0, whether it is 0.
type Change = (Side, &'static str, bool, bool);

#[derive(Debug)]
struct WatchedWord {
    side: Side,
    name: &'static str,
    value: Arc<AtomicU64>,
    log: Arc<Mutex<Vec<Change>>>,
}

impl WatchedWord {
    fn note(&self, old: u64, new: u64) {
        if old != new {
            self.log.lock().unwrap().push((self.side, self.name, old == 0, new == 0));
        }
    }
}

impl SharedWord for WatchedWord {
    fn load(&self, order: Ordering) -> u64 {
        self.value.load(order)
    }
    fn store(&self, value: u64, _: Ordering) {
        let old = self.value.swap(value, Ordering::SeqCst);
        assert!(!self.name.ends_with("position") || old <= value, "{} moved back", self.name);
        self.note(old, value);
    }
    fn swap(&self, value: u64, _: Ordering) -> u64 {
        let old = self.value.swap(value, Ordering::SeqCst);
        self.note(old, value);
        old
    }
}

/// One side's view of the shared words.
#[derive(Debug)]
struct Watched([WatchedWord; 4]);

impl Cursors for Watched {
    type Word = WatchedWord;
    fn tail_position(&self) -> &WatchedWord {
        &self.0[0]
    }
    fn head_position(&self) -> &WatchedWord {
        &self.0[1]
    }
    fn consumer_asleep(&self) -> &WatchedWord {
        &self.0[2]
    }
    fn producer_wants(&self) -> &WatchedWord {
        &self.0[3]
    }
    fn fence(&self) {}
}

struct Ring {
    producer: ProducerCursor<Watched>,
    consumer: ConsumerCursor<Watched>,
    log: Arc<Mutex<Vec<Change>>>,
}

fn ring() -> Ring {
    let log = Arc::new(Mutex::new(Vec::new()));
    let words = ["tail_position", "head_position", "consumer_asleep", "producer_wants"]
        .map(|name| (name, Arc::new(AtomicU64::new(0))));
    let view = |side| {
        let word = |(name, value): &(&'static str, Arc<AtomicU64>)| WatchedWord {
            side,
            name,
            value: Arc::clone(value),
            log: Arc::clone(&log),
        };
        Watched([word(&words[0]), word(&words[1]), word(&words[2]), word(&words[3])])
    };
    Ring {
        producer: ProducerCursor::new(view(Producer), CAPACITY),
        consumer: ConsumerCursor::new(view(Consumer), CAPACITY),
        log,
    }
}

impl Ring {
    fn send(&mut self, count: u64) -> Wake {
        let count = self.producer.claim(count).unwrap().length() as u64;
        self.producer.commit(count);
        self.producer.publish()
    }
    fn take(&mut self, count: u64) -> Wake {
        let count = count.min(self.consumer.poll(count).unwrap().length() as u64);
        self.consumer.release(count)
    }
}

/// A row: as it is written in the table, what it changes, and how it comes about.
type Row = ((&'static str, &'static str), Change, fn(&mut Ring));

const ROWS: &[Row] = &[
    (("consumer", "`consumer_asleep` 0 -> 1"), (Consumer, "consumer_asleep", true, false), |ring| {
        assert!(ring.consumer.sleep().unwrap());
    }),
    (("consumer", "1 -> 0"), (Consumer, "consumer_asleep", false, true), |ring| {
        assert!(ring.consumer.sleep().unwrap());
        assert!(ring.consumer.wake());
        assert!(!ring.consumer.wake());
    }),
    (("producer", "1 -> 0"), (Producer, "consumer_asleep", false, true), |ring| {
        assert!(ring.consumer.sleep().unwrap());
        assert_eq!(ring.send(1), Wake::Bell);
        assert_eq!(ring.send(1), Wake::Quiet);
    }),
    (("producer", "`producer_wants` 0 -> position"), (Producer, "producer_wants", true, false), |ring| {
        let _ = ring.send(CAPACITY);
        assert!(ring.producer.wait_for_room(2).unwrap());
    }),
    (("producer", "position -> position"), (Producer, "producer_wants", false, false), |ring| {
        let _ = ring.send(CAPACITY);
        assert!(ring.producer.wait_for_room(2).unwrap());
        assert!(ring.producer.wait_for_room(3).unwrap());
    }),
    (("producer", "position -> 0"), (Producer, "producer_wants", false, true), |ring| {
        let _ = ring.send(CAPACITY);
        assert!(ring.producer.wait_for_room(2).unwrap());
        assert!(ring.producer.stop_waiting());
        assert!(!ring.producer.stop_waiting());
    }),
    (("consumer", "position -> 0"), (Consumer, "producer_wants", false, true), |ring| {
        let _ = ring.send(CAPACITY);
        assert!(ring.producer.wait_for_room(2).unwrap());
        assert_eq!(ring.take(1), Wake::Quiet);
        assert_eq!(ring.take(1), Wake::Bell);
        assert_eq!(ring.take(1), Wake::Quiet);
    }),
];

/// What each side does to its own position, besides.
const POSITIONS: [Change; 4] = [
    (Producer, "tail_position", true, false),
    (Producer, "tail_position", false, false),
    (Consumer, "head_position", true, false),
    (Consumer, "head_position", false, false),
];

#[test]
fn every_row_happens() {
    let rows: Vec<(&str, &str)> = SOURCE
        .lines()
        .filter_map(|line| line.strip_prefix("//! | "))
        .map(|line| line.split(" | ").collect::<Vec<_>>())
        .filter(|cells| cells[0] == "producer" || cells[0] == "consumer")
        .map(|cells| (cells[0], cells[1]))
        .collect();
    assert_eq!(rows, ROWS.iter().map(|row| row.0).collect::<Vec<_>>(), "the table and its test differ");
    for (name, change, happen) in ROWS {
        let mut ring = ring();
        happen(&mut ring);
        assert!(ring.log.lock().unwrap().contains(change), "{name:?} did not happen");
    }
}

proptest! {
    #[test]
    fn nothing_else_happens(steps in prop::collection::vec((0_u8..7, 0_u64..12), 0..200)) {
        let mut ring = ring();
        for (step, count) in steps {
            match step {
                0 | 1 => drop(ring.send(count)),
                2 | 3 => drop(ring.take(count)),
                4 => drop(ring.consumer.sleep().unwrap()),
                5 => drop(ring.producer.wait_for_room(count).unwrap()),
                _ => drop((ring.consumer.wake(), ring.producer.stop_waiting())),
            }
        }
        let allowed: BTreeSet<Change> =
            ROWS.iter().map(|row| row.1).chain(POSITIONS).collect();
        for change in ring.log.lock().unwrap().iter() {
            prop_assert!(allowed.contains(change), "{change:?} is in no table");
        }
    }
}
