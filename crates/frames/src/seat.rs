//! A consumer's seat at a lossless stream: memory of its own, in which it says up to which frame it has released all. A consumer
//! can write nothing else, and its producer trusts nothing there.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use caravan_segment::{Pages, Segment, SharedSlice};

use crate::error::Error;

const SEAT_BYTES: u64 = 4096;

/// A seat, as either side has it.
#[derive(Clone, Debug)]
pub(crate) struct Seat(SharedSlice);

impl Seat {
    /// Makes a seat.
    pub fn create() -> Result<Self, Error> {
        let segment = Arc::new(Segment::create("caravan-frames-seat", SEAT_BYTES, Pages::Small)?);
        segment.grow(SEAT_BYTES)?;
        Ok(Self(segment.slice(0, 64)?))
    }

    /// Takes the seat that the producer has sent.
    pub fn attach(descriptor: OwnedFd) -> Result<Self, Error> {
        Ok(Self(Arc::new(Segment::attach(descriptor, SEAT_BYTES)?).slice(0, 64)?))
    }

    pub fn descriptor(&self) -> std::io::Result<OwnedFd> {
        use std::os::fd::AsFd;
        self.0.segment().as_fd().try_clone_to_owned()
    }

    /// Says that all frames up to this one are released, and wakes the producer if it waits for that.
    pub fn release(&self, sequence: u64) {
        // pairs with the Acquire in released(): what this consumer has read of the frame, it has read before
        self.0.half_word(0).store(sequence as u32, Ordering::Release);
        self.0.wake_all(0);
    }

    pub fn released(&self) -> u32 {
        // pairs with the Release in release()
        self.0.half_word(0).load(Ordering::Acquire)
    }

    /// Sleeps while `released` is so, at most for `limit`.
    pub fn sleep_while(&self, released: u32, limit: Duration) {
        self.0.sleep_while(0, released, limit);
    }

    /// Wakes the producer: the consumer is gone.
    pub fn wake(&self) {
        self.0.wake_all(0);
    }
}
