//! A mover with several outlets, or a buffer: each outlet has a thread, and the calling thread reads.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use super::ends::{Halt, InletReader, OutletWriter};
use super::frame::OutletPiece;
use super::payload::{Digests, Total};
use super::queue::{BlockQueue, NextBlock};
use super::receiver::Filled;
use super::wait::{MoverRate, MoverTiming, WaitSet, WakeEvent, Woken};
use super::{DeadOutlet, Gauge, InletEnd, MoverOptions, MoverOutcome, MoverShape, OutletEnd, SlowOutlet};
use crate::cancel::Cancel;
use crate::limits::PING_INTERVAL;
use crate::{Error, lock};

/// The state that all threads of a mover share.
struct MoverWork<'a> {
    queue: BlockQueue,
    options: &'a MoverOptions,
    shape: &'a MoverShape,
    gauge: &'a Gauge,
    timing: MoverTiming,
    /// Fired once the inlet should read no more.
    inlet_halt: Cancel,
    /// The first reason why everything ends early.
    failure: Mutex<Option<String>>,
}

/// The result of an outlet.
type Finished = (Result<OutletEnd, Error>, Option<OwnedFd>);

/// Moves the whole stream.
pub(super) fn run(
    mut source: InletReader,
    sinks: Vec<OutletWriter>,
    options: &MoverOptions,
    shape: &MoverShape,
    gauge: &Gauge,
    timing: MoverTiming,
    waits: WaitSet,
) -> Result<MoverOutcome, (Error, InletReader, Vec<OutletWriter>)> {
    let made = BlockQueue::new(sinks.len(), options.buffer_bytes, shape.block_bytes)
        .and_then(|queue| Ok((queue, Cancel::new()?)));
    let (queue, inlet_halt) = match made {
        Ok(made) => made,
        Err(error) => return Err((error, source, sinks)),
    };
    let work = MoverWork { queue, options, shape, gauge, timing, inlet_halt, failure: Mutex::new(None) };
    let mut taken = (0, None);
    let (inlet, finished) = std::thread::scope(|scope| {
        let (mut threads, mut inlet) = (Vec::new(), Ok(()));
        for (at, sink) in sinks.into_iter().enumerate() {
            let work = &work;
            let thread = std::thread::Builder::new().name("caravan-outlet".into());
            threads.push(thread.spawn_scoped(scope, move || work.outlet(at, sink, waits)));
        }
        if threads.iter().all(Result::is_ok) {
            inlet = work.inlet(&mut source, &mut taken, waits);
        }
        if let Some(Err(error)) = threads.iter().find(|thread| thread.is_err()) {
            inlet = Err(no_thread(error.kind().into()));
        }
        if let Err(error) = &inlet {
            work.fail(error);
        }
        let finished: Vec<Finished> = threads
            .into_iter()
            .map(|thread| match thread.map(ScopedJoinHandle::join) {
                Ok(Ok(finished)) => finished,
                // The panic was printed.
                Ok(Err(_)) => {
                    (Err(Error::Told("a thread of Caravan panicked; please report it".into())), None)
                }
                Err(source) => (Err(no_thread(source)), None),
            })
            .collect();
        (inlet, finished)
    });
    let (bytes, digest) = taken;
    let (outlets, unfinished): (Vec<_>, Vec<_>) = finished.into_iter().unzip();
    let inlet = work.ended(source, inlet, &outlets, &waits);
    let digest = digest.filter(|_| inlet.is_ok());
    Ok(MoverOutcome { bytes, digest, inlet, outlets, unfinished: unfinished.into_iter().flatten().collect() })
}

fn no_thread(source: std::io::Error) -> Error {
    Error::system("a new thread")(source)
}

