//! Two connections that seal, with the test between them.

use std::ops::Range;

use crate::node::{Node, node_and_stranger, sealings};
use caravan_driver::Error;
use caravan_driver::connection::RecordCounts;
use caravan_driver::seal::{self, HEAD_BYTES, PART_BYTES, TAG_BYTES, WHOLE_BYTES};
use caravan_fabric::Link;
use proptest::prelude::*;

const LENGTH_BYTES: usize = 4;

/// Two nodes, each connected to the test instead of the other.
struct Tapped {
    a: Node,
    wire_a: Link,
    b: Node,
    wire_b: Link,
}

impl Tapped {
    fn with_cookies(cookies: [&[u8]; 2], ring_bytes: u64) -> Self {
        let ((a, wire_a), (b, wire_b)) = (node_and_stranger(ring_bytes), node_and_stranger(ring_bytes));
        let [to_a, to_b] = sealings(cookies);
        Self { a: a.sealed(to_a), wire_a, b: b.sealed(to_b), wire_b }
    }

    fn new() -> Self {
        Self::with_cookies([b"cookie"; 2], 64 << 10)
    }

    /// Returns what `a` sends for each message; a message of no bytes is a sign of life.
    fn records(&mut self, messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let record = |message: &Vec<u8>| {
            match message.len() {
                0 => self.a.connection.tick(&mut self.a.emulator).unwrap(),
                _ => drop(self.a.send(message).unwrap()),
            }
            take(&mut self.wire_a)
        };
        messages.iter().map(record).collect()
    }

    /// Sends `bytes` to `b`, and lets it take them.
    fn deliver(&mut self, bytes: &[u8]) -> Result<(), Error> {
        put(&mut self.wire_b, bytes);
        self.b.settle()
    }
}

/// Takes all bytes that have arrived.
fn take(wire: &mut Link) -> Vec<u8> {
    let mut bytes = vec![0; wire.refresh().unwrap()];
    wire.read(&mut bytes);
    wire.release().unwrap();
    bytes
}

fn put(wire: &mut Link, bytes: &[u8]) {
    assert_eq!(wire.append(bytes).unwrap(), bytes.len(), "the ring is full");
    wire.publish().unwrap();
}

fn message(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| if i == 0 { 1 } else { (seed * 31 + i) as u8 }).collect()
}

/// Returns the number of bytes of a sealed record.
fn sealed_bytes(length: usize) -> usize {
    let parts = match length {
        0..=WHOLE_BYTES => 1,
        _ => 1 + (length - HEAD_BYTES).div_ceil(PART_BYTES),
    };
    LENGTH_BYTES + length + parts * TAG_BYTES
}

