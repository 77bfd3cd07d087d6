//! Two rings in memory shared by two processes, one per direction, and the sides of a lane.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use caravan_ring::record::{LengthReader, prefix};
use caravan_ring::{ByteConsumer, ByteProducer, HEADER_BYTES, MappedBytes, MappedCursors};
use caravan_segment::barrier::{self, Fences};
use caravan_segment::{Pages, Segment, SharedSlice};

use crate::error::Error;

/// The payload of a record in bytes.
pub const RECORD_BYTES: usize = 64;

/// The space for a ring's header, so that the header and the bytes each begin on a page of their own.
const HEADER_SPACE: u64 = 4096;
const _: () = assert!(HEADER_BYTES as u64 <= HEADER_SPACE);
/// Rounds of waiting between two checks of the other process.
const SPINS: u32 = 1 << 16;

/// The memory of both lanes.
#[derive(Debug)]
pub struct RingMemory {
    segment: Arc<Segment>,
    ring_bytes: u64,
}

impl RingMemory {
    pub fn create(ring_bytes: u64) -> Result<Self, Error> {
        let bytes = Self::bytes(ring_bytes);
        let segment = Arc::new(Segment::create("caravan-bench", bytes, Pages::Small)?);
        segment.grow(bytes)?;
        Ok(Self { segment, ring_bytes })
    }

    /// Returns the path at which a process of the same user opens the memory.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.segment.as_fd().as_raw_fd()).into()
    }

    pub fn open(path: &Path, ring_bytes: u64) -> Result<Self, Error> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(Error::file("open the memory", path))?;
        let segment = Arc::new(Segment::attach(file.into(), Self::bytes(ring_bytes))?);
        Ok(Self { segment, ring_bytes })
    }

    fn bytes(ring_bytes: u64) -> u64 {
        2 * (HEADER_SPACE + ring_bytes)
    }

    /// Returns lane 0, from the parent to the child, or lane 1, back.
    fn lane(&self, number: u64) -> Result<(MappedCursors, MappedBytes), Error> {
        let start = number * (HEADER_SPACE + self.ring_bytes);
        let header: SharedSlice = self.segment.slice(start, HEADER_SPACE)?;
        let bytes = self.segment.slice(start + HEADER_SPACE, self.ring_bytes)?;
        Ok((MappedCursors::new(&header, fences())?, MappedBytes::new(bytes)?))
    }

    pub fn sender(&self, lane: u64) -> Result<LaneSender, Error> {
        let (cursors, bytes) = self.lane(lane)?;
        Ok(LaneSender { ring: ByteProducer::new(cursors, bytes) })
    }

    pub fn receiver(&self, lane: u64) -> Result<LaneReceiver, Error> {
        let (cursors, bytes) = self.lane(lane)?;
        let lengths = LengthReader::new(RECORD_BYTES as u32);
        Ok(LaneReceiver { ring: ByteConsumer::new(cursors, bytes), lengths })
    }
}

/// A check that is called now and then while a side waits: an error ends the waiting.
pub type GoOn<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// The producing side of a lane.
#[derive(Debug)]
pub struct LaneSender {
    ring: ByteProducer<MappedCursors, MappedBytes>,
}

impl LaneSender {
    /// Appends a record; the consumer sees it once it is published, or when the ring was full.
    #[inline]
    pub fn append(&mut self, record: &[u8; RECORD_BYTES], go_on: GoOn) -> Result<(), Error> {
        let mut spins = 0;
        while !self.ring.append_whole([&prefix(RECORD_BYTES as u32), record])? {
            self.publish();
            wait(&mut spins, go_on)?;
        }
        Ok(())
    }

    #[inline]
    pub fn publish(&mut self) {
        // Neither side ever sleeps here, so there is no bell to ring.
        let _ = self.ring.publish();
    }

