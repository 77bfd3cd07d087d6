//! The end of a trace in the worker that sends on the link.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use caravan_ring::record::{LENGTH_BYTES, prefix};
use caravan_ring::{ByteProducer, Corrupt, MappedBytes, MappedCursors};

use super::HEADER_BYTES;
use super::claim::runs;
use crate::layout::{SharedWords, link, trace};
use crate::limits::TRACES_MAX;
use crate::owner::LinkId;
use crate::packet::Packet;

/// Copies the packets of one link, if the link is traced. A worker has one for each link that it
/// sends on.
#[derive(Debug)]
pub struct LinkRecorder {
    shared: SharedWords,
    link: LinkId,
    process: u64,
    open: Option<OpenTrace>,
}

/// A trace that is running.
#[derive(Debug)]
struct OpenTrace {
    place: usize,
    /// The number of the trace among all in that place: each begins with an empty ring.
    epoch: u64,
    ring: ByteProducer<MappedCursors, MappedBytes>,
}

impl LinkRecorder {
    /// Makes the recorder of the packets that this process sends on `link`. It costs nothing until the link is traced.
    pub fn new(shared: &SharedWords, link: LinkId) -> Self {
        Self { shared: shared.clone(), link, process: std::process::id().into(), open: None }
    }

    /// True if the link is traced. It takes one load.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        // `record` orders the loads that depend on it.
        self.shared.link(self.link, link::TRACE).load(Ordering::Relaxed) != 0
    }

    /// Copies packets that are sent at `now_ns` of the monotonic clock, as far as there is room, and counts the
    /// others. The worker calls it once in each breath in which it [is wanted](Self::is_wanted). It
    /// never waits.
    #[cold]
    pub fn record<'p>(&mut self, packets: impl Iterator<Item = &'p Packet>, now_ns: u64) {
        self.record_data(packets.map(Packet::data), now_ns);
    }

    pub(super) fn record_data<'p>(&mut self, packets: impl Iterator<Item = &'p [u8]>, now_ns: u64) {
        let name = self.shared.link(self.link, link::TRACE).load(Ordering::Relaxed);
        let place = (name as usize).wrapping_sub(1);
        if place >= TRACES_MAX {
            self.open = None;
            return;
        }
        let shared = self.shared.clone();
        let writer = shared.trace(place, trace::WRITER);
        if !self.take(writer) {
            return;
        }
        // pairs with the fence in forget()
        fence(Ordering::SeqCst);
        // pairs with the Release in Tracer::start: the ring is ready
        if shared.link(self.link, link::TRACE).load(Ordering::Acquire) == name
            && self.write(place, packets, now_ns).is_err()
        {
            // The tracer has written impossible positions, so its trace ends.
            let word = shared.link(self.link, link::TRACE);
            let _ = word.compare_exchange(name, 0, Ordering::AcqRel, Ordering::Relaxed);
            self.open = None;
        }
        // pairs with the Acquire in Tracer's settle()
        writer.store(0, Ordering::Release);
    }

    /// Writes this process into the word `WRITER`. Returns false if another live process is there: it writes for
    /// another link, which got the place since this process read its name.
    fn take(&self, writer: &AtomicU64) -> bool {
        let take = |was| writer.compare_exchange(was, self.process, Ordering::Relaxed, Ordering::Relaxed);
        match take(0) {
            Ok(_) => true,
            // The other process was killed while it wrote.
            Err(theirs) => !runs(theirs) && take(theirs).is_ok(),
        }
    }

    fn write<'p>(
        &mut self,
        place: usize,
        packets: impl Iterator<Item = &'p [u8]>,
        now_ns: u64,
    ) -> Result<(), Corrupt> {
        let epoch = self.shared.trace(place, trace::EPOCH).load(Ordering::Relaxed);
        let snap_bytes = self.shared.trace(place, trace::SNAP_BYTES).load(Ordering::Relaxed) as usize;
        if self.open.as_ref().is_none_or(|open| (open.place, open.epoch) != (place, epoch)) {
            // This cannot fail: the place is inside the memory.
            let Ok((cursors, bytes)) = self.shared.trace_ring(place) else { return Ok(()) };
            self.open = Some(OpenTrace { place, epoch, ring: ByteProducer::resume(cursors, bytes)? });
        }
        let Some(OpenTrace { ring, .. }) = &mut self.open else { return Ok(()) };
        let mut dropped = 0;
        for data in packets {
            let kept = &data[..data.len().min(snap_bytes)];
            let mut header = [0; LENGTH_BYTES + HEADER_BYTES];
            header[..LENGTH_BYTES].copy_from_slice(&prefix((HEADER_BYTES + kept.len()) as u32));
            header[LENGTH_BYTES..][..8].copy_from_slice(&now_ns.to_le_bytes());
            header[LENGTH_BYTES + 8..].copy_from_slice(&(data.len() as u32).to_le_bytes());
            dropped += u64::from(!ring.append_whole([&header, kept])?);
        }
        // The tracer polls, and never sleeps on the ring.
        let _ = ring.publish();
        SharedWords::add(self.shared.trace(place, trace::DROPPED), dropped);
        Ok(())
    }
}
