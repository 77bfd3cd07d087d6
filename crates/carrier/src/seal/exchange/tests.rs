//! Test vectors, and attacks that must not work.

use super::*;
use crate::seal::TAG_BYTES;
use proptest::prelude::*;

const COOKIE: &[u8] = b"monster";
const NAMES: NodeNames<'static> = NodeNames { initiator: "a@alpha", acceptor: "b@beta" };

fn hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Returns the keys of the initiator and the acceptor of the test vectors. All vectors were made with another
/// implementation (Python's `hmac` and `cryptography`), from the private keys 1, 2, .. 32 and
/// 101, 102, .. 132, nonces of bytes 0x11 and 0x22, and the cookie and names above.
pub(crate) fn vector_sealings() -> [Sealing; 2] {
    let hello = |public: &str, nonce| -> [u8; HELLO_BYTES] {
        [hex(public), vec![nonce; NONCE_BYTES]].concat().try_into().unwrap()
    };
    let initiators = hello("07a37cbc142093c8b755dc1b10e86cb426374ad16aa853ed0bdfc0b2b86d1c7c", 0x11);
    let acceptors = hello("5714769d116bf76436ae74bc793d2c30ad1903c59ac5273805c7e2698b410c36", 0x22);
    let shared = hex("c9ea6a3f79a000b60b076d4afc990b272f3f0b5aaa3f0b8713c209273e363863");
    [KeyRole::Initiator, KeyRole::Acceptor]
        .map(|role| sealing(role, &shared, COOKIE, [&initiators, &acceptors], NAMES).unwrap())
}

fn sealed(direction: &mut Direction, additional: &[u8], plain: &[u8]) -> Vec<u8> {
    let mut part = plain.to_vec();
    let tag = direction.seal(additional, &mut part).unwrap();
    part.extend_from_slice(&tag);
    part
}

#[test]
fn another_implementation_agrees() {
    let [mut initiator, mut acceptor] = vector_sealings();
    let four = 4u32.to_le_bytes();
    let ping = hex("bc86123be1649261a8359aeb235c4724beb42a38");
    assert_eq!(sealed(&mut initiator.outbound, &four, b"ping"), ping);
    let tick = hex("a17c9fa154b83ad0e51b955d89dad034");
    assert_eq!(sealed(&mut initiator.outbound, &[0; 4], b""), tick);
    let pong = hex("d02b0e83de8e62cfc7dbafbb010140acfa2e4a79");
    assert_eq!(sealed(&mut acceptor.outbound, &four, b"ping"), pong);
    let [mut initiator, _] = vector_sealings();
    initiator.outbound.keys_last(1);
    sealed(&mut initiator.outbound, b"", b"");
    let next = hex("6bdd241b71c7c37cb35c1806a55ae3c813e45783");
    assert_eq!(sealed(&mut initiator.outbound, &four, b"ping"), next);
}

fn exchanges() -> [KeyExchange; 2] {
    [KeyRole::Initiator, KeyRole::Acceptor].map(|role| KeyExchange::new(role).unwrap())
}

