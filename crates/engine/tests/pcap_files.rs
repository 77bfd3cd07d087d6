//! A reader refuses a file of arbitrary bytes or comes to its end, and no packet
//! is lost on the way. `fuzz/fuzz_targets/pcap_file.rs` does the same without end.

#[path = "common/pcap_file.rs"]
mod pcap_file;

use proptest::prelude::*;

/// Makes a pcapng file of little-endian words: a section, an interface with a resolution, an enhanced, a
/// simple and an obsolete packet block.
fn pcapng() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let length = 12 + body.len() as u32;
        for part in [&kind.to_le_bytes()[..], &length.to_le_bytes(), body, &length.to_le_bytes()] {
            bytes.extend_from_slice(part);
        }
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    block(1, &words(&[1, 0, 9 | 1 << 16, 9, 0]));
    block(6, &words(&[0, 1, 2, 8, 8, 0xaaaa, 0xbbbb]));
    block(3, &words(&[6, 0xcccc, 0xdddd]));
    block(2, &words(&[0, 1, 3, 4, 4, 0xeeee]));
    bytes
}

fn files() -> [Vec<u8>; 2] {
    [include_bytes!("captures/ping.pcap").to_vec(), pcapng()]
}

#[test]
fn whole_files_are_read_to_their_end() {
    let [pcap, pcapng] = files().map(|file| pcap_file::read(&file));
    assert_eq!((pcap, pcapng), (Some((4, 0)), Some((3, 0))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn damaged_files_do_no_harm(
        which in 0_usize..2,
        bytes in prop::collection::vec((any::<u16>(), prop::sample::select(vec![0, 1, 2, 4, 0x7f, 0x80, 0xff])), 0..6),
        end in any::<u16>(),
        cut in any::<bool>(),
    ) {
        let mut file = files().into_iter().nth(which).unwrap_or_default();
        for (at, byte) in bytes {
            let place = usize::from(at) % file.len();
            file[place] = byte;
        }
        if cut {
            file.truncate(usize::from(end) % file.len());
        }
        pcap_file::read(&file);
    }

    #[test]
    fn any_bytes_behind_a_beginning_do_no_harm(which in 0_usize..2, bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut file = files().into_iter().nth(which).unwrap_or_default();
        file.truncate(48);
        file.extend(bytes);
        pcap_file::read(&file);
    }
}
