//! Takes sealed records from the ring, opens them, and delivers them to the emulator.
//!
//! Each part is copied from the ring to where its bytes belong, and opened there: others can change
//! the ring's bytes, and the bytes that were checked must be the bytes that are used. Nobody looks at
//! a part before. The layout is at the top of [`seal`](crate::seal).

use caravan_fabric::Link;
use caravan_ring::record::prefix;

use super::{Inbound, RecordPlace, RecordSink, deliver};
use crate::dist_header::FRAGMENT_BYTES;
use crate::emulator::{Binary, Emulator};
use crate::error::Error;
use crate::limits::{SHARED_BINARY_BYTES, SMALL_MESSAGE_BYTES};
use crate::seal::{Direction, HEAD_BYTES, TAG_BYTES, WHOLE_BYTES, first_part, next_part};

const _: () = assert!(HEAD_BYTES == FRAGMENT_BYTES, "a message's kind is known by its head");
const _: () = assert!(WHOLE_BYTES <= SMALL_MESSAGE_BYTES && WHOLE_BYTES <= SHARED_BINARY_BYTES);

/// Opens what a connection receives.
#[derive(Debug)]
pub(super) struct Opener {
    direction: Direction,
    /// The number of bytes that have arrived of the current part and its tag.
    have: usize,
    tag: [u8; TAG_BYTES],
}

impl Opener {
    pub(super) fn new(direction: Direction) -> Self {
        Self { direction, have: 0, tag: [0; TAG_BYTES] }
    }

    /// Reads the missing bytes of the part that belongs in `part`. True once it is complete and opened.
    fn read(&mut self, link: &mut Link, additional: &[u8], part: &mut [u8]) -> Result<bool, Error> {
        if self.have < part.len() {
            self.have += link.read(&mut part[self.have..]);
        }
        if self.have >= part.len() {
            self.have += link.read(&mut self.tag[self.have - part.len()..]);
        }
        if self.have < part.len() + TAG_BYTES {
            return Ok(false);
        }
        // After an error the part stays where it is, and fails again, whatever comes.
        self.direction.open(additional, self.tag, part)?;
        self.have = 0;
        Ok(true)
    }
}

impl<B: Binary> Inbound<B> {
    /// Makes one step of the current sealed record: reads a length, or a part. False if it needs more bytes
    /// than there are.
    pub(super) fn step_sealed<E: Emulator<Binary = B>>(
        &mut self,
        link: &mut Link,
        emulator: &mut E,
    ) -> Result<bool, Error> {
        let Some(opener) = &mut self.opener else { return Ok(false) };
        match &mut self.sink {
            RecordSink::Between => {
                let Some(length) = self.lengths.next(link.inbound())? else { return Ok(false) };
                let length = length as usize;
                self.sink = match length {
                    1..=WHOLE_BYTES => {
                        self.shared(emulator, length)?;
                        RecordSink::Small { length, filled: 0 }
                    }
                    _ => RecordSink::Head { length, head: [0; FRAGMENT_BYTES], have: 0 },
                };
                Ok(true)
            }
            RecordSink::Head { length, head, .. } => {
                let length = *length;
                let part = &mut head[..first_part(length)];
                if !opener.read(link, &prefix(length as u32), part)? {
                    return Ok(false);
                }
                let head = *head;
                if length == 0 {
                    self.sink = RecordSink::Between;
                    self.messages += 1;
                    return Ok(true);
                }
                let place = self.place(&head, length)?;
                self.put(emulator, place, &head, length)?;
                Ok(true)
            }
            RecordSink::Small { length, .. } => {
                let length = *length;
                let Some((binary, used)) = &mut self.shared else { return Ok(false) };
                let part = binary.bytes_mut(*used..*used + length);
                if !opener.read(link, &prefix(length as u32), part)? {
                    return Ok(false);
                }
                self.end_small(emulator, length)
            }
            RecordSink::Own { binary, filled, .. } => {
                let end = *filled + next_part(binary.length() - *filled);
                if !opener.read(link, &[], binary.bytes_mut(*filled..end))? {
                    return Ok(false);
                }
                *filled = end;
                if end == binary.length() {
                    self.end_own(emulator)?;
                }
                Ok(true)
            }
            RecordSink::Fragment { index, missing } => {
                let (index, part) = (*index, next_part(*missing));
                if !opener.read(link, &[], self.reassembly.space(index, part))? {
                    return Ok(false);
                }
                self.reassembly.filled(index, part);
                *missing -= part;
                if *missing == 0 {
                    self.end_fragment(emulator, index)?;
                }
                Ok(true)
            }
        }
    }

    /// Ends a record of one part, which is open, in the shared binary.
    fn end_small<E: Emulator<Binary = B>>(&mut self, emulator: &mut E, length: usize) -> Result<bool, Error> {
        let Some((mut binary, used)) = self.shared.take() else { return Ok(false) };
        let message = binary.bytes_mut(used..used + length);
        let mut end = used;
        match self.place(&message[..length.min(FRAGMENT_BYTES)], length)? {
            RecordPlace::Held(index) => {
                let bytes = &message[FRAGMENT_BYTES..];
                self.reassembly.reserve(index, bytes.len())?;
                self.reassembly.space(index, bytes.len()).copy_from_slice(bytes);
                self.reassembly.filled(index, bytes.len());
                self.end_fragment(emulator, index)?;
            }
            RecordPlace::First(first)
                if self.reassembly.begin(emulator, &mut self.cache, first, message)? =>
            {
                self.sink = RecordSink::Between;
                self.messages += 1;
            }
            RecordPlace::First(_) | RecordPlace::Message => {
                self.sink = RecordSink::Between;
                self.messages += 1;
                end += length;
                deliver(&mut self.cache, emulator, &mut binary, used, length)?;
            }
        }
        self.shared = Some((binary, end));
        Ok(true)
    }
}
