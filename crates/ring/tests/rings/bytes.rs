//! The byte ring and both hand-shakes of waiting.

use std::collections::VecDeque;

use caravan_ring::Wake;
use proptest::prelude::*;

use crate::{Consumer, Producer, byte_ring};

#[derive(Clone, Copy, Debug)]
enum Step {
    Append(usize),
    AppendWhole(usize, usize),
    ClaimAndCommit { claim: usize, commit: usize },
    Publish,
    WaitForRoom(u64),
    StopWaiting,
    Refresh,
    Poll(usize),
    Read(usize),
    Skip(usize),
    Release,
    Sleep,
    Wake,
}

fn step() -> impl Strategy<Value = Step> {
    let length = || prop_oneof![4 => 0_usize..8, 2 => 0_usize..80, 1 => Just(usize::MAX)];
    prop_oneof![
        4 => (0_usize..80).prop_map(Step::Append),
        2 => (0_usize..9, 0_usize..40).prop_map(|(first, second)| Step::AppendWhole(first, second)),
        2 => (length(), 0_usize..80).prop_map(|(claim, commit)| Step::ClaimAndCommit { claim, commit }),
        4 => Just(Step::Publish),
        1 => prop_oneof![0_u64..80, Just(u64::MAX)].prop_map(Step::WaitForRoom),
        1 => Just(Step::StopWaiting),
        2 => Just(Step::Refresh),
        2 => length().prop_map(Step::Poll),
        4 => (0_usize..80).prop_map(Step::Read),
        1 => (0_usize..80).prop_map(Step::Skip),
        3 => Just(Step::Release),
        2 => Just(Step::Sleep),
        1 => Just(Step::Wake),
    ]
}

/// What a byte ring is, without positions or offsets.
#[derive(Debug, Default)]
struct Model {
    capacity: usize,
    /// Bytes in the ring, oldest first, whoever has seen them.
    held: VecDeque<u8>,
    /// Of these, as the consumer has read (they wait for release), sees, and may see.
    read: usize,
    seen: usize,
    published: usize,
    /// Released bytes that the producer has not looked at yet.
    returned: usize,
    asleep: bool,
    /// The producer waits until this many bytes have been released in all.
    wants: Option<u64>,
    released: u64,
    next: u8,
}

impl Model {
    fn used(&self) -> usize {
        self.held.len() + self.returned
    }
    /// Room for `length`, after the look that is made if it seems too little.
    fn room(&mut self, length: usize) -> usize {
        if self.capacity - self.used() < length {
            self.returned = 0;
        }
        length.min(self.capacity - self.used())
    }
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count)
            .map(|_| {
                self.next = self.next.wrapping_add(1);
                self.next
            })
            .collect()
    }
    fn unread(&self) -> usize {
        self.seen - self.read
    }
    fn content(&self, count: usize) -> Vec<u8> {
        self.held.iter().skip(self.read).take(count).copied().collect()
    }
}

