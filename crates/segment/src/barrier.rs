//! Fences between two processes, nearly free for one of the sides.
//!
//! The side that publishes and then looks whether the other sleeps needs its store ordered before its load.
//! A fence for that waits until the cache line has come from the other processor, on every
//! publish; the other side needs its fence only when it goes to sleep, which costs thousands of
//! times as much anyway. So if both processes take part, the publisher only keeps the compiler
//! from reordering, and the side that goes to sleep makes the kernel run a full barrier on every processor
//! that runs a thread of either process: about 0.4 us.
//!
//! Source: membarrier(2), `MEMBARRIER_CMD_GLOBAL_EXPEDITED`.

use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

/// The process that has joined, or 0: a forked child copies this word, but not the registration.
static JOINED: AtomicU32 = AtomicU32::new(0);

/// The fences on which the two sides of a ring have agreed. Both must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fences {
    /// Each side orders its own accesses.
    Symmetric,
    /// The side that goes to sleep makes the kernel order both sides' accesses. Both processes have
    /// [joined](join).
    Asymmetric,
}

impl Fences {
    /// Orders the accesses of the side that has moved a position and looks at the other's flag next.
    #[inline]
    pub fn light(self) {
        match self {
            Self::Symmetric => fence(Ordering::SeqCst),
            Self::Asymmetric => compiler_fence(Ordering::SeqCst),
        }
    }

    /// Orders the accesses of the side that has set its flag and looks at the other's position next. False if the
    /// kernel has refused: then nothing is ordered, and this side must not sleep. That is rare, because [`join`] has
    /// succeeded before: memory may be short for a moment, or the process has since got a filter of system
    /// calls (seccomp(2)). The next [`join`] asks the kernel again.
    #[must_use = "without the barrier a wake-up can be lost"]
    pub fn heavy(self) -> bool {
        fence(Ordering::SeqCst);
        let ordered = self == Self::Symmetric || membarrier(MembarrierCommand::GlobalExpedited).is_ok();
        if !ordered {
            JOINED.store(0, Ordering::Relaxed);
        }
        ordered
    }
}

/// Makes this process take part: the kernel will interrupt its running threads for a peer's
/// barrier, and lets the process ask for one. False if the kernel has no such barrier, or a filter forbids it; then
/// only [`Fences::Symmetric`] is sound. Cheap after the first call. Call it again after a
/// fork.
pub fn join() -> bool {
    let process = std::process::id();
    if JOINED.load(Ordering::Relaxed) == process {
        return true;
    }
    let joined = membarrier_query()
        .contains(MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED)
        && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
        && membarrier(MembarrierCommand::GlobalExpedited).is_ok();
    if joined {
        JOINED.store(process, Ordering::Relaxed);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dekker's pattern between two threads, a light side and a heavy one: in no round do both
    /// miss the other. Without the kernel's barrier this fails within a few thousand rounds on a
    /// processor with store buffers, whenever both threads really run at once.
    #[test]
    fn one_of_the_two_sees_the_other() {
        const ROUNDS: u32 = 20_000;
        let fences = if join() { Fences::Asymmetric } else { Fences::Symmetric };
        let words: [AtomicU32; 4] = Default::default();
        let [ours, theirs, ready, done] = &words;
        let missed = std::thread::scope(|scope| {
            let light = scope.spawn(|| {
                let mut saw = Vec::new();
                for round in 1..=ROUNDS {
                    while ready.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                    ours.store(round, Ordering::Relaxed);
                    fences.light();
                    saw.push(theirs.load(Ordering::Relaxed) == round);
                    done.store(round, Ordering::Release);
                }
                saw
            });
            let mut saw = Vec::new();
            for round in 1..=ROUNDS {
                ready.store(round, Ordering::Release);
                theirs.store(round, Ordering::Relaxed);
                assert!(fences.heavy());
                saw.push(ours.load(Ordering::Relaxed) == round);
                while done.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
            }
            let light = light.join().unwrap();
            light.iter().zip(&saw).filter(|(a, b)| !**a && !**b).count()
        });
        assert_eq!(missed, 0);
    }
}
