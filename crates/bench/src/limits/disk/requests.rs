//! Requests to a file: so many at a time, of one size, at random or in order; through io_uring, or by threads where it cannot
//! be had.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::super::model::{LimitCell, RequestLatency};
use super::super::raw::{Area, Uring};
use super::target::DiskTarget;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::scratch::random_word;
use crate::usage::Usage;

/// How requests follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    Random,
    InOrder,
}

/// What a cell asks for.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    pub block_bytes: u64,
    pub parallel: u32,
    pub pattern: Pattern,
    pub is_write: bool,
}

/// How requests get to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Uring,
    Threads,
}

/// When a cell ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    After(Duration),
    /// All of the file once, in order.
    End,
}

/// Says whether io_uring can be had, or why not.
pub fn way(target: &DiskTarget) -> (Way, Option<String>) {
    let tried = Area::new(4096).and_then(|buffers| Uring::new(&target.file, 1, buffers, 4096).map(|_| ()));
    match tried {
        Ok(()) => (Way::Uring, None),
        Err(why) => {
            let note = format!(
                "io_uring cannot be had here ({why}): requests were made by as many threads with pread(2) and pwrite(2). The kernel allows it by: sysctl kernel.io_uring_disabled=0; a container may forbid it, too."
            );
            (Way::Threads, Some(note))
        }
    }
}

/// Makes requests, and returns what they did.
pub fn run(
    target: &DiskTarget,
    requests: &Requests,
    way: Way,
    until: Until,
    interrupt: &Interrupt,
) -> Result<LimitCell, Error> {
    let pid = std::process::id() as i32;
    let usage = || Usage::of(pid).map_err(|source| Error::System { call: "read /proc/self/stat", source });
    // The memory of the buffers is taken and filled before the time begins.
    let buffers = buffers(requests).map_err(|source| Error::System { call: "mmap", source })?;
    let plan = Plan::new(target, requests, until)?;
    let before = usage()?;
    let begun = Instant::now();
    let latencies = match way {
        Way::Uring => by_uring(target, requests, &plan, buffers, interrupt),
        Way::Threads => by_threads(target, requests, &plan, buffers, interrupt),
    };
    let (took, after) = (begun.elapsed(), usage()?);
    interrupt.check()?;
    let latencies = latencies.map_err(|why| failed(target, requests, &why))?;
    let cores = after.since(&before);
    Ok(LimitCell {
        block_bytes: requests.block_bytes,
        parallel: u64::from(requests.parallel),
        bytes_per_s: latencies.len() as f64 * requests.block_bytes as f64 / took.as_secs_f64(),
        latency: Some(RequestLatency::of(latencies)),
        predicted_bytes_per_s: 0.0,
        cores: Some([cores.user, cores.system]),
    })
}

fn failed(target: &DiskTarget, requests: &Requests, why: &io::Error) -> Error {
    let what = if requests.is_write { "write" } else { "read" };
    let place = if target.is_scratch { "the scratch file in " } else { "" };
    let size = crate::number::binary(requests.block_bytes);
    Error::Sentence(format!("cannot {what} {size} of {place}{}: {why}", target.name))
}

/// Where the next request goes, and when there is none.
struct Plan {
    blocks: u64,
    block_bytes: u64,
    pattern: Pattern,
    /// What makes two cells choose different places.
    seed: u64,
    next: AtomicU64,
    end: Option<Instant>,
}

impl Plan {
    fn new(target: &DiskTarget, requests: &Requests, until: Until) -> Result<Self, Error> {
        let word = random_word()?;
        Ok(Self {
            blocks: (target.bytes / requests.block_bytes).max(1),
            block_bytes: requests.block_bytes,
            pattern: requests.pattern,
            seed: word.bytes().fold(0, |seed, byte| mixed(seed ^ u64::from(byte))),
            next: AtomicU64::new(0),
            end: match until {
                Until::After(time) => Some(Instant::now() + time),
                Until::End => None,
            },
        })
    }

    /// Returns the offset of the next request.
    fn offset(&self, now: Instant) -> Option<u64> {
        // Each request takes a number; nothing else is ordered by it.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let is_over = match self.end {
            Some(end) => number > 0 && now >= end,
            None => number >= self.blocks,
        };
        let block = match self.pattern {
            Pattern::Random => mixed(self.seed ^ number) % self.blocks,
            Pattern::InOrder => number % self.blocks,
        };
        (!is_over).then_some(block * self.block_bytes)
    }
}

/// Makes a number look random: splitmix64, by Steele, Lea and Flood.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Returns buffers; what is written from them cannot be compressed.
fn buffers(requests: &Requests) -> io::Result<Area> {
    let mut area = Area::small((u64::from(requests.parallel) * requests.block_bytes) as usize)?;
    for (word, number) in area.words_mut().iter_mut().zip(0..) {
        *word = mixed(number);
    }
    Ok(area)
}

