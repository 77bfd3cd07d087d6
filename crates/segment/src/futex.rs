//! Sleeping on a word of shared memory until another process changes it (futex(2)).
//!
//! The kernel compares the word and goes to sleep in one step, so a change is never missed. A sleeper needs no more than the
//! right to read the word, and whoever wakes does not learn who sleeps: it cannot be held up by any of them.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};

use crate::slice::SharedSlice;

/// How long a caller that cannot sleep on the word sleeps instead: a filter of system calls may forbid it.
const PAUSE: Duration = Duration::from_millis(1);

/// Sleeps while `word` is `value`, at most for `limit`. May return early: the caller looks at the word again.
pub(crate) fn sleep_while(word: &AtomicU32, value: u32, limit: Duration) {
    let timeout = Timespec::try_from(limit).ok();
    match futex::wait(word, Flags::empty(), value, timeout.as_ref()) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
        Err(_) => std::thread::sleep(limit.min(PAUSE)),
    }
}

impl SharedSlice {
    /// Sleeps while the 32-bit word at `offset`, a multiple of 4, is `value`, at most for `limit`. May return early: the
    /// caller looks at the word again.
    pub fn sleep_while(&self, offset: usize, value: u32, limit: Duration) {
        sleep_while(self.half_word(offset), value, limit);
    }

    /// Wakes every thread of any process that sleeps on the 32-bit word at `offset`, a multiple of 4. Never waits.
    pub fn wake_all(&self, offset: usize) {
        // It fails only where sleeping fails, too.
        let _ = futex::wake(self.half_word(offset), Flags::empty(), i32::MAX as u32);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    use super::*;
    use crate::{Pages, Segment, SegmentView};

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn who_can_only_read_is_woken() {
        let segment = Arc::new(Segment::create("caravan-test", 4096, Pages::Small).unwrap());
        segment.grow(4096).unwrap();
        let slice = segment.slice(0, 64).unwrap();
        let view = SegmentView::attach(segment.read_only_descriptor().unwrap(), 4096).unwrap();
        view.sleep_while(8, 1, LONG); // Another value: returns at once.
        let begun = Instant::now();
        view.sleep_while(8, 0, Duration::from_millis(5));
        assert!(begun.elapsed() < LONG);
        let sleeper = std::thread::spawn(move || {
            while view.load(8) == 0 {
                view.sleep_while(if cfg!(target_endian = "big") { 12 } else { 8 }, 0, LONG);
            }
        });
        slice.word(8).store(1, Ordering::Release);
        slice.wake_all(if cfg!(target_endian = "big") { 12 } else { 8 });
        sleeper.join().unwrap();
    }
}
