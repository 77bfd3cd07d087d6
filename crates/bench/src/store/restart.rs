//! A store whose server is killed, and upgraded, while a thread reads its mapped memory and another one writes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caravan_store::Reader;
use rustix::process::{Pid, Signal, kill_process};

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::failed;
use crate::report::Sample;
use crate::store::pairs::{KEY_BYTES, RandomKeys, VALUE, VALUE_BYTES, key};
use crate::store::server::RunningServer;

/// Keys that are written, beside those of all benchmarks.
const WRITTEN: u64 = 1000;
/// Keys of one `get_many`, and how many of them are being written.
const READS: usize = 64;
const READS_OF_WRITTEN: usize = 8;
/// How long a server may be away. One that is away longer does not come back.
const AWAY_LIMIT: Duration = Duration::from_secs(30);

/// What the threads share.
#[derive(Debug, Default)]
struct RestartRun {
    is_done: AtomicBool,
    /// The number of acknowledged writes.
    acknowledged: AtomicU64,
}

/// What the reader has done.
#[derive(Debug, Default)]
struct ReaderOutcome {
    reads: u64,
    failed: u64,
    elapsed: Duration,
}

/// Kills the server of a store, then upgrades it to the same program; before, between and after that it is used for
/// `quiet`.
pub fn sample(
    running: &mut RunningServer,
    keys: u64,
    quiet: Duration,
    interrupt: &Interrupt,
) -> Result<Vec<Sample>, Error> {
    let (reader, socket) = (open_reader(running.pid())?, running.socket());
    let run = RestartRun::default();
    let outcome = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&socket, keys, &run));
        let reading = scope.spawn(|| {
            while run.acknowledged.load(Ordering::Relaxed) < WRITTEN && !run.is_done.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            read(&reader, keys, &run)
        });
        let served = restart(running, &socket, quiet, &run, interrupt);
        run.is_done.store(true, Ordering::Relaxed);
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let read = reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        served.and_then(|[killed, upgraded]| {
            let written = written.map_err(|why| failed("server", &why))?;
            let kill = written.longest_gap(killed);
            Ok((kill, written.longest_gap(upgraded), written, read))
        })
    });
    let (kill, upgrade, written, read) = outcome?;
    running.reconnect()?;
    let mut lost = 0;
    let mut value = Vec::new();
    for (number, least) in (keys..).zip(&written.last) {
        value.clear();
        let found = reader.get_into(&key(number), &mut value);
        let number = std::str::from_utf8(&value).ok().and_then(|text| text.parse::<u64>().ok());
        let is_there = matches!(found, Ok(Some(_))) && number.is_some_and(|number| number >= *least);
        lost += u64::from(!is_there);
    }
    Ok(vec![
        Sample::new("kill_ms", kill.as_secs_f64() * 1e3),
        Sample::new("upgrade_ms", upgrade.as_secs_f64() * 1e3),
        Sample::new("failed_reads", read.failed as f64),
        Sample::new("lost_writes", lost as f64),
        Sample::new("reads_mops", read.reads as f64 / read.elapsed.as_secs_f64() / 1e6),
    ])
}

/// Kills and upgrades; returns the times from just before until after each of them.
fn restart(
    running: &RunningServer,
    socket: &Path,
    quiet: Duration,
    run: &RestartRun,
    interrupt: &Interrupt,
) -> Result<[(Instant, Instant); 2], Error> {
    until_writes(run, WRITTEN, interrupt)?;
    std::thread::sleep(quiet);
    let killed = Instant::now();
    let pid = Pid::from_raw(running.pid()).ok_or_else(|| failed("server", &"it has no process"))?;
    kill_process(pid, Signal::KILL).map_err(|why| failed("server", &why))?;
    // A reply may have been on its way: the second one is a new server's.
    std::thread::sleep(Duration::from_millis(1));
    until_writes(run, run.acknowledged.load(Ordering::Relaxed) + 2, interrupt)?;
    let killed = (killed, Instant::now());
    std::thread::sleep(quiet);
    let upgraded = Instant::now();
    let deadline = upgraded + AWAY_LIMIT;
    loop {
        let mut command = Command::new("/proc/self/exe");
        command.args(["store", "upgrade", "--socket"]).arg(socket);
        let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if ended.map_err(|why| failed("store upgrade", &why))?.success() {
            break;
        }
        interrupt.check()?;
        if Instant::now() > deadline {
            return Err(failed("store upgrade", &"it is refused"));
        }
    }
    until_writes(run, run.acknowledged.load(Ordering::Relaxed) + 2, interrupt)?;
    let upgraded = (upgraded, Instant::now());
    std::thread::sleep(quiet);
    Ok([killed, upgraded])
}

