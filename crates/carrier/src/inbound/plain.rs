//! From the ring to the emulator, as it comes.

use caravan_fabric::Link;

use super::{Inbound, Place, Sink, deliver};
use crate::dist_header::FRAGMENT_BYTES;
use crate::emulator::{Binary, Emulator};
use crate::error::Error;
use crate::limits::{RELEASE_BYTES, SMALL_MESSAGE_BYTES};

impl<B: Binary> Inbound<B> {
    /// One step of the record being read. False if it needs more bytes than there are.
    pub(super) fn step<E: Emulator<Binary = B>>(
        &mut self,
        link: &mut Link,
        emulator: &mut E,
    ) -> Result<bool, Error> {
        match &mut self.sink {
            Sink::Between => match self.lengths.next(link.inbound())? {
                None => Ok(false),
                Some(0) => {
                    self.messages += 1;
                    Ok(true)
                }
                Some(length) => {
                    self.sink = Sink::Head { length: length as usize, head: [0; FRAGMENT_BYTES], have: 0 };
                    self.head(link, emulator)
                }
            },
            Sink::Head { .. } => self.head(link, emulator),
            Sink::Small { .. } => self.small(link, emulator),
            Sink::Own { binary, filled, .. } => {
                let limit = (*filled + RELEASE_BYTES).min(binary.length());
                let read = link.read(binary.bytes_mut(*filled..limit));
                *filled += read;
                if *filled == binary.length() {
                    self.end_own(emulator)?;
                    return Ok(true);
                }
                Ok(read > 0)
            }
            Sink::Fragment { index, missing } => {
                let (index, wanted) = (*index, (*missing).min(RELEASE_BYTES));
                let read = link.read(self.reassembly.space(index, wanted));
                self.reassembly.filled(index, read);
                *missing -= read;
                if *missing == 0 {
                    self.end_fragment(emulator, index)?;
                    return Ok(true);
                }
                Ok(read > 0)
            }
        }
    }

    /// Reads the first bytes of a record, and chooses by them where it goes.
    fn head<E: Emulator<Binary = B>>(&mut self, link: &mut Link, emulator: &mut E) -> Result<bool, Error> {
        let Sink::Head { length, head, have } = &mut self.sink else { return Ok(true) };
        let length = *length;
        let needed = length.min(FRAGMENT_BYTES);
        let read = link.read(&mut head[*have..needed]);
        *have += read;
        if *have < needed {
            return Ok(read > 0);
        }
        let whole_head = *head;
        let head = &whole_head[..needed];
        let place = self.place(head, length)?;
        if length <= SMALL_MESSAGE_BYTES && matches!(place, Place::Message) {
            let (binary, used) = self.shared(emulator, length)?;
            binary.bytes_mut(used..used + needed).copy_from_slice(head);
            self.sink = Sink::Small { length, filled: needed };
            return self.small(link, emulator);
        }
        self.put(emulator, place, head, length)?;
        Ok(true)
    }

    /// Reads a small message into the shared binary, and delivers it when it is whole.
    fn small<E: Emulator<Binary = B>>(&mut self, link: &mut Link, emulator: &mut E) -> Result<bool, Error> {
        let (Sink::Small { length, filled }, Some((binary, used))) = (&mut self.sink, &mut self.shared)
        else {
            return Ok(true);
        };
        let read = link.read(binary.bytes_mut(*used + *filled..*used + *length));
        *filled += read;
        if filled < length {
            return Ok(read > 0);
        }
        let (offset, length) = (*used, *length);
        *used += length;
        self.sink = Sink::Between;
        self.messages += 1;
        deliver(&mut self.cache, emulator, binary, offset, length)?;
        Ok(true)
    }
}
