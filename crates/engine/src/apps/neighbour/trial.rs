//! For the tests of both protocols: a responder between two ports, and arbitrary frames.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{NeighbourAddress, Responder};
use crate::testing::AppBench;

/// The packets of an [`AppBench`] here.
pub const PACKETS: u32 = 8;

/// An arrival: a frame's kind, whether it comes from the south, bytes written over its own, and where it is cut.
pub type Arrival = (usize, bool, Vec<(usize, u8)>, usize);

/// Gives a frame to a port, and returns the frames that then leave for the north and for the south.
pub fn push<A: NeighbourAddress>(
    bench: &mut AppBench<Responder<A>>,
    port: &str,
    frame: &[u8],
) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    bench.put(port, frame);
    bench.push();
    (bench.sent("north"), bench.sent("south"))
}

/// Makes frames of five kinds, with changes in their first `changed` bytes, and of less than `bytes` bytes.
pub fn arrivals(changed: usize, bytes: usize) -> impl Strategy<Value = Vec<Arrival>> {
    let changes = prop::collection::vec((0..changed, any::<u8>()), 0..3);
    prop::collection::vec((0..5_usize, any::<bool>(), changes, 0..bytes), 1..40)
}

/// Checks that any frame passes, is answered, waits, or is dropped. `kinds` are four of the five; the last one consists
/// of zeros. All are filled up to `changed` bytes.
pub fn try_all<A: NeighbourAddress>(
    mut bench: AppBench<Responder<A>>,
    kinds: [Vec<u8>; 4],
    changed: usize,
    arrivals: Vec<Arrival>,
) -> Result<(), TestCaseError> {
    for (kind, is_south, changes, cut) in arrivals {
        let mut frame = kinds.get(kind).cloned().unwrap_or_default();
        frame.resize(frame.len().max(changed), 0);
        changes.into_iter().for_each(|(place, value)| frame[place] = value);
        frame.truncate(cut);
        bench.now_ns += 1_000_000_000;
        let port = if is_south { "south" } else { "north" };
        let (north, south) = push(&mut bench, port, &frame);
        // At most an answer, the packet that waited, and a question.
        prop_assert!(north.len() <= 1 && south.len() <= 3);
        // All packets but one that may wait.
        prop_assert!(bench.free() >= PACKETS as usize - 1);
    }
    bench.stop();
    prop_assert_eq!(bench.free(), PACKETS as usize);
    Ok(())
}
