//! The slot ring.

use std::collections::VecDeque;

use caravan_ring::Wake;
use proptest::prelude::*;

use crate::slot_ring;

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(u32),
    Publish,
    Drain(usize),
    Sleep,
    WaitForRoom(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<u32>().prop_map(Step::Push),
        2 => Just(Step::Publish),
        3 => prop_oneof![0_usize..9, Just(usize::MAX)].prop_map(Step::Drain),
        1 => Just(Step::Sleep),
        1 => (1_u64..9).prop_map(Step::WaitForRoom),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_slot_ring_is_a_queue(bits in 1_u32..4, steps in prop::collection::vec(step(), 0..120)) {
        let capacity = 1_usize << bits;
        let (mut producer, mut consumer) = slot_ring(capacity as u64);
        let mut hidden = VecDeque::new();
        let mut visible = VecDeque::new();
        let (mut asleep, mut wants) = (false, None);
        // The drain that reads without looking again sees only what it saw before.
        let mut seen = 0;
        for step in steps {
            match step {
                Step::Push(item) => {
                    let room = hidden.len() + visible.len() < capacity;
                    prop_assert_eq!(producer.push(item).unwrap(), room);
                    if room {
                        hidden.push_back(item);
                    }
                }
                Step::Publish => {
                    let bell = !hidden.is_empty() && std::mem::take(&mut asleep);
                    visible.append(&mut hidden);
                    prop_assert_eq!(producer.publish() == Wake::Bell, bell);
                }
                Step::Drain(limit) => {
                    if seen < limit {
                        seen = visible.len();
                    }
                    let count = seen.min(limit);
                    let expected: Vec<u32> = visible.drain(..count).collect();
                    seen -= count;
                    let bell = count > 0 && matches!(wants, Some(wanted) if count >= wanted);
                    wants = match wants {
                        Some(_) if bell => None,
                        Some(wanted) => Some(wanted - count.min(wanted)),
                        None => None,
                    };
                    let mut found = Vec::new();
                    let (drained, wake) = consumer.drain(limit, |item| found.push(item)).unwrap();
                    prop_assert_eq!((drained, wake == Wake::Bell), (count, bell));
                    prop_assert_eq!(found, expected);
                }
                Step::Sleep => {
                    let waits = visible.is_empty();
                    if seen == 0 {
                        seen = visible.len();
                        asleep = waits;
                    }
                    prop_assert_eq!(consumer.cursor().sleep().unwrap(), waits);
                }
                Step::WaitForRoom(_) if !hidden.is_empty() => {}
                Step::WaitForRoom(length) => {
                    let length = (length as usize).min(capacity);
                    // Look first: the model counts from what has been released, not from what was seen.
                    producer.cursor().refresh().unwrap();
                    let missing = length.saturating_sub(capacity - visible.len());
                    if missing > 0 {
                        wants = Some(missing);
                    }
                    prop_assert_eq!(producer.cursor().wait_for_room(length as u64).unwrap(), missing > 0);
                }
            }
            prop_assert!(producer.cursor().invariants() && consumer.cursor().invariants());
        }
    }
}
