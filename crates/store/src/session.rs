//! Requests that are done once: the session of a client keeps the replies to its last requests, and gets each reply by
//! the same transaction that does what the request asks for. A client that has lost the connection repeats the
//! request, and gets the reply of the first time, whatever happened to the owner meanwhile.
//!
//! A session is an object without a key. The reply to a request takes two words of it, at the number of the request
//! modulo [`SESSION_REPLIES`], in the place of an earlier reply:
//!
//! | the number there | the request |
//! |---|---|
//! | is less | is not done |
//! | is the same | is done; the reply is beside the number |
//! | is greater | is refused: by sending that later request, the client said that it has the reply |
//!
//! A number there never falls, so no request is done twice. A commit writes these two words alone, and a new version:
//! the checksum of a session is that of an empty one.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::commit::ObjectWrite;
use crate::entry::ObjectAddress;
use crate::error::StoreError;
use crate::faults::{PlantedFault, is_planted};
use crate::image::ObjectImage;
use crate::layout::{HEADER_BYTES, ObjectShape, class_for};
use crate::limits::{SESSION_REPLIES, SESSIONS_MAX};
use crate::owner::StoreCore;
use crate::protocol::UnitWords;
use crate::store::Store;
use crate::transaction::Transaction;
use crate::view::{AtPlace, ObjectPayload};

/// The session of a client ([`Store::open_session`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub(crate) ObjectAddress);

impl SessionId {
    /// Returns the session as a number, which a client keeps.
    pub fn to_u64(self) -> u64 {
        self.0.to_word()
    }

    /// Returns the session with this number. Any number is safe: where there is no session, calls return
    /// [`StoreError::NoSession`].
    pub fn from_u64(number: u64) -> Self {
        Self(ObjectAddress::from_word(number))
    }
}

/// The bytes of a session's payload.
const SESSION_BYTES: usize = 8 * REPLY_WORDS * SESSION_REPLIES;

/// The words of a session for one reply: the number of its request, and the reply.
const REPLY_WORDS: usize = 2;

/// A reply that a commit keeps in a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionReply {
    pub(crate) session: ObjectAddress,
    pub(crate) request: u64,
    pub(crate) reply: u64,
}

impl SessionReply {
    /// Returns where in the payload of the session the words of the reply are.
    pub(crate) fn index(&self) -> usize {
        index(self.request)
    }

    /// Tells whether the request is not done, if the session's payload has these words, under the lock.
    pub(crate) fn is_next(&self, shape: ObjectShape, payload: &[AtomicU64]) -> bool {
        is_session(shape)
            && shape.incarnation == self.session.incarnation
            && (payload.load(self.index()) < self.request || is_planted(PlantedFault::RepeatedRequest))
    }
}

fn index(request: u64) -> usize {
    (request % SESSION_REPLIES as u64) as usize * REPLY_WORDS
}

fn is_session(shape: ObjectShape) -> bool {
    shape.has(ObjectShape::SESSION) && shape.size as usize == SESSION_BYTES
}

impl Store {
    /// Opens the session of a client. It lasts until [`close_session`](Self::close_session), beyond the end of
    /// this owner. Whoever serves clients closes the sessions of those that stay away.
    pub fn open_session(&self) -> Result<SessionId, StoreError> {
        let opened = self.core().sessions.fetch_add(1, Relaxed);
        let session = if opened < SESSIONS_MAX as i64 {
            self.transaction(|tx| tx.alloc_session())
        } else {
            Err(StoreError::TooManySessions)
        };
        if session.is_err() {
            self.core().sessions.fetch_sub(1, Relaxed);
        }
        session
    }

    /// Closes a session, and forgets its replies: a repeated request of it fails with
    /// [`StoreError::NoSession`] from now on.
    pub fn close_session(&self, session: SessionId) -> Result<(), StoreError> {
        self.transaction(|tx| tx.free_session(session))?;
        self.core().sessions.fetch_sub(1, Relaxed);
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
        // Among objects of their size: a server asks before it serves, and the store may be large.
        let class = class_for(HEADER_BYTES + SESSION_BYTES);
        while let Some((place, next_block, next_slot)) = self.blocks.next_used(&self.view, block, slot, class)
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

    /// Returns the reply to a request of a session, or `None` if the request is not done.
    pub(crate) fn reply(
        &self,
        SessionId(address): SessionId,
        request: u64,
    ) -> Result<Option<u64>, StoreError> {
        let index = index(request);
        let words = |payload: ObjectPayload<'_>| (payload.word(index), payload.word(index + 1));
        let found = self.view.settle(|| self.view.object_at(address, words))?;
        let found = found.filter(|(head, _)| is_session(head.shape));
        let (_, (number, reply)) = found.ok_or(StoreError::NoSession)?;
        match number.cmp(&request) {
            Ordering::Less => Ok(None),
            Ordering::Equal if request > 0 => {
                Ok(Some(reply).filter(|_| !is_planted(PlantedFault::RepeatedRequest)))
            }
            _ => Err(StoreError::RequestForgotten { request }),
        }
    }
}

impl Transaction<'_> {
    /// Does a request of a session: runs `body`, and keeps the reply that it returns if this transaction commits.
    /// If the request has been done before, `body` does not run, and its reply of then is returned.
    ///
    /// Requests have numbers from 1 on. A session keeps the replies to the last [`limits::SESSION_REPLIES`](crate::limits::SESSION_REPLIES)
    /// numbers: a client sends a request only if it has the reply to the one so many before, as that one is refused from then
    /// on ([`StoreError::RequestForgotten`]). A transaction does one request ([`StoreError::SecondRequest`]).
    ///
    /// ```
    /// # use caravan_store::{Store, StoreError, StoreOptions};
    /// # let store = Store::embedded(StoreOptions::new(16 << 20))?;
    /// let session = store.open_session()?;
    /// // Request 1 arrives, and because the reply is lost, it arrives again.
    /// for _ in 0..2 {
    ///     let reply = store.transaction(|tx| {
    ///         tx.once(session, 1, |tx| {
    ///             let count = tx.get(b"count")?.map_or(0, |count| count[0]) + 1;
    ///             tx.put(b"count", &[count])?;
    ///             Ok::<_, StoreError>(count.into())
    ///         })
    ///     })?;
    ///     assert_eq!(reply, 1);
    /// }
    /// # Ok::<(), StoreError>(())
    /// ```
    pub fn once<E: From<StoreError>>(
        &mut self,
        session: SessionId,
        request: u64,
        body: impl FnOnce(&mut Self) -> Result<u64, E>,
    ) -> Result<u64, E> {
        if let Some(reply) = self.core.reply(session, request)? {
            return Ok(reply);
        }
        let reply = body(self)?;
        let kept = SessionReply { session: session.0, request, reply };
        match self.writes.reply.replace(kept) {
            None => Ok(reply),
            Some(_) => Err(StoreError::SecondRequest.into()),
        }
    }

    fn alloc_session(&mut self) -> Result<SessionId, StoreError> {
        Ok(SessionId(self.alloc_image(ObjectImage::of_session(&[0; SESSION_BYTES]), None)?))
    }

    fn free_session(&mut self, SessionId(address): SessionId) -> Result<(), StoreError> {
        match self.read_object(address) {
            Ok((shape, _)) if shape.has(ObjectShape::SESSION) => {
                self.writes.objects.insert(address, ObjectWrite::Free);
                Ok(())
            }
            Ok(_) | Err(StoreError::NoObject(_)) => Err(StoreError::NoSession),
            Err(error) => Err(error),
        }
    }
}
