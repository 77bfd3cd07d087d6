//! Requests that are done once: the session of a client keeps the replies to its requests, and gets each reply by
//! the same transaction that does what the request asks for. A client that has lost the connection repeats the
//! request, and gets the reply of the first time, whatever happened to the owner meanwhile.
//!
//! A session is an object without a key. Its payload is the number of the last request whose reply the client has,
//! and then for each reply: request, number of bytes, bytes filled up to a multiple of 8.

use std::sync::atomic::Ordering;

use crate::commit::ObjectWrite;
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::image::ObjectImage;
use crate::layout::ObjectShape;
use crate::limits::{REPLY_BYTES_MAX, SESSION_BYTES, SESSION_REPLIES_MAX, SESSIONS_MAX};
use crate::owner::StoreCore;
use crate::store::Store;
use crate::transaction::Transaction;
use crate::view::AtPlace;

/// The session of a client ([`Store::open_session`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(ObjectAddress);

/// The bits of a place in the number of a session.
const PLACE_BITS: u32 = 40;

impl SessionId {
    /// Returns the session as a number, which a client keeps.
    pub fn to_u64(self) -> u64 {
        u64::from(self.0.incarnation) << PLACE_BITS | self.0.place
    }

    /// Returns the session with this number. Any number is safe: where there is no session, calls return
    /// [`StoreError::NoSession`].
    pub fn from_u64(number: u64) -> Self {
        let place = number & ((1 << PLACE_BITS) - 1);
        Self(ObjectAddress { place, incarnation: (number >> PLACE_BITS) as u16 })
    }
}

/// What a session keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SessionReplies {
    acknowledged: u64,
    replies: Vec<(u64, Vec<u8>)>,
}

impl SessionReplies {
    fn from_bytes(bytes: &[u8]) -> Self {
        let mut rest = bytes;
        let word = |rest: &mut &[u8]| {
            let (word, after) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
            *rest = after;
            u64::from_ne_bytes(*word)
        };
        let acknowledged = word(&mut rest);
        let mut replies = Vec::new();
        while !rest.is_empty() {
            let request = word(&mut rest);
            let count = (word(&mut rest) as usize).min(rest.len());
            replies.push((request, rest[..count].to_vec()));
            rest = &rest[count.next_multiple_of(8).min(rest.len())..];
        }
        Self { acknowledged, replies }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.acknowledged.to_ne_bytes().to_vec();
        for (request, reply) in &self.replies {
            bytes.extend_from_slice(&request.to_ne_bytes());
            bytes.extend_from_slice(&(reply.len() as u64).to_ne_bytes());
            bytes.extend_from_slice(reply);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes
    }
}

impl Store {
    /// Opens the session of a client. It lasts until [`close_session`](Self::close_session), beyond the end of
    /// this owner. Whoever serves clients closes the sessions of those that stay away.
    pub fn open_session(&self) -> Result<SessionId, StoreError> {
        let opened = self.core().sessions.fetch_add(1, Ordering::Relaxed);
        let session = if opened < SESSIONS_MAX as i64 {
            self.transaction(|tx| tx.alloc_session())
        } else {
            Err(StoreError::TooManySessions)
        };
        if session.is_err() {
            self.core().sessions.fetch_sub(1, Ordering::Relaxed);
        }
        session
    }