fn by_uring(
    target: &DiskTarget,
    requests: &Requests,
    plan: &Plan,
    buffers: Area,
    interrupt: &Interrupt,
) -> io::Result<Vec<f64>> {
    let block_bytes = requests.block_bytes as u32;
    let mut ring = Uring::new(&target.file, requests.parallel, buffers, block_bytes)?;
    let mut begun = vec![Instant::now(); requests.parallel as usize];
    let mut times = Vec::new();
    for slot in 0..requests.parallel {
        if let Some(offset) = plan.offset(begun[0]) {
            ring.prepare(slot, offset, requests.is_write)?;
            begun[slot as usize] = Instant::now();
        }
    }
    while ring.under_way() > 0 {
        ring.wait()?;
        let is_over = interrupt.check().is_err();
        while let Some((slot, moved)) = ring.done() {
            let now = Instant::now();
            whole(moved? as usize, requests)?;
            times.push((now - begun[slot as usize]).as_secs_f64());
            if let Some(offset) = plan.offset(now).filter(|_| !is_over) {
                ring.prepare(slot, offset, requests.is_write)?;
                begun[slot as usize] = Instant::now();
            }
        }
    }
    Ok(times)
}

fn by_threads(
    target: &DiskTarget,
    requests: &Requests,
    plan: &Plan,
    mut buffers: Area,
    interrupt: &Interrupt,
) -> io::Result<Vec<f64>> {
    let one = |buffer: &mut [u8]| {
        let mut times = Vec::new();
        let mut now = Instant::now();
        while let Some(offset) = plan.offset(now).filter(|_| interrupt.check().is_ok()) {
            let moved = match requests.is_write {
                true => target.file.write_at(buffer, offset)?,
                false => target.file.read_at(buffer, offset)?,
            };
            whole(moved, requests)?;
            let after = Instant::now();
            times.push((after - now).as_secs_f64());
            now = after;
        }
        Ok(times)
    };
    std::thread::scope(|scope| {
        let slots = buffers.bytes_mut().chunks_exact_mut(requests.block_bytes as usize);
        let threads: Vec<_> = slots.map(|buffer| scope.spawn(|| one(buffer))).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect::<io::Result<Vec<_>>>().map(|times| times.concat())
    })
}

fn whole(moved: usize, requests: &Requests) -> io::Result<()> {
    match moved as u64 == requests.block_bytes {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("only {moved} bytes were moved"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn both_ways_write_all_of_a_file_and_read_it() {
        let folder = Scratch::create().expect("a folder");
        let target = DiskTarget::open(folder.path(), true, 16 << 20).expect("a scratch file");
        let interrupt = Interrupt::by(Arc::new(AtomicBool::new(false)));
        let fill = Requests { block_bytes: 1 << 20, parallel: 4, pattern: Pattern::InOrder, is_write: true };
        for way in [way(&target).0, Way::Threads] {
            let written = run(&target, &fill, way, Until::End, &interrupt).expect("written");
            assert!(written.bytes_per_s > 0.0);
            assert_eq!(target.file.metadata().expect("facts").len(), 16 << 20);
            let read = Requests { block_bytes: 4096, parallel: 3, pattern: Pattern::Random, is_write: false };
            let cell = run(&target, &read, way, Until::After(Duration::ZERO), &interrupt).expect("read");
            assert!(cell.latency.expect("taken").p50_s > 0.0);
        }
        let stopped = Interrupt::by(Arc::new(AtomicBool::new(true)));
        let ended = run(&target, &fill, Way::Threads, Until::End, &stopped);
        assert!(matches!(ended, Err(Error::Interrupted)));
    }

    #[test]
    fn offsets_are_within_the_file_and_each_is_met_in_order() {
        let plan = |pattern, end| Plan {
            blocks: 5,
            block_bytes: 10,
            pattern,
            seed: 7,
            next: AtomicU64::new(0),
            end,
        };
        let now = Instant::now();
        let all = plan(Pattern::InOrder, None);
        let offsets: Vec<_> = std::iter::from_fn(|| all.offset(now)).collect();
        assert_eq!(offsets, [0, 10, 20, 30, 40]);
        let random = plan(Pattern::Random, Some(now + Duration::from_secs(3600)));
        assert!((0..1000).all(|_| random.offset(now).is_some_and(|offset| offset < 50 && offset % 10 == 0)));
        // There is one request, however short the time is.
        let short = plan(Pattern::Random, Some(now));
        assert!(short.offset(now).is_some() && short.offset(now).is_none());
    }
}