impl MoverWork<'_> {
    /// Reads until the end, verifies the stream, and queues it. `taken` gets the number of bytes, and in the end
    /// their digest.
    fn inlet(
        &self,
        source: &mut InletReader,
        taken: &mut (u64, Option<String>),
        waits: WaitSet,
    ) -> Result<(), Error> {
        let waits = waits.with_halt(&self.inlet_halt);
        let inlet_waits = waits.counted(&self.gauge.inlet_wait_ns);
        let room_waits = waits.counted(&self.gauge.outlet_wait_ns);
        let mut digests = Digests::new(self.shape.digests.iter().copied());
        let mut pace = self.shape.rate.map(|rate| MoverRate::new(rate, Instant::now()));
        let most = pace.map_or(usize::MAX, |pace| pace.piece_bytes());
        let drop_after = (self.options.on_slow == SlowOutlet::Drop).then_some(self.timing.slow);
        let mut block = self.queue.block();
        loop {
            // If neither end ever waits, nothing else checks.
            waits.check()?;
            match source.fill(&mut block, most)? {
                // An abort kills the writer after it has cancelled: that end is none of the stream.
                Filled::End => break waits.check()?,
                Filled::Nothing => {
                    source.wait(None, &inlet_waits)?;
                    continue;
                }
                Filled::Data => {}
            }
            digests.update(block.payload());
            let bytes = block.payload().len();
            taken.0 = digests.bytes();
            self.queue.push(block, drop_after, &room_waits.with_source(source.hung_up())).or_else(
                |error| {
                    source.check()?;
                    Err(error)
                },
            )?;
            block = self.queue.block();
            // The figures are for people: they need no order.
            self.gauge.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            if let (Some(wire_bytes), false) = (source.wire_bytes(), self.shape.sends) {
                self.gauge.wire_bytes.store(wire_bytes, Ordering::Relaxed);
            }
            if let Some(pace) = &mut pace {
                let next = pace.take(bytes, Instant::now());
                while waits.wait(None, None, Some(next))? != Woken::Late {}
            }
        }
        let total = digests.finish();
        source.verify(&total)?;
        taken.1 = self.shape.digest.and_then(|kind| total.hex(kind));
        self.queue.end(total);
        Ok(())
    }

    /// Puts all queued blocks into one outlet.
    fn outlet(&self, at: usize, mut sink: OutletWriter, all_waits: WaitSet) -> Finished {
        let Some(signals) = self.queue.signals(at) else { return (Err(Error::Cancelled), None) };
        let waits = all_waits.with_halt(&signals.halt);
        let mut bytes = 0;
        let put = self.put_all(at, &signals.news, &mut sink, &mut bytes, &waits);
        let finished = match put.and_then(|total| sink.finish(&total, &waits)) {
            Ok(()) => (Ok(OutletEnd::Complete), None),
            Err(Halt::Stopped) => (Ok(OutletEnd::Stopped), None),
            Err(Halt::Failed(Error::Cancelled)) if self.queue.was_too_slow(at) => {
                let limit = self.timing.slow.as_secs_f64();
                let why = format!("it has held up the others for {limit} s");
                let fd = sink.fail(Some(&why), &all_waits);
                (Err(Error::Truncated { bytes, why }), fd)
            }
            Err(Halt::Failed(Error::Cancelled)) => {
                let why = self.failure();
                (Err(Error::Cancelled), sink.fail(why.as_deref(), &all_waits))
            }
            Err(halt) => {
                let end = halt.into_end();
                if let (Err(error), DeadOutlet::Fail) = (&end, self.options.on_dead) {
                    self.fail(error);
                }
                (end, sink.fail(None, &all_waits))
            }
        };
        self.tell_left(at, &finished.0);
        if !self.queue.close(at) {
            self.inlet_halt.fire();
        }
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let cpu_ns = cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64;
        self.gauge.threads_cpu_ns.fetch_add(cpu_ns, Ordering::Relaxed);
        finished
    }

    /// Notes an outlet that has ended before the stream: the coordinator may have to know while others go on.
    fn tell_left(&self, at: usize, end: &Result<OutletEnd, Error>) {
        let bit = u32::try_from(at).ok().and_then(|at| 1_u64.checked_shl(at)).unwrap_or_default();
        let left = match end {
            Ok(OutletEnd::Complete) | Err(Error::Cancelled) => return,
            Ok(OutletEnd::Stopped) => &self.gauge.stopped_outlets,
            Err(_) => &self.gauge.failed_outlets,
        };
        // Other threads read the flag; it guards no other memory.
        left.fetch_or(bit, Ordering::Relaxed);
    }

    fn put_all(
        &self,
        at: usize,
        news: &WakeEvent,
        sink: &mut OutletWriter,
        bytes: &mut u64,
        waits: &WaitSet,
    ) -> Result<Arc<Total>, Halt> {
        let mut wire_bytes = 0;
        loop {
            waits.check()?;
            match self.queue.take(at) {
                NextBlock::End(total) => return Ok(total),
                NextBlock::Block(mut block) => {
                    *bytes += block.payload().len() as u64;
                    match Arc::get_mut(&mut block) {
                        Some(own) => sink.put(OutletPiece::Own(own.payload_mut()), waits)?,
                        None => sink.put(OutletPiece::Shared(block.payload()), waits)?,
                    }
                    self.queue.give_back(block);
                    if let Some(now) = sink.wire_bytes() {
                        self.gauge.wire_bytes.fetch_add(now - wire_bytes, Ordering::Relaxed);
                        wire_bytes = now;
                    }
                }
                NextBlock::Nothing => {
                    let next = Instant::now() + PING_INTERVAL;
                    if waits.wait(Some(news.watch()), sink.watch()?, Some(next))? == Woken::Ready {
                        news.quiet();
                    }
                    sink.look()?;
                }
            }
        }
    }

    /// Ends everything, for this reason.
    fn fail(&self, error: &Error) {
        if !matches!(error, Error::Cancelled) {
            let mut failure = lock(&self.failure);
            failure.get_or_insert_with(|| error.to_string());
        }
        self.queue.halt();
        self.inlet_halt.fire();
    }

    fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    /// Tells the inlet how the mover ended, once all threads have ended.
    fn ended(
        &self,
        source: InletReader,
        inlet: Result<(), Error>,
        outlets: &[Result<OutletEnd, Error>],
        waits: &WaitSet,
    ) -> Result<InletEnd, Error> {
        let is_read = match inlet {
            Ok(()) => true,
            Err(Error::Cancelled) => false,
            Err(error) => {
                source.refuse(&error, waits);
                return Err(error);
            }
        };
        waits.check()?;
        let is_any = |end| outlets.iter().any(|outlet| matches!(outlet, Ok(found) if *found == end));
        if let Some(why) = self.failure() {
            source.fail(&why, waits);
        } else if is_read && (is_any(OutletEnd::Complete) || outlets.is_empty()) {
            source.done(waits);
            return Ok(InletEnd::Complete);
        } else if is_any(OutletEnd::Stopped) {
            source.stop(waits);
            return Ok(InletEnd::Unread);
        } else {
            let why = outlets.iter().find_map(|outlet| outlet.as_ref().err());
            source.fail(&why.map(Error::to_string).unwrap_or_default(), waits);
        }
        Err(Error::Cancelled)
    }
}