    /// Closes a session, and forgets its replies: a repeated request of it fails with
    /// [`StoreError::NoSession`] from now on.
    pub fn close_session(&self, session: SessionId) -> Result<(), StoreError> {
        self.transaction(|tx| tx.free_session(session))?;
        self.core().sessions.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// Returns all sessions, for an owner that has taken a memory over.
    pub fn sessions(&self) -> Result<Vec<SessionId>, StoreError> {
        self.core().sessions()
    }
}

impl StoreCore {
    fn sessions(&self) -> Result<Vec<SessionId>, StoreError> {
        let mut sessions = Vec::new();
        let (mut block, mut slot) = (0, 0);
        while let Some((place, next_block, next_slot)) = self.blocks.next_used(&self.view, block, slot, None)
        {
            (block, slot) = (next_block, next_slot);
            if let AtPlace::Object((head, ())) = self.view.settle(|| self.view.object(place, |_| ()))? {
                if head.shape.has(ObjectShape::SESSION) {
                    let incarnation = head.shape.incarnation;
                    sessions.push(SessionId(ObjectAddress { place, incarnation }));
                }
            }
        }
        Ok(sessions)
    }
}

impl Transaction<'_> {
    /// Returns the reply to a request of a session if it has been done, and `None` if not: then this transaction
    /// does it, and calls [`remember`](Self::remember). A request whose reply the client has acknowledged is
    /// refused ([`StoreError::RequestForgotten`]).
    ///
    /// ```
    /// # use caravan_store::{Store, StoreError, StoreOptions};
    /// # let store = Store::embedded(StoreOptions::new(16 << 20))?;
    /// let session = store.open_session()?;
    /// // Request 1 arrives, and because the reply is lost, it arrives again.
    /// for _ in 0..2 {
    ///     let reply = store.transaction(|tx| {
    ///         if let Some(reply) = tx.reply(session, 1)? {
    ///             return Ok(reply);
    ///         }
    ///         let count = tx.get(b"count")?.map_or(0, |count| count[0]) + 1;
    ///         tx.put(b"count", &[count])?;
    ///         tx.remember(session, 1, 0, &[count])?;
    ///         Ok::<_, StoreError>(vec![count])
    ///     })?;
    ///     assert_eq!(reply, [1]);
    /// }
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn reply(&mut self, session: SessionId, request: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let SessionReplies { acknowledged, replies } = self.session(session)?;
        if request <= acknowledged {
            return Err(StoreError::RequestForgotten { request, acknowledged });
        }
        Ok(replies.into_iter().find(|(number, _)| *number == request).map(|(_, reply)| reply))
    }

    /// Keeps the reply to a request of a session, if this transaction commits. Requests of a session have numbers
    /// from 1 on. The client has all replies up to number `acknowledged`: these are forgotten.
    pub fn remember(
        &mut self,
        session: SessionId,
        request: u64,
        acknowledged: u64,
        reply: &[u8],
    ) -> Result<(), StoreError> {
        if reply.len() > REPLY_BYTES_MAX {
            return Err(StoreError::ReplyTooLong { bytes: reply.len() });
        }
        let mut kept = self.session(session)?;
        kept.acknowledged = kept.acknowledged.max(acknowledged);
        let acknowledged = kept.acknowledged;
        if request <= acknowledged {
            return Err(StoreError::RequestForgotten { request, acknowledged });
        }
        kept.replies.retain(|(number, _)| *number > acknowledged && *number != request);
        kept.replies.push((request, reply.to_vec()));
        let bytes = kept.to_bytes();
        if kept.replies.len() > SESSION_REPLIES_MAX || bytes.len() > SESSION_BYTES {
            return Err(StoreError::TooManyReplies);
        }
        self.write_session(session.0, ObjectWrite::Replace(ObjectImage::of_session(&bytes)))
    }

    /// Returns what a session keeps: what this transaction has remembered, or else what is in the store.
    fn session(&mut self, SessionId(address): SessionId) -> Result<SessionReplies, StoreError> {
        if let Some(ObjectWrite::Replace(image)) = self.object_write(address) {
            return Ok(SessionReplies::from_bytes(image.payload()));
        }
        let (shape, bytes) = match self.read_object(address) {
            Err(StoreError::NoObject(_)) => return Err(StoreError::NoSession),
            read => read?,
        };
        if !shape.has(ObjectShape::SESSION) {
            return Err(StoreError::NoSession);
        }
        Ok(SessionReplies::from_bytes(&bytes))
    }

    fn alloc_session(&mut self) -> Result<SessionId, StoreError> {
        // All of its place is reserved, as it cannot move.
        let image = ObjectImage::of_session(&SessionReplies::default().to_bytes());
        Ok(SessionId(self.alloc_image(image, SESSION_BYTES, None)?))
    }

    fn free_session(&mut self, session: SessionId) -> Result<(), StoreError> {
        self.session(session)?;
        self.write_session(session.0, ObjectWrite::Free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_session_keeps_comes_back() {
        for count in [0, 1, 2, 9] {
            let replies = (0..count).map(|number| (number, vec![7; number as usize * 3])).collect();
            let kept = SessionReplies { acknowledged: 5, replies };
            assert_eq!(SessionReplies::from_bytes(&kept.to_bytes()), kept);
        }
    }
}
