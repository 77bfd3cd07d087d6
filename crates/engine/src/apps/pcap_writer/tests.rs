use std::io::Read;
use std::process::Command;

use pcap_file::pcap::{PcapHeader, PcapReader};
use pcap_file::{DataLink, Endianness, TsResolution};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::*;
use crate::apps::pcap_reader::tests::memory_file;
use crate::testing::AppBench;

const PACKETS: usize = 2000;

fn config(file: PathBuf) -> PcapWriterConfig {
    PcapWriterConfig { file, append: false, snaplen: SNAPLEN_DEFAULT }
}

fn bench(config: PcapWriterConfig) -> AppBench<PcapWriter> {
    AppBench::new(config, &["input"], &[], PACKETS as u32).expect("a writer")
}

fn put(bench: &mut AppBench<PcapWriter>, packets: &[&[u8]]) {
    packets.iter().for_each(|packet| bench.put("input", packet));
    bench.push();
}

/// Returns the packets of a file, and their original lengths.
fn packets(path: &PathBuf) -> Vec<(Vec<u8>, u32)> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).expect("a file").read_to_end(&mut bytes).expect("its bytes");
    let mut reader = PcapReader::new(&bytes[..]).expect("a pcap file");
    let mut packets = Vec::new();
    // `next_packet` would take a packet that was cut for a damaged one.
    while let Some(packet) = reader.next_raw_packet() {
        let packet = packet.expect("a whole packet");
        packets.push((packet.data.into_owned(), packet.orig_len));
    }
    packets
}

fn data(path: &PathBuf) -> Vec<Vec<u8>> {
    packets(path).into_iter().map(|(data, _)| data).collect()
}

fn report(bench: &AppBench<PcapWriter>) -> Vec<u64> {
    bench.app.report().into_iter().map(|(_, figure)| figure).collect()
}

#[test]
fn packets_are_written_with_the_time_of_the_wall_clock() {
    let (_file, path) = memory_file(b"something older");
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    let mut bench = bench(config(path.clone()));
    assert!(data(&path).is_empty(), "a header alone");
    put(&mut bench, &[b"one", b""]);
    bench.stop();
    let bytes = std::fs::read(&path).expect("a file");
    let mut reader = PcapReader::new(&bytes[..]).expect("a pcap file");
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    let first = reader.next_packet().expect("a packet").expect("a whole one");
    let until = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    assert!((since..=until).contains(&first.timestamp), "to the nanosecond");
    assert_eq!(data(&path), [b"one".to_vec(), Vec::new()]);
    assert_eq!((report(&bench), bench.free()), (vec![2, 0, 0, 0], PACKETS));
}

#[test]
fn packets_are_written_after_a_second_or_in_large_pieces() {
    let (_file, path) = memory_file(b"");
    let mut bench = bench(config(path.clone()));
    assert_eq!(bench.app.wake_ns(), None);
    put(&mut bench, &[b"one"]);
    let wake_ns = bench.app.wake_ns().expect("a time");
    assert_eq!((wake_ns, data(&path).len()), (bench.now_ns + FLUSH_NS, 0));
    bench.now_ns = wake_ns - 1;
    put(&mut bench, &[b"two"]);
    assert_eq!((bench.app.wake_ns(), data(&path).len()), (Some(wake_ns), 0));
    bench.now_ns = wake_ns;
    bench.push();
    assert_eq!((bench.app.wake_ns(), data(&path).len()), (None, 2));
    put(&mut bench, &[[1; 1900].as_slice(); 200]);
    assert!(data(&path).len() > 100);
    bench.stop();
    assert_eq!((data(&path).len(), report(&bench)[0], bench.free()), (202, 202, PACKETS));
}

#[test]
fn long_packets_are_cut() {
    let (_file, path) = memory_file(b"");
    let mut bench = bench(PcapWriterConfig { snaplen: 4, ..config(path.clone()) });
    put(&mut bench, &[b"123456", b"123"]);
    bench.stop();
    assert_eq!(packets(&path), [(b"1234".to_vec(), 6), (b"123".to_vec(), 3)]);
    assert_eq!(bench.free(), PACKETS);
}

