//! Tests hops whose connection changes or cuts the bytes.

use proptest::prelude::*;

use super::*;

/// The damage in one direction.
#[derive(Clone, Copy, Debug)]
enum Harm {
    None,
    /// The connection ends after so many bytes.
    Cut(usize),
    /// One bit is flipped.
    Flip {
        byte: usize,
        bit: u8,
    },
}

/// Passes bytes on, and damages them. Returns how many there were.
fn pass(mut from: UnixStream, mut to: UnixStream, harm: Harm) -> usize {
    let mut buffer = vec![0; 1 << 16];
    let mut passed = 0;
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        let mut piece = &mut buffer[..bytes];
        match harm {
            Harm::Flip { byte, bit } if (passed..passed + bytes).contains(&byte) => {
                piece[byte - passed] ^= 1 << bit;
            }
            Harm::Cut(at) if at < passed + bytes => piece = &mut piece[..at - passed],
            _ => {}
        }
        let is_cut = piece.len() < bytes;
        passed += piece.len();
        if to.write_all(piece).is_err() || is_cut {
            break;
        }
    }
    for stream in [from, to] {
        // The socket may already be closed, which is as good.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    passed
}

/// Sends a stream over a connection that damages the forward and the backward bytes.
fn harmed(
    data: &[u8],
    options: &HopOptions,
    forward: Harm,
    backward: Harm,
) -> (Vec<u8>, MoverOutcome, MoverOutcome, usize) {
    let (near, near_peer) = UnixStream::pair().expect("a pair");
    let (far, far_peer) = UnixStream::pair().expect("a pair");
    let clones = (near_peer.try_clone().expect("a clone"), far_peer.try_clone().expect("a clone"));
    let there = std::thread::spawn(move || pass(near_peer, far_peer, forward));
    let back = std::thread::spawn(move || pass(clones.1, clones.0, backward));
    let (inlet, feed) = fed();
    let (outlet, drain) = drained();
    let feeder = feeding(feed, data);
    let near = to_hop(connection(vec![near.into()]), options);
    let sender = Running::start(inlet, vec![near], MoverOptions::default());
    let far = from_hop(connection(vec![far.into()]), options);
    let receiver = Running::start(far, vec![outlet], MoverOptions::default());
    let got = std::thread::spawn(|| all_of(drain));
    let sent = sender.join();
    let received = receiver.join();
    assert_eq!(received.unfinished.len(), usize::from(!is_complete(&received)), "{received:?}");
    drop(received.unfinished);
    let received = MoverOutcome { unfinished: Vec::new(), ..received };
    feeder.join().expect("no panic");
    let passed = there.join().expect("no panic");
    back.join().expect("no panic");
    (got.join().expect("no panic"), sent, received, passed)
}

fn options() -> impl Strategy<Value = HopOptions> {
    let compression = prop::sample::select(vec![None, Some(Compression::Zstd), Some(Compression::Lz4)]);
    (any::<bool>(), compression).prop_map(|(sealed, compression)| HopOptions {
        sealed,
        compression,
        block_bytes: 1000,
        ..OPTIONS
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_stream_that_is_cut_is_never_complete(
        options in options(), bytes in 0_usize..5000, at in 0.0..1.0_f64, text in any::<bool>(),
    ) {
        let data = if text { vec![b'x'; bytes] } else { pattern(bytes) };
        let (got, _, _, wire_bytes) = harmed(&data, &options, Harm::None, Harm::None);
        prop_assert!(got == data);
        let cut = (at * wire_bytes as f64) as usize;
        let (got, sent, received, _) = harmed(&data, &options, Harm::Cut(cut), Harm::None);
        prop_assert!(data.starts_with(&got));
        prop_assert!(matches!(received.inlet, Err(Error::Truncated { .. })), "{received:?}");
        prop_assert!(matches!(sent.outlets[..], [Err(Error::Truncated { .. })]), "{sent:?}");
    }

    #[test]
    fn a_flipped_bit_is_never_accepted(
        options in options(), bytes in 0_usize..5000, at in 0.0..1.0_f64, bit in 0_u8..8, text in any::<bool>(),
    ) {
        let data = if text { vec![b'x'; bytes] } else { pattern(bytes) };
        let (_, _, _, wire_bytes) = harmed(&data, &options, Harm::None, Harm::None);
        let flip = Harm::Flip { byte: (at * wire_bytes as f64) as usize, bit };
        let (got, sent, received, _) = harmed(&data, &options, flip, Harm::None);
        if is_complete(&received) && options.compression.is_some() && !options.sealed {
            // A compressed block has bits that mean nothing.
            prop_assert!(got == data);
            return Ok(());
        }
        let error = received.inlet.as_ref().expect_err("it is damaged");
        prop_assert!(sent.outlets[0].is_err(), "{sent:?}");
        if options.sealed {
            prop_assert!(data.starts_with(&got), "nothing of it was passed on");
            prop_assert!(matches!(error, Error::Damaged(_) | Error::Truncated { .. }), "{error:?}");
        } else {
            let expected = matches!(
                error,
                Error::Damaged(_) | Error::Truncated { .. } | Error::Protocol(_) | Error::Told(_)
            );
            prop_assert!(expected, "{error:?}");
        }
    }

    #[test]
    fn a_flipped_bit_on_the_way_back_makes_nothing_complete(sealed in any::<bool>(), at in 0_usize..20, bit in 0_u8..8) {
        let options = HopOptions { sealed, ..OPTIONS };
        // The only frame of the receiver is its `Done`.
        let (_, sent, received, _) = harmed(b"abc", &options, Harm::None, Harm::Flip { byte: at, bit });
        prop_assert!(sent.outlets[0].is_err(), "{sent:?}");
        prop_assert!(is_complete(&received), "{received:?}");
    }
}

#[test]
fn nonsense_is_named() {
    let frame = |bytes: &[u8], sealed| {
        let options = HopOptions { sealed, ..OPTIONS };
        let (mut peer, far) = UnixStream::pair().expect("a pair");
        let (outlet, _drain) = drained();
        peer.write_all(bytes).expect("written");
        drop(peer);
        let far = from_hop(connection(vec![far.into()]), &options);
        Running::start(far, vec![outlet], MoverOptions::default()).join().inlet.expect_err("nonsense")
    };
    let huge = [3, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255];
    let compressed = [3, 1, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];
    for (bytes, told) in [
        (&b"GET / HTTP/1.0"[..], "sent a frame of an unknown kind"),
        (&huge[..], "sent a frame of a length that cannot be"),
        (&compressed[..], "sent a compressed block though none was asked for"),
    ] {
        assert_eq!(frame(bytes, false).to_string(), format!("the other end of the data connection {told}"));
        assert!(matches!(frame(bytes, true), Error::Damaged(_)));
    }
}
