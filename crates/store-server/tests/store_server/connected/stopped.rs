//! A server that is stopped: its clients wait for a limited time, and what they have asked for happens once.

use std::time::{Duration, Instant};

use caravan_store::{Pending, Store, StoreError, StoreTransport};

use super::repeats::Mortal;
use super::rig::transports;

/// How long the clients wait.
const WAIT: Duration = Duration::from_millis(200);

/// Waits until the server answers.
fn outcome<T>(mut pending: Pending<T>) -> Result<T, StoreError> {
    let begin = Instant::now();
    loop {
        if let Some(result) = pending.wait_a_while() {
            return result;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "it never answers");
    }
}

#[test]
fn a_stopped_server_keeps_nobody_waiting_and_what_was_asked_for_is_done_once() {
    for transport in transports() {
        // What goes on with the calls: the server, or another one in its place.
        for is_killed in [false, true] {
            let mut mortal = Mortal::new(None);
            let client = Store::connect(mortal.options(transport).answer_wait(WAIT)).unwrap();
            for key in [b"a", b"b", b"c"] {
                client.put(key, b"1").unwrap();
            }
            mortal.stop();
            // Memory is read as before, and other reads say why they fail.
            match client.get(b"a") {
                Ok(value) => {
                    assert_eq!((transport, value.as_deref()), (StoreTransport::Mapped, Some(&b"1"[..])));
                }
                Err(StoreError::NoAnswer { wait: WAIT, .. }) => assert_ne!(transport, StoreTransport::Mapped),
                Err(error) => panic!("{error}"),
            }
            let mut deletion = client.start_delete(b"a");
            assert!(deletion.wait_a_while().is_none());
            let error = client.delete(b"b").unwrap_err();
            let is_named = matches!(error, StoreError::NoAnswer { wait: WAIT, is_started: true });
            assert!(is_named && error.to_string().contains("may still be done, once: look"), "{error}");
            if is_killed {
                mortal.kill();
                mortal.serve();
            } else {
                mortal.go_on();
            }
            // Deletions that were done twice would have found nothing the second time.
            assert!(outcome(deletion).unwrap(), "{transport:?} {is_killed}");
            assert!(outcome(client.start_delete(b"c")).unwrap(), "{transport:?} {is_killed}");
            // Nobody waited for this one any more.
            assert!(!outcome(client.start_delete(b"b")).unwrap(), "{transport:?} {is_killed}");
        }
    }
}

#[test]
fn futures_outlive_the_wait() {
    for transport in transports() {
        let mortal = Mortal::new(None);
        let client = Store::connect(mortal.options(transport).answer_wait(WAIT)).unwrap();
        client.put(b"a", b"1").unwrap();
        mortal.stop();
        std::thread::scope(|scope| {
            let future = scope.spawn(|| super::futures::block_on(client.start_delete(b"a")));
            // By then, the thread that waits for futures has given up once.
            assert!(matches!(client.delete(b"b"), Err(StoreError::NoAnswer { .. })));
            assert!(matches!(client.delete(b"c"), Err(StoreError::NoAnswer { .. })));
            mortal.go_on();
            assert!(future.join().unwrap().unwrap());
        });
    }
}