#[test]
fn it_goes_on_when_it_moves_and_starts_anew_otherwise() {
    let (_file, path) = memory_file(b"");
    let mut first = bench(config(path.clone()));
    put(&mut first, &[b"one"]);
    let state = first.stop();
    assert_eq!(first.free(), PACKETS);
    drop(first);
    let mut second = bench(config(memory_file(b"").1));
    second.app = PcapWriter::start(config(path.clone()), state.clone()).expect("a writer");
    put(&mut second, &[b"two"]);
    second.stop();
    assert_eq!(data(&path), [b"one", b"two"]);
    let (_other, other) = memory_file(&std::fs::read(&path).expect("a file"));
    let mut third = bench(config(memory_file(b"").1));
    third.app = PcapWriter::start(config(other.clone()), state).expect("a writer");
    third.stop();
    assert!(data(&other).is_empty(), "another file than the one that it had");
    assert_eq!(second.free(), PACKETS);
}

#[test]
fn a_file_that_is_in_use_is_not_touched() {
    let capture = include_bytes!("../../../tests/captures/ping.pcap");
    let refused = |path: &PathBuf| {
        let refused = PcapWriter::start(config(path.clone()), None).expect_err("refused").0;
        assert!(refused.ends_with("reads or writes it: write to another file"), "{refused}");
    };
    let (_file, path) = memory_file(capture);
    let reader = serde_json::from_value(serde_json::json!({ "file": path })).expect("a configuration");
    let reader = crate::apps::PcapReader::start(reader, None).expect("a reader");
    refused(&path);
    assert_eq!(std::fs::read(&path).expect("a file"), capture);
    drop(reader);
    let mut first = bench(config(path.clone()));
    put(&mut first, &[b"one"]);
    refused(&path);
    first.stop();
    assert_eq!(data(&path), [b"one"]);
}

#[test]
fn it_appends_in_the_way_of_the_file() {
    for endianness in [Endianness::Big, Endianness::Little] {
        let header = PcapHeader {
            endianness,
            ts_resolution: TsResolution::MicroSecond,
            snaplen: 5,
            ..Default::default()
        };
        let mut bytes = Vec::new();
        header.write_to(&mut bytes).expect("memory");
        let (_file, path) = memory_file(&bytes);
        for packet in [b"one", b"two"] {
            let mut bench = bench(PcapWriterConfig { append: true, ..config(path.clone()) });
            put(&mut bench, &[packet]);
            bench.stop();
        }
        assert_eq!(data(&path), [b"one", b"two"]);
        let mut bench = bench(PcapWriterConfig { append: true, ..config(path.clone()) });
        put(&mut bench, &[b"much longer"]);
        bench.stop();
        let last = std::fs::read(&path).expect("a file").split_off(24 + 2 * 19 + 16);
        assert_eq!(last, b"much ");
    }
}

#[test]
fn what_the_disk_does_not_take_is_dropped_and_said() {
    let mut bench = bench(config("/dev/full".into()));
    put(&mut bench, &[b"one", b"two"]);
    bench.stop();
    // The pipe had not taken the header, either.
    assert_eq!(report(&bench), [0, 2, 2, ENOSPC]);
    assert_eq!((bench.drops(DropReason::Device), bench.free()), (2, PACKETS));
}

const LIMITED: &str = "CARAVAN_TEST_LIMITED_FILE";
const FILE_BYTES_MAX: u64 = 4096;
const EFBIG: u64 = 27;
const ENOSPC: u64 = 28;
const ENXIO: u64 = 6;
const EPIPE: u64 = 32;

/// Runs in a process whose file size is limited, and which the kernel kills above the limit.
#[test]
fn after_a_full_disk_the_file_is_whole_and_goes_on() {
    if std::env::var_os(LIMITED).is_some() {
        return in_a_small_file();
    }
    let name = "apps::pcap_writer::tests::after_a_full_disk_the_file_is_whole_and_goes_on";
    let mut test = Command::new(std::env::current_exe().expect("this test"));
    let output = test.args(["--exact", name]).env(LIMITED, "1").output().expect("a process");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
}

fn in_a_small_file() {
    let path = std::env::temp_dir().join(format!("caravan-pcap-{}", std::process::id()));
    let mut bench = bench(config(path.clone()));
    let most = Some(FILE_BYTES_MAX);
    setrlimit(Resource::Fsize, Rlimit { current: most, maximum: most }).expect("a limit");
    for size in [600, 1900, 1901, 1902, 60] {
        put(&mut bench, &[&vec![1; size]]);
        bench.now_ns += FLUSH_NS;
        bench.push();
    }
    bench.stop();
    let lengths: Vec<_> = data(&path).iter().map(Vec::len).collect();
    std::fs::remove_file(&path).expect("the file");
    assert_eq!(lengths, [600, 1900, 60], "what fits, and no part of the others");
    assert_eq!((report(&bench), bench.drops(DropReason::Device)), (vec![3, 2, 2, EFBIG], 2));
    assert_eq!(bench.free(), PACKETS);
}

