//! What one thread is told by others.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::ServeError;

/// Messages for a thread that waits for descriptors. There are never more than a few for each member and part.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    bell: OwnedFd,
    messages: Mutex<Vec<T>>,
}

impl<T> Inbox<T> {
    pub(crate) fn new() -> Result<Self, ServeError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(ServeError::system("make an eventfd"))?;
        Ok(Self { bell, messages: Mutex::new(Vec::new()) })
    }

    pub(crate) fn push(&self, message: T) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        // It fails only if 2^64 rings are not heard yet; then the thread wakes anyway.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Returns all messages, in their order.
    pub(crate) fn take(&self) -> Vec<T> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> AsFd for Inbox<T> {
    /// Readable while there are messages.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
