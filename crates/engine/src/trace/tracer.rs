//! The end of a trace in the process that reads it.

use std::fs::OpenOptions;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use caravan_ring::record::LengthReader;
use caravan_ring::{ByteConsumer, MappedBytes, MappedCursors};
use caravan_segment::Segment;
use caravan_segment::barrier::Fences;
use caravan_segment::process::Process;
use rustix::time::ClockId;

use super::claim::{TraceClaim, claim, clear};
use super::{HEADER_BYTES, RECORD_BYTES_MAX, forget};
use crate::config::LinkName;
use crate::error::{Error, system};
use crate::io::{clock_ns, now_ns};
use crate::layout::{self, MAGIC, PACKETS_AT, SharedWords, link, link_at, trace};
use crate::limits::{LINKS_MAX, PACKET_BYTES_MAX, TRACES_MAX};
use crate::owner::LinkId;
use crate::view::{FoundEngine, text};

/// A packet that was sent on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord<'a> {
    /// The start of the breath in which it was sent, in nanoseconds since 1970 by this host's clock as it was when
    /// the trace began.
    pub unix_ns: u64,
    /// Its length.
    pub length: usize,
    /// The first bytes of its data.
    pub data: &'a [u8],
}

/// The reason why a trace has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEnd {
    /// The engine has ended.
    Engine,
    /// The link has been removed.
    Link,
    /// The engine has ended the trace.
    Taken,
}

/// A trace of a link's packets, which goes on until it is dropped.
///
/// ```no_run
/// use caravan_engine::{trace::Tracer, view};
///
/// let mut tracer = Tracer::start(&view::find(None)?, "source.output -> sink.input", 64)?;
/// while let Some(record) = tracer.receive()? {
///     println!("{} bytes: {:02x?}", record.length, record.data);
/// }
/// # Ok::<(), caravan_engine::Error>(())
/// ```
#[derive(Debug)]
pub struct Tracer {
    shared: SharedWords,
    engine: Process,
    link: LinkId,
    name: String,
    place: usize,
    claim: TraceClaim,
    ring: ByteConsumer<MappedCursors, MappedBytes>,
    lengths: LengthReader,
    /// The difference from the monotonic clock to the time of day.
    since_1970_ns: u64,
    data: Vec<u8>,
}

impl Tracer {
    /// Starts to copy the packets that an engine sends on a link, the first `snap_bytes` of each. The link
    /// is written as `app.output -> app.input`, or as one of these two if that is unambiguous.
    pub fn start(engine: &FoundEngine, link: &str, snap_bytes: usize) -> Result<Self, Error> {
        let process = Process::open(engine.pid)?;
        let shared = attach(engine)?;
        let (link, name) = named(&shared, link, engine.pid)?;
        let ours = TraceClaim::ours().ok_or_else(|| Error::Trace("/proc cannot be read".into()))?;
        let place = claim(&shared, ours)?;
        let since_1970_ns = clock_ns(ClockId::Realtime).wrapping_sub(now_ns());
        let (cursors, bytes) = shared.trace_ring(place)?;
        clear(&shared, place, &cursors);
        let set = |offset, value: usize| shared.trace(place, offset).store(value as u64, Ordering::Relaxed);
        set(trace::LINK, link.place() + 1);
        set(trace::SNAP_BYTES, snap_bytes.min(PACKET_BYTES_MAX));
        // From here on the place is given back, whether or not a later step fails.
        let tracer = Self {
            shared,
            engine: process,
            link,
            name,
            place,
            claim: ours,
            ring: ByteConsumer::new(cursors, bytes),
            lengths: LengthReader::new(RECORD_BYTES_MAX as u32),
            since_1970_ns,
            data: vec![0; RECORD_BYTES_MAX],
        };
        tracer.name_place()?;
        Ok(tracer)
    }

    /// Returns the link's full name.
    pub fn link(&self) -> &str {
        &self.name
    }

    /// Returns the number of packets that came while the ring was full.
    pub fn dropped(&self) -> u64 {
        self.shared.trace(self.place, trace::DROPPED).load(Ordering::Relaxed)
    }

