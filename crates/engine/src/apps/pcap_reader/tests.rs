use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, RawPcapPacket};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::SectionHeaderBlock;
use pcap_file::pcapng::blocks::simple_packet::SimplePacketBlock;
use pcap_file::pcapng::{PcapNgBlock, RawBlock};
use pcap_file::{DataLink, Endianness, TsResolution};
use rustix::fs::{MemfdFlags, memfd_create};

use super::*;
use crate::limits::PACKET_BYTES_MAX;
use crate::testing::AppBench;

const PACKETS: usize = 1000;
const SECOND: u64 = 1_000_000_000;

/// Makes a file in memory, and the path that opens it while it is kept.
pub fn memory_file(bytes: &[u8]) -> (File, PathBuf) {
    let mut file = File::from(memfd_create("pcap", MemfdFlags::CLOEXEC).expect("a file in memory"));
    file.write_all(bytes).expect("memory");
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
    (file, path)
}

/// Makes a pcap file of the seconds, fractions and data of each packet.
fn pcap(endianness: Endianness, ts_resolution: TsResolution, packets: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let header = PcapHeader { endianness, ts_resolution, ..PcapHeader::default() };
    let mut bytes = Vec::new();
    header.write_to(&mut bytes).expect("memory");
    for &(ts_sec, ts_frac, data) in packets {
        let length = data.len() as u32;
        let packet = RawPcapPacket { ts_sec, ts_frac, incl_len: length, orig_len: length, data: data.into() };
        match endianness {
            Endianness::Big => packet.write_to::<_, byteorder_slice::BigEndian>(&mut bytes),
            Endianness::Little => packet.write_to::<_, byteorder_slice::LittleEndian>(&mut bytes),
        }
        .expect("memory");
    }
    bytes
}

/// Makes a section of a pcapng file with two interfaces, whose clocks tick in microseconds and seconds, and
/// a packet of each, one without a time, and a block of an unknown kind.
fn pcapng<B: byteorder_slice::ByteOrder>() -> Vec<u8> {
    let enhanced = |interface_id, ticks, data: &'static [u8]| EnhancedPacketBlock {
        interface_id,
        timestamp: Duration::from_nanos(ticks),
        original_len: data.len() as u32,
        data: data.into(),
        options: Vec::new(),
    };
    let mut seconds = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
    seconds.options.push(InterfaceDescriptionOption::IfTsResol(0));
    let header = SectionHeaderBlock { endianness: Endianness::from_byteorder::<B>(), ..Default::default() };
    let mut bytes = Vec::new();
    let blocks = [
        header.into_block(),
        InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0).into_block(),
        seconds.into_block(),
        enhanced(0, 10_000_000, b"first").into_block(),
        SimplePacketBlock { original_len: 6, data: b"simple"[..].into() }.into_block(),
        enhanced(1, 12, b"second").into_block(),
    ];
    for block in blocks {
        block.write_to::<B, _>(&mut bytes).expect("memory");
    }
    let unknown = RawBlock { type_: 0x0bad, initial_len: 16, body: [0; 4][..].into(), trailer_len: 16 };
    unknown.write_to::<B, _>(&mut bytes).expect("memory");
    bytes
}

fn config(file: PathBuf) -> PcapReaderConfig {
    PcapReaderConfig { file, repeat: false, timing: ReplayTiming::Fast }
}

fn bench(config: PcapReaderConfig) -> AppBench<PcapReader> {
    AppBench::new(config, &[], &["output"], PACKETS as u32).expect("a reader")
}

fn sent(bytes: &[u8]) -> (Vec<Vec<u8>>, AppBench<PcapReader>) {
    let (_file, path) = memory_file(bytes);
    let mut bench = bench(config(path));
    bench.pull();
    let sent = bench.sent("output");
    assert_eq!(bench.free(), PACKETS);
    (sent, bench)
}

fn report(bench: &AppBench<PcapReader>, name: &str) -> u64 {
    bench.app.report().into_iter().find(|(figure, _)| *figure == name).expect("a figure").1
}

#[test]
fn files_of_either_byte_order_are_read() {
    for endianness in [Endianness::Big, Endianness::Little] {
        let file =
            pcap(endianness, TsResolution::MicroSecond, &[(1, 0, b"one"), (2, 0, b""), (3, 0, &[7; 2000])]);
        let (sent, bench) = sent(&file);
        assert_eq!(sent, [b"one".to_vec(), Vec::new(), vec![7; 2000]]);
        assert_eq!((report(&bench, "ended"), report(&bench, "damaged")), (1, 0));
    }
}

