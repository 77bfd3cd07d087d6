//! Wall clocks that jump, and that differ between the owners of a store: each owner's own clock says when keys expire.

use caravan_store::{Store, StoreOptions};

use crate::copies::Pair;

const HOUR_MS: u64 = 3_600_000;

#[test]
fn a_clock_that_is_set_back_brings_no_key_back_and_lets_none_live_longer() {
    let store = Store::embedded(StoreOptions::new(8 << 20)).unwrap();
    store.publish_now(HOUR_MS);
    for (key, after_ms) in [("soon", 10), ("later", HOUR_MS)] {
        store.put_until(key.as_bytes(), b"value", Some(HOUR_MS + after_ms)).unwrap();
    }
    // It jumps ahead, and back.
    store.publish_now(HOUR_MS + 10);
    assert_eq!(store.get(b"soon").unwrap(), None);
    store.publish_now(1);
    assert_eq!(store.now_ms(), HOUR_MS + 10, "time goes back");
    assert_eq!(store.get(b"soon").unwrap(), None, "a key is back that had expired");
    // Time stands still until the clock is there again; nothing expires meanwhile, and everything afterwards.
    assert!(store.get(b"later").unwrap().is_some());
    store.publish_now(2 * HOUR_MS);
    assert_eq!(store.get(b"later").unwrap(), None);
}

#[test]
fn the_clock_of_the_next_owner_decides_about_what_the_owner_before_has_not_removed() {
    let pair = Pair::new();
    pair.keep(|| {
        pair.store.publish_now(HOUR_MS);
        for key in ["removed", "seen"] {
            pair.store.put_until(key.as_bytes(), b"value", Some(HOUR_MS + 10)).unwrap();
            if key == "removed" {
                pair.store.publish_now(HOUR_MS + 10);
                while pair.store.remove_expired(100).unwrap() == 0 {}
            }
        }
        assert_eq!(pair.store.get(b"seen").unwrap(), None);
    });
    let next = pair.promote();
    // Its clock is a little behind.
    next.publish_now(HOUR_MS + 5);
    assert_eq!(next.get(b"removed").unwrap(), None, "a key is back that was removed");
    assert!(next.get(b"seen").unwrap().is_some(), "the expiry is that of the key, whatever other clocks say");
    next.publish_now(HOUR_MS + 10);
    assert_eq!(next.get(b"seen").unwrap(), None);
}
