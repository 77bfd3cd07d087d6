//! A signal that tells waiting threads to end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::Error;

/// A signal that is fired once, for all clones. Its descriptor is readable from then on, so a thread that waits for
/// something else adds it to its poll set.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<CancelShared>);

#[derive(Debug)]
struct CancelShared {
    fired: AtomicBool,
    event: OwnedFd,
}

impl Cancel {
    /// Returns a signal that is not fired.
    pub fn new() -> Result<Self, Error> {
        let event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Error::system("eventfd"))?;
        Ok(Self(Arc::new(CancelShared { fired: AtomicBool::new(false), event })))
    }

    /// Fires the signal, which wakes all waiters.
    pub fn fire(&self) {
        // Pairs with the Acquire in is_fired().
        self.0.fired.store(true, Ordering::Release);
        // The counter cannot be full: only the first of 2^64 - 2 writes matters.
        let _ = rustix::io::write(&self.0.event, &1_u64.to_ne_bytes());
    }

    /// True if the signal was fired.
    pub fn is_fired(&self) -> bool {
        // Pairs with the Release in fire().
        self.0.fired.load(Ordering::Acquire)
    }
}

impl AsFd for Cancel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(cancel: &Cancel) -> bool {
        let mut set = [PollFd::new(cancel, PollFlags::IN)];
        poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("polled") == 1
    }

    #[test]
    fn it_stays_fired_for_every_clone() {
        let cancel = Cancel::new().expect("an event");
        let other = cancel.clone();
        assert!(!other.is_fired() && !is_readable(&other));
        cancel.fire();
        assert!(other.is_fired() && is_readable(&other) && is_readable(&other));
    }
}