/// Returns both sides' keys, where each side uses its own cookie and names.
fn agreed(cookies: [&[u8]; 2], names: [NodeNames<'_>; 2]) -> [Sealing; 2] {
    let [a, b] = exchanges();
    let (to_b, to_a) = (a.public(), b.public());
    [a.agree(&to_a, cookies[0], names[0]).unwrap(), b.agree(&to_b, cookies[1], names[1]).unwrap()]
}

/// Returns whether a record that one side seals opens on the other side, for each direction.
fn opens([mut a, mut b]: [Sealing; 2]) -> [bool; 2] {
    let pass = |from: &mut Direction, to: &mut Direction| {
        let mut part = *b"a message";
        let tag = from.seal(b"", &mut part).unwrap();
        assert_ne!(&part, b"a message");
        match to.open(b"", tag, &mut part) {
            Ok(()) => part == *b"a message",
            Err(Error::Stranger) => false,
            Err(other) => panic!("{other}"),
        }
    };
    [pass(&mut a.outbound, &mut b.inbound), pass(&mut b.outbound, &mut a.inbound)]
}

#[test]
fn two_that_agree_on_everything_understand_each_other() {
    assert_eq!(opens(agreed([COOKIE; 2], [NAMES; 2])), [true; 2]);
}

#[test]
fn whoever_differs_in_anything_does_not() {
    assert_eq!(opens(agreed([COOKIE, b"monstes"], [NAMES; 2])), [false; 2]);
    for (initiator, acceptor) in
        [("a@alphb", "b@beta"), ("a@alpha", "b@bet"), ("b@beta", "a@alpha"), ("a@alphab", "@beta")]
    {
        let names = NodeNames { initiator, acceptor };
        assert_eq!(opens(agreed([COOKIE; 2], [NAMES, names])), [false; 2], "{names:?}");
    }
    let [[mut a, _], [_, mut b]] = [agreed([COOKIE; 2], [NAMES; 2]), agreed([COOKIE; 2], [NAMES; 2])];
    std::mem::swap(&mut a, &mut b);
    assert_eq!(opens([b, a]), [false; 2], "keys of two exchanges");
}

#[test]
fn both_initiators_do_not() {
    let [a, b] = [(); 2].map(|()| KeyExchange::new(KeyRole::Initiator).unwrap());
    let (to_b, to_a) = (a.public(), b.public());
    let sealings = [a.agree(&to_a, COOKIE, NAMES).unwrap(), b.agree(&to_b, COOKIE, NAMES).unwrap()];
    assert_eq!(opens(sealings), [false; 2]);
}

/// An attacker between two nodes agrees with both, and knows everything but the cookie.
#[test]
fn one_in_the_middle_gets_nothing_through() {
    let ([a, b], [to_a, to_b]) = (exchanges(), exchanges());
    let (public_a, public_b) = (a.public(), b.public());
    let (a, middle_a) =
        (a.agree(&to_b.public(), COOKIE, NAMES).unwrap(), to_b.agree(&public_a, b"guess", NAMES).unwrap());
    let (middle_b, b) = {
        let public = to_a.public();
        (to_a.agree(&public_b, b"guess", NAMES).unwrap(), b.agree(&public, COOKIE, NAMES).unwrap())
    };
    assert_eq!(opens([a, middle_a]), [false; 2]);
    assert_eq!(opens([middle_b, b]), [false; 2]);
}

#[test]
fn what_is_sent_back_does_not_open() {
    let [mut a, _] = agreed([COOKIE; 2], [NAMES; 2]);
    let mut part = *b"a message";
    let tag = a.outbound.seal(b"", &mut part).unwrap();
    assert!(matches!(a.inbound.open(b"", tag, &mut part), Err(Error::Stranger)));
    // Sending the key exchange back does not help either.
    let [alone, _] = exchanges();
    let own = alone.public();
    let mut alone = alone.agree(&own, COOKIE, NAMES).unwrap();
    let tag = alone.outbound.seal(b"", &mut part).unwrap();
    assert!(matches!(alone.inbound.open(b"", tag, &mut part), Err(Error::Stranger)));
}

#[test]
fn two_exchanges_have_nothing_in_common() {
    let [a, b] = exchanges().map(|exchange| exchange.public());
    assert_ne!(a[..PUBLIC_BYTES], b[..PUBLIC_BYTES]);
    assert_ne!(a[PUBLIC_BYTES..], b[PUBLIC_BYTES..]);
}

#[test]
fn public_keys_of_low_order_are_refused() {
    let top = |last: u8, first: u8| [vec![first], vec![0xff; 30], vec![last]].concat();
    let points = [
        vec![0; 32],
        [vec![1], vec![0; 31]].concat(),
        hex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        hex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
        top(0x7f, 0xec),
        top(0x7f, 0xed),
        top(0x7f, 0xee),
        top(0xff, 0xec),
        top(0xff, 0xed),
        top(0xff, 0xee),
    ];
    for point in points {
        let [exchange, _] = exchanges();
        let hello = [&point[..], &[7; NONCE_BYTES]].concat();
        let error = exchange.agree(&hello, COOKIE, NAMES).unwrap_err();
        assert!(matches!(error, Error::WeakKey), "{point:02x?}: {error}");
    }
}

#[test]
fn half_an_exchange_and_no_cookie_are_refused_by_name() {
    for bytes in [0, HELLO_BYTES - 1, HELLO_BYTES + 1] {
        let [exchange, _] = exchanges();
        let error = exchange.agree(&vec![9; bytes], COOKIE, NAMES).unwrap_err();
        assert!(matches!(error, Error::Hello { bytes: said } if said == bytes), "{error}");
    }
    let [a, b] = exchanges();
    assert!(matches!(a.agree(&b.public(), b"", NAMES), Err(Error::NoCookie)));
}

#[test]
fn no_key_is_printed() {
    let [sealing, _] = vector_sealings();
    let printed = format!("{sealing:?}");
    assert_eq!(
        printed,
        "Sealing { outbound: Direction { parts: 0, .. }, inbound: Direction { parts: 0, .. } }"
    );
}

proptest! {
    /// Any parts under keys that serve for few blocks; then one part is tampered with.
    #[test]
    fn only_the_next_part_opens_and_only_as_it_was(
        parts in proptest::collection::vec((any::<u32>(), 0usize..100), 1..40),
        blocks_max in 1u64..40,
        victim in any::<proptest::sample::Index>(),
        bit in any::<proptest::sample::Index>(),
        what in 0u8..4,
    ) {
        let [mut from, _] = vector_sealings();
        let [_, mut to] = vector_sealings();
        from.outbound.keys_last(blocks_max);
        to.inbound.keys_last(blocks_max);
        let sent: Vec<_> = parts
            .iter()
            .map(|(additional, length)| {
                let plain = vec![*additional as u8; *length];
                let additional = additional.to_le_bytes();
                (additional, sealed(&mut from.outbound, &additional, &plain), plain)
            })
            .collect();
        let mut open = |additional: &[u8], sealed: &[u8]| {
            let (part, tag) = sealed.split_at(sealed.len() - TAG_BYTES);
            let mut part = part.to_vec();
            to.inbound.open(additional, tag.try_into().unwrap(), &mut part).map(|()| part)
        };
        let victim = victim.index(sent.len());
        for (additional, sealed, plain) in &sent[..victim] {
            prop_assert_eq!(&open(additional, sealed).unwrap(), plain);
        }
        let (mut additional, mut sealed, _) = sent[victim].clone();
        match what {
            0 => { let bit = bit.index(8 * sealed.len()); sealed[bit / 8] ^= 1 << (bit % 8); }
            1 => { let bit = bit.index(32); additional[bit / 8] ^= 1 << (bit % 8); }
            2 if sealed.len() > TAG_BYTES => { sealed.pop(); }
            2 => sealed.push(0),
            _ => {
                // Another part, or an earlier one, in its place.
                let other = bit.index(sent.len());
                prop_assume!(other != victim);
                (additional, sealed, _) = sent[other].clone();
            }
        }
        match open(&additional, &sealed) {
            Err(Error::Stranger) => prop_assert_eq!(victim, 0),
            Err(Error::Altered { part }) => prop_assert_eq!(part, victim as u64),
            other => prop_assert!(false, "{:?}", other),
        }
    }
}
