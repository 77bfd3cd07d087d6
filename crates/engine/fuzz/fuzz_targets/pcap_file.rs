//! A capture file of arbitrary bytes.
#![no_main]

#[path = "../../tests/common/pcap_file.rs"]
mod pcap_file;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    pcap_file::read(input);
    // Files with a valid beginning, which a fuzzer is slow to find: a file header, and a section with
    // an interface.
    let pcap = include_bytes!("../../tests/captures/ping.pcap");
    pcap_file::read(&[&pcap[..24], input].concat());
    let section = [0x0a0d_0d0a_u32, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28, 1, 20, 1, 0, 20];
    let section: Vec<u8> = section.into_iter().flat_map(u32::to_le_bytes).collect();
    pcap_file::read(&[&section, input].concat());
});
