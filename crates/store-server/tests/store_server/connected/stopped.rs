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
                mortal.serve(None);
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
fn futures_end_with_an_error_too_and_the_client_goes_on() {
    for transport in transports() {
        let mortal = Mortal::new(None);
        let client = Store::connect(mortal.options(transport).answer_wait(WAIT)).unwrap();
        for key in [b"a", b"b"] {
            client.put(key, b"1").unwrap();
        }
        mortal.stop();
        std::thread::scope(|scope| {
            let futures = [b"a", b"b"].map(|key| {
                let client = &client;
                // The second one begins to wait later.
                scope.spawn(move || {
                    std::thread::sleep(if key == b"b" { WAIT / 2 } else { Duration::ZERO });
                    let begin = Instant::now();
                    (super::futures::block_on(client.start_delete(key)), begin.elapsed())
                })
            });
            for future in futures {
                let (result, waited) = future.join().unwrap();
                let is_named = matches!(result, Err(StoreError::NoAnswer { wait: WAIT, is_started: true }));
                assert!(is_named && waited >= WAIT, "{transport:?} {result:?} after {waited:?}");
            }
        });
        mortal.go_on();
        // What was asked for is done, and its answers are nobody's.
        assert!(!outcome(client.start_delete(b"a")).unwrap());
        assert!(!super::futures::block_on(client.start_delete(b"b")).unwrap());
    }
}

#[test]
fn connecting_to_a_stopped_server_takes_no_longer_than_allowed() {
    for transport in transports() {
        let mortal = Mortal::new(None);
        mortal.stop();
        let begin = Instant::now();
        let refused = Store::connect(mortal.options(transport).connect_wait(WAIT)).map(drop).unwrap_err();
        let is_named = matches!(refused, StoreError::NoAnswer { wait: WAIT, is_started: false });
        assert!(is_named && begin.elapsed() >= WAIT, "{transport:?}: {refused}");
        mortal.go_on();
        let client = Store::connect(mortal.options(transport)).unwrap();
        client.put(b"a", b"1").unwrap();
    }
}
