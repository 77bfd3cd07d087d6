//! Fragmented messages between others, with the atom cache in use: a message means to the receiver
//! what it meant to the sender.

use crate::node::{self, node_and_stranger, pair};
use caravan_driver::Error;
use caravan_driver::dist_header::{self, Reference, SLOTS};
use proptest::prelude::*;

type Atoms = Vec<Box<[u8]>>;
type Meaning = (Atoms, Vec<u8>);

/// The sending emulator: its atom cache and its framing.
struct Sender {
    cache: Vec<Option<Box<[u8]>>>,
    sequence: u64,
}

impl Sender {
    fn new() -> Self {
        Self { cache: vec![None; SLOTS], sequence: 0 }
    }

    fn references(&mut self, wanted: &[(u16, u8)]) -> (Vec<u8>, Atoms) {
        let (mut references, mut atoms) = (Vec::new(), Vec::new());
        for (slot, atom) in wanted {
            let text: Box<[u8]> = format!("atom_{atom}").into_bytes().into();
            let cached = self.cache[usize::from(*slot)].as_ref() == Some(&text);
            self.cache[usize::from(*slot)] = Some(text.clone());
            atoms.push(text.clone());
            references.push(Reference { slot: *slot, text: (!cached).then_some(text) });
        }
        let mut bytes = Vec::new();
        dist_header::write(&references, &mut bytes);
        (bytes, atoms)
    }

    fn whole(&mut self, wanted: &[(u16, u8)], body: &[u8]) -> (Vec<u8>, Atoms) {
        let (references, atoms) = self.references(wanted);
        ([&[131, 68], &references[..], body].concat(), atoms)
    }

    fn fragmented(&mut self, wanted: &[(u16, u8)], body: &[u8], count: usize) -> (Vec<Vec<u8>>, Atoms) {
        self.sequence += 1;
        let (references, atoms) = self.references(wanted);
        let size = body.len().div_ceil(count).max(1);
        let mut pieces = body.chunks(size).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let total = pieces.len() as u64;
        for (i, piece) in pieces.iter_mut().enumerate() {
            let tag = if i == 0 { 69 } else { 70 };
            let fragment = total - i as u64;
            let head = [&[131, tag], &self.sequence.to_be_bytes()[..], &fragment.to_be_bytes()].concat();
            *piece =
                if i == 0 { [&head, &references[..], piece].concat() } else { [&head[..], piece].concat() };
        }
        (pieces, atoms)
    }
}

/// Returns the meaning of a delivered message for the receiving emulator.
fn meaning(cache: &mut [Option<Box<[u8]>>], message: &[u8]) -> Meaning {
    assert_eq!(message[..2], [131, 68], "only whole messages are to arrive");
    let dist_header::ParsedReferences { references, bytes: length } =
        dist_header::parse(&message[2..]).unwrap();
    let atoms = references.into_iter().map(|reference| {
        let slot = &mut cache[usize::from(reference.slot)];
        if reference.text.is_some() {
            *slot = reference.text;
        }
        slot.clone().expect("a slot that was never filled")
    });
    (atoms.collect(), message[2 + length..].to_vec())
}

fn wanted() -> impl Strategy<Value = Vec<(u16, u8)>> {
    // Few slots, so that they are filled again and again; each occurs at most once in a header.
    proptest::collection::btree_map(prop_oneof![0u16..4, 2040u16..2044], 0u8..4, 0..5)
        .prop_map(|map| map.into_iter().collect())
}