#[test]
fn a_pipe_is_written_while_somebody_reads_it_and_never_waited_for() {
    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
    let folder = std::env::temp_dir().join(format!("caravan-pcap-pipe-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let path = folder.join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let reader = || {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        std::fs::File::from(open(&path, flags, Mode::empty()).expect("a reader"))
    };
    let taken = |mut file: &std::fs::File, bytes: &mut Vec<u8>| {
        let _ = file.read_to_end(bytes).expect_err("nothing more, and no end yet");
    };
    let lengths = |bytes: &[u8]| {
        let mut reader = PcapReader::new(bytes).expect("a header in front");
        let length = || Some(reader.next_raw_packet()?.expect("a whole packet").data.len());
        std::iter::from_fn(length).collect::<Vec<_>>()
    };
    let mut bench = bench(config(path.clone()));
    let flushed = |bench: &mut AppBench<PcapWriter>, packets: &[&[u8]]| {
        put(bench, packets);
        bench.now_ns += FLUSH_NS;
        bench.push();
    };
    flushed(&mut bench, &[b"lost"]);
    assert_eq!((report(&bench), bench.drops(DropReason::Device)), (vec![0, 1, 2, ENXIO], 1), "nobody reads");

    let first = reader();
    let mut bytes = Vec::new();
    // More than a pipe and the buffer hold.
    for _ in 0..6 {
        put(&mut bench, &[[1; 1900].as_slice(); 100]);
    }
    let lost = report(&bench)[1] - 1;
    assert!(lost > 0 && bench.drops(DropReason::Device) == lost + 1, "{lost}");
    while bench.app.wake_ns().is_some() {
        taken(&first, &mut bytes);
        bench.now_ns += RETRY_NS;
        bench.push();
    }
    taken(&first, &mut bytes);
    assert_eq!(lengths(&bytes), vec![1900; 600 - lost as usize]);
    assert_eq!(report(&bench)[0], 600 - lost);

    drop(first);
    flushed(&mut bench, &[b"lost"]);
    assert_eq!((report(&bench)[1], report(&bench)[3]), (lost + 2, EPIPE), "it has gone");
    let second = reader();
    put(&mut bench, &[b"one", b"two!"]);
    let state = bench.stop();
    let mut bytes = Vec::new();
    taken(&second, &mut bytes);
    assert_eq!((lengths(&bytes), bench.free()), (vec![3, 4], PACKETS), "from the start");
    drop(bench);
    drop(PcapWriter::start(config(path.clone()), state).expect("its successor"));
    let mut bytes = Vec::new();
    (&second).read_to_end(&mut bytes).expect("the end, as nobody writes");
    assert_eq!(lengths(&bytes), [0; 0], "a header again");
    let refused =
        PcapWriter::check(&PcapWriterConfig { append: true, ..config(path) }).expect_err("refused").0;
    assert!(refused.ends_with("leave out append"), "{refused}");
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn what_is_wrong_is_named() {
    let trouble = |file: &str, append| {
        PcapWriter::check(&PcapWriterConfig { append, ..config(file.into()) }).expect_err("trouble").0
    };
    assert_eq!(
        trouble("/nowhere/a.pcap", false),
        "file = \"/nowhere/a.pcap\": it cannot be made in /nowhere: No such file or directory (os error 2)"
    );
    assert_eq!(trouble("/proc", false), "file = \"/proc\": it is neither a regular file nor a pipe");
    let (_file, path) = memory_file(b"no such thing");
    assert!(
        trouble(&path.display().to_string(), true)
            .ends_with("it is not a pcap file, so nothing can be appended to it")
    );
    let header = PcapHeader { datalink: DataLink::RAW, ..Default::default() };
    let mut bytes = Vec::new();
    header.write_to(&mut bytes).expect("memory");
    let (_file, path) = memory_file(&bytes);
    let reason = trouble(&path.display().to_string(), true);
    assert!(
        reason.ends_with("its packets are not Ethernet frames but of link type 101, so none can be appended"),
        "{reason}"
    );
    let none = PcapWriter::check(&PcapWriterConfig { snaplen: 0, ..config(path) }).expect_err("trouble").0;
    assert_eq!(none, "snaplen = 0: 1 to 262144 bytes of a packet can be written");
}
