//! Streams that arrive.

use proptest::prelude::*;

use super::*;

/// A stream from a pipe over a hop into a pipe, fed in pieces.
fn through(
    data: &[u8],
    pieces: &[usize],
    options: &HopOptions,
    streams: u32,
) -> (Vec<u8>, MoverOutcome, MoverOutcome) {
    let (near, far) = hop(streams);
    let (inlet, mut feed) = fed();
    let (outlet, drain) = drained();
    let sender = Running::start(inlet, vec![to_hop(near, options)], MoverOptions::default());
    let receiver = Running::start(from_hop(far, options), vec![outlet], MoverOptions::default());
    let got = std::thread::spawn(|| all_of(drain));
    let mut left = data;
    for piece in pieces {
        let (now, later) = left.split_at((*piece).min(left.len()));
        feed.write_all(now).expect("written");
        left = later;
    }
    feed.write_all(left).expect("written");
    drop(feed);
    let received = receiver.join();
    (got.join().expect("no panic"), sender.join(), received)
}

fn check(data: &[u8], pieces: &[usize], options: &HopOptions, streams: u32) {
    let (got, sent, received) = through(data, pieces, options, streams);
    assert!(got == data, "{} bytes, {options:?}", data.len());
    for outcome in [&sent, &received] {
        assert_eq!(outcome.bytes, data.len() as u64);
        assert!(is_complete(outcome), "{outcome:?}");
        assert_eq!(outcome.digest.is_some(), options.digest != DigestKind::Off);
    }
    assert_eq!(sent.digest, received.digest);
}

#[test]
fn streams_of_all_sizes_arrive() {
    let block = BLOCK as usize;
    for sealed in [false, true] {
        for digest in [DigestKind::Xxh3, DigestKind::Sha256, DigestKind::Off] {
            for compression in [None, Some(Compression::Zstd), Some(Compression::Lz4)] {
                for streams in [1, 3] {
                    let options = HopOptions { digest, sealed, compression, ..OPTIONS };
                    for bytes in [0, 1, block - 1, block, block + 1, 10 * block + 7] {
                        check(&pattern(bytes), &[], &options, streams);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]
    #[test]
    fn streams_in_any_pieces_arrive(
        pieces in prop::collection::vec(1_usize..40_000, 0..20),
        rest in 0_usize..100_000,
        block_bytes in 1_u32..70_000,
        (sealed, streams) in (any::<bool>(), 1_u32..5),
        compression in prop::sample::select(vec![None, Some(Compression::Zstd), Some(Compression::Lz4)]),
        text in any::<bool>(),
    ) {
        let block_bytes = block_bytes.max(50);
        let bytes = pieces.iter().sum::<usize>() + rest;
        let data = if text { vec![b'x'; bytes] } else { pattern(bytes) };
        check(&data, &pieces, &HopOptions { sealed, compression, block_bytes, ..OPTIONS }, streams);
    }
}

#[test]
fn a_file_becomes_a_file_and_compression_shows_on_the_wire() {
    let data = vec![b'a'; 3 << 20];
    let scratch = std::env::temp_dir().join(format!("caravan-mover-{}", std::process::id()));
    std::fs::write(&scratch, &data).expect("written");
    let (near, far) = hop(1);
    let options = HopOptions {
        compression: Some(Compression::Zstd),
        block_bytes: crate::limits::BLOCK_BYTES,
        ..OPTIONS
    };
    let from = std::fs::File::open(&scratch).expect("opened");
    let (inlet, outlet) = (MoverInlet::Descriptor(from.into()), to_hop(near, &options));
    let sender = Running::start(inlet, vec![outlet], MoverOptions::default());
    let copy = scratch.with_extension("copy");
    let to = std::fs::File::create(&copy).expect("created");
    let outlets = vec![MoverOutlet::Descriptor(to.into())];
    let receiver = Running::start(from_hop(far, &options), outlets, MoverOptions::default());
    let gauges = [Arc::clone(&sender.gauge), Arc::clone(&receiver.gauge)];
    assert!(is_complete(&sender.join()) && is_complete(&receiver.join()));
    assert!(std::fs::read(&copy).expect("read") == data);
    for gauge in gauges {
        let [bytes, wire_bytes, ..] = gauge.read();
        assert!(bytes == 3 << 20 && (1..100_000).contains(&wire_bytes), "{bytes} as {wire_bytes}");
    }
    std::fs::remove_file(scratch).and_then(|()| std::fs::remove_file(copy)).expect("removed");
}

#[test]
fn a_rate_is_kept_to() {
    let (near, far) = hop(1);
    let (inlet, feed) = fed();
    let (outlet, drain) = drained();
    let options = MoverOptions { rate: Some(1_000_000), ..MoverOptions::default() };
    let data = pattern(600_000);
    let since = std::time::Instant::now();
    let sender = Running::start(inlet, vec![to_hop(near, &OPTIONS)], options);
    let receiver = Running::start(from_hop(far, &OPTIONS), vec![outlet], MoverOptions::default());
    let fed = feeding(feed, &data);
    assert!(all_of(drain) == data);
    let took = since.elapsed().as_secs_f64();
    assert!((0.55..20.0).contains(&took), "{took} s for 0.6");
    assert!(is_complete(&sender.join()) && is_complete(&receiver.join()));
    fed.join().expect("no panic");
}
