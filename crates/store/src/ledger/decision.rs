//! The home's side of a commit: where its decision is.

use std::time::Instant;

use super::{DECISION, DECISION_BYTES, Decision, Ledger, LedgerChange, TransactionId};
use crate::commit::ObjectWrite;
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::faults::{self, FaultMoment, PlantedFault, is_planted};
use crate::image::ObjectImage;
use crate::limits;
use crate::transaction::Transaction;

/// The place of a decision, while its transaction commits.
#[derive(Debug)]
pub(crate) struct DecisionPlace<'l> {
    ledger: &'l Ledger,
    id: TransactionId,
    parts: Vec<u16>,
    entry: usize,
    /// The object of an earlier decision there.
    before: Option<ObjectAddress>,
    object: Option<ObjectAddress>,
    is_kept: bool,
}

impl<'l> DecisionPlace<'l> {
    pub(crate) fn take(ledger: &'l Ledger, id: TransactionId, parts: &[u16]) -> Result<Self, StoreError> {
        if parts.len() > limits::PARTICIPANTS_MAX {
            return Err(StoreError::TooManyParts { parts: parts.len() + 1 });
        }
        let (entry, before) = ledger.take_entry()?;
        Ok(Self { ledger, id, parts: parts.to_vec(), entry, before, object: None, is_kept: false })
    }

    /// Has a transaction write the decision.
    pub(crate) fn write(&mut self, tx: &mut Transaction<'_>) -> Result<(), StoreError> {
        let mut payload = DECISION.to_be_bytes().to_vec();
        self.id.append(&mut payload);
        payload.extend_from_slice(&(self.parts.len() as u16).to_be_bytes());
        self.parts.iter().for_each(|part| payload.extend_from_slice(&part.to_be_bytes()));
        payload.resize(DECISION_BYTES, 0);
        let image = ObjectImage::of_ledger(&payload);
        let object = match self.before {
            Some(object) => {
                tx.read_object(object)?;
                tx.writes.objects.insert(object, ObjectWrite::Replace(image));
                object
            }
            None => tx.alloc_image(image, None)?,
        };
        self.object = Some(object);
        let word = if is_planted(PlantedFault::UnnotedDecision) { 0 } else { object.to_word() };
        tx.writes.entry = Some(LedgerChange { object: object.place, entry: self.entry, word });
        Ok(())
    }

    /// Says that the transaction has happened.
    pub(crate) fn keep(mut self) {
        faults::has_come(FaultMoment::Decision);
        let mut state = self.ledger.state();
        state.open.remove(&self.id.number);
        if let Some(object) = self.object {
            let decision = Decision {
                entry: self.entry,
                object,
                parts: std::mem::take(&mut self.parts),
                since: Instant::now(),
            };
            state.decisions.insert(self.id, decision);
        }
        drop(state);
        self.is_kept = true;
    }

    /// Says that nobody knows whether it has: another owner will.
    pub(crate) fn leave(mut self) {
        self.is_kept = true;
    }
}

impl Drop for DecisionPlace<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.ledger.give_entry_back(self.entry, self.before);
        }
    }
}
