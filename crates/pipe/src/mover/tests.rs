//! Movers between threads of one process, with socket pairs for connections.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::*;
use crate::connect::Secret;

const OPTIONS: HopOptions =
    HopOptions { digest: DigestKind::Xxh3, sealed: false, compression: None, block_bytes: BLOCK };
const BLOCK: u32 = 16 << 10;

fn hop(streams: u32) -> (Connection, Connection) {
    let pairs = (0..streams).map(|_| UnixStream::pair().expect("a pair"));
    let (near, far): (Vec<OwnedFd>, Vec<OwnedFd>) =
        pairs.map(|(near, far)| (OwnedFd::from(near), OwnedFd::from(far))).unzip();
    let connection = |streams| Connection {
        channel: Channel::Streams(streams),
        secret: Secret([3; 32]),
        description: "a test".into(),
    };
    (connection(near), connection(far))
}

fn moved(inlet: Inlet, outlets: Vec<Outlet>, options: &MoverOptions) -> Outcome {
    let cancel = Cancel::new().expect("an event");
    run(inlet, outlets, options, &Gauge::default(), &cancel)
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect()
}

/// A stream from a pipe over a hop into a pipe.
fn through(data: &[u8], options: &HopOptions, streams: u32) -> (Vec<u8>, Outcome, Outcome) {
    let (near, far) = hop(streams);
    let (from, mut feed) = std::io::pipe().expect("a pipe");
    let (mut taken, to) = std::io::pipe().expect("a pipe");
    std::thread::scope(|scope| {
        scope.spawn(move || feed.write_all(data).expect("written"));
        let sender = scope.spawn(|| {
            let outlets = vec![Outlet::Hop(Box::new(near), options.clone())];
            moved(Inlet::Descriptor(from.into()), outlets, &MoverOptions::default())
        });
        let receiver = scope.spawn(|| {
            let outlets = vec![Outlet::Descriptor(to.into())];
            moved(Inlet::Hop(Box::new(far), options.clone()), outlets, &MoverOptions::default())
        });
        let mut got = Vec::new();
        taken.read_to_end(&mut got).expect("read");
        (got, sender.join().expect("no panic"), receiver.join().expect("no panic"))
    })
}

#[test]
fn streams_of_all_sizes_arrive() {
    let block = BLOCK as usize;
    for sealed in [false, true] {
        for digest in [DigestKind::Xxh3, DigestKind::Sha256, DigestKind::Off] {
            for compression in [None, Some(Compression::Zstd), Some(Compression::Lz4)] {
                for streams in [1, 3] {
                    let options = HopOptions { digest, sealed, compression, ..OPTIONS };
                    for bytes in [0, 1, block - 1, block, block + 1, 20 * block + 7] {
                        let data = pattern(bytes);
                        let (got, sent, received) = through(&data, &options, streams);
                        assert!(got == data, "{bytes} bytes, {options:?}");
                        for outcome in [&sent, &received] {
                            assert_eq!(outcome.bytes, bytes as u64);
                            assert!(matches!(outcome.inlet, Ok(InletEnd::Complete)), "{outcome:?}");
                            assert!(matches!(outcome.outlets[..], [Ok(OutletEnd::Complete)]), "{outcome:?}");
                            assert_eq!(outcome.digest.is_some(), digest != DigestKind::Off);
                        }
                        assert_eq!(sent.digest, received.digest);
                    }
                }
            }
        }
    }
}