    /// Returns the next packet, or `None` if none has come. The engine gets the room of the earlier ones back
    /// whenever there is none, and by [`release`](Self::release).
    pub fn receive(&mut self) -> Result<Option<TraceRecord<'_>>, Error> {
        if self.ring.unread() == 0 {
            self.release();
            if self.ring.refresh().map_err(broken)? == 0 {
                return Ok(None);
            }
        }
        let length = self.lengths.next(&mut self.ring).map_err(broken)?;
        // Records are published whole.
        let length = length.map(|length| length as usize);
        let Some(length) = length.filter(|length| (HEADER_BYTES..=self.ring.unread()).contains(length))
        else {
            return Err(broken("half a packet is in it"));
        };
        self.ring.read(&mut self.data[..length]);
        let (header, data) = self.data[..length].split_at(HEADER_BYTES);
        let mut sent_ns = [0; 8];
        sent_ns.copy_from_slice(&header[..8]);
        let mut whole = [0; 4];
        whole.copy_from_slice(&header[8..]);
        Ok(Some(TraceRecord {
            unix_ns: u64::from_le_bytes(sent_ns).wrapping_add(self.since_1970_ns),
            length: u32::from_le_bytes(whole) as usize,
            data,
        }))
    }

    /// Gives the room of the records read back to the engine.
    pub fn release(&mut self) {
        // No worker waits for room.
        let _ = self.ring.release();
    }

    /// Returns why the trace has ended, if it has. The caller asks now and then. If a link was removed and added
    /// again in its place, the trace goes on.
    pub fn tend(&mut self) -> Option<TraceEnd> {
        if !self.engine.is_alive() {
            return Some(TraceEnd::Engine);
        }
        if self.shared.trace(self.place, trace::CLAIM).load(Ordering::Relaxed) != self.claim.0 {
            return Some(TraceEnd::Taken);
        }
        let there = self.shared.link(self.link, link::STATE).load(Ordering::Acquire) != 0;
        if !there || name(&self.shared, self.link) != self.name {
            return Some(TraceEnd::Link);
        }
        if self.shared.link(self.link, link::TRACE).load(Ordering::Relaxed) == 0 && self.name_place().is_err()
        {
            return Some(TraceEnd::Taken);
        }
        None
    }

    /// Has the link's worker write into the ring.
    fn name_place(&self) -> Result<(), Error> {
        let word = self.shared.link(self.link, link::TRACE);
        let ours = self.place as u64 + 1;
        // pairs with the Acquire in LinkRecorder::record: the ring is ready
        let Err(theirs) = word.compare_exchange(0, ours, Ordering::AcqRel, Ordering::Acquire) else {
            return Ok(());
        };
        let place = (theirs as usize).wrapping_sub(1);
        let claim =
            (place < TRACES_MAX).then(|| self.shared.trace(place, trace::CLAIM).load(Ordering::Relaxed));
        let claim = TraceClaim(claim.unwrap_or(0));
        if !claim.is_alive()
            && word.compare_exchange(theirs, ours, Ordering::AcqRel, Ordering::Acquire).is_ok()
        {
            return Ok(());
        }
        Err(Error::Trace(format!("{} is traced already, by process {}", self.name, claim.pid())))
    }
}

impl std::ops::Drop for Tracer {
    fn drop(&mut self) {
        if self.shared.trace(self.place, trace::CLAIM).load(Ordering::Relaxed) == self.claim.0 {
            forget(&self.shared, self.place);
            // pairs with the Acquire in claim()
            self.shared.trace(self.place, trace::CLAIM).store(0, Ordering::Release);
        }
    }
}

/// Maps the words of an engine's memory, without its packets.
fn attach(engine: &FoundEngine) -> Result<SharedWords, Error> {
    let file = OpenOptions::new().read(true).write(true).open(&engine.memory);
    let file = file.map_err(system("open the engine's memory"))?;
    let segment = Arc::new(Segment::attach_committed(file.into(), PACKETS_AT as u64)?);
    let shared = SharedWords::new(&segment, Fences::Symmetric)?;
    if shared.engine(layout::engine::MAGIC).load(Ordering::Acquire) != MAGIC {
        return Err(Error::NoEngine(format!("process {} is an engine of another version", engine.pid)));
    }
    Ok(shared)
}

/// Returns the link that a user means, and its full name.
fn named(shared: &SharedWords, wanted: &str, pid: i32) -> Result<(LinkId, String), Error> {
    let there = |id: &LinkId| shared.link(*id, link::STATE).load(Ordering::Acquire) != 0;
    let links: Vec<_> =
        (0..LINKS_MAX).filter_map(LinkId::new).filter(there).map(|id| (id, name(shared, id))).collect();
    let whole = wanted.parse::<LinkName>().map_or_else(|_| wanted.trim().to_owned(), |link| link.to_string());
    let means = |name: &str| name == whole || name.split(" -> ").any(|end| end == whole);
    let mut found = links.iter().filter(|(_, name)| means(name));
    if let (Some((id, name)), None) = (found.next(), found.next()) {
        return Ok((*id, name.clone()));
    }
    let lines: Vec<_> = links.iter().map(|(_, name)| format!("\n  '{name}'")).collect();
    Err(Error::Trace(match lines.len() {
        0 => format!("engine {pid} has no links"),
        _ => format!("`{wanted}` does not name one link of engine {pid}; it has:{}", lines.concat()),
    }))
}

fn name(shared: &SharedWords, id: LinkId) -> String {
    let mut bytes = [0; link::NAME_BYTES];
    shared.memory().copy_out(link_at(id) + link::NAME, &mut bytes);
    text(&bytes)
}

fn broken(what: impl std::fmt::Display) -> Error {
    Error::Trace(format!("what the engine wrote into the trace's ring cannot be: {what}"))
}
