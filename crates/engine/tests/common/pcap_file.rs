//! A reader whose file has arbitrary bytes.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use caravan_engine::App;
use caravan_engine::apps::{PcapReader, PcapReaderConfig, ReplayTiming};
use caravan_engine::layout::DropReason;
use caravan_engine::testing::AppBench;
use rustix::fs::{MemfdFlags, memfd_create};

const PACKETS: u32 = 64;

thread_local! {
    /// One bench for all files: its memory takes longer to make than a file to read.
    static BENCH: RefCell<AppBench<PcapReader>> = RefCell::new(bench());
}

fn bench() -> AppBench<PcapReader> {
    let (_file, path) = memory_file(include_bytes!("../captures/ping.pcap"));
    AppBench::new(config(path, ReplayTiming::Fast), &[], &["output"], PACKETS).expect("a reader")
}

fn config(file: PathBuf, timing: ReplayTiming) -> PcapReaderConfig {
    PcapReaderConfig { file, repeat: false, timing }
}

/// Makes a file in memory, and the path that opens it while it is kept.
fn memory_file(bytes: &[u8]) -> (File, PathBuf) {
    let mut file = File::from(memfd_create("pcap", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all(bytes).expect("memory");
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
    (file, path)
}

/// Reads a file at full speed and by its times, moving the reader on the way. Returns `None` if it is
/// refused, else the number of packets and of drops.
pub fn read(bytes: &[u8]) -> Option<(usize, u64)> {
    let (_file, path) = memory_file(bytes);
    BENCH.with_borrow_mut(|bench| {
        let fast = read_by(bench, config(path.clone(), ReplayTiming::Fast));
        assert_eq!(fast, read_by(bench, config(path, ReplayTiming::Recorded)));
        fast
    })
}

fn read_by(bench: &mut AppBench<PcapReader>, config: PcapReaderConfig) -> Option<(usize, u64)> {
    PcapReader::check(&config).ok()?;
    bench.app = PcapReader::start(config.clone(), None).expect("what the check has seen");
    let causes = [DropReason::Malformed, DropReason::Oversize, DropReason::Device, DropReason::Full];
    let before = causes.map(|why| bench.drops(why));
    let mut packets = 0;
    while !bench.app.report().contains(&("ended", 1)) {
        bench.pull();
        packets += bench.sent("output").len();
        assert_eq!(bench.free(), PACKETS as usize);
        bench.now_ns = bench.app.wake_ns().unwrap_or(bench.now_ns).max(bench.now_ns);
        let state = bench.stop();
        bench.app = PcapReader::start(config.clone(), state).expect("the file has not changed");
    }
    let mut dropped = causes.map(|why| bench.drops(why));
    dropped.iter_mut().zip(before).for_each(|(count, before)| *count -= before);
    assert!(dropped[0] <= 1 && dropped[2..] == [0, 0], "{dropped:?}");
    // The times of a file can be far away, and the next file starts at the clock.
    bench.now_ns = 1;
    Some((packets, dropped.iter().sum()))
}
