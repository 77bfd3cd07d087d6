//! The model must fail where something is wrong. The table says who is killed for it to show.

use std::panic::catch_unwind;

use crate::link::{Run, STORES, Wrong, check};
use crate::world::Fault;

/// Who is killed, after any number of stores.
#[derive(Clone, Copy, Debug)]
enum Dies {
    Nobody,
    Giver,
    Taker,
}

#[rustfmt::skip]
const CAUGHT: &[(Fault, Wrong, Dies)] = &[
    (Fault::NoRelease, Wrong::Nothing, Dies::Nobody),
    (Fault::NoAcquire, Wrong::Nothing, Dies::Nobody),
    (Fault::None, Wrong::StampedAfterPublish, Dies::Nobody),
    (Fault::None, Wrong::ReleasedBeforeStamp, Dies::Taker),
    (Fault::None, Wrong::TakenUnseen, Dies::Taker),
    (Fault::None, Wrong::NotReclaimed, Dies::Giver),
    (Fault::None, Wrong::NotReclaimed, Dies::Taker),
    (Fault::None, Wrong::RingLookedAtLast, Dies::Giver),
    (Fault::None, Wrong::RingLookedAtLast, Dies::Taker),
    (Fault::None, Wrong::NotSkipped, Dies::Taker),
];

#[test]
fn the_model_fails_where_something_is_wrong() {
    let mut missed = Vec::new();
    for &(fault, wrong, dies) in CAUGHT {
        let runs: Vec<_> = match dies {
            Dies::Nobody => vec![Run::right(None, None)],
            Dies::Giver => (0..STORES).map(|stores| Run::right(Some(stores), None)).collect(),
            Dies::Taker => (0..STORES).map(|stores| Run::right(None, Some(stores))).collect(),
        };
        let caught = |run: Run| catch_unwind(move || check(Run { fault, wrong, ..run })).is_err();
        if !runs.into_iter().any(caught) {
            missed.push(format!("{fault:?}, {wrong:?}, killed: {dies:?}"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
