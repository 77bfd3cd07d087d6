//! How an owner reaches the ring of a copy: by a mapping, or by one-sided operations.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use caravan_fabric::contract::{Endpoint, Event, Local, Operation};
use caravan_fabric::{Error as FabricError, RegionNumber, RegionToken};
use caravan_segment::{Segment, SharedSlice};

use crate::error::StoreError;
use crate::limits::{COPY_SILENCE, COPY_WAIT_SPIN};

/// Writes to the [ring of a copy](crate::StoreCopy::new_ring). Any error means that the copy is out of reach by this writer.
///
/// A [`Store`](crate::Store) calls it from any of its threads, one at a time. Places are offsets in the ring's memory.
pub trait CopyWriter: Send + std::fmt::Debug {
    /// Returns the number of bytes of the ring's memory.
    fn ring_bytes(&self) -> u64;

    /// Starts to write `bytes` at `place`, both multiples of 8. The caller may reuse `bytes` at once.
    fn write(&mut self, place: u64, bytes: &[u8]) -> Result<(), StoreError>;

    /// Waits for at most `limit` until all that was written has arrived, and returns whether it has: then it is in the
    /// memory of the copy, whatever becomes of this process and its host.
    fn has_arrived(&mut self, limit: Duration) -> Result<bool, StoreError>;

    /// Reads the bytes at `place`, a multiple of 8; each whole word of 8 bytes is of one moment.
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> Result<(), StoreError>;
}

/// Writes to the ring of a copy whose memory this process maps.
#[derive(Debug)]
pub struct MappedRing {
    ring: SharedSlice,
}

impl MappedRing {
    /// Maps a ring of so many bytes.
    pub fn open(ring: OwnedFd, ring_bytes: u64) -> Result<Self, StoreError> {
        let segment = Arc::new(Segment::attach(ring, ring_bytes)?);
        Ok(Self { ring: segment.slice(0, ring_bytes)? })
    }
}

impl CopyWriter for MappedRing {
    fn ring_bytes(&self) -> u64 {
        self.ring.bytes()
    }

    fn write(&mut self, place: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.ring.copy_in(place as usize, bytes);
        Ok(())
    }

    fn has_arrived(&mut self, _limit: Duration) -> Result<bool, StoreError> {
        // The stores before this are made before any that follows, such as that of an answer.
        fence(Ordering::Release);
        Ok(true)
    }

    fn read(&mut self, place: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        self.ring.copy_words_out(place as usize, bytes);
        // Pairs with the release store of `StoreCopy`: what it has read from the ring was read before.
        fence(Ordering::Acquire);
        Ok(())
    }
}

/// Writes to the ring of a copy by an endpoint, over whatever carries that.
#[derive(Debug)]
pub struct FabricRing {
    endpoint: Box<dyn Endpoint>,
    number: RegionNumber,
    ring_bytes: u64,
    /// Where in the arena the next bytes go, from the second word on. The first one is for reads.
    next: u64,
    under_way: usize,
    /// Something was written after the last read, which only a read proves to have arrived.
    is_unproven: bool,
    events: Vec<Event>,
}

/// The bytes of the arena before those of writes: the words that are read.
const ARENA_HEAD_BYTES: u64 = 64;

impl FabricRing {
    /// Borrows a ring that the peer has lent for writing. The endpoint is used for nothing else; its arena has at least 4 KiB,
    /// and writes of more bytes than that take several turns.
    pub fn borrow(mut endpoint: Box<dyn Endpoint>, ring: &RegionToken) -> Result<Self, StoreError> {
        let number = endpoint.borrow(ring)?;
        Ok(Self {
            endpoint,
            number,
            ring_bytes: ring.bytes(),
            next: ARENA_HEAD_BYTES,
            under_way: 0,
            is_unproven: false,
            events: Vec::new(),
        })
    }

    fn post(&mut self, operation: Operation) -> Result<(), StoreError> {
        loop {
            match self.endpoint.post(operation) {
                Ok(()) => break,
                Err(FabricError::Full(_)) => {
                    let before = self.under_way;
                    self.wait_until(|ring| ring.under_way < before)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.under_way += 1;
        Ok(())
    }

    fn poll(&mut self) -> Result<(), StoreError> {
        self.events.clear();
        self.endpoint.poll(&mut self.events, 64)?;
        let done = self.events.iter().filter(|event| matches!(event, Event::Done(_))).count();
        self.under_way = self.under_way.saturating_sub(done);
        Ok(())
    }

    /// Waits until `is_done`; an error if the peer has ended or is silent.
    fn wait_until(&mut self, is_done: impl Fn(&Self) -> bool) -> Result<(), StoreError> {
        if self.wait_for(COPY_SILENCE, is_done)? {
            return Ok(());
        }
        Err(StoreError::CopySilent { wait: COPY_SILENCE })
    }

    fn wait_for(&mut self, limit: Duration, is_done: impl Fn(&Self) -> bool) -> Result<bool, StoreError> {
        let begin = Instant::now();
        self.endpoint.doorbell()?;
        self.endpoint.flush()?;
        loop {
            self.poll()?;
            if is_done(self) {
                return Ok(true);
            }
            let waited = begin.elapsed();
            if waited >= limit {
                self.endpoint.check_peer()?;
                return Ok(false);
            }
            if waited < COPY_WAIT_SPIN {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    fn start_read(&mut self, place: u64, bytes: u32) -> Result<(), StoreError> {
        let into = Local { offset: 0, bytes };
        self.post(Operation::Read { from: self.number.place(place), into, context: 0 })
    }
}

impl CopyWriter for FabricRing {
    fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    fn write(&mut self, mut place: u64, mut bytes: &[u8]) -> Result<(), StoreError> {
        let arena_bytes = self.endpoint.arena().bytes();
        let longest = u64::from(self.endpoint.capabilities().operation_bytes_max) / 8 * 8;
        while !bytes.is_empty() {
            if self.next + 8 > arena_bytes {
                self.wait_until(|ring| ring.under_way == 0)?;
                self.next = ARENA_HEAD_BYTES;
            }
            let count = (bytes.len() as u64).min(arena_bytes - self.next).min(longest) / 8 * 8;
            let (now, rest) = bytes.split_at(count as usize);
            self.endpoint.arena().copy_in(self.next as usize, now);
            let from = Local { offset: self.next, bytes: count as u32 };
            let to = self.number.place(place);
            self.post(Operation::Write { from, to, immediate: None, context: 0 })?;
            self.is_unproven = true;
            (self.next, place, bytes) = (self.next + count, place + count, rest);
        }
        self.endpoint.doorbell()?;
        Ok(())
    }

    fn has_arrived(&mut self, limit: Duration) -> Result<bool, StoreError> {
        if self.is_unproven && self.endpoint.capabilities().completes_early {
            // What was written before a read on the same connection is there when the read is.
            self.start_read(0, 8)?;
        }
        self.is_unproven = false;
        if !self.wait_for(limit, |ring| ring.under_way == 0)? {
            return Ok(false);
        }
        self.next = ARENA_HEAD_BYTES;
        Ok(true)
    }

    fn read(&mut self, place: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        debug_assert!(bytes.len() as u64 <= ARENA_HEAD_BYTES);
        self.wait_until(|ring| ring.under_way == 0)?;
        self.start_read(place, bytes.len() as u32)?;
        self.wait_until(|ring| ring.under_way == 0)?;
        self.endpoint.arena().copy_words_out(0, bytes);
        Ok(())
    }
}
