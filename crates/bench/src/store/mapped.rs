//! A store in this process, and another process that reads its memory.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use caravan_store::{Reader, Store, StoreOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::control::BenchChannel;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::placement::{self, CorePair};
use crate::process::{PeerTask, failed};
use crate::store::pairs::{RandomKeys, VALUE, VALUE_BYTES, key};
use crate::store::sampling::{percentile, process_time};

/// Keys of one `get_many`.
pub const MANY: usize = 64;
/// Keys that are made before they are looked up together, so that making them is not counted.
const PREPARED: usize = 64 * MANY;
/// The memory of the store: some, and so many bytes for each pair.
const MEMORY_BYTES: (u64, u64) = (64 << 20, 256);
/// Writes between two looks at the clock.
const WRITES: usize = 64;

/// The task of the reading process, which finds the memory through its parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MappedTask {
    memory: PathBuf,
    keys: u64,
    core: Option<usize>,
}

/// What the reading process is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MappedRequest {
    /// Lookups of one key, each timed.
    Get { run_ns: u64 },
    /// Lookups of [`MANY`] keys at a time.
    GetMany { run_ns: u64 },
}

/// What the reading process has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MappedOutcome {
    pub operations: u64,
    pub elapsed_ns: f64,
    pub cpu_ns: f64,
    /// For [`MappedRequest::Get`].
    pub p50_ns: f64,
    pub p99_ns: f64,
}

/// A store of this process that is filled with all pairs, and a process that reads it.
#[derive(Debug)]
pub struct MappedStore {
    store: Store,
    keys: u64,
    random: RandomKeys,
    /// The writer's core; the reader's is the other one.
    core: Option<usize>,
    reader: BenchChannel,
    /// The time that a key took which was not there before.
    pub new_key_ns: f64,
    #[allow(dead_code, reason = "the reading process opens it")]
    memory: OwnedFd,
}

fn store_failed(why: caravan_store::StoreError) -> Error {
    failed("store", &why)
}

impl MappedStore {
    pub fn start(keys: u64, pair: Option<CorePair>, interrupt: &Interrupt) -> Result<Self, Error> {
        let memory_bytes = MEMORY_BYTES.0 + MEMORY_BYTES.1 * keys;
        let store = Store::embedded(StoreOptions::new(memory_bytes)).map_err(store_failed)?;
        let begin = Instant::now();
        for number in 0..keys {
            if number % (1 << 16) == 0 {
                interrupt.check()?;
            }
            store.put(&key(number), &VALUE).map_err(store_failed)?;
        }
        let new_key_ns = begin.elapsed().as_nanos() as f64 / keys as f64;
        let memory = store.reader_descriptor().map_err(store_failed)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd()).into();
        let task = MappedTask { memory: path, keys, core: pair.map(|pair| pair.first) };
        let mut reader = BenchChannel::start(&PeerTask::Store(task))?;
        reader.answer::<()>()?;
        let random = RandomKeys::of(keys, 1);
        let core = pair.map(|pair| pair.second);
        Ok(Self { store, keys, random, core, reader, new_key_ns, memory })
    }

    /// Returns the bytes in use for each pair, everything included.
    pub fn bytes_each(&self) -> f64 {
        self.store.counts().used_bytes as f64 / self.keys as f64
    }

    /// Lets the other process read while a thread of this one overwrites random keys all the time. Returns what was
    /// read, and the number of writes.
    pub fn read_beside_writes(
        &mut self,
        request: MappedRequest,
        interrupt: &Interrupt,
    ) -> Result<(MappedOutcome, u64), Error> {
        let reader = self.reader.peer_pid().and_then(Pid::from_raw);
        let is_done = AtomicBool::new(false);
        let (store, core) = (&self.store, self.core);
        let mut random = self.random;
        let write = || {
            if let Some(core) = core {
                placement::pin_self(core)?;
            }
            let mut writes = 0;
            // Nothing else depends on the flag.
            while !is_done.load(Ordering::Relaxed) {
                if let Err(error) = interrupt.check() {
                    // Its answer is waited for. The channel has not waited for the process, so the pid is its own.
                    let _ = reader.map(|reader| kill_process(reader, Signal::KILL));
                    return Err(error);
                }
                for _ in 0..WRITES {
                    store.put(&random.next(), &VALUE).map_err(store_failed)?;
                }
                writes += WRITES as u64;
            }
            Ok::<_, Error>((writes, random))
        };
        std::thread::scope(|scope| {
            let writer = scope.spawn(write);
            let outcome = self.reader.ask(&request);
            is_done.store(true, Ordering::Relaxed);
            let (writes, random) = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            self.random = random;
            Ok((outcome?, writes))
        })
    }

    /// Overwrites random keys, one transaction each.
    pub fn put(&mut self, run: Duration, interrupt: &Interrupt) -> Result<MappedOutcome, Error> {
        let (begin, cpu) = (Instant::now(), process_time());
        let mut operations = 0;
        while begin.elapsed() < run {
            interrupt.check()?;
            for _ in 0..WRITES {
                self.store.put(&self.random.next(), &VALUE).map_err(store_failed)?;
            }
            operations += WRITES as u64;
        }
        Ok(outcome(operations, begin.elapsed(), process_time().saturating_sub(cpu)))
    }
}