fn until_writes(run: &RestartRun, count: u64, interrupt: &Interrupt) -> Result<(), Error> {
    let deadline = Instant::now() + AWAY_LIMIT;
    while run.acknowledged.load(Ordering::Relaxed) < count {
        interrupt.check()?;
        if Instant::now() > deadline {
            return Err(failed("server", &"no write is acknowledged"));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Maps the memory of a server that this user has started.
fn open_reader(pid: i32) -> Result<Reader, Error> {
    let folder = format!("/proc/{pid}/fd");
    let entries = std::fs::read_dir(&folder).map_err(Error::file("read", folder.as_ref()))?;
    let is_memory = |path: &Path| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:caravan-bench-"))
    };
    let memory = entries.flatten().map(|entry| entry.path()).find(|path| is_memory(path));
    let memory = memory.ok_or_else(|| failed("server", &"its memory is not found"))?;
    let file = File::open(&memory).map_err(Error::file("open", &memory))?;
    Reader::open(file.into()).map_err(|why| failed("store", &why))
}

fn read(reader: &Reader, keys: u64, run: &RestartRun) -> ReaderOutcome {
    let mut outcome = ReaderOutcome::default();
    let (mut all, mut written) = (RandomKeys::of(keys, 3), 0);
    let mut batch = [[0; KEY_BYTES]; READS];
    let begin = Instant::now();
    while !run.is_done.load(Ordering::Relaxed) {
        batch.fill_with(|| all.next());
        for key_of_written in &mut batch[..READS_OF_WRITTEN] {
            written = (written + 1) % WRITTEN;
            *key_of_written = key(keys + written);
        }
        let mut right = 0;
        let each = |index: usize, value: Option<&[u8]>| {
            let is_right = match value {
                Some(value) if index < READS_OF_WRITTEN => value.len() == VALUE_BYTES,
                value => value == Some(&VALUE),
            };
            right += u64::from(is_right);
        };
        // What follows a read that failed was not read, and counts as failed, too.
        let _ = reader.get_many(&batch, each);
        outcome.reads += READS as u64;
        outcome.failed += READS as u64 - right;
    }
    outcome.elapsed = begin.elapsed();
    outcome
}

/// What the writer has done.
#[derive(Debug)]
struct WriterOutcome {
    /// For each key, the number of the last acknowledged write.
    last: Vec<u64>,
    /// When a write was acknowledged, and how long after the one before; those that took a millisecond or more.
    gaps: Vec<(Instant, Duration)>,
}

impl WriterOutcome {
    /// Returns the longest time between two acknowledged writes that ended within these times.
    fn longest_gap(&self, (from, to): (Instant, Instant)) -> Duration {
        let within = self.gaps.iter().filter(|(at, _)| (from..=to).contains(at)).map(|(_, gap)| *gap);
        within.max().unwrap_or_default()
    }
}

/// Writes one key after the other; a write whose connection breaks is repeated on another one.
fn write(socket: &Path, keys: u64, run: &RestartRun) -> io::Result<WriterOutcome> {
    let mut outcome = WriterOutcome { last: vec![0; WRITTEN as usize], gaps: Vec::new() };
    let mut stream = None;
    let mut before = Instant::now();
    let mut number = 0;
    while !run.is_done.load(Ordering::Relaxed) {
        let mut request = b"*3\r\n$3\r\nSET\r\n$16\r\n".to_vec();
        request.extend_from_slice(&key(keys + number % WRITTEN));
        write!(request, "\r\n$32\r\n{number:032}\r\n")?;
        if let Err(error) = exchange(&mut stream, socket, &request) {
            stream = None;
            if before.elapsed() > AWAY_LIMIT {
                return Err(error);
            }
            continue;
        }
        let now = Instant::now();
        if now - before >= Duration::from_millis(1) {
            outcome.gaps.push((now, now - before));
        }
        before = now;
        outcome.last[(number % WRITTEN) as usize] = number;
        number += 1;
        run.acknowledged.store(number, Ordering::Relaxed);
    }
    Ok(outcome)
}

fn exchange(stream: &mut Option<UnixStream>, socket: &Path, request: &[u8]) -> io::Result<()> {
    let connected = match stream.take() {
        Some(connected) => connected,
        None => {
            let connected = UnixStream::connect(socket)?;
            connected.set_read_timeout(Some(AWAY_LIMIT))?;
            connected
        }
    };
    let connected = stream.insert(connected);
    let mut reply = [0; 5];
    connected.write_all(request)?;
    connected.read_exact(&mut reply)?;
    if &reply == b"+OK\r\n" { Ok(()) } else { Err(io::Error::other("a write is refused")) }
}
