//! Requests that are done once, whatever happens to the owner.

use std::os::fd::OwnedFd;

use caravan_store::faults::{cut_after, stores_of};
use caravan_store::{SessionId, Store, StoreError, StoreOptions, limits};

fn open(memory: &OwnedFd) -> Store {
    Store::open(memory.try_clone().unwrap(), StoreOptions::new(16 << 20)).unwrap()
}

/// Serves a request to count up.
fn count_up(store: &Store, session: SessionId, request: u64) -> Result<u64, StoreError> {
    store.transaction(|tx| {
        tx.once(session, request, |tx| {
            let count = tx.get(b"count")?.map_or(0, |count| count[0]).wrapping_add(1);
            tx.put(b"count", &[count])?;
            Ok(count.into())
        })
    })
}

#[test]
fn a_request_is_done_once_although_its_owner_ends() {
    let mut cut = 0;
    loop {
        let memory = Store::new_memory("sessions").unwrap();
        let store = open(&memory);
        let session = store.open_session().unwrap();
        assert_eq!(count_up(&store, session, 1).unwrap(), 1);
        let is_cut = cut_after(cut, || assert_eq!(count_up(&store, session, 2).unwrap(), 2));
        drop(store);
        let store = open(&memory);
        assert_eq!(store.sessions().unwrap(), [session]);
        assert_eq!(count_up(&store, session, 2).unwrap(), 2, "cut after {cut} stores");
        assert_eq!(count_up(&store, session, 2).unwrap(), 2);
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
fn a_request_whose_reply_is_forgotten_is_never_done_again() {
    let store = open(&Store::new_memory("sessions").unwrap());
    let session = store.open_session().unwrap();
    let kept = limits::SESSION_REPLIES as u64;
    for request in 1..=kept {
        count_up(&store, session, request).unwrap();
    }
    let count = store.get(b"count").unwrap();
    for request in 1..=kept {
        assert_eq!(count_up(&store, session, request).unwrap(), request % 256);
    }
    // Each of these takes the place of an earlier one; they come in any order.
    for request in [kept + 3, kept + 1, 3 * kept + 2] {
        count_up(&store, session, request).unwrap();
    }
    for request in [0, 1, 2, 3, kept + 2, 2 * kept + 2] {
        let refused = count_up(&store, session, request);
        let is_forgotten =
            matches!(refused, Err(StoreError::RequestForgotten { request: of }) if of == request);
        assert!(is_forgotten, "{refused:?}");
    }
    assert_eq!(store.get(b"count").unwrap().unwrap()[0], count.unwrap()[0] + 3);
    assert_eq!(store.scrub(100, |address| panic!("{address} is damaged")).unwrap(), 1);
    store.audit().unwrap();
}

#[test]
fn a_transaction_does_one_request() {
    let store = open(&Store::new_memory("sessions").unwrap());
    let session = store.open_session().unwrap();
    let two = store.transaction(|tx| {
        tx.put(b"k", b"v")?;
        tx.once(session, 1, |_| Ok::<_, StoreError>(1))?;
        tx.once(session, 2, |_| Ok::<_, StoreError>(2))
    });
    assert!(matches!(two, Err(StoreError::SecondRequest)), "{two:?}");
    assert_eq!(store.get(b"k").unwrap(), None);
    assert_eq!(count_up(&store, session, 1).unwrap(), 1);
}

#[test]
fn a_session_is_nobody_elses_to_use() {
    let store = open(&Store::new_memory("sessions").unwrap());
    let session = store.open_session().unwrap();
    assert_eq!(SessionId::from_u64(session.to_u64()), session);
    count_up(&store, session, 1).unwrap();
    store.close_session(session).unwrap();
    let object = store.alloc(4096, None).unwrap();
    let (place, incarnation) = object.to_parts();
    let other = SessionId::from_u64(u64::from(incarnation) << 40 | place);
    for closed in [session, SessionId::from_u64(7), other] {
        assert!(matches!(store.close_session(closed), Err(StoreError::NoSession)));
        assert!(matches!(count_up(&store, closed, 8), Err(StoreError::NoSession)));
    }
    assert_eq!(store.sessions().unwrap(), []);
    assert_eq!(store.read(object).unwrap(), [0; 4096]);
    store.audit().unwrap();
}

#[test]
fn the_number_of_sessions_has_a_limit() {
    let memory = Store::new_memory("sessions").unwrap();
    let store = Store::open(memory, StoreOptions::new(256 << 20)).unwrap();
    let session = store.open_session().unwrap();
    for _ in 1..limits::SESSIONS_MAX {
        store.open_session().unwrap();
    }
    assert!(matches!(store.open_session(), Err(StoreError::TooManySessions)));
    store.close_session(session).unwrap();
    store.open_session().unwrap();
}