fn refused_for_its_seal(error: &Error) -> bool {
    matches!(error, Error::Seal(seal::Error::Stranger | seal::Error::Altered { .. }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Messages of any sizes, through rings smaller than many of them, arriving in pieces of any size.
    #[test]
    fn a_stream_in_pieces_arrives(
        sizes in proptest::collection::vec(prop_oneof![4 => 0usize..100, 2 => 0usize..6000, 1 => 0usize..100_000], 1..20),
        cuts in proptest::collection::vec(prop_oneof![1usize..50, 1usize..4000], 1..50),
    ) {
        let mut tapped = Tapped::with_cookies([b"cookie"; 2], 4 << 10);
        let (mut sent, mut on_the_wire, mut taken) = (Vec::new(), Vec::new(), 0);
        let mut cuts = cuts.into_iter().cycle();
        for (i, length) in sizes.iter().enumerate() {
            match length {
                0 => tapped.a.connection.tick(&mut tapped.a.emulator).unwrap(),
                _ => { tapped.a.send(&message(i, *length)).unwrap(); sent.push(message(i, *length)); }
            }
            loop {
                on_the_wire.extend(take(&mut tapped.wire_a));
                let piece = cuts.next().unwrap().min(on_the_wire.len());
                let piece: Vec<u8> = on_the_wire.drain(..piece).collect();
                taken += piece.len();
                tapped.deliver(&piece).unwrap();
                tapped.a.settle().unwrap();
                if tapped.a.emulator.queue.is_empty() && on_the_wire.is_empty() && tapped.wire_a.refresh().unwrap() == 0 {
                    break;
                }
            }
        }
        prop_assert_eq!(&tapped.b.emulator.delivered, &sent);
        prop_assert_eq!(taken, sizes.iter().map(|length| sealed_bytes(*length)).sum::<usize>());
        prop_assert_eq!(tapped.b.connection.records(), RecordCounts { received: sizes.len() as u64, sent: 0 });
    }

    /// A peer without the keys can have nothing delivered, and little memory allocated.
    #[test]
    fn whoever_has_no_keys_delivers_nothing(
        bytes in proptest::collection::vec(prop_oneof![3 => Just(0u8), 1 => Just(1), 1 => any::<u8>()], 0..5000),
        cut in 1usize..3000,
    ) {
        let (node, mut stranger) = node_and_stranger(64 << 10);
        let [keys, _] = sealings([b"cookie"; 2]);
        let mut node = node.sealed(keys);
        let mut ended = Ok(());
        for piece in bytes.chunks(cut) {
            put(&mut stranger, piece);
            ended = node.settle();
            if ended.is_err() {
                break;
            }
        }
        prop_assert!(node.emulator.delivered.is_empty());
        prop_assert_eq!(node.connection.records(), RecordCounts { received: 0, sent: 0 });
        prop_assert!(node.emulator.allocated <= 8 << 10);
        match ended {
            // The connection waits for the bytes that a length of up to WHOLE_BYTES has announced.
            Ok(()) => prop_assert!(bytes.len() < LENGTH_BYTES + WHOLE_BYTES + TAG_BYTES),
            Err(error) => prop_assert!(refused_for_its_seal(&error) || matches!(error, Error::TooLong(_)), "{}", error),
        }
    }
}

/// Whichever bit is flipped: what came before it is delivered, nothing from there on is, and the error says
/// what has happened.
fn flip(messages: &[Vec<u8>], bits: impl Fn(&[Range<usize>]) -> Vec<usize>) {
    let lengths = messages.iter().map(|message| sealed_bytes(message.len()));
    let ends: Vec<usize> = lengths
        .scan(0, |end, length| {
            *end += length;
            Some(*end)
        })
        .collect();
    let starts = [0].into_iter().chain(ends.iter().copied());
    let records: Vec<Range<usize>> = starts.zip(&ends).map(|(start, end)| start..*end).collect();
    for bit in bits(&records) {
        let mut tapped = Tapped::new();
        let mut stream = tapped.records(messages).concat();
        assert_eq!(stream.len(), ends[ends.len() - 1]);
        stream[bit / 8] ^= 1 << (bit % 8);
        let victim = records.iter().position(|record| record.contains(&(bit / 8))).unwrap();
        // A length that has grown is noticed when enough bytes have come.
        let more = tapped.records(&[message(9, 2000), message(9, 2000)]).concat();
        stream.extend(more);
        let error = tapped.deliver(&stream).unwrap_err();
        let in_length = bit / 8 - records[victim].start < LENGTH_BYTES;
        assert!(
            refused_for_its_seal(&error) || in_length && matches!(error, Error::TooLong(_)),
            "bit {bit}: {error}"
        );
        assert_eq!(
            matches!(error, Error::Seal(seal::Error::Stranger)),
            victim == 0 && !matches!(error, Error::TooLong(_)),
            "bit {bit}: {error}"
        );
        let before = messages[..victim].iter().filter(|message| !message.is_empty());
        assert!(tapped.b.emulator.delivered.iter().eq(before), "bit {bit}");
    }
}

#[test]
fn every_flipped_bit_of_small_records_is_noticed() {
    let messages = [message(1, 3), vec![], message(2, 30)];
    flip(&messages, |records| (0..8 * records[records.len() - 1].end).collect());
}

#[test]
fn flipped_bits_of_a_large_record_are_noticed() {
    let length = PART_BYTES + 3000;
    flip(&[message(1, 10), message(2, length)], |records| {
        let large = records[1].clone();
        let head_end = large.start + LENGTH_BYTES + HEAD_BYTES + TAG_BYTES;
        let part_end = head_end + PART_BYTES + TAG_BYTES;
        // The bits of its length, its head and the head's tag; around the end of each further part; some between.
        let edges = (8 * large.start..8 * (head_end + 2))
            .chain(8 * (part_end - TAG_BYTES - 1)..8 * (part_end + 1))
            .chain(8 * (large.end - TAG_BYTES - 1)..8 * large.end);
        edges.chain((8 * head_end..8 * large.end).step_by(4001)).collect()
    });
}

/// Records of equal sizes, so that lengths and tags stay in place; `change` reorders or replaces them.
fn shuffled(messages: &[Vec<u8>], delivered: usize, change: impl FnOnce(&mut Vec<Vec<u8>>)) -> seal::Error {
    let mut tapped = Tapped::new();
    let mut records = tapped.records(messages);
    change(&mut records);
    let error = match tapped.deliver(&records.concat()).unwrap_err() {
        Error::Seal(error) => error,
        other => panic!("{other}"),
    };
    assert_eq!(tapped.b.emulator.delivered, messages[..delivered]);
    error
}

#[test]
fn records_that_are_not_the_next_are_named() {
    let messages: Vec<_> = (0..5).map(|i| message(i, 100)).collect();
    let altered =
        |error, part| assert!(matches!(error, seal::Error::Altered { part: at } if at == part), "{error}");
    altered(shuffled(&messages, 2, |records| drop(records.remove(2))), 2);
    altered(shuffled(&messages, 3, |records| records[3] = records[2].clone()), 3);
    altered(shuffled(&messages, 5, |records| records.push(records[0].clone())), 5);
    altered(shuffled(&messages, 1, |records| records.swap(1, 2)), 1);
    altered(shuffled(&messages, 4, |records| records[4][..LENGTH_BYTES].copy_from_slice(&[99, 0, 0, 0])), 4);
    altered(shuffled(&messages, 3, |records| records[3].truncate(50)), 3);
    let first = shuffled(&messages, 0, |records| drop(records.remove(0)));
    assert!(matches!(first, seal::Error::Stranger), "{first}");
}

#[test]
fn a_part_of_a_large_record_is_not_another() {
    let messages = [message(0, 10), message(1, HEAD_BYTES + 3 * PART_BYTES)];
    let mut tapped = Tapped::with_cookies([b"cookie"; 2], 256 << 10);
    let mut stream = tapped.records(&messages).concat();
    let parts = sealed_bytes(10) + LENGTH_BYTES + HEAD_BYTES + TAG_BYTES;
    let sealed = PART_BYTES + TAG_BYTES;
    let (first, second) = stream[parts..].split_at_mut(sealed);
    first.swap_with_slice(&mut second[..sealed]);
    let error = tapped.deliver(&stream).unwrap_err();
    assert!(matches!(error, Error::Seal(seal::Error::Altered { part: 2 })), "{error}");
    assert_eq!(tapped.b.emulator.delivered, messages[..1]);
}

#[test]
fn what_a_node_sent_is_not_taken_back_from_others() {
    let mut tapped = Tapped::new();
    let records = tapped.records(&[message(1, 50), vec![]]);
    for record in records {
        put(&mut tapped.wire_a, &record);
        let error = tapped.a.settle().unwrap_err();
        assert!(matches!(error, Error::Seal(seal::Error::Stranger)), "{error}");
    }
    assert!(tapped.a.emulator.delivered.is_empty());
}

#[test]
fn another_cookie_is_named() {
    let mut tapped = Tapped::with_cookies([b"cookie", b"cookies"], 64 << 10);
    let stream = tapped.records(&[message(1, 50)]).concat();
    let error = tapped.deliver(&stream).unwrap_err();
    assert!(error.to_string().contains("another cookie"), "{error}");
    assert_eq!(error.exit_reason(), c"caravan_link_failed");
    assert!(tapped.b.emulator.delivered.is_empty());
}

#[test]
fn a_sign_of_life_cannot_be_made_up() {
    let mut tapped = Tapped::new();
    let error = tapped.deliver(&[0; LENGTH_BYTES + TAG_BYTES]).unwrap_err();
    assert!(refused_for_its_seal(&error), "{error}");
    assert_eq!(tapped.b.connection.records(), RecordCounts::default());
}

#[test]
fn a_peer_that_does_not_seal_is_not_understood() {
    let mut tapped = Tapped::new();
    let plain = message(1, 100);
    let error = tapped.deliver(&[&100u32.to_le_bytes(), &plain[..], &[0; TAG_BYTES]].concat()).unwrap_err();
    assert!(refused_for_its_seal(&error), "{error}");
    assert!(tapped.b.emulator.delivered.is_empty());
}

#[test]
fn nothing_is_allocated_for_a_length_that_nobody_vouches_for() {
    let mut tapped = Tapped::new();
    let length = (1u32 << 31) - 1;
    let error =
        tapped.deliver(&[&length.to_le_bytes(), &[7; HEAD_BYTES + TAG_BYTES][..]].concat()).unwrap_err();
    assert!(refused_for_its_seal(&error), "{error}");
    assert_eq!(tapped.b.emulator.allocated, 0);
}

#[test]
fn nothing_of_a_message_is_on_the_wire() {
    let mut tapped = Tapped::with_cookies([b"cookie"; 2], 256 << 10);
    for length in [30, WHOLE_BYTES, 3 * PART_BYTES] {
        let sent = message(1, length);
        let stream = tapped.records(std::slice::from_ref(&sent)).concat();
        assert_eq!(stream.len(), sealed_bytes(length));
        assert!(stream.windows(8).all(|window| !sent.windows(8).take(300).any(|plain| plain == window)));
    }
}
