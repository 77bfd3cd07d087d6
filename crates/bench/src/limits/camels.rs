//! The camels: "IO limits", a post of 17 April 2018, as rows of the table. Latency limits the requests a second, and those
//! times the block and the parallelism limit the bandwidth. The numbers here are the ones that the post assumes; the
//! arithmetic is the one that is used for everything that is measured.

use super::model::RequestModel;
use super::report::{Digits, LimitRow};

const DAY_S: f64 = 86_400.0;
/// 250 kg of cards of 250 mg with 256 GB each.
const LOAD_BYTES: f64 = 256e15;
/// The memory bus of the post.
const BUS_HZ: f64 = 400e6;

/// Returns the rows.
pub fn rows() -> Vec<LimitRow> {
    let camel = 40.0 * DAY_S;
    [
        ("disk, 10 ms", 10e-3, 8.0, 1.0, Digits::all(3)),
        ("flash SSD, 0.1 ms", 0.1e-3, 8.0, 1.0, Digits::all(3)),
        ("Optane, 10 us", 10e-6, 8.0, 1.0, Digits::all(3)),
        ("Optane, 6 us", 6e-6, 8.0, 1.0, Digits { requests: 2, bandwidth: 3 }),
        ("light over 1.5 m, a bit at a time", 10e-12, 0.125, 1.0, Digits::all(3)),
        ("a camel with 10^6 cards", camel, LOAD_BYTES, 1.0, Digits { requests: 3, bandwidth: 2 }),
        ("20 camels with cards", camel, LOAD_BYTES, 20.0, Digits { requests: 3, bandwidth: 2 }),
        ("20 camels after 8-byte pointers", camel, 8.0, 1.0, Digits { requests: 3, bandwidth: 2 }),
        ("flash SSD, 8 kB, 16 in parallel", 0.1e-3, 8e3, 16.0, Digits::all(3)),
        ("Optane, 8 kB, 16 in parallel", 10e-6, 8e3, 16.0, Digits::all(3)),
        ("DRAM, 2 channels, words", 50e-9, 8.0, 2.0, Digits::all(3)),
        ("DRAM, 4 channels, words", 50e-9, 8.0, 4.0, Digits::all(3)),
        ("DRAM, 4 channels, bursts", 1.0 / BUS_HZ, 64.0, 4.0, Digits::all(4)),
    ]
    .map(|(what, latency_s, block, parallel, digits)| {
        LimitRow::predicted(what, RequestModel::of_latency(latency_s), block, parallel, digits)
    })
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each number as the post has it.
    #[test]
    fn the_numbers_are_those_of_the_post() {
        let rows = rows();
        for (what, requests, bandwidth) in [
            ("disk, 10 ms", "100 IOPS", "800 B/s"),
            ("flash SSD, 0.1 ms", "10 kIOPS", "80 kB/s"),
            ("Optane, 10 us", "100 kIOPS", "800 kB/s"),
            ("Optane, 6 us", "170 kIOPS", "1.33 MB/s"),
            ("light over 1.5 m, a bit at a time", "100 GIOPS", "12.5 GB/s"),
            ("a camel with 10^6 cards", "289 nIOPS", "74 GB/s"),
            ("20 camels with cards", "289 nIOPS", "1.5 TB/s"),
            ("20 camels after 8-byte pointers", "289 nIOPS", "2.3 uB/s"),
            ("flash SSD, 8 kB, 16 in parallel", "10 kIOPS", "1.28 GB/s"),
            ("Optane, 8 kB, 16 in parallel", "100 kIOPS", "12.8 GB/s"),
            ("DRAM, 2 channels, words", "20 MIOPS", "320 MB/s"),
            ("DRAM, 4 channels, words", "20 MIOPS", "640 MB/s"),
            ("DRAM, 4 channels, bursts", "400 MIOPS", "102.4 GB/s"),
        ] {
            let row = rows.iter().find(|row| row.what == what).expect(what);
            let words = row.cells_of_table();
            assert!(
                words.contains(&requests.to_owned()) && words.contains(&bandwidth.to_owned()),
                "{words:?}"
            );
        }
        assert_eq!(rows.len(), 13);
    }
}
