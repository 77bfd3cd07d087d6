//! An operation under way, and what may happen to it next.
//!
//! | who | change | why |
//! |---|---|---|
//! | network | a piece lands | its bytes are copied from the source, or from the wire once taken |
//! | network | taken | the operation completes: the source may change from now on |
//! | network | told | all pieces have landed, and the order that is promised allows the immediate |
//! | network | loaded, then stored | a compare-and-swap: in one step where atomic, in two where not |
//! | source | acknowledged | it polled the completion |
//! | network | pieces are lost | the source ended before the completion |

use caravan_segment::SharedSlice;

use super::random::Random;
use crate::contract::{Capabilities, Operation};

/// Pieces that a write or read is torn into at most.
const PIECES_MAX: u64 = 5;

/// A run of bytes of one operation that has not landed.
#[derive(Debug)]
pub(super) struct Piece {
    /// Where it begins, from the start of the operation's bytes.
    pub(super) at: u64,
    pub(super) bytes: usize,
    /// Its bytes, once they are on the wire.
    pub(super) taken: Option<Vec<u8>>,
}

/// One operation between its doorbell and its last effect.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) id: u64,
    pub(super) operation: Operation,
    /// By rising `at`.
    pub(super) pieces: Vec<Piece>,
    /// The immediate has been delivered, or there is none.
    pub(super) told: bool,
    pub(super) completed: bool,
    /// What a compare-and-swap found.
    pub(super) found: Option<u64>,
    /// The compare-and-swap is over.
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
    pub(super) fn new(id: u64, operation: Operation, posted_at: u64, random: &mut Random) -> Self {
        let (bytes, told) = match operation {
            Operation::Write { from, immediate, .. } => (from.bytes, immediate.is_none()),
            Operation::Read { into, .. } => (into.bytes, true),
            Operation::CompareAndSwap { .. } => (0, true),
        };
        Self {
            id,
            operation,
            pieces: tear(u64::from(bytes), random),
            told,
            completed: false,
            found: None,
            stored: !matches!(operation, Operation::CompareAndSwap { .. }),
            posted_at,
            acknowledged_at: None,
        }
    }

    /// True once nothing more will happen to it.
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

    /// Which of its pieces lands next.
    pub(super) fn next_piece(&self, random: &mut Random) -> usize {
        random.below(self.pieces.len() as u64) as usize
    }

    /// Puts the bytes that have not landed on the wire, so that the source may change.
    pub(super) fn take(&mut self, source: &SharedSlice) {
        let Operation::Write { from, .. } = self.operation else { return };
        for piece in self.pieces.iter_mut().filter(|piece| piece.taken.is_none()) {
            let mut bytes = vec![0; piece.bytes];
            source.copy_out((from.offset + piece.at) as usize, &mut bytes);
            piece.taken = Some(bytes);
        }
    }
}

/// Cuts `bytes` into random pieces.
fn tear(bytes: u64, random: &mut Random) -> Vec<Piece> {
    if bytes == 0 {
        return Vec::new();
    }
    let mut cuts: Vec<u64> = (0..random.below(PIECES_MAX)).map(|_| random.below(bytes)).collect();
    cuts.extend([0, bytes]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|cut| Piece { at: cut[0], bytes: (cut[1] - cut[0]) as usize, taken: None }).collect()
}

/// What may happen to `flights[index]`, where `flights` is in order of posting.
pub(super) fn possible(flights: &[Flight], index: usize, capabilities: &Capabilities) -> Vec<FlightStep> {
    let flight = &flights[index];
    let before = &flights[..index];
    let mut steps = Vec::with_capacity(3);
    if !flight.pieces.is_empty() {
        steps.push(FlightStep::Land);
    }
    if !flight.told && flight.pieces.is_empty() && may_tell(flight, before, capabilities) {
        steps.push(FlightStep::Tell);
    }
    // Two swaps of one side do not overlap: they are atomic among their kind.
    let swapping = |other: &Flight| other.id != flight.id && other.found.is_some() && !other.stored;
    if !flight.stored && !flights.iter().any(swapping) {
        steps.push(FlightStep::Swap);
    }
    // A write completes whenever it likes; what asks for an answer has to have it.
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
