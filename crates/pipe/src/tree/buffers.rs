//! Blocks that are used again: a fresh one costs a page fault for each 4 KiB, as much as filling it.

use std::sync::Mutex;

use super::format::{FRAME_BYTES_MAX, HEADER_BYTES};

/// Kept for use.
#[derive(Debug)]
pub struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    kept_max: usize,
}

impl Buffers {
    /// Keeps so many at most.
    pub fn new(kept_max: usize) -> Self {
        Self { free: Mutex::new(Vec::new()), kept_max }
    }

    /// One with room for a frame, and with anything in it.
    pub fn take(&self) -> Vec<u8> {
        let free = self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
        free.unwrap_or_else(|| Vec::with_capacity(HEADER_BYTES + FRAME_BYTES_MAX))
    }

    /// One that is no longer needed.
    pub fn give_back(&self, buffer: Vec<u8>) {
        if buffer.capacity() < HEADER_BYTES + FRAME_BYTES_MAX {
            return;
        }
        let mut free = self.free.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if free.len() < self.kept_max {
            free.push(buffer);
        }
    }
}
