//! Takes records from the ring and delivers them to the emulator.
//!
//! Small messages are copied next to each other into a shared binary; larger ones go straight
//! into a binary of exactly their size; fragments go to their place in the whole message. No byte
//! is delivered from memory that the peer can still write. All bytes that have arrived are read at once, even
//! those of an incomplete record: at rest the ring is empty, so this side can sleep until more
//! come, and the peer has all its room.

mod sealed;

use caravan_fabric::Link;
use caravan_ring::record::LengthReader;

use crate::atom_cache::{AtomCache, RewrittenHeader};
use crate::dist_header::{FRAGMENT_BYTES, HeaderKind};
use crate::emulator::{Binary, Emulator};
use crate::error::Error;
use crate::limits::{
    RECORD_BYTES_MAX, RELEASE_BYTES, SHARED_BINARY_BYTES, SMALL_MESSAGE_BYTES, TURN_BYTES, TURN_MESSAGES,
};
use crate::reassembly::{FirstFragment, Reassembly};
use crate::seal::Direction;
use sealed::Opener;

/// Where the bytes of the current record go.
#[derive(Debug)]
enum RecordSink<B> {
    /// There is no current record.
    Between,
    /// The length is known; the first bytes show the kind.
    Head { length: usize, head: [u8; FRAGMENT_BYTES], have: usize },
    /// The record goes into the shared binary, after the messages that it has already.
    Small { length: usize, filled: usize },
    /// The record goes into a binary of its own.
    Own { binary: B, filled: usize, first_of: Option<FirstFragment> },
    /// The record is a fragment of message `index`, which is being put together; `missing` bytes are still to come.
    Fragment { index: usize, missing: usize },
}

/// Where a record goes, as its first bytes decide.
enum RecordPlace {
    /// The record is a fragment of the message at this index, which is being put together.
    Held(usize),
    /// The record is the first fragment of a message that is to be put together.
    First(FirstFragment),
    /// The record goes to the emulator as it is.
    Message,
}

/// The result of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnOutcome {
    /// The number of bytes taken from the ring.
    pub bytes: usize,
    /// The number of records completed, ticks included.
    pub messages: usize,
    /// True if there may be more to take at once.
    pub more: bool,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub struct Inbound<B> {
    lengths: LengthReader,
    sink: RecordSink<B>,
    shared: Option<(B, usize)>,
    cache: AtomCache,
    reassembly: Reassembly<B>,
    messages: u64,
    opener: Option<Box<Opener>>,
}

impl<B: Binary> Default for Inbound<B> {
    fn default() -> Self {
        Self {
            lengths: LengthReader::new(RECORD_BYTES_MAX),
            sink: RecordSink::Between,
            shared: None,
            cache: AtomCache::default(),
            reassembly: Reassembly::default(),
            messages: 0,
            opener: None,
        }
    }
}

impl<B: Binary> Inbound<B> {
    /// Opens all records from now on. Nothing may have been read yet.
    pub(crate) fn open(&mut self, direction: Direction) {
        self.opener = Some(Box::new(Opener::new(direction)));
    }

    /// Returns the number of records received, ticks included.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Returns the number of fragmented messages put together.
    pub fn reassembled(&self) -> u64 {
        self.reassembly.completed()
    }

    /// Delivers the records that have arrived, up to the limits of one turn.
    pub fn turn<E: Emulator<Binary = B>>(
        &mut self,
        link: &mut Link,
        emulator: &mut E,
    ) -> Result<TurnOutcome, Error> {
        match self.opener {
            None => self.steps(link, emulator, Self::step),
            Some(_) => self.steps(link, emulator, Self::step_sealed),
        }
    }

