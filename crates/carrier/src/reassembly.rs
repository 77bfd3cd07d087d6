//! Fragmented messages, put together in place.
//!
//! The emulator sends a large message in fragments of 64 KiB, so that small ones of other
//! processes pass between them; its receiving side keeps each fragment and in the end copies all
//! of them into one. Here the bytes of each fragment go from the ring straight to their place in
//! one binary, and the emulator gets the message whole: one copy instead of two, and a large
//! binary in it is then referred to, not copied.

use crate::atom_cache::AtomCache;
use crate::dist_header::{self, FRAGMENT_BYTES, ParsedReferences, Reference, WHOLE_PREFIX};
use crate::emulator::{Binary, Emulator};
use crate::error::Error;
use crate::limits::{HELD_MESSAGE_BYTES_MAX, HELD_MESSAGES_MAX};

/// What the header of a first fragment says about its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstFragment {
    /// The sequence number of the message.
    pub sequence: u64,
    /// The number of fragments of the message.
    pub fragments: u64,
}

/// A message that is not complete.
#[derive(Debug)]
struct HeldMessage<B> {
    sequence: u64,
    /// The fragment that must come next.
    due: u64,
    references: Vec<Reference>,
    binary: B,
    /// The number of bytes left free in front for the header, which is written last.
    headroom: usize,
    filled: usize,
}

/// The fragmented messages of one connection that are being put together.
#[derive(Debug)]
pub struct Reassembly<B> {
    held: Vec<HeldMessage<B>>,
    completed: u64,
}

impl<B> Default for Reassembly<B> {
    fn default() -> Self {
        Self { held: Vec::new(), completed: 0 }
    }
}

impl<B: Binary> Reassembly<B> {
    /// Returns the number of messages put together so far.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// True if a message of `fragments` fragments, the first of `first_bytes` bytes, is to be put
    /// together here, and not delivered in fragments.
    pub fn takes(&self, fragments: u64, first_bytes: usize) -> bool {
        let bytes = fragments.checked_mul(first_bytes as u64);
        fragments > 1
            && self.held.len() < HELD_MESSAGES_MAX
            && bytes.is_some_and(|bytes| bytes <= HELD_MESSAGE_BYTES_MAX)
    }

    /// Takes the first fragment. False if there is no memory for the whole message, which is then
    /// delivered in fragments.
    pub fn begin<E: Emulator<Binary = B>>(
        &mut self,
        emulator: &mut E,
        cache: &mut AtomCache,
        FirstFragment { sequence, fragments }: FirstFragment,
        first: &[u8],
    ) -> Result<bool, Error> {
        let references = first.get(FRAGMENT_BYTES..).ok_or(Error::Header)?;
        let headroom = headroom(references)?;
        // All but the last fragment have the same size; the last one is not larger.
        let bytes = headroom + fragments as usize * first.len();
        let Some(mut binary) = emulator.allocate(bytes) else { return Ok(false) };
        let ParsedReferences { references, bytes: header_bytes } = cache.hold(references)?;
        let body = &first[FRAGMENT_BYTES + header_bytes..];
        binary.bytes_mut(headroom..headroom + body.len()).copy_from_slice(body);
        let due = fragments - 1;
        self.held.push(HeldMessage {
            sequence,
            due,
            references,
            binary,
            headroom,
            filled: headroom + body.len(),
        });
        Ok(true)
    }

    /// Returns the index of the message `sequence`, if it is held here; checks that `fragment` is due.
    pub fn find(&self, sequence: u64, fragment: u64) -> Result<Option<usize>, Error> {
        let Some(index) = self.held.iter().position(|held| held.sequence == sequence) else {
            return Ok(None);
        };
        let expected = self.held[index].due;
        if fragment != expected {
            return Err(Error::Fragment { sequence, found: fragment, expected });
        }
        Ok(Some(index))
    }

    /// Checks that `sequence` is not being put together already: a first fragment must be of another.
    pub fn new_sequence(&self, sequence: u64, fragments: u64) -> Result<(), Error> {
        match self.held.iter().find(|held| held.sequence == sequence) {
            Some(held) => Err(Error::Fragment { sequence, found: fragments, expected: held.due }),
            None => Ok(()),
        }
    }

    /// Makes room for `bytes` more in the message at `index`. Rarely needed: only for a sender whose later
    /// fragments are larger than its first. Returns an error if the message is larger than the limit.
    pub fn reserve(&mut self, index: usize, bytes: usize) -> Result<(), Error> {
        let held = &self.held[index];
        let needed = held.filled + bytes;
        if needed <= held.binary.length() {
            return Ok(());
        }
        let most = held.headroom + HELD_MESSAGE_BYTES_MAX as usize;
        if needed > most {
            return Err(Error::TooMuchHeld { sequence: held.sequence, bytes: needed - held.headroom });
        }
        let mut held = self.held.swap_remove(index);
        let grown = needed.max(needed / 2 * 3).min(most);
        held.binary = held.binary.resized(grown).ok_or(Error::NoMemory { bytes: grown })?;
        self.held.push(held);
        let last = self.held.len() - 1;
        self.held.swap(index, last);
        Ok(())
    }

