//! Records in and out of byte streams, sealed or not. No clock, no socket.
//!
//! `read <= filled <= inbox.len()`: what has come and is unread; `sent <= outbox.len()`: what is on its way.

use super::fault::TcpFault;
use super::limits::RECORD_BYTES_MAX;
use crate::seal::{SECRET_BYTES, Seal, SealError, TAG_BYTES};

/// The number of bytes of a record's length.
const LENGTH_BYTES: usize = 4;
/// The number of bytes of the longest record.
const RECORD_TOTAL_BYTES: usize = LENGTH_BYTES + RECORD_BYTES_MAX + TAG_BYTES;
/// What the keys of both directions are derived with; the side that connected comes first.
const LABELS: [&[u8]; 2] = [b"caravan tcp 1 connecting", b"caravan tcp 1 listening"];

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpSide {
    /// The end that has connected, and greets first.
    Connecting,
    /// The end that has listened.
    Listening,
}

/// The seals of what a side sends and receives.
#[derive(Debug)]
struct SealPair {
    out: Seal,
    incoming: Seal,
}

/// Both directions of a connection.
pub struct RecordStream {
    seals: Option<SealPair>,
    inbox: Vec<u8>,
    filled: usize,
    read: usize,
    outbox: Vec<u8>,
    sent: usize,
}

impl std::fmt::Debug for RecordStream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unread = self.filled - self.read;
        formatter.debug_struct("RecordStream").field("unread", &unread).finish_non_exhaustive()
    }
}

impl RecordStream {
    /// Returns a stream whose records are sealed with a connection's secret.
    pub fn new(secret: &[u8; SECRET_BYTES], side: TcpSide) -> Result<Self, SealError> {
        let [ours, theirs] = match side {
            TcpSide::Connecting => LABELS,
            TcpSide::Listening => [LABELS[1], LABELS[0]],
        };
        let seals = SealPair { out: Seal::new(secret, &[ours])?, incoming: Seal::new(secret, &[theirs])? };
        let inbox = vec![0; RECORD_TOTAL_BYTES];
        Ok(Self { seals: Some(seals), inbox, filled: 0, read: 0, outbox: Vec::new(), sent: 0 })
    }

    /// Seals nothing more in either direction: both sides have agreed on that.
    pub fn stop_sealing(&mut self) {
        self.seals = None;
    }

    /// Returns the room for bytes that come; there is always some once all whole records have been taken.
    pub fn room(&mut self) -> &mut [u8] {
        self.inbox.copy_within(self.read..self.filled, 0);
        (self.filled, self.read) = (self.filled - self.read, 0);
        &mut self.inbox[self.filled..]
    }

    /// Counts the bytes that came into the room.
    pub fn came(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// Takes the body of the next whole record.
    pub fn take(&mut self) -> Result<Option<&[u8]>, TcpFault> {
        let unread = &mut self.inbox[self.read..self.filled];
        let Some((head, rest)) = unread.split_first_chunk_mut::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes(*head) as usize;
        if length == 0 || length > RECORD_BYTES_MAX {
            return Err(TcpFault::Protocol("it sent a record of an impossible length"));
        }
        let tag_bytes = if self.seals.is_some() { TAG_BYTES } else { 0 };
        if rest.len() < length + tag_bytes {
            return Ok(None);
        }
        let (body, rest) = rest.split_at_mut(length);
        if let (Some(seals), Some(tag)) = (&mut self.seals, rest.first_chunk()) {
            seals.incoming.open(head, *tag, body)?;
        }
        self.read += LENGTH_BYTES + length + tag_bytes;
        Ok(Some(body))
    }

    /// Makes the next record, unless the last one has not been sent. `fill` appends to the body, up to the length that it
    /// is given. False if there is nothing to send.
    pub fn produce(&mut self, fill: impl FnOnce(&mut Vec<u8>, usize)) -> Result<bool, TcpFault> {
        if self.sent < self.outbox.len() {
            return Ok(true);
        }
        self.sent = 0;
        self.outbox.clear();
        self.outbox.resize(LENGTH_BYTES, 0);
        fill(&mut self.outbox, LENGTH_BYTES + RECORD_BYTES_MAX);
        let Some((head, body)) = self.outbox.split_first_chunk_mut::<LENGTH_BYTES>() else {
            return Ok(false);
        };
        if body.is_empty() {
            self.outbox.clear();
            return Ok(false);
        }
        *head = (body.len() as u32).to_be_bytes();
        if let Some(seals) = &mut self.seals {
            let tag = seals.out.seal(head, body)?;
            self.outbox.extend_from_slice(&tag);
        }
        Ok(true)
    }

    /// Returns the bytes that must be sent next.
    pub fn unsent(&self) -> &[u8] {
        &self.outbox[self.sent..]
    }

    /// Counts the bytes that were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (RecordStream, RecordStream) {
        let stream = |side| RecordStream::new(&[3; SECRET_BYTES], side).unwrap();
        (stream(TcpSide::Connecting), stream(TcpSide::Listening))
    }

    /// Carries everything that `from` has to send, a few bytes at a time.
    fn carry(from: &mut RecordStream, to: &mut RecordStream, piece: usize) {
        while !from.unsent().is_empty() {
            let count = from.unsent().len().min(piece);
            to.room()[..count].copy_from_slice(&from.unsent()[..count]);
            to.came(count);
            from.sent(count);
        }
    }

    #[test]
    fn records_come_whole_in_any_pieces() {
        for sealed in [true, false] {
            let (mut near, mut far) = pair();
            if !sealed {
                near.stop_sealing();
                far.stop_sealing();
            }
            for (piece, length) in [(1, 1), (7, 1000), (100, 3), (RECORD_TOTAL_BYTES, RECORD_BYTES_MAX)] {
                assert!(near.produce(|body, _| body.extend(vec![9; length])).unwrap());
                carry(&mut near, &mut far, piece);
                assert_eq!(far.take().unwrap(), Some(&vec![9; length][..]));
                assert_eq!(far.take().unwrap(), None);
            }
            assert!(!near.produce(|_, _| ()).unwrap());
        }
    }

    #[test]
    fn a_changed_record_is_refused() {
        let lengths = [0, RECORD_BYTES_MAX as u32 + 1, u32::MAX];
        for length in lengths {
            let (_, mut far) = pair();
            far.room()[..4].copy_from_slice(&length.to_be_bytes());
            far.came(4);
            assert!(matches!(far.take(), Err(TcpFault::Protocol(_))), "{length}");
        }
        for at in [4, 8, 20] {
            let (mut near, mut far) = pair();
            near.produce(|body, _| body.extend(b"hello")).unwrap();
            carry(&mut near, &mut far, 100);
            far.inbox[at] ^= 1;
            assert!(matches!(far.take(), Err(TcpFault::Protocol(_))), "byte {at}");
        }
        // A record that is sent back to its sender.
        let (mut near, mut other) = pair();
        near.produce(|body, _| body.extend(b"hello")).unwrap();
        let sent = near.unsent().to_vec();
        near.room()[..sent.len()].copy_from_slice(&sent);
        near.came(sent.len());
        assert!(near.take().is_err());
        assert_eq!(other.take().unwrap(), None);
    }
}
