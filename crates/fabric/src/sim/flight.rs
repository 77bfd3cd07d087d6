//! An operation between its doorbell and its last effect, and what may happen to it next.

use caravan_segment::SharedSlice;

use super::Random;
use crate::contract::{Capabilities, Operation};

/// The largest number of pieces that a write or read is torn into.
const PIECES_MAX: u64 = 5;

/// A run of bytes of one operation that has not landed.
#[derive(Debug)]
pub(super) struct Piece {
    /// The offset of the run in the operation's bytes.
    pub(super) at: u64,
    pub(super) bytes: usize,
    /// The bytes of the run, once they are on the wire.
    pub(super) taken: Option<Vec<u8>>,
}

/// One operation between its doorbell and its last effect.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) id: u64,
    pub(super) operation: Operation,
    /// Sorted by `at`.
    pub(super) pieces: Vec<Piece>,
    /// The immediate has been delivered, or the flight has none.
    pub(super) told: bool,
    pub(super) completed: bool,
    /// The word that a compare-and-swap found.
    pub(super) found: Option<u64>,
    /// The compare-and-swap has ended.
    pub(super) stored: bool,
    pub(super) posted_at: u64,
    pub(super) acknowledged_at: Option<u64>,
}

/// What may happen to a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlightStep {
    Land,
    Tell,
    Swap,
    Complete,
}

impl Flight {
    pub(super) fn new(
        id: u64,
        operation: Operation,
        posted_at: u64,
        capabilities: &Capabilities,
        random: &mut Random,
    ) -> Self {
        let (bytes, told) = match operation {
            Operation::Write { from, immediate, .. } => (from.bytes, immediate.is_none()),
            Operation::Read { into, .. } => (into.bytes, true),
            Operation::CompareAndSwap { .. } => (0, true),
        };
        let word = match operation {
            Operation::Read { from, .. } if capabilities.reads_words_atomically => Some(from % 8),
            _ => None,
        };
        Self {
            id,
            operation,
            pieces: tear(u64::from(bytes), word, random),
            told,
            completed: false,
            found: None,
            stored: !matches!(operation, Operation::CompareAndSwap { .. }),
            posted_at,
            acknowledged_at: None,
        }
    }

    /// True once nothing more will happen to the flight.
    pub(super) fn is_over(&self) -> bool {
        self.pieces.is_empty() && self.told && self.completed && self.stored
    }

    pub(super) fn context(&self) -> u64 {
        match self.operation {
            Operation::Write { context, .. }
            | Operation::Read { context, .. }
            | Operation::CompareAndSwap { context, .. } => context,
        }
    }

    pub(super) fn is_write(&self) -> bool {
        matches!(self.operation, Operation::Write { .. })
    }

    /// Returns the index of the piece that lands next.
    pub(super) fn next_piece(&self, random: &mut Random) -> usize {
        random.below(self.pieces.len() as u64) as usize
    }

    /// Copies the bytes that have not landed to the wire, so that the source may change.
    pub(super) fn take(&mut self, source: &SharedSlice) {
        let Operation::Write { from, .. } = self.operation else { return };
        for piece in self.pieces.iter_mut().filter(|piece| piece.taken.is_none()) {
            let mut bytes = vec![0; piece.bytes];
            source.copy_out((from.offset + piece.at) as usize, &mut bytes);
            piece.taken = Some(bytes);
        }
    }
}

/// Cuts `bytes` into random pieces; if `word` is the number of bytes that the first byte lies behind a word's begin,
/// cuts only between words.
fn tear(bytes: u64, word: Option<u64>, random: &mut Random) -> Vec<Piece> {
    if bytes == 0 {
        return Vec::new();
    }
    let mut cuts: Vec<u64> = (0..random.below(PIECES_MAX)).map(|_| random.below(bytes)).collect();
    if let Some(behind) = word {
        cuts.iter_mut().for_each(|cut| *cut = ((*cut + behind) / 8 * 8).saturating_sub(behind));
    }
    cuts.extend([0, bytes]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|cut| Piece { at: cut[0], bytes: (cut[1] - cut[0]) as usize, taken: None }).collect()
}

/// Returns the steps that `flights[index]` may take. `flights` is in order of posting; `swapping` is the flight that is
/// in the middle of a compare-and-swap at the target's node.
pub(super) fn possible(
    flights: &[Flight],
    index: usize,
    capabilities: &Capabilities,
    swapping: Option<u64>,
) -> Vec<FlightStep> {
    let flight = &flights[index];
    let before = &flights[..index];
    let mut steps = Vec::with_capacity(3);
    if !flight.pieces.is_empty() {
        steps.push(FlightStep::Land);
    }
    if !flight.told && flight.pieces.is_empty() && may_tell(flight, before, capabilities) {
        steps.push(FlightStep::Tell);
    }
    // Two swaps do not overlap: swaps are atomic among themselves.
    if !flight.stored && swapping.is_none_or(|other| other == flight.id) {
        steps.push(FlightStep::Swap);
    }
    // A write completes at any time; an operation that returns a value completes after the value has come.
    if !flight.completed && (flight.is_write() || (flight.pieces.is_empty() && flight.stored)) {
        steps.push(FlightStep::Complete);
    }
    steps
}

fn landed(flight: &Flight) -> bool {
    !flight.is_write() || flight.pieces.is_empty()
}

fn may_tell(flight: &Flight, before: &[Flight], capabilities: &Capabilities) -> bool {
    before.iter().all(|other| {
        let known = other.acknowledged_at.is_some_and(|at| at < flight.posted_at);
        let first = capabilities.immediates_ordered || known;
        !first || (landed(other) && other.told)
    })
}