    #[inline]
    fn steps<E: Emulator<Binary = B>>(
        &mut self,
        link: &mut Link,
        emulator: &mut E,
        step: impl Fn(&mut Self, &mut Link, &mut E) -> Result<bool, Error>,
    ) -> Result<TurnOutcome, Error> {
        let mut taken = TurnOutcome::default();
        link.refresh()?;
        loop {
            if taken.bytes >= TURN_BYTES || taken.messages >= TURN_MESSAGES {
                taken.more = true;
                break;
            }
            let unread = link.unread();
            let messages = self.messages;
            let advanced = step(self, link, emulator)?;
            let left = link.unread();
            taken.bytes += unread - left;
            taken.messages += (self.messages - messages) as usize;
            if link.unreleased() >= RELEASE_BYTES {
                link.release()?;
            }
            // The bytes in the ring were too few to go on with; only more of them are news.
            if !advanced && link.refresh()? == left {
                break;
            }
        }
        link.release()?;
        Ok(taken)
    }

    /// Returns where a record of `length` bytes that begins with `head` goes.
    #[inline]
    fn place(&self, head: &[u8], length: usize) -> Result<RecordPlace, Error> {
        Ok(match HeaderKind::of(head) {
            HeaderKind::Next { sequence, fragment } => match self.reassembly.find(sequence, fragment)? {
                Some(index) => RecordPlace::Held(index),
                None => RecordPlace::Message,
            },
            HeaderKind::First { sequence, fragments } => {
                self.reassembly.new_sequence(sequence, fragments)?;
                match self.reassembly.takes(fragments, length) {
                    true => RecordPlace::First(FirstFragment { sequence, fragments }),
                    false => RecordPlace::Message,
                }
            }
            _ => RecordPlace::Message,
        })
    }

    /// Prepares for the rest of the record that begins with `head`, which goes to `place`.
    fn put<E: Emulator<Binary = B>>(
        &mut self,
        emulator: &mut E,
        place: RecordPlace,
        head: &[u8],
        length: usize,
    ) -> Result<(), Error> {
        let first_of = match place {
            RecordPlace::Held(index) => {
                let missing = length - FRAGMENT_BYTES;
                self.reassembly.reserve(index, missing)?;
                self.sink = RecordSink::Fragment { index, missing };
                return Ok(());
            }
            RecordPlace::First(first) => Some(first),
            RecordPlace::Message => None,
        };
        let mut binary = emulator.allocate(length).ok_or(Error::NoMemory { bytes: length })?;
        binary.bytes_mut(0..head.len()).copy_from_slice(head);
        self.sink = RecordSink::Own { binary, filled: head.len(), first_of };
        Ok(())
    }

    /// Returns the shared binary, with room for `length` bytes after those in use; makes a new one if needed.
    #[inline]
    fn shared<E: Emulator<Binary = B>>(
        &mut self,
        emulator: &mut E,
        length: usize,
    ) -> Result<(&mut B, usize), Error> {
        let room = self.shared.as_ref().is_some_and(|(binary, used)| binary.length() - used >= length);
        if !room {
            let bytes = SHARED_BINARY_BYTES;
            self.shared = None;
            self.shared = Some((emulator.allocate(bytes).ok_or(Error::NoMemory { bytes })?, 0));
        }
        match &mut self.shared {
            Some((binary, used)) => Ok((binary, *used)),
            None => Err(Error::NoMemory { bytes: length }),
        }
    }

    /// Ends a fragment of the message at `index`, which is complete.
    fn end_fragment<E: Emulator<Binary = B>>(&mut self, emulator: &mut E, index: usize) -> Result<(), Error> {
        self.sink = RecordSink::Between;
        self.reassembly.end_fragment(emulator, &mut self.cache, index)?;
        self.messages += 1;
        Ok(())
    }

    /// Ends a record in a binary of its own, which is complete.
    fn end_own<E: Emulator<Binary = B>>(&mut self, emulator: &mut E) -> Result<(), Error> {
        let RecordSink::Own { mut binary, first_of, .. } =
            std::mem::replace(&mut self.sink, RecordSink::Between)
        else {
            return Ok(());
        };
        self.messages += 1;
        if let Some(first_of) = first_of {
            let first = 0..binary.length();
            if self.reassembly.begin(emulator, &mut self.cache, first_of, binary.bytes_mut(first))? {
                return Ok(());
            }
        }
        let length = binary.length();
        deliver(&mut self.cache, emulator, &mut binary, 0, length)
    }
}

