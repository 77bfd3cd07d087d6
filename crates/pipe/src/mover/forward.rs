//! What a sender has under way: shared by its own thread and the one that says that it is alive.

use std::io::IoSlice;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::frame::{FrameHeader, FrameKind, HEADER_BYTES, TAG_BYTES};
use super::seal::Seal;
use super::wire::{HopWire, Streams};
use crate::Error;

/// What is sent, frame after frame.
pub(super) struct Forward {
    pub seals: Vec<Option<Seal>>,
    /// Whose turn it is.
    pub turn: usize,
    /// What is left of an `Idle`.
    pub unsent: Vec<u8>,
    /// When anything was sent last.
    pub sent_at: Instant,
    /// A frame was begun and not ended: nothing can follow.
    pub is_torn: bool,
    /// The stream has ended.
    pub has_ended: bool,
}

impl Forward {
    /// Nothing is under way. One seal, or none, for each stream.
    pub fn new(seals: Vec<Option<Seal>>) -> Self {
        Self { seals, turn: 0, unsent: Vec::new(), sent_at: Instant::now(), is_torn: false, has_ended: false }
    }

    /// Says that the sender is alive, if nothing else is being said.
    pub fn say_idle(&mut self, wire: &mut Streams, ping: Duration) -> Result<(), Error> {
        if self.is_torn || self.has_ended || self.sent_at.elapsed() < ping {
            return Ok(());
        }
        if self.unsent.is_empty() {
            let head = FrameHeader::plain(FrameKind::Idle, 0).encode();
            self.unsent.extend_from_slice(&head);
            if let Some(Some(seal)) = self.seals.get_mut(self.turn) {
                self.unsent.extend_from_slice(&seal.seal(&head, &mut [])?);
            }
            debug_assert!(self.unsent.len() <= HEADER_BYTES + TAG_BYTES);
        }
        if let Ok(Some(sent)) = wire.write(self.turn, &[IoSlice::new(&self.unsent)]) {
            self.unsent.drain(..sent.min(self.unsent.len()));
            self.sent_at = Instant::now();
        }
        // That the receiver is gone is found out by listening.
        Ok(())
    }
}

/// For as long as a frame takes.
pub(super) fn lock(forward: &Mutex<Forward>) -> MutexGuard<'_, Forward> {
    forward.lock().unwrap_or_else(PoisonError::into_inner)
}