/// A step of the producer, or nothing.
fn produce(model: &mut Model, producer: &mut Producer, step: Step) {
    match step {
        Step::Append(length) => {
            let bytes = model.bytes(length);
            let room = model.room(length);
            assert_eq!(producer.append(&bytes).unwrap(), room);
            model.held.extend(&bytes[..room]);
        }
        Step::AppendWhole(first, second) => {
            let bytes = model.bytes(first + second);
            let fits = model.room(bytes.len()) == bytes.len();
            let (first, second) = bytes.split_at(first);
            assert_eq!(producer.append_whole([first, second]).unwrap(), fits);
            if fits {
                model.held.extend(&bytes);
            }
        }
        Step::ClaimAndCommit { claim, commit } => {
            let room = model.room(claim);
            let spans = producer.claim(claim).unwrap();
            assert_eq!(spans.length(), room);
            let bytes = model.bytes(commit.min(room));
            let (first, second) = bytes.split_at(bytes.len().min(spans.first.length));
            producer.bytes().slice().copy_in(spans.first.offset, first);
            producer.bytes().slice().copy_in(spans.second.offset, second);
            producer.commit(bytes.len());
            model.held.extend(&bytes);
        }
        Step::Publish => {
            let news = model.published < model.held.len();
            model.published = model.held.len();
            let bell = news && std::mem::take(&mut model.asleep);
            assert_eq!(producer.publish() == Wake::Bell, bell);
        }
        Step::WaitForRoom(_) if model.published < model.held.len() => {}
        Step::WaitForRoom(length) => {
            let length = (length as usize).clamp(1, model.capacity);
            let waits = if model.capacity - model.used() >= length {
                false
            } else {
                // It looks again in any case, and leaves no flag behind if there is room now.
                model.returned = 0;
                let missing = length.saturating_sub(model.capacity - model.used());
                model.wants = (missing > 0).then(|| model.released + missing as u64);
                missing > 0
            };
            assert_eq!(producer.cursor().wait_for_room(length as u64).unwrap(), waits);
        }
        Step::StopWaiting => {
            assert_eq!(producer.cursor().stop_waiting(), model.wants.take().is_some());
        }
        _ => {}
    }
}

/// A step of the consumer, or nothing.
fn consume(model: &mut Model, consumer: &mut Consumer, step: Step) {
    match step {
        Step::Refresh => {
            model.seen = model.published;
            assert_eq!(consumer.refresh().unwrap(), model.unread());
        }
        Step::Poll(length) => {
            if model.unread() < length {
                model.seen = model.published;
            }
            let spans = consumer.poll(length).unwrap();
            assert_eq!(spans.length(), model.unread());
            let mut found = vec![0; spans.length()];
            let (first, second) = found.split_at_mut(spans.first.length);
            consumer.bytes().slice().copy_out(spans.first.offset, first);
            consumer.bytes().slice().copy_out(spans.second.offset, second);
            assert_eq!(found, model.content(model.unread()));
        }
        Step::Read(length) => {
            let mut to = vec![0; length];
            let count = length.min(model.unread());
            assert_eq!(consumer.read(&mut to), count);
            assert_eq!(to[..count], model.content(count));
            model.read += count;
        }
        Step::Skip(length) => {
            let count = length.min(model.unread());
            consumer.skip(count);
            model.read += count;
        }
        Step::Release => {
            let count = std::mem::take(&mut model.read);
            assert_eq!(consumer.unreleased(), count);
            model.held.drain(..count);
            model.seen -= count;
            model.published -= count;
            model.returned += count;
            model.released += count as u64;
            let bell = count > 0 && model.wants.is_some_and(|wanted| model.released >= wanted);
            if bell {
                model.wants = None;
            }
            assert_eq!(consumer.release() == Wake::Bell, bell);
        }
        Step::Sleep => {
            let waits = model.seen == 0 && model.published == 0;
            if model.seen == 0 {
                model.seen = model.published;
                model.asleep = waits;
            }
            assert_eq!(consumer.cursor().sleep().unwrap(), waits);
        }
        Step::Wake => assert_eq!(consumer.cursor().wake(), std::mem::take(&mut model.asleep)),
        _ => {}
    }
}

fn run(capacity: u64, steps: &[Step]) {
    let (mut producer, mut consumer) = byte_ring(capacity);
    let mut model = Model { capacity: capacity as usize, ..Model::default() };
    for step in steps {
        produce(&mut model, &mut producer, *step);
        consume(&mut model, &mut consumer, *step);
        assert!(producer.position().invariants() && consumer.position().invariants(), "after {step:?}");
        assert_eq!(consumer.unread(), model.unread());
        assert_eq!(producer.position().used() as usize, model.used());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_byte_ring_is_a_queue(bits in 3_u32..7, steps in prop::collection::vec(step(), 0..120)) {
        run(1 << bits, &steps);
    }
}
