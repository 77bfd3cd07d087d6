//! membarrier(2), in loom's terms: whoever asks waits until the other side has executed a full
//! fence somewhere in its program, or does not run.
//!
//! The interrupt may come before any access to a shared word: there the side looks whether it has
//! been asked. Read-modify-write operations always see the latest value, so an interrupt is never
//! late; they are relaxed, so nothing but the fences orders anything.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicBool, fence};
use loom::thread::{self, Thread};

#[derive(Debug)]
struct Sides {
    asked: [AtomicBool; 2],
    away: [AtomicBool; 2],
    /// Who waits for the other side's answer. Not one of loom's locks: it orders nothing.
    waiting: Mutex<[Option<Thread>; 2]>,
    reaches: bool,
}

/// One side, as the kernel knows it.
#[derive(Clone, Debug)]
pub struct Presence {
    side: usize,
    sides: Arc<Sides>,
}

impl Presence {
    /// Both sides. Unless it `reaches` them, the barrier is the asker's own fence only.
    pub fn pair(reaches: bool) -> (Self, Self) {
        let pair = || [AtomicBool::new(false), AtomicBool::new(false)];
        let sides = Arc::new(Sides { asked: pair(), away: pair(), waiting: Mutex::default(), reaches });
        (Self { side: 0, sides: Arc::clone(&sides) }, Self { side: 1, sides })
    }

    /// Where an interrupt may come.
    pub fn interruptible(&self) {
        if is_set(&self.sides.asked[self.side]) {
            fence(Ordering::SeqCst);
            self.answer();
        }
    }

    /// The other side need not wait for this one any more.
    fn answer(&self) {
        self.sides.asked[self.side].swap(false, Ordering::Relaxed);
        let waiting = self.sides.waiting.lock().unwrap()[1 - self.side].clone();
        if let Some(waiting) = waiting {
            waiting.unpark();
        }
    }

    /// membarrier(2). Two sides that ask at once need not answer each other: each fences here.
    pub fn barrier(&self) {
        if !self.sides.reaches {
            return fence(Ordering::SeqCst);
        }
        let other = 1 - self.side;
        self.away(|| {
            self.sides.waiting.lock().unwrap()[self.side] = Some(thread::current());
            self.sides.asked[other].swap(true, Ordering::Relaxed);
            // The last look is the one that an answer changes: it cannot come between it and park.
            while !is_set(&self.sides.away[other]) && is_set(&self.sides.asked[other]) {
                thread::park();
            }
            self.sides.waiting.lock().unwrap()[self.side] = None;
        });
    }

    /// Does not run while `wait` blocks: a switch to another thread is a full fence.
    pub fn away(&self, wait: impl FnOnce()) {
        self.leave();
        wait();
        self.sides.away[self.side].swap(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Does not run any more.
    pub fn leave(&self) {
        fence(Ordering::SeqCst);
        self.sides.away[self.side].swap(true, Ordering::Relaxed);
        self.answer();
    }
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.fetch_or(false, Ordering::Relaxed)
}
