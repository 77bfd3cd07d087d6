//! Seals the emulator's messages, and puts them into the ring.
//!
//! A part is gathered and sealed in a buffer of this side's own: the emulator's bytes must not be
//! changed, and others can read the ring's bytes. The bytes in the port's queue are plain; a part
//! leaves the queue when all of it is in the ring, so an empty queue still means that nothing waits.

use caravan_fabric::Link;
use caravan_ring::record::{LENGTH_BYTES, prefix};

use super::Outbound;
use crate::emulator::Emulator;
use crate::error::Error;
use crate::seal::{Direction, PART_BYTES, TAG_BYTES, WHOLE_BYTES, first_part, next_part};

/// The number of bytes of a part with its tag, and of the length that may precede it.
const BUFFER_BYTES: usize = PART_BYTES + TAG_BYTES;
const _: () = assert!(LENGTH_BYTES + WHOLE_BYTES + TAG_BYTES <= BUFFER_BYTES);

/// Seals what a connection sends.
#[derive(Debug)]
pub(super) struct Sealer {
    direction: Direction,
    /// The last sealed part, of which `from..to` is not in the ring yet.
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    /// The number of plain bytes of the part, including those of the length.
    plain: usize,
    /// The number of bytes of the record after the part.
    left: usize,
}

impl Sealer {
    pub(super) fn new(direction: Direction) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self { direction, buffer, from: 0, to: 0, plain: 0, left: 0 }
    }

    /// Puts as much of a record of `length` bytes as fits into the ring; `gather` fills a buffer
    /// with its next bytes. Returns the number of bytes, the length's included, of those parts that are
    /// completely in the ring.
    pub(super) fn send(
        &mut self,
        link: &mut Link,
        length: usize,
        mut gather: impl FnMut(&mut [u8]),
    ) -> Result<usize, Error> {
        let mut sent = 0;
        self.seal_first(length, &mut gather)?;
        while self.append(link)? {
            sent += self.plain;
            if self.left == 0 {
                break;
            }
            self.seal_next(&mut gather)?;
        }
        Ok(sent)
    }

    /// Moves as much of the queue as fits into the ring. Returns the number of bytes of ring
    /// that it took.
    pub(super) fn flush<E: Emulator>(&mut self, link: &mut Link, emulator: &mut E) -> Result<usize, Error> {
        let mut moved = 0;
        loop {
            if self.from == self.to {
                self.seal_queued(emulator)?;
            }
            let before = self.from;
            let whole = self.append(link)?;
            moved += self.from - before;
            if !whole {
                return Ok(moved);
            }
            emulator.dequeue(self.plain);
            if emulator.queued_bytes() == 0 {
                return Ok(moved);
            }
        }
    }

    /// Seals the next part of the queue.
    fn seal_queued<E: Emulator>(&mut self, emulator: &E) -> Result<(), Error> {
        if self.left > 0 {
            return self.seal_next(|to| peek(emulator, 0, to));
        }
        let mut length = [0; LENGTH_BYTES];
        peek(emulator, 0, &mut length);
        self.seal_first(u32::from_le_bytes(length) as usize, |to| peek(emulator, LENGTH_BYTES, to))
    }

    fn seal_first(&mut self, length: usize, gather: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        let part = first_part(length);
        let length_bytes = prefix(length as u32);
        self.buffer[..LENGTH_BYTES].copy_from_slice(&length_bytes);
        self.left = length - part;
        self.seal(LENGTH_BYTES, part, &length_bytes, gather)
    }

    fn seal_next(&mut self, gather: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        let part = next_part(self.left);
        self.left -= part;
        self.seal(0, part, &[], gather)
    }

    fn seal(
        &mut self,
        at: usize,
        bytes: usize,
        additional: &[u8],
        gather: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        let (part, behind) = self.buffer[at..].split_at_mut(bytes);
        gather(part);
        behind[..TAG_BYTES].copy_from_slice(&self.direction.seal(additional, part)?);
        (self.from, self.to) = (0, at + bytes + TAG_BYTES);
        self.plain = at + bytes;
        Ok(())
    }

    /// Appends the sealed bytes to the ring. True once all of them are there.
    fn append(&mut self, link: &mut Link) -> Result<bool, Error> {
        self.from += link.append(&self.buffer[self.from..self.to])?;
        Ok(self.from == self.to)
    }
}

impl Outbound {
    /// Does what [`send`](Self::send) does, on a link that is sealed.
    pub fn send_sealed<'a, E: Emulator>(
        &mut self,
        link: &mut Link,
        emulator: &mut E,
        mut parts: impl Iterator<Item = &'a [u8]>,
        length: usize,
        now: impl FnOnce() -> u64,
    ) -> Result<(), Error> {
        let Some(sealer) = &mut self.sealer else { return Ok(()) };
        self.messages += 1;
        let mut sent = 0;
        if emulator.queued_bytes() == 0 {
            let mut rest = &[][..];
            sent = sealer.send(link, length, |to| gather(&mut parts, &mut rest, to))?;
            link.publish()?;
            if sent == LENGTH_BYTES + length {
                return Ok(());
            }
        }
        if sent == 0 {
            emulator.enqueue(&prefix(length as u32));
        }
        emulator.enqueue_output(sent.saturating_sub(LENGTH_BYTES));
        self.mark_busy(emulator, now);
        Ok(())
    }
}

/// Fills `to` with the next bytes of `parts`, which must be enough; `rest` is the rest of the
/// current part.
fn gather<'a>(parts: &mut impl Iterator<Item = &'a [u8]>, rest: &mut &'a [u8], to: &mut [u8]) {
    let mut have = 0;
    while have < to.len() {
        if rest.is_empty() {
            *rest = parts.next().expect("the emulator's vector is as long as it says");
            continue;
        }
        let (next, behind) = rest.split_at(rest.len().min(to.len() - have));
        to[have..have + next.len()].copy_from_slice(next);
        have += next.len();
        *rest = behind;
    }
}

/// Fills `to` with the queue's bytes from `skip` on, which are enough: records are queued
/// whole.
fn peek<E: Emulator>(emulator: &E, mut skip: usize, to: &mut [u8]) {
    let mut have = 0;
    emulator.peek_queue(&mut |piece| {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        let piece = &piece[skipped..];
        let bytes = piece.len().min(to.len() - have);
        to[have..have + bytes].copy_from_slice(&piece[..bytes]);
        have += bytes;
        have < to.len()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use aead::digest::{SHA256, digest};

    /// The layout of a record of 3000 bytes, as another implementation makes it.
    #[test]
    fn a_large_record_is_as_the_table_says() {
        let ring_bytes = 8 << 10;
        let (mut here, mut there) = Link::pair(ring_bytes).unwrap();
        let [initiator, _] = crate::seal::vector_sealings();
        let message: Vec<u8> = (0..3000).map(|i| (i % 251) as u8).collect();
        let mut rest = &message[..];
        let sent = Sealer::new(initiator.outbound).send(&mut here, message.len(), |to| {
            let (next, behind) = rest.split_at(to.len());
            to.copy_from_slice(next);
            rest = behind;
        });
        assert_eq!(sent.unwrap(), LENGTH_BYTES + message.len());
        here.publish().unwrap();
        let mut stream = vec![0; there.refresh().unwrap()];
        there.read(&mut stream);
        assert_eq!(stream.len(), LENGTH_BYTES + message.len() + 2 * TAG_BYTES);
        let sum: String =
            digest(&SHA256, &stream).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(sum, "5f17a61fa1e0e389fd60aa0d399f91e2678786039d29259d69b6c2b9e8f1e663");
    }
}