    /// Returns the next `bytes` bytes of the message at `index`, to be filled; then call [`Self::filled`].
    pub fn space(&mut self, index: usize, bytes: usize) -> &mut [u8] {
        let held = &mut self.held[index];
        let filled = held.filled;
        held.binary.bytes_mut(filled..filled + bytes)
    }

    /// Counts `bytes` bytes as filled.
    pub fn filled(&mut self, index: usize, bytes: usize) {
        self.held[index].filled += bytes;
    }

    /// Ends a complete fragment of the message at `index`, and delivers the message if this fragment
    /// was the last one. Returns whether it was.
    pub fn end_fragment<E: Emulator<Binary = B>>(
        &mut self,
        emulator: &mut E,
        cache: &mut AtomCache,
        index: usize,
    ) -> Result<bool, Error> {
        self.held[index].due -= 1;
        if self.held[index].due > 0 {
            return Ok(false);
        }
        let mut held = self.held.swap_remove(index);
        let references = cache.deliver_held(held.references);
        let offset = held.headroom - WHOLE_PREFIX.len() - references.len();
        let header = held.binary.bytes_mut(offset..held.headroom);
        header[..WHOLE_PREFIX.len()].copy_from_slice(&WHOLE_PREFIX);
        header[WHOLE_PREFIX.len()..].copy_from_slice(&references);
        emulator.deliver(&held.binary, offset, held.filled - offset);
        self.completed += 1;
        Ok(true)
    }
}

/// Returns the largest number of bytes that the header can need when it is delivered: every atom with its
/// text, of the largest length that an atom can have.
fn headroom(references: &[u8]) -> Result<usize, Error> {
    /// An atom has at most 255 characters of up to 4 bytes.
    const ATOM_BYTES_MAX: usize = 255 * 4;
    let parsed = dist_header::parse(references)?.references;
    let texts: usize = parsed.iter().map(|r| r.text.as_ref().map_or(ATOM_BYTES_MAX, |text| text.len())).sum();
    Ok(WHOLE_PREFIX.len() + 1 + parsed.len() / 2 + 1 + 3 * parsed.len() + texts)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    /// A binary of any length, whose memory is one small piece.
    struct Claimed(usize, Vec<u8>);

    impl Binary for Claimed {
        fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
            assert!(range.end <= self.0);
            self.1.resize(range.len(), 0);
            &mut self.1
        }
        fn length(&self) -> usize {
            self.0
        }
        fn resized(self, bytes: usize) -> Option<Self> {
            Some(Self(bytes, self.1))
        }
    }

    struct Claiming;

    impl Emulator for Claiming {
        type Binary = Claimed;
        fn allocate(&mut self, bytes: usize) -> Option<Claimed> {
            Some(Claimed(bytes, Vec::new()))
        }
        fn deliver(&mut self, _: &Claimed, _: usize, _: usize) {}
        fn queued_bytes(&self) -> usize {
            0
        }
        fn enqueue(&mut self, _: &[u8]) {}
        fn enqueue_output(&mut self, _: usize) {}
        fn peek_queue(&self, _: &mut dyn FnMut(&[u8]) -> bool) {}
        fn dequeue(&mut self, _: usize) {}
        fn set_busy(&mut self, _: bool) {}
    }

    #[test]
    fn later_fragments_that_are_larger_than_the_first_take_no_more_than_a_message_may() {
        let (mut reassembly, mut cache) = (Reassembly::default(), AtomCache::default());
        let first = [&[131, 69][..], &[0; 16], &[0], &[7; 100]].concat();
        let fragments = 100_000;
        assert!(reassembly.takes(fragments, first.len()));
        assert!(
            reassembly
                .begin(&mut Claiming, &mut cache, FirstFragment { sequence: 0, fragments }, &first)
                .unwrap()
        );
        let refused = (1..fragments).find_map(|_| {
            let refused = reassembly.reserve(0, 64 << 10).err();
            reassembly.filled(0, 64 << 10);
            let most = reassembly.held[0].headroom as u64 + HELD_MESSAGE_BYTES_MAX;
            assert!(reassembly.held[0].binary.length() as u64 <= most);
            refused
        });
        let refused = refused.expect("six times the most that may be held");
        assert!(matches!(refused, Error::TooMuchHeld { sequence: 0, .. }), "{refused}");
        assert_eq!(refused.exit_reason(), c"killed");
    }
}
