//! A producer or a consumer in another process, killed with SIGKILL at instants that nobody
//! chooses: what the survivor finds in the ring is whole records in order, then a prefix of one.
//! CARAVAN_KILLS says how often.
//!
//! The other process is this test binary again, told by the environment which side to be. It opens
//! the segment through `/proc`, as a stranger would.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_ring::record::prefix;
use caravan_ring::{ByteConsumer, ByteProducer, Cursors, HEADER_BYTES, MappedBytes, MappedCursors};
use caravan_segment::barrier::{self, Fences};
use caravan_segment::{Pages, Segment};

const CAPACITY: u64 = 4096;
const SEGMENT_BYTES: u64 = HEADER_BYTES as u64 + CAPACITY;
const KILLS: u64 = 1_000;
/// A child is killed after so many bytes at most: a few times around the ring.
const SENT_BYTES_MAX: u64 = 3 * CAPACITY;
/// Past this a kill test stops early, on a machine that is busy with other things.
const TIME_MAX: Duration = Duration::from_secs(8);
const KILLS_MIN: u64 = 100;
const SIDE: &str = "CARAVAN_TEST_SIDE";
const MEMORY: &str = "CARAVAN_TEST_MEMORY";
/// How a child says that it saw something wrong.
const WRONG: i32 = 3;

fn hash(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 16
}

/// Record `number` with its length in front: different bytes at each place.
fn record(number: u64) -> Vec<u8> {
    let length = hash(number) % 300;
    let content = (0..length).map(|at| hash(number.wrapping_mul(1000) + at) as u8);
    prefix(length as u32).into_iter().chain(content).collect()
}

/// The stream of all records, to write or to compare with.
struct Stream {
    number: u64,
    rest: Vec<u8>,
}

impl Stream {
    fn new() -> Self {
        Self { number: 0, rest: record(0) }
    }
    /// What comes next in the current record; never empty.
    fn next(&self) -> &[u8] {
        &self.rest
    }
    fn advance(&mut self, length: usize) {
        self.rest.drain(..length);
        if self.rest.is_empty() {
            self.number += 1;
            self.rest = record(self.number);
        }
    }
    /// True if `found` is how the stream goes on.
    fn continues(&mut self, mut found: &[u8]) -> bool {
        while !found.is_empty() {
            let length = found.len().min(self.rest.len());
            if found[..length] != self.rest[..length] {
                return false;
            }
            self.advance(length);
            found = &found[length..];
        }
        true
    }
}

fn cursors(segment: &Arc<Segment>) -> (MappedCursors, MappedBytes) {
    let slice = segment.slice(0, SEGMENT_BYTES).unwrap();
    let bytes = MappedBytes::new(slice.part(HEADER_BYTES as u64, CAPACITY).unwrap()).unwrap();
    (
        MappedCursors::new(&slice, if barrier::join() { Fences::Asymmetric } else { Fences::Symmetric })
            .unwrap(),
        bytes,
    )
}

/// Writes what there is room for. Returns whether there was any.
fn produce(producer: &mut ByteProducer<MappedCursors, MappedBytes>, stream: &mut Stream) -> bool {
    let sent = producer.append(stream.next()).unwrap();
    stream.advance(sent);
    let _ = producer.publish();
    assert!(producer.position().invariants());
    sent > 0
}

/// Reads and compares what there is, in pieces. Returns how much, or nothing if it was wrong.
fn consume(consumer: &mut ByteConsumer<MappedCursors, MappedBytes>, stream: &mut Stream) -> Option<usize> {
    let mut piece = [0; 100];
    consumer.refresh().ok()?;
    let count = consumer.read(&mut piece);
    let right = stream.continues(&piece[..count]);
    let _ = consumer.release();
    right.then_some(count)
}

/// The other process: produces or consumes until it is killed.
#[test]
fn the_other_process() {
    let Ok(side) = std::env::var(SIDE) else { return };
    let file = std::env::var(MEMORY).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let segment = Arc::new(Segment::attach(OwnedFd::from(file), SEGMENT_BYTES).unwrap());
    let (cursors, bytes) = cursors(&segment);
    let mut stream = Stream::new();
    if side == "producer" {
        let mut producer = ByteProducer::new(cursors, bytes);
        loop {
            if !produce(&mut producer, &mut stream) {
                std::thread::yield_now();
            }
        }
    }
    let mut consumer = ByteConsumer::new(cursors, bytes);
    loop {
        match consume(&mut consumer, &mut stream) {
            Some(0) => std::thread::yield_now(),
            Some(_) => {}
            None => std::process::exit(WRONG),
        }
    }
}