#[test]
fn blocks_of_either_byte_order_are_read_even_in_one_file() {
    let both = [pcapng::<byteorder_slice::BigEndian>(), pcapng::<byteorder_slice::LittleEndian>()].concat();
    let (sent, bench) = sent(&both);
    assert_eq!(sent, [&b"first"[..], b"simple", b"second", b"first", b"simple", b"second"]);
    assert_eq!((report(&bench, "ended"), report(&bench, "damaged")), (1, 0));
}

/// Made by `tcpdump -w`: two requests and two replies of `ping` over Ethernet.
#[test]
fn a_file_of_tcpdump_is_read() {
    let mut bench = bench(config(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/captures/ping.pcap").into()));
    bench.pull();
    let lengths: Vec<_> = bench.sent("output").iter().map(Vec::len).collect();
    assert_eq!(lengths, [98, 98, 98, 98]);
    assert_eq!((report(&bench, "damaged"), bench.free()), (0, PACKETS));
}

#[test]
fn packets_come_as_far_apart_as_they_were() {
    let files = [
        pcap(
            Endianness::Little,
            TsResolution::MicroSecond,
            &[(10, 0, b"a"), (11, 500_000, b"b"), (9, 0, b"c")],
        ),
        pcap(
            Endianness::Big,
            TsResolution::NanoSecond,
            &[(10, 0, b"a"), (11, 500_000_000, b"b"), (9, 0, b"c")],
        ),
    ];
    for file in files {
        let (_file, path) = memory_file(&file);
        let mut bench =
            bench(PcapReaderConfig { timing: ReplayTiming::Recorded, repeat: true, ..config(path) });
        bench.now_ns = 5 * SECOND;
        bench.pull();
        assert_eq!(bench.sent("output"), [b"a"]);
        assert_eq!(bench.app.wake_ns(), Some(6 * SECOND + SECOND / 2));
        bench.now_ns = 6 * SECOND + SECOND / 2 - 1;
        bench.pull();
        assert!(bench.sent("output").is_empty());
        bench.now_ns += 1;
        bench.pull();
        // The packet whose clock went back comes at once, and then the next round begins.
        assert_eq!(bench.sent("output"), [b"b", b"c", b"a"]);
        assert_eq!((bench.app.wake_ns(), bench.free()), (Some(8 * SECOND), PACKETS));
    }
}

#[test]
fn blocks_have_their_interfaces_time() {
    let (_file, path) = memory_file(&pcapng::<byteorder_slice::LittleEndian>());
    let mut bench = bench(PcapReaderConfig { timing: ReplayTiming::Recorded, ..config(path) });
    bench.now_ns = SECOND;
    bench.pull();
    assert_eq!(bench.sent("output"), [&b"first"[..], b"simple"]);
    assert_eq!(bench.app.wake_ns(), Some(3 * SECOND));
    bench.now_ns = 3 * SECOND;
    bench.pull();
    assert_eq!(bench.sent("output"), [b"second"]);
    assert_eq!((bench.app.wake_ns(), bench.free()), (None, PACKETS));
}

#[test]
fn it_repeats_unless_there_is_nothing_to_repeat() {
    let (_file, path) =
        memory_file(&pcap(Endianness::Little, TsResolution::MicroSecond, &[(1, 0, b"a"), (2, 0, b"b")]));
    let mut repeating = bench(PcapReaderConfig { repeat: true, ..config(path) });
    repeating.pull();
    let sent = repeating.sent("output");
    assert_eq!(sent.len(), PULL_PACKETS);
    assert!(sent.chunks(2).all(|pair| pair == [b"a", b"b"]));
    let (_file, path) = memory_file(&pcap(Endianness::Little, TsResolution::MicroSecond, &[]));
    let mut empty = bench(PcapReaderConfig { repeat: true, ..config(path) });
    empty.pull();
    assert_eq!((empty.sent("output").len(), report(&empty, "ended")), (0, 1));
    assert_eq!((repeating.free(), empty.free()), (PACKETS, PACKETS));
}

#[test]
fn it_goes_on_at_its_position_when_it_moves() {
    let packets: Vec<[u8; 2]> = (0..500_u16).map(u16::to_be_bytes).collect();
    let records: Vec<_> = packets.iter().map(|data| (1, 0, &data[..])).collect();
    let pcap = pcap(Endianness::Big, TsResolution::MicroSecond, &records);
    let mut pcapng = pcapng::<byteorder_slice::BigEndian>();
    for packet in &packets {
        let simple = SimplePacketBlock { original_len: 2, data: packet[..].into() };
        simple.into_block().write_to::<byteorder_slice::BigEndian, _>(&mut pcapng).expect("memory");
    }
    for (bytes, before) in [(pcap, 0), (pcapng, 3)] {
        let (_file, path) = memory_file(&bytes);
        let (mut state, mut all) = (None, Vec::new());
        loop {
            let mut bench = bench(config(path.clone()));
            bench.app = PcapReader::start(config(path.clone()), state).expect("a reader");
            bench.pull();
            all.extend(bench.sent("output").split_off(if all.is_empty() { before } else { 0 }));
            state = bench.stop();
            assert_eq!(bench.free(), PACKETS);
            if report(&bench, "ended") == 1 {
                break;
            }
        }
        assert_eq!(all, packets);
        // The reader has ended, and stays so; another file starts at its start.
        let (_other, other) = memory_file(&bytes);
        let mut ended = bench(config(path.clone()));
        ended.app = PcapReader::start(config(path), state.clone()).expect("a reader");
        ended.pull();
        assert!(ended.sent("output").is_empty());
        let mut fresh = bench(config(other.clone()));
        fresh.app = PcapReader::start(config(other), state).expect("a reader");
        fresh.pull();
        assert_eq!(fresh.sent("output").len(), PULL_PACKETS);
    }
}

#[test]
fn nothing_is_lost_where_the_output_is_full_or_packets_are_short() {
    let (_file, path) =
        memory_file(&pcap(Endianness::Little, TsResolution::MicroSecond, &[(1, 0, b"a".as_slice()); 3]));
    let mut short = AppBench::<PcapReader>::new(config(path), &[], &["output"], 2).expect("a reader");
    short.pull();
    assert_eq!(short.sent("output").len(), 2);
    short.pull();
    assert_eq!((short.sent("output").len(), short.free()), (1, 2));
    let (_file, path) =
        memory_file(&pcap(Endianness::Little, TsResolution::MicroSecond, &[(1, 0, b"a".as_slice()); 3]));
    let mut full = AppBench::<PcapReader>::new(config(path), &[], &["output"], 2000).expect("a reader");
    full.fill("output");
    full.pull();
    full.sent("output");
    full.pull();
    assert_eq!((full.sent("output").len(), full.drops(DropReason::Full), full.free()), (3, 0, 2000));
}

#[test]
fn a_frame_longer_than_a_packet_is_dropped_alone() {
    let long = [7; PACKET_BYTES_MAX + 1];
    let file = [(1, 0, &long[..PACKET_BYTES_MAX]), (1, 0, &long[..]), (1, 0, b"a")];
    let (sent, bench) = sent(&pcap(Endianness::Little, TsResolution::MicroSecond, &file));
    assert_eq!(sent, [vec![7; PACKET_BYTES_MAX], b"a".to_vec()]);
    assert_eq!(
        (bench.drops(DropReason::Oversize), report(&bench, "oversize"), report(&bench, "damaged")),
        (1, 1, 0)
    );
}

#[test]
fn a_damaged_file_ends_there() {
    let whole = pcap(Endianness::Little, TsResolution::MicroSecond, &[(1, 0, b"one"), (2, 0, b"two")]);
    let mut endless = whole.clone();
    endless.extend([0; 8].iter().chain(&[0xff; 8]));
    for (file, packets) in [(&whole[..whole.len() - 1], 1), (&whole[..24 + 19 + 5], 1), (&endless[..], 2)] {
        let (sent, bench) = sent(file);
        assert_eq!(
            (sent.len(), bench.drops(DropReason::Malformed), report(&bench, "ended")),
            (packets, 1, 1)
        );
    }
}

#[test]
fn what_is_wrong_is_named() {
    let trouble = |file: &str| PcapReader::check(&config(file.into())).expect_err("trouble").0;
    assert_eq!(
        trouble("/nowhere/a.pcap"),
        "file = \"/nowhere/a.pcap\": it cannot be read: No such file or directory (os error 2)"
    );
    assert_eq!(trouble("/proc"), "file = \"/proc\": it is not a regular file");
    let (_file, path) = memory_file(b"no such thing");
    assert!(
        trouble(&path.display().to_string())
            .ends_with("it is neither a pcap nor a pcapng file: its first bytes are others")
    );
}
