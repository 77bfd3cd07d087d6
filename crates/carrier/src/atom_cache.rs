//! The contents of the sender's atom cache, and the slots in which the emulator's cache differs.
//!
//! Headers refer to atoms by cache slots, in the order in which they were sent. A fragmented
//! message is delivered when it is complete, after messages that were sent after its header. So
//! the emulator meets the headers in another order, and a slot may not hold for it what it held
//! for the sender. This mirror knows the sender's texts, and which slots differ; a header that
//! refers to such a slot is rewritten with the text in it. While no message is being put together
//! no slot differs, and no header is changed.

use crate::dist_header::{self, ParsedReferences, Reference, SLOTS};
use crate::error::Error;

/// The mirror of one connection's inbound atom cache.
#[derive(Debug)]
pub struct AtomCache {
    /// The text that each slot holds for the sender.
    sender: Vec<Option<Box<[u8]>>>,
    /// True if the emulator's slot holds another text, or none.
    differs: Vec<bool>,
    differing: usize,
}

/// References that are delivered in place of those that the peer sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewrittenHeader {
    /// The references, from the count on.
    pub references: Vec<u8>,
    /// The number of bytes of the peer's references that they replace.
    pub replaced_bytes: usize,
}

impl Default for AtomCache {
    fn default() -> Self {
        Self { sender: vec![None; SLOTS], differs: vec![false; SLOTS], differing: 0 }
    }
}

impl AtomCache {
    /// Returns the number of slots in which the emulator's cache differs.
    pub fn differing(&self) -> usize {
        self.differing
    }

    /// Applies a header (`references`, from the count on) that is delivered now. Returns `None` if it can
    /// stay as it is.
    #[inline]
    pub fn deliver_now(&mut self, references: &[u8]) -> Result<Option<RewrittenHeader>, Error> {
        if dist_header::fills_nothing(references).ok_or(Error::Header)? {
            if self.differing == 0 {
                return Ok(None);
            }
            let mut slots = dist_header::cached_slots(references).ok_or(Error::Header)?;
            if !slots.any(|slot| self.differs[usize::from(slot)]) {
                return Ok(None);
            }
        }
        self.rewrite(references)
    }

    fn rewrite(&mut self, references: &[u8]) -> Result<Option<RewrittenHeader>, Error> {
        let ParsedReferences { references: mut parsed, bytes } = dist_header::parse(references)?;
        let mut changed = false;
        for reference in &mut parsed {
            let slot = usize::from(reference.slot);
            match &reference.text {
                Some(text) => {
                    self.sender[slot] = Some(text.clone());
                    self.set_differs(slot, false);
                }
                None if self.differs[slot] => {
                    // A slot that the sender has never filled is the sender's fault; the emulator reports it.
                    reference.text = self.sender[slot].clone();
                    changed |= reference.text.is_some();
                    self.set_differs(slot, false);
                }
                None => {}
            }
        }
        if !changed {
            return Ok(None);
        }
        let mut written = Vec::new();
        dist_header::write(&parsed, &mut written);
        Ok(Some(RewrittenHeader { references: written, replaced_bytes: bytes }))
    }

    /// Applies a header that is delivered later. Returns its references with the texts that they have now.
    pub fn hold(&mut self, references: &[u8]) -> Result<ParsedReferences, Error> {
        let ParsedReferences { references: mut parsed, bytes } = dist_header::parse(references)?;
        for reference in &mut parsed {
            let slot = usize::from(reference.slot);
            match &reference.text {
                Some(text) => {
                    self.sender[slot] = Some(text.clone());
                    self.set_differs(slot, true);
                }
                None => reference.text = Some(self.sender[slot].clone().ok_or(Error::Header)?),
            }
        }
        Ok(ParsedReferences { references: parsed, bytes })
    }

    /// Returns the references of a held header as they must be delivered now.
    pub fn deliver_held(&mut self, held: Vec<Reference>) -> Vec<u8> {
        let mut references = held;
        for reference in &mut references {
            let slot = usize::from(reference.slot);
            let same = self.sender[slot] == reference.text;
            if same && !self.differs[slot] {
                reference.text = None;
            } else {
                self.set_differs(slot, !same);
            }
        }
        let mut written = Vec::new();
        dist_header::write(&references, &mut written);
        written
    }

    fn set_differs(&mut self, slot: usize, differs: bool) {
        if self.differs[slot] != differs {
            self.differs[slot] = differs;
            self.differing = if differs { self.differing + 1 } else { self.differing - 1 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_held_messages_no_header_is_touched() {
        let mut mirror = AtomCache::default();
        let fill = [1, 0x08, 9, 2, b'o', b'k'];
        assert_eq!(mirror.deliver_now(&fill).unwrap(), None);
        assert_eq!(mirror.deliver_now(&[1, 0x00, 9]).unwrap(), None);
        assert_eq!(mirror.differing(), 0);
    }
}