fn length() -> impl Strategy<Value = usize> {
    // Some are so long that a fragment is sealed in several parts.
    prop_oneof![9 => 0usize..9000, 1 => 100_000usize..200_000]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_message_means_what_was_sent(
        messages in proptest::collection::vec((wanted(), length(), 1usize..8, any::<u8>()), 1..40),
        order in proptest::collection::vec(any::<usize>(), 200),
        sealed in any::<bool>(),
    ) {
        let (mut a, mut b) = pair(sealed, 8 << 10, 1 << 24);
        let mut sender = Sender::new();
        let mut cache = vec![None; SLOTS];
        // The pieces that are still to be sent, last first, and their meanings.
        let mut under_way: Vec<(Vec<Vec<u8>>, Meaning)> = Vec::new();
        let mut expected = Vec::new();
        let mut order = order.into_iter().cycle();
        let mut messages = messages.into_iter();
        loop {
            let start_another = under_way.is_empty() || order.next().unwrap() % 2 == 0;
            if let (true, Some((wanted, length, count, fill))) = (start_another, messages.next()) {
                let body = vec![fill; length];
                if count == 1 || length < count {
                    let (message, atoms) = sender.whole(&wanted, &body);
                    a.send(&message).unwrap();
                    expected.push((atoms, body));
                } else {
                    let (mut pieces, atoms) = sender.fragmented(&wanted, &body, count);
                    pieces.reverse();
                    a.send(&pieces.pop().unwrap()).unwrap();
                    under_way.push((pieces, (atoms, body)));
                }
            } else if !under_way.is_empty() {
                let which = order.next().unwrap() % under_way.len();
                let piece = under_way[which].0.pop();
                if let Some(piece) = piece {
                    a.send(&piece).unwrap();
                }
            } else {
                break;
            }
            let mut i = 0;
            while i < under_way.len() {
                if under_way[i].0.is_empty() { expected.push(under_way.remove(i).1); } else { i += 1; }
            }
            if order.next().unwrap() % 3 == 0 {
                b.settle().unwrap();
                a.settle().unwrap();
            }
        }
        node::flow(&mut a, &mut b);
        prop_assert_eq!(b.emulator.delivered.len(), expected.len());
        for (message, expected) in b.emulator.delivered.iter().zip(expected) {
            prop_assert_eq!(meaning(&mut cache, message), expected);
        }
    }
}

fn frame(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_le_bytes()[..], message].concat()
}

fn publish(stranger: &mut caravan_fabric::Link, message: &[u8]) {
    let framed = frame(message);
    assert_eq!(stranger.append(&framed).unwrap(), framed.len());
    stranger.publish().unwrap();
}

#[test]
fn fragments_out_of_order_are_named() {
    let (mut node, mut stranger) = node_and_stranger(64 << 10);
    let (pieces, _) = Sender::new().fragmented(&[(1, 1)], &[7; 4000], 4);
    publish(&mut stranger, &pieces[0]);
    publish(&mut stranger, &pieces[2]);
    let error = node.settle().unwrap_err();
    assert!(matches!(error, Error::Fragment { sequence: 1, found: 2, expected: 3 }), "{error}");
}

#[test]
fn a_sequence_that_begins_twice_is_named() {
    let (mut node, mut stranger) = node_and_stranger(64 << 10);
    let (pieces, _) = Sender::new().fragmented(&[(1, 1)], &[7; 4000], 4);
    publish(&mut stranger, &pieces[0]);
    publish(&mut stranger, &pieces[0]);
    let error = node.settle().unwrap_err();
    assert!(matches!(error, Error::Fragment { sequence: 1, found: 4, expected: 3 }), "{error}");
    assert_eq!(error.exit_reason(), c"killed");
}

#[test]
fn a_message_too_large_to_be_put_together_passes_in_fragments() {
    let (mut node, mut stranger) = node_and_stranger(64 << 10);
    node.emulator.memory = Some(12_000);
    let (pieces, _) = Sender::new().fragmented(&[], &[7; 40_000], 4);
    for piece in &pieces {
        publish(&mut stranger, piece);
        node.settle().unwrap();
    }
    assert_eq!(node.emulator.delivered, pieces);
}

#[test]
fn an_invented_number_of_fragments_costs_no_memory() {
    let (mut node, mut stranger) = node_and_stranger(64 << 10);
    let mut first = vec![131, 69];
    first.extend_from_slice(&9u64.to_be_bytes());
    first.extend_from_slice(&u64::MAX.to_be_bytes());
    first.extend_from_slice(&[0, 104, 1]);
    publish(&mut stranger, &first);
    node.settle().unwrap();
    assert_eq!(node.emulator.delivered, [first]);
    assert!(node.emulator.allocated < 100_000);
}
