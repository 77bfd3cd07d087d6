//! The consumers of a stream, which its producer and the thread of `service.rs` share. A producer that delivers newest first takes
//! no lock here.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::seat::Seat;
use crate::service::CUT_OFF;

/// A consumer that has the memory.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub number: u64,
    pub seat: Option<Seat>,
    pub connection: Arc<UnixStream>,
}

impl Consumer {
    /// Tells a consumer that nothing waits for it any more.
    fn cut_off(&self) {
        // Neither call can wait, and both fail only if the consumer is gone.
        let _ = (&*self.connection).write(&[CUT_OFF]);
        let _ = self.connection.shutdown(std::net::Shutdown::Write);
    }
}

/// The consumers of a stream, which the producer and its thread share.
#[derive(Debug, Default)]
pub(crate) struct Audience {
    consumers: Mutex<Vec<Consumer>>,
    changed: Condvar,
    /// How many there are, for a producer that must not wait for the lock.
    count: AtomicUsize,
    /// The number of the newest frame, for the seats of those who come.
    pub newest: AtomicU64,
}

impl Audience {
    pub fn lock(&self) -> MutexGuard<'_, Vec<Consumer>> {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of consumers.
    pub fn count(&self) -> usize {
        // Relaxed, as all of these: nothing else depends on the number.
        self.count.load(Ordering::Relaxed)
    }

    /// Takes in a consumer, whose seat begins at the newest frame. Returns the number of that frame.
    pub fn add(&self, consumer: Consumer) -> u64 {
        let mut consumers = self.lock();
        let newest = self.newest.load(Ordering::Relaxed);
        // Under the lock, with which a lossless producer looks at the seats: it is at most one frame further.
        if let Some(seat) = &consumer.seat {
            seat.release(newest);
        }
        consumers.push(consumer);
        self.changed(&consumers);
        newest
    }

    fn changed(&self, consumers: &[Consumer]) {
        self.count.store(consumers.len(), Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Waits until there are so many consumers; false if they are not there within the limit.
    pub fn wait_for(&self, count: usize, limit: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), limit, |consumers| consumers.len() < count);
        waited.unwrap_or_else(PoisonError::into_inner).0.len() >= count
    }

    /// Takes the seat of a consumer away.
    pub fn cut_off(&self, number: u64) {
        for consumer in self.lock().iter_mut().filter(|consumer| consumer.number == number) {
            consumer.cut_off();
            consumer.seat = None;
        }
    }

    pub fn remove(&self, number: u64) {
        let mut consumers = self.lock();
        if let Some(index) = consumers.iter().position(|consumer| consumer.number == number) {
            if let Some(seat) = consumers.remove(index).seat {
                seat.wake();
            }
        }
        self.changed(&consumers);
    }
}
