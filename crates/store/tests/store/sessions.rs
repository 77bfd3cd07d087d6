//! Requests that are done once, whatever happens to the owner.

use std::os::fd::OwnedFd;

use caravan_store::faults::{cut_after, stores_of};
use caravan_store::{SessionId, Store, StoreError, StoreOptions, limits};

fn open(memory: &OwnedFd) -> Store {
    Store::open(memory.try_clone().unwrap(), StoreOptions::new(16 << 20)).unwrap()
}

/// Serves a request to count up.
fn count_up(
    store: &Store,
    session: SessionId,
    request: u64,
    acknowledged: u64,
) -> Result<Vec<u8>, StoreError> {
    store.transaction(|tx| {
        if let Some(reply) = tx.reply(session, request)? {
            return Ok(reply);
        }
        let count = tx.get(b"count")?.map_or(0, |count| count[0]) + 1;
        tx.put(b"count", &[count])?;
        tx.remember(session, request, acknowledged, &[count])?;
        Ok(vec![count])
    })
}

#[test]
fn a_request_is_done_once_although_its_owner_ends() {
    let mut cut = 0;
    loop {
        let memory = Store::new_memory("sessions").unwrap();
        let store = open(&memory);
        let session = store.open_session().unwrap();
        assert_eq!(count_up(&store, session, 1, 0).unwrap(), [1]);
        let is_cut = cut_after(cut, || drop(count_up(&store, session, 2, 1).unwrap()));
        drop(store);
        let store = open(&memory);
        assert_eq!(store.sessions().unwrap(), [session]);
        assert_eq!(count_up(&store, session, 2, 1).unwrap(), [2], "cut after {cut} stores");
        assert_eq!(count_up(&store, session, 2, 1).unwrap(), [2]);
        assert_eq!(store.get(b"count").unwrap().unwrap(), [2]);
        store.audit().unwrap();
        if !is_cut {
            break;
        }
        cut += 1;
    }
    assert!(cut > 10, "{cut} stores");
    assert!(stores_of(|| ()) == 0);
}

#[test]
fn what_is_acknowledged_is_never_done_again() {
    let store = open(&Store::new_memory("sessions").unwrap());
    let session = store.open_session().unwrap();
    for request in 1..=5 {
        count_up(&store, session, request, 0).unwrap();
    }
    count_up(&store, session, 6, 3).unwrap();
    assert_eq!(count_up(&store, session, 4, 3).unwrap(), [4]);
    for request in 0..=3 {
        let refused = count_up(&store, session, request, 0);
        assert!(matches!(refused, Err(StoreError::RequestForgotten { acknowledged: 3, .. })), "{refused:?}");
    }
    assert!(matches!(count_up(&store, session, 7, 9), Err(StoreError::RequestForgotten { .. })));
    assert_eq!(store.get(b"count").unwrap().unwrap(), [6]);
    // Its object is nobody else's to write.
    let number = SessionId::from_u64(session.to_u64());
    assert_eq!(number, session);
    store.close_session(session).unwrap();
    assert!(matches!(store.close_session(session), Err(StoreError::NoSession)));
    assert!(matches!(count_up(&store, session, 8, 0), Err(StoreError::NoSession)));
    assert!(matches!(count_up(&store, SessionId::from_u64(7), 8, 0), Err(StoreError::NoSession)));
    assert_eq!(store.sessions().unwrap(), []);
    store.audit().unwrap();
}

#[test]
fn what_a_session_keeps_has_limits() {
    let memory = Store::new_memory("sessions").unwrap();
    let store = Store::open(memory, StoreOptions::new(256 << 20)).unwrap();
    let session = store.open_session().unwrap();
    let remember =
        |request, bytes: usize| store.transaction(|tx| tx.remember(session, request, 0, &vec![1; bytes]));
    let long = remember(1, limits::REPLY_BYTES_MAX + 1);
    assert!(matches!(long, Err(StoreError::ReplyTooLong { .. })), "{long:?}");
    remember(1, limits::REPLY_BYTES_MAX).unwrap();
    let second = remember(2, limits::REPLY_BYTES_MAX);
    assert!(matches!(second, Err(StoreError::TooManyReplies)), "{second:?}");
    store.transaction(|tx| tx.remember(session, 2, 1, &[1; limits::REPLY_BYTES_MAX])).unwrap();
    let last = (3..).find(|request| remember(*request, 0).is_err()).unwrap();
    assert_eq!(last, 2 + limits::SESSION_REPLIES_MAX as u64);
    for _ in 1..limits::SESSIONS_MAX {
        store.open_session().unwrap();
    }
    assert!(matches!(store.open_session(), Err(StoreError::TooManySessions)));
    store.close_session(session).unwrap();
    store.open_session().unwrap();
}
