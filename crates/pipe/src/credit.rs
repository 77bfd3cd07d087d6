//! Flow control by credit: how many bytes may be under way to a peer that reports when it has taken them.

use crate::lock;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The bytes that may still be sent: the sender takes credit before it sends, and gets it back as the receiver
/// takes the bytes.
#[derive(Debug)]
pub struct Credit {
    state: Mutex<CreditState>,
    changed: Condvar,
}

#[derive(Debug)]
struct CreditState {
    free: u64,
    is_closed: bool,
}

/// The interval at which a waiter checks whether the credit is closed.
const LOOK: Duration = Duration::from_millis(100);

impl Credit {
    /// Returns a credit of `bytes`, all of them free.
    pub fn new(bytes: u64) -> Self {
        Self { state: Mutex::new(CreditState { free: bytes, is_closed: false }), changed: Condvar::new() }
    }

    /// Waits until credit is free and takes at most `bytes` of it. Returns `None` once the credit is closed.
    pub fn take(&self, bytes: u64) -> Option<u64> {
        let mut state = lock(&self.state);
        loop {
            if state.is_closed {
                return None;
            }
            if state.free > 0 {
                let taken = state.free.min(bytes);
                state.free -= taken;
                return Some(taken);
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives `bytes` of credit back.
    pub fn give(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.free = state.free.saturating_add(bytes);
        self.changed.notify_all();
    }

    /// Closes the credit, which ends all waits.
    pub fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_not_free_is_waited_for() {
        let window = Arc::new(Credit::new(10));
        assert_eq!((window.take(4), window.take(100)), (Some(4), Some(6)));
        let other = Arc::clone(&window);
        let waiter = std::thread::spawn(move || (other.take(3), other.take(1)));
        window.give(3);
        window.close();
        let (first, second) = waiter.join().expect("joined");
        // The close may come before or after the waiter takes the credit.
        assert!(matches!(first, Some(3) | None) && second.is_none());
    }
}
