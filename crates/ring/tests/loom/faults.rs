//! The models must fail where the memory is wrong. The table says which fault each model is there
//! to catch.

use std::panic::catch_unwind;

use crate::world::Fault;
use crate::{flow, litmus};

const BYTES: fn(Fault) = |fault| {
    flow::bytes(fault, 2, &[1, 2, 3], 1, 3);
};
const SLOTS: fn(Fault) = |fault| {
    flow::slots(fault, 1, 3, 3);
};

const NO_ORDER: &[Fault] = &[Fault::NoFence, Fault::WeakFence, Fault::NoBarrier];

type Row = (&'static str, fn(Fault), &'static [Fault]);

#[rustfmt::skip]
const CAUGHT: &[Row] = &[
    ("consumer sleeps", litmus::a_sleeping_consumer_is_belled, NO_ORDER),
    ("producer waits", litmus::a_blocked_producer_is_belled, NO_ORDER),
    ("consumer wakes", litmus::one_bell_for_each_sleep, &[Fault::TornSwap]),
    ("producer stops", litmus::one_bell_for_each_wait, &[Fault::TornSwap]),
    ("publish and poll", litmus::no_byte_is_seen_before_it_is_written, &[Fault::NoRelease, Fault::NoAcquire]),
    ("release and claim", litmus::no_unread_byte_is_overwritten, &[Fault::NoRelease, Fault::NoAcquire]),
    ("byte ring", BYTES, &[Fault::NoFence, Fault::WeakFence, Fault::NoBarrier, Fault::NoRelease, Fault::NoAcquire]),
    ("slot ring", SLOTS, &[Fault::NoFence, Fault::WeakFence, Fault::NoRelease, Fault::NoAcquire]),
];

#[test]
fn each_model_fails_where_its_ordering_is_missing() {
    let mut missed = Vec::new();
    for (name, model, faults) in CAUGHT {
        for fault in *faults {
            if catch_unwind(|| model(*fault)).is_ok() {
                missed.push(format!("{name} does not notice {fault:?}"));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