    /// Waits until the other side has released everything.
    pub fn drained(&mut self, go_on: GoOn) -> Result<(), Error> {
        let mut spins = 0;
        let mut waited = Ok(());
        loop {
            self.ring.cursor().refresh()?;
            if self.ring.position().used() == 0 {
                return Ok(());
            }
            // After an error, one more look: a consumer may end once it has taken the rest.
            waited?;
            waited = wait(&mut spins, go_on);
        }
    }
}

/// The consuming side of a lane.
#[derive(Debug)]
pub struct LaneReceiver {
    ring: ByteConsumer<MappedCursors, MappedBytes>,
    lengths: LengthReader,
}

impl LaneReceiver {
    /// Copies the next record out, and releases its room with all others that were there.
    #[inline]
    pub fn take(&mut self, record: &mut [u8; RECORD_BYTES], go_on: GoOn) -> Result<(), Error> {
        loop {
            match self.lengths.next(&mut self.ring) {
                // The length is compared, not used: so the next record's place does not depend on memory that is still
                // on its way from the other core.
                Ok(Some(length)) if length as usize == RECORD_BYTES => break,
                Ok(Some(length)) => return Err(broken(&format!("a record has {length} bytes"))),
                Ok(None) => self.more(go_on)?,
                Err(error) => return Err(broken(&error)),
            }
        }
        let mut have = self.ring.read(record);
        while have < RECORD_BYTES {
            self.more(go_on)?;
            have += self.ring.read(&mut record[have..]);
        }
        if self.ring.unread() == 0 {
            let _ = self.ring.release();
        }
        Ok(())
    }

    fn more(&mut self, go_on: GoOn) -> Result<(), Error> {
        let _ = self.ring.release();
        let mut found = self.ring.refresh()?;
        let mut spins = 0;
        while found == 0 {
            wait(&mut spins, go_on)?;
            found = self.ring.refresh()?;
        }
        Ok(())
    }
}

#[inline]
fn wait(spins: &mut u32, go_on: GoOn) -> Result<(), Error> {
    std::hint::spin_loop();
    *spins += 1;
    if *spins % SPINS == 0 { go_on() } else { Ok(()) }
}

fn broken(reason: &dyn std::fmt::Display) -> Error {
    crate::process::failed("ring", reason)
}

/// Returns the fences that a link between two processes uses.
fn fences() -> Fences {
    if barrier::join() { Fences::Asymmetric } else { Fences::Symmetric }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_pass_a_ring_smaller_than_their_sum_in_order() {
        let memory = RingMemory::create(4096).expect("memory");
        let other = RingMemory::open(&memory.path(), 4096).expect("the same memory");
        let mut sender = memory.sender(0).expect("a sender");
        let mut receiver = other.receiver(0).expect("a receiver");
        let consumer = std::thread::spawn(move || {
            let mut record = [0; RECORD_BYTES];
            (0..1000_u32).all(|n| {
                receiver.take(&mut record, &mut || Ok(())).expect("a record");
                record[..4] == n.to_le_bytes()
            })
        });
        let mut record = [0; RECORD_BYTES];
        for n in 0..1000_u32 {
            record[..4].copy_from_slice(&n.to_le_bytes());
            sender.append(&record, &mut || Ok(())).expect("room");
        }
        sender.publish();
        sender.drained(&mut || Ok(())).expect("drained");
        assert!(consumer.join().expect("joined"));
    }

    #[test]
    fn a_side_whose_peer_ended_stops_waiting() {
        let memory = RingMemory::create(4096).expect("memory");
        let mut receiver = memory.receiver(0).expect("a receiver");
        let mut asked = 0;
        let mut go_on = || {
            asked += 1;
            if asked == 3 { Err(broken(&"the other process ended")) } else { Ok(()) }
        };
        let error = receiver.take(&mut [0; RECORD_BYTES], &mut go_on).expect_err("gave up");
        assert!(error.to_string().contains("the other process ended"), "{error}");
    }
}
