//! An engine's memory without an engine, for tests of viewers.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use caravan_segment::barrier::Fences;
use caravan_segment::{Pages, Segment};

use super::FoundEngine;
use crate::layout::{self, MAGIC, SEGMENT_NAME, SharedWords, WorkerState};
use crate::limits::NAME_BYTES_MAX;
use crate::owner::{LinkId, PacketHeader, WorkerId};

/// The memory, and its words as the supervisor and the workers see them.
pub(crate) struct Fake {
    pub segment: Arc<Segment>,
    pub shared: SharedWords,
}

impl Fake {
    /// Makes an engine with `packets` packets, and as many more that have no memory yet.
    pub fn new(packets: u32) -> Self {
        let segment = Segment::create(SEGMENT_NAME, layout::bytes(2 * packets), Pages::Small).unwrap();
        segment.grow(layout::bytes(packets)).unwrap();
        let segment = Arc::new(segment);
        let shared = SharedWords::new(&segment, Fences::Symmetric).unwrap();
        shared.engine(layout::engine::PACKET_COUNT).store(packets.into(), Ordering::Relaxed);
        shared.engine(layout::engine::PACKETS_MAX).store(2 * u64::from(packets), Ordering::Relaxed);
        Self { segment, shared }
    }

    /// Makes this process the supervisor of the engine.
    pub fn start(&self) {
        self.shared.engine(layout::engine::PID).store(std::process::id().into(), Ordering::Relaxed);
        self.shared.engine(layout::engine::MAGIC).store(MAGIC, Ordering::Release);
    }

    /// Returns the engine as [`super::engines`] finds it.
    pub fn found(&self) -> FoundEngine {
        let memory = format!("/proc/self/fd/{}", self.segment.as_fd().as_raw_fd()).into();
        FoundEngine { pid: std::process::id() as i32, command: "test".into(), memory }
    }

    /// Returns another descriptor of the memory.
    pub fn file(&self) -> OwnedFd {
        self.segment.as_fd().try_clone_to_owned().unwrap()
    }

    /// Adds a worker.
    pub fn worker(&self, place: usize, name: &str, pid: i32) -> WorkerId {
        let worker = WorkerId::new(place).unwrap();
        self.shared.write_name(layout::worker_at(worker) + layout::worker::NAME, NAME_BYTES_MAX, name);
        self.shared.worker(worker, layout::worker::PID).store(pid as u64, Ordering::Relaxed);
        self.shared
            .worker(worker, layout::worker::STATE)
            .store(WorkerState::Running as u64, Ordering::Relaxed);
        worker
    }

    /// Adds a link between two workers.
    pub fn link(&self, place: usize, name: &str, from: WorkerId, to: WorkerId) -> LinkId {
        let link = LinkId::new(place).unwrap();
        let set = |offset, value| self.shared.link(link, offset).store(value, Ordering::Relaxed);
        self.shared.write_name(layout::link_at(link) + layout::link::NAME, layout::link::NAME_BYTES, name);
        set(layout::link::PRODUCER, from.place() as u64 + 1);
        set(layout::link::CONSUMER, to.place() as u64 + 1);
        set(layout::link::STATE, if from == to { 1 } else { 2 });
        link
    }

    /// Writes the word of a packet.
    pub fn packet(&self, index: u32, header: PacketHeader) {
        assert!(layout::bytes(index + 1) <= self.segment.committed_bytes());
        let slice = self.segment.slice(0, self.segment.committed_bytes()).unwrap();
        slice.word(layout::packet_at(index)).store(header.0, Ordering::Relaxed);
    }
}
