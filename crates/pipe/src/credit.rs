//! Flow control by credits: how many bytes may be under way towards a peer that says when it has taken them.

use crate::lock;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A window for flow control by credits: the sender takes from it before it sends, and it is given back
/// what the receiver has taken.
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

/// Between two looks whether there is still somebody to wait for.
const LOOK: Duration = Duration::from_millis(100);

impl Credit {
    /// All of it is free.
    pub fn new(bytes: u64) -> Self {
        Self { state: Mutex::new(CreditState { free: bytes, is_closed: false }), changed: Condvar::new() }
    }

    /// Waits until something is free and takes at most `bytes` of it; `None` once it is closed.
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

    /// Gives back.
    pub fn give(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.free = state.free.saturating_add(bytes);
        self.changed.notify_all();
    }

    /// Nobody waits any more.
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
        // Closed before or after it was given.
        assert!(matches!(first, Some(3) | None) && second.is_none());
    }
}
