//! The sessions of connected clients: which connection serves each, and when one ends.
//!
//! A session outlives a connection and a server, so that a client that has lost either can repeat its requests. It
//! ends when its client says so, or [`limits::SESSION_ABSENT_MAX`] after the client was last there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::StoreError;
use crate::session::SessionId;
use crate::store::Store;

/// The sessions of all clients of a store that attach to a server; one for each server.
#[derive(Debug, Default)]
pub struct ClientSessions {
    /// Locked before any session in it.
    all: Mutex<HashMap<u64, Arc<Mutex<SessionUse>>>>,
}

/// Who uses a session. Its lock is held while a request of the session is done.
#[derive(Debug)]
struct SessionUse {
    /// Grows with each connection that takes the session over, so that an earlier one does nothing any more.
    turn: u64,
    /// When the last connection ended.
    absent_since: Option<Instant>,
}

/// A connection's right to do the requests of a session.
#[derive(Debug)]
pub(super) struct JoinedSession {
    pub(super) id: SessionId,
    turn: u64,
    session: Arc<Mutex<SessionUse>>,
}

/// No other connection does a request of the session as long as this exists.
pub(super) struct SessionTurn<'s>(#[allow(dead_code, reason = "it is held")] MutexGuard<'s, SessionUse>);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClientSessions {
    /// Returns the sessions that are in a store. All their clients are absent from now on.
    pub fn new(store: &Store) -> Result<Self, StoreError> {
        let absent = || SessionUse { turn: 0, absent_since: Some(Instant::now()) };
        let sessions = store.sessions()?.into_iter();
        let all = sessions.map(|session| (session.to_u64(), Arc::new(Mutex::new(absent())))).collect();
        Ok(Self { all: Mutex::new(all) })
    }

    /// Opens a session.
    pub(super) fn open(&self, store: &Store) -> Result<JoinedSession, StoreError> {
        let id = store.open_session()?;
        let session = Arc::new(Mutex::new(SessionUse { turn: 0, absent_since: None }));
        locked(&self.all).insert(id.to_u64(), Arc::clone(&session));
        Ok(JoinedSession { id, turn: 0, session })
    }

    /// Takes a session over from an earlier connection, whose last request is done when this returns.
    pub(super) fn join(&self, number: u64) -> Result<JoinedSession, StoreError> {
        let all = locked(&self.all);
        let session = all.get(&number).ok_or(StoreError::NoSession)?;
        let mut used = locked(session);
        used.turn += 1;
        used.absent_since = None;
        let (id, turn) = (SessionId::from_u64(number), used.turn);
        drop(used);
        Ok(JoinedSession { id, turn, session: Arc::clone(session) })
    }

    /// Closes a session whose client says that it ends.
    pub(super) fn close(&self, store: &Store, joined: &JoinedSession) -> Result<(), StoreError> {
        let mut all = locked(&self.all);
        drop(joined.turn()?);
        all.remove(&joined.id.to_u64());
        drop(all);
        store.close_session(joined.id)
    }

    /// Closes the sessions whose clients have been absent for `limit`. A server calls this now and then.
    pub fn close_absent(&self, store: &Store, limit: Duration) -> Result<(), StoreError> {
        let mut closed = Vec::new();
        locked(&self.all).retain(|number, session| {
            let is_over = locked(session).absent_since.is_some_and(|since| since.elapsed() >= limit);
            closed.extend(is_over.then(|| SessionId::from_u64(*number)));
            !is_over
        });
        closed.into_iter().try_for_each(|session| store.close_session(session))
    }

    /// Returns the number of sessions.
    pub fn count(&self) -> usize {
        locked(&self.all).len()
    }
}

impl JoinedSession {
    /// Waits until no other connection does a request of the session. Fails with [`StoreError::NoSession`] if
    /// another one has taken it over.
    pub(super) fn turn(&self) -> Result<SessionTurn<'_>, StoreError> {
        let used = locked(&self.session);
        if used.turn == self.turn { Ok(SessionTurn(used)) } else { Err(StoreError::NoSession) }
    }
}

impl Drop for JoinedSession {
    fn drop(&mut self) {
        let mut used = locked(&self.session);
        if used.turn == self.turn {
            used.absent_since = Some(Instant::now());
        }
    }
}