/// Reads a link that is not sealed.
impl<B: Binary> Inbound<B> {
    /// Makes one step of the current record. False if it needs more bytes than there are.
    fn step<E: Emulator<Binary = B>>(&mut self, link: &mut Link, emulator: &mut E) -> Result<bool, Error> {
        match &mut self.sink {
            RecordSink::Between => match self.lengths.next(link.inbound())? {
                None => Ok(false),
                Some(0) => {
                    self.messages += 1;
                    Ok(true)
                }
                Some(length) => {
                    self.sink =
                        RecordSink::Head { length: length as usize, head: [0; FRAGMENT_BYTES], have: 0 };
                    self.head(link, emulator)
                }
            },
            RecordSink::Head { .. } => self.head(link, emulator),
            RecordSink::Small { .. } => self.small(link, emulator),
            RecordSink::Own { binary, filled, .. } => {
                let limit = (*filled + RELEASE_BYTES).min(binary.length());
                let read = link.read(binary.bytes_mut(*filled..limit));
                *filled += read;
                if *filled == binary.length() {
                    self.end_own(emulator)?;
                    return Ok(true);
                }
                Ok(read > 0)
            }
            RecordSink::Fragment { index, missing } => {
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

    /// Reads the first bytes of a record, which decide where it goes.
    fn head<E: Emulator<Binary = B>>(&mut self, link: &mut Link, emulator: &mut E) -> Result<bool, Error> {
        let RecordSink::Head { length, head, have } = &mut self.sink else { return Ok(true) };
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
        if length <= SMALL_MESSAGE_BYTES && matches!(place, RecordPlace::Message) {
            let (binary, used) = self.shared(emulator, length)?;
            binary.bytes_mut(used..used + needed).copy_from_slice(head);
            self.sink = RecordSink::Small { length, filled: needed };
            return self.small(link, emulator);
        }
        self.put(emulator, place, head, length)?;
        Ok(true)
    }

    /// Reads a small message into the shared binary, and delivers it when it is whole.
    fn small<E: Emulator<Binary = B>>(&mut self, link: &mut Link, emulator: &mut E) -> Result<bool, Error> {
        let (RecordSink::Small { length, filled }, Some((binary, used))) = (&mut self.sink, &mut self.shared)
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
        self.sink = RecordSink::Between;
        self.messages += 1;
        deliver(&mut self.cache, emulator, binary, offset, length)?;
        Ok(true)
    }
}

/// Delivers the message at `offset`, with the header that the emulator must see.
fn deliver<E: Emulator>(
    cache: &mut AtomCache,
    emulator: &mut E,
    binary: &mut E::Binary,
    offset: usize,
    length: usize,
) -> Result<(), Error> {
    let message = binary.bytes_mut(offset..offset + length);
    let references_at = match HeaderKind::of(&message[..length.min(FRAGMENT_BYTES)]) {
        HeaderKind::Whole => 2,
        HeaderKind::First { .. } => FRAGMENT_BYTES,
        HeaderKind::Next { .. } | HeaderKind::Other => {
            emulator.deliver(binary, offset, length);
            return Ok(());
        }
    };
    match cache.deliver_now(&message[references_at..])? {
        None => emulator.deliver(binary, offset, length),
        Some(RewrittenHeader { references, replaced_bytes }) => {
            let rest = &message[references_at + replaced_bytes..];
            let bytes = references_at + references.len() + rest.len();
            let mut written = emulator.allocate(bytes).ok_or(Error::NoMemory { bytes })?;
            let to = written.bytes_mut(0..bytes);
            to[..references_at].copy_from_slice(&message[..references_at]);
            to[references_at..references_at + references.len()].copy_from_slice(&references);
            to[references_at + references.len()..].copy_from_slice(rest);
            emulator.deliver(&written, 0, bytes);
        }
    }
    Ok(())
}
