//! Waiting for descriptors, while a connection is being made.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::contract::Error;

/// Waits until one of them is readable, until `deadline` at most.
pub fn readable(descriptors: &[BorrowedFd<'_>], deadline: Instant) -> Result<(), Error> {
    let mut set: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let left = deadline.saturating_duration_since(Instant::now());
    let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match rustix::event::poll(&mut set, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(source) => Err(Error::System { call: "poll", source: source.into() }),
    }
}
