//! Others that make up what they send: clients, files and servers.

use proptest::prelude::*;

use crate::hostile_bytes::{as_call_bodies, as_calls, as_snapshot, as_snapshot_records, call};
use crate::lying_server::as_replies;

/// Pieces of calls: any bytes, and numbers that are small or of places where something is.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let number =
        prop_oneof![Just(0_u64), 0..40_u64, (0..64_u64).prop_map(|n| (1 << 20) + 8 * n), any::<u64>()];
    let piece = prop_oneof![
        number.prop_map(|n| n.to_be_bytes().to_vec()),
        (0..4_u32).prop_map(|n| n.to_be_bytes().to_vec()),
        (0..4_u8).prop_map(|n| vec![n]),
        proptest::collection::vec(any::<u8>(), 0..20),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn calls() -> impl Strategy<Value = Vec<u8>> {
    let one = prop_oneof![
        8 => (0..4_u32, 0..23_u16, body()).prop_map(|(number, kind, body)| call(number, kind, &body)),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ];
    proptest::collection::vec(one, 1..20).prop_map(|calls| calls.concat())
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn no_bytes_of_a_client_damage_the_store(calls in calls()) {
        as_calls(&calls);
    }

    #[test]
    fn no_bodies_of_calls_damage_the_store(input in proptest::collection::vec(any::<u8>(), 0..200)) {
        as_call_bodies(&input);
    }

    #[test]
    fn no_file_damages_the_store(count in 0..3_u8, records in proptest::collection::vec(0..5_u8, 0..60)) {
        as_snapshot(&records);
        as_snapshot_records(&[&[count][..], &records].concat());
    }
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn a_server_that_lies_gets_no_client_into_trouble(input in proptest::collection::vec(any::<u8>(), 0..300)) {
        as_replies(&input);
    }
}