fn start(side: &str, segment: &Arc<Segment>) -> Child {
    let memory =
        format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsFd::as_fd(&**segment).as_raw_fd());
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::the_other_process", "--test-threads", "1"])
        .env(SIDE, side)
        .env(MEMORY, memory)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills the child, which must not have ended by itself.
fn kill(mut child: Child) {
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9),
        "it ended by itself: {status}"
    );
}

/// Runs `once` with a fresh ring and a random number, again and again.
fn repeat(once: impl Fn(&Arc<Segment>, u64)) {
    let segment = Arc::new(Segment::create("caravan-test", SEGMENT_BYTES, Pages::Small).unwrap());
    segment.grow(SEGMENT_BYTES).unwrap();
    let (begin, seed) = (Instant::now(), u64::from(std::process::id()) << 32);
    let enough =
        std::env::var("CARAVAN_KILLS").map_or(KILLS, |kills| kills.parse().expect("a number of kills"));
    let mut kills = 0;
    while kills < KILLS_MIN || (kills < enough && (enough > KILLS || begin.elapsed() < TIME_MAX)) {
        segment.slice(0, SEGMENT_BYTES).unwrap().copy_in(0, &[0; SEGMENT_BYTES as usize]);
        once(&segment, hash(seed + kills));
        kills += 1;
    }
    eprintln!("{kills} kills in {:?}", begin.elapsed());
}

#[test]
fn a_killed_producer_leaves_whole_records_and_a_prefix() {
    repeat(|segment, random| {
        let (cursors, bytes) = cursors(segment);
        let mut consumer = ByteConsumer::new(cursors, bytes);
        let mut stream = Stream::new();
        let mut child = start("producer", segment);
        let (enough, mut seen) = (1 + random % SENT_BYTES_MAX, 0);
        while seen < enough {
            match consume(&mut consumer, &mut stream) {
                Some(0) => {
                    assert!(child.try_wait().unwrap().is_none(), "the producer ended by itself");
                    std::thread::yield_now();
                }
                Some(count) => seen += count as u64,
                None => panic!("wrong bytes in record {} while the producer lived", stream.number),
            }
        }
        kill(child);
        while let count @ (None | Some(1..)) = consume(&mut consumer, &mut stream) {
            assert!(count.is_some(), "wrong bytes in record {} after the kill", stream.number);
        }
        assert!(consumer.position().invariants());
    });
}

#[test]
fn a_killed_consumer_leaves_all_that_it_did_not_release() {
    repeat(|segment, random| {
        let (shared, bytes) = cursors(segment);
        let mut producer = ByteProducer::new(shared.clone(), bytes);
        let mut stream = Stream::new();
        let mut child = start("consumer", segment);
        let enough = CAPACITY + random % SENT_BYTES_MAX;
        while producer.position().published_position() < enough {
            if !produce(&mut producer, &mut stream) {
                assert!(child.try_wait().unwrap().is_none(), "the consumer found wrong bytes");
                std::thread::yield_now();
            }
        }
        kill(child);
        producer.cursor().refresh().unwrap();
        // The stream up to here, from which the bytes still in the ring are the last ones.
        let (head, tail) =
            (shared.head_position().load(Ordering::Acquire), producer.position().published_position());
        let mut expected: Vec<u8> = (0..=stream.number).flat_map(record).collect();
        expected.truncate(tail as usize);
        for position in head..tail {
            let mut byte = [0];
            producer.bytes().slice().copy_out((position % CAPACITY) as usize, &mut byte);
            assert_eq!(byte[0], expected[position as usize], "byte {position} of {head}..{tail}");
        }
        // What the dead consumer released can be used again, and no more than that.
        let free = (CAPACITY - (tail - head)) as usize;
        assert_eq!(producer.append(&[0; CAPACITY as usize]).unwrap(), free);
    });
}
