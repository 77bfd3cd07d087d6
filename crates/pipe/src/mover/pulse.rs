//! A thread that says that a receiver is alive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::backward::BackwardWriter;
use super::start::spawn;
use super::wait::{MoverTiming, WaitSet, Woken};
use super::wire::Streams;
use crate::Error;
use crate::cancel::Cancel;

/// Says so whatever holds up the receiver's own thread; ends with its drop.
pub(super) struct Pulse {
    end: Cancel,
    thread: Option<JoinHandle<()>>,
}

impl Pulse {
    /// Begins.
    pub fn start(
        mut streams: Streams,
        mouth: Arc<Mutex<BackwardWriter>>,
        timing: MoverTiming,
    ) -> Result<Self, Error> {
        let end = Cancel::new()?;
        let ended = end.clone();
        let beat = move || {
            let waits = WaitSet::new(&ended);
            while let Ok(Woken::Late) = waits.wait(None, None, Some(Instant::now() + timing.ping)) {
                // If the sender is gone, whoever reads from it finds that out.
                if lock(&mouth).say_alive(&mut streams).is_err() {
                    break;
                }
            }
        };
        Ok(Self { end, thread: Some(spawn("caravan-alive", beat)?) })
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.end.fire();
        if let Some(thread) = self.thread.take() {
            // It has nothing to report, and a panic of it was printed.
            let _ = thread.join();
        }
    }
}

/// For as long as a frame takes.
pub(super) fn lock(mouth: &Mutex<BackwardWriter>) -> MutexGuard<'_, BackwardWriter> {
    mouth.lock().unwrap_or_else(PoisonError::into_inner)
}