fn outcome(operations: u64, elapsed: Duration, cpu: Duration) -> MappedOutcome {
    let (elapsed_ns, cpu_ns) = (elapsed.as_nanos() as f64, cpu.as_nanos() as f64);
    MappedOutcome { operations, elapsed_ns, cpu_ns, ..MappedOutcome::default() }
}

/// Runs the reading process until its parent ends.
pub fn peer(task: &MappedTask) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    if let Some(core) = task.core {
        placement::pin_self(core)?;
    }
    let memory = std::fs::File::open(&task.memory).map_err(Error::file("open the memory", &task.memory))?;
    let reader = Reader::open(memory.into()).map_err(store_failed)?;
    let mut random = RandomKeys::of(task.keys, 42);
    let mut control = BenchChannel::inherited()?;
    // All of the memory is mapped before anything is counted.
    for number in 0..task.keys {
        reader.head(&key(number)).map_err(store_failed)?;
    }
    control.reply(&())?;
    control.answer_all(&interrupt, |control, request| {
        let outcome = match request {
            MappedRequest::Get { run_ns } => get(&reader, &mut random, Duration::from_nanos(run_ns)),
            MappedRequest::GetMany { run_ns } => get_many(&reader, &mut random, Duration::from_nanos(run_ns)),
        };
        control.reply(&outcome?)
    })
}

fn get(reader: &Reader, random: &mut RandomKeys, run: Duration) -> Result<MappedOutcome, Error> {
    let mut value = Vec::with_capacity(VALUE_BYTES);
    let mut took = Vec::new();
    let (begin, cpu) = (Instant::now(), process_time());
    let mut now = begin;
    while now - begin < run {
        let key = random.next();
        value.clear();
        let before = Instant::now();
        let found = reader.get_into(&key, &mut value).map_err(store_failed)?;
        now = Instant::now();
        took.push((now - before).as_nanos() as u64);
        check(found.is_some() && value == VALUE)?;
    }
    let outcome = outcome(took.len() as u64, begin.elapsed(), process_time().saturating_sub(cpu));
    took.sort_unstable();
    Ok(MappedOutcome { p50_ns: percentile(&took, 50), p99_ns: percentile(&took, 99), ..outcome })
}

fn get_many(reader: &Reader, random: &mut RandomKeys, run: Duration) -> Result<MappedOutcome, Error> {
    let (mut elapsed, mut cpu, mut operations) = (Duration::ZERO, Duration::ZERO, 0);
    while elapsed < run {
        let keys: Vec<_> = (0..PREPARED).map(|_| random.next()).collect();
        let (begin, cpu_before) = (Instant::now(), process_time());
        let mut found = 0;
        for keys in keys.chunks(MANY) {
            let each =
                |_, value: Option<&[u8]>| found += usize::from(value.is_some_and(|value| value == VALUE));
            reader.get_many(keys, each).map_err(store_failed)?;
        }
        elapsed += begin.elapsed();
        cpu += process_time().saturating_sub(cpu_before);
        check(found == keys.len())?;
        operations += keys.len() as u64;
    }
    Ok(outcome(operations, elapsed, cpu))
}

fn check(is_right: bool) -> Result<(), Error> {
    match is_right {
        true => Ok(()),
        false => Err(failed("store", &"a key had no value, or another one")),
    }
}
