//! A peer that scribbles over the shared words: the other side names what is wrong, never panics
//! (tests run with overflow checks), and never leaves the buffer.

use std::sync::atomic::Ordering;

use caravan_ring::record::LengthReader;
use caravan_ring::{Corrupt, Cursors, Spans};
use proptest::prelude::*;

use crate::{byte_ring, slot_ring};

const CAPACITY: u64 = 64;
const WORDS: [&str; 4] = ["tail_position", "head_position", "consumer_asleep", "producer_wants"];

#[derive(Clone, Debug)]
enum Step {
    /// The peer writes `base + offset` into a word, where base is that word or 0.
    Scribble {
        word: usize,
        relative: bool,
        value: u64,
    },
    /// The peer writes over the bytes.
    Fill(u8),
    Append(usize),
    Publish,
    WaitForRoom(u64),
    Refresh,
    Poll(usize),
    Read(usize),
    Length,
    Release,
    Sleep,
}

fn step() -> impl Strategy<Value = Step> {
    let value = prop_oneof![
        0_u64..200,
        any::<u64>(),
        (0_u64..200).prop_map(|below| u64::MAX - below),
        (0_u32..64, 0_u64..3).prop_map(|(bits, around)| (1_u64 << bits).wrapping_add(around).wrapping_sub(1)),
    ];
    prop_oneof![
        6 => (0..WORDS.len(), any::<bool>(), value)
            .prop_map(|(word, relative, value)| Step::Scribble { word, relative, value }),
        1 => any::<u8>().prop_map(Step::Fill),
        3 => (0_usize..80).prop_map(Step::Append),
        3 => Just(Step::Publish),
        2 => any::<u64>().prop_map(Step::WaitForRoom),
        3 => Just(Step::Refresh),
        2 => prop_oneof![0_usize..80, Just(usize::MAX)].prop_map(Step::Poll),
        3 => (0_usize..80).prop_map(Step::Read),
        2 => Just(Step::Length),
        3 => Just(Step::Release),
        2 => Just(Step::Sleep),
    ]
}

fn scribble<C: Cursors<Word = std::sync::atomic::AtomicU64>>(
    shared: &C,
    word: usize,
    relative: bool,
    value: u64,
) {
    let word = match WORDS[word] {
        "tail_position" => shared.tail_position(),
        "head_position" => shared.head_position(),
        "consumer_asleep" => shared.consumer_asleep(),
        _ => shared.producer_wants(),
    };
    let base = if relative { word.load(Ordering::Relaxed) } else { 0 };
    word.store(base.wrapping_add(value), Ordering::Relaxed);
}

/// An error tells the truth: it names a position, and a value outside the range that it gives.
fn named<T>(result: Result<T, Corrupt>, cursor: &str) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert_eq!(error.cursor, cursor);
            assert!(error.value < error.low || error.value > error.high, "{error}");
            None
        }
    }
}

fn inside(spans: Spans) {
    for span in [spans.first, spans.second] {
        assert!(span.offset + span.length <= CAPACITY as usize, "{spans:?} leaves the buffer");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn a_byte_ring_bears_a_hostile_peer(steps in prop::collection::vec(step(), 0..80)) {
        let (mut producer, mut consumer) = byte_ring(CAPACITY);
        let mut lengths = LengthReader::new(1 << 20);
        for step in steps {
            match step {
                Step::Scribble { word, relative, value } => {
                    scribble(producer.position().shared(), word, relative, value);
                }
                Step::Fill(byte) => producer.bytes().slice().copy_in(0, &[byte; CAPACITY as usize]),
                Step::Append(length) => {
                    if let Some(spans) = named(producer.claim(length), "head_position") {
                        inside(spans);
                    }
                    named(producer.append(&vec![7; length]), "head_position");
                }
                Step::Publish => drop(producer.publish()),
                Step::WaitForRoom(length) => {
                    let _ = producer.publish();
                    named(producer.cursor().wait_for_room(length), "head_position");
                }
                Step::Refresh => drop(named(consumer.refresh(), "tail_position")),
                Step::Poll(length) => {
                    if let Some(spans) = named(consumer.poll(length), "tail_position") {
                        inside(spans);
                    }
                }
                Step::Read(length) => drop(consumer.read(&mut vec![0; length])),
                Step::Length => drop(lengths.next(&mut consumer)),
                Step::Release => drop(consumer.release()),
                Step::Sleep => drop(named(consumer.cursor().sleep(), "tail_position")),
            }
            prop_assert!(producer.position().invariants() && consumer.position().invariants());
        }
    }

    #[test]
    fn a_slot_ring_bears_a_hostile_peer(steps in prop::collection::vec(step(), 0..80)) {
        let (mut producer, mut consumer) = slot_ring(CAPACITY);
        for step in steps {
            match step {
                Step::Scribble { word, relative, value } => {
                    scribble(&producer.cursor().shared().clone(), word, relative, value);
                }
                Step::Append(item) => drop(named(producer.push(item as u32), "head_position")),
                Step::Publish => drop(producer.publish()),
                Step::Sleep => drop(named(consumer.cursor().sleep(), "tail_position")),
                Step::Poll(limit) | Step::Read(limit) => {
                    let mut count = 0;
                    if let Some((drained, _)) = named(consumer.drain(limit, |_| count += 1), "tail_position") {
                        prop_assert_eq!(drained, count);
                        prop_assert!(count <= limit.min(CAPACITY as usize));
                    }
                }
                _ => {}
            }
            prop_assert!(producer.cursor().invariants() && consumer.cursor().invariants());
        }
    }
}
