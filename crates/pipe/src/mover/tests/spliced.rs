//! What goes from descriptor to stream without a copy: a hop without a digest, unsealed, not compressed.

use std::io::Seek;

use super::super::inlet::InletReader;
use super::super::outlet::OutletWriter;
use super::super::splice::Splice;
use super::*;

const PLAIN: HopOptions = HopOptions { digest: DigestKind::Off, ..OPTIONS };

fn moved(inlet: MoverInlet, streams: u32) -> (MoverOutcome, MoverOutcome, Vec<u8>) {
    let (near, far) = hop(streams);
    let (outlet, drain) = drained();
    let sender = Running::start(inlet, vec![to_hop(near, &PLAIN)], MoverOptions::default());
    let receiver = Running::start(from_hop(far, &PLAIN), vec![outlet], MoverOptions::default());
    let got = all_of(drain);
    (sender.join(), receiver.join(), got)
}

#[test]
fn files_and_pipes_arrive_as_they_are() {
    let block = BLOCK as usize;
    for bytes in [0, 1, block - 1, block, block + 1, 70 * block + 7] {
        for streams in [1, 3] {
            let data = pattern(bytes);
            let (inlet, feed) = fed();
            let feeding = feeding(feed, &data);
            let (sent, received, got) = moved(inlet, streams);
            feeding.join().expect("fed");
            assert!(is_complete(&sent) && is_complete(&received), "{sent:?} {received:?}");
            assert!(got == data, "a pipe of {bytes} bytes over {streams} streams");
            // A file is read from where it stands.
            let file = rustix::fs::memfd_create("caravan-test", rustix::fs::MemfdFlags::CLOEXEC);
            let mut file = File::from(file.expect("a file"));
            file.write_all(b"before").and_then(|()| file.write_all(&data)).expect("written");
            file.seek(std::io::SeekFrom::Start(6)).expect("sought");
            let (sent, received, got) = moved(MoverInlet::Descriptor(file.into()), streams);
            assert!(is_complete(&sent) && is_complete(&received), "{sent:?} {received:?}");
            assert!(got == data, "a file of {bytes} bytes over {streams} streams");
            assert_eq!((sent.bytes, received.bytes), (bytes as u64, bytes as u64));
        }
    }
}

#[test]
fn it_can_be_spliced_at_all() {
    let spliced = |options: &HopOptions, digest| {
        let (near, _far) = hop(1);
        let sink = OutletWriter::new(to_hop(near, options), TIMING).expect("begun");
        let (inlet, _feed) = fed();
        let source = InletReader::new(inlet, TIMING).expect("begun");
        Splice::between(&source, &sink, &shape(digest)).is_some()
    };
    assert!(spliced(&PLAIN, DigestKind::Off));
    assert!(!spliced(&OPTIONS, DigestKind::Xxh3), "a digest wants to look");
    assert!(!spliced(&HopOptions { sealed: true, ..PLAIN }, DigestKind::Off));
}

#[test]
fn one_that_is_stuck_ends_when_it_is_told_to_and_a_reader_that_stops_is_heard() {
    // Nobody reads the other end: the stream is full soon.
    let (near, far) = hop(1);
    let (inlet, feed) = fed();
    let feeding = feeding(feed, &pattern(8 << 20));
    let sender = Running::start(inlet, vec![to_hop(near, &PLAIN)], MoverOptions::default());
    while sender.gauge.bytes.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    sender.cancel.fire();
    assert!(matches!(sender.join().inlet, Err(Error::Cancelled)));
    feeding.join().expect("its pipe is closed");
    drop(far);

    let (near, far) = hop(1);
    let (inlet, feed) = fed();
    let feeding = super::feeding(feed, &pattern(8 << 20));
    let (outlet, drain) = drained();
    let sender = Running::start(inlet, vec![to_hop(near, &PLAIN)], MoverOptions::default());
    let receiver = Running::start(from_hop(far, &PLAIN), vec![outlet], MoverOptions::default());
    drop(drain);
    assert!(matches!(receiver.join().inlet, Ok(InletEnd::Unread)));
    let sent = sender.join();
    assert!(matches!(sent.outlets[..], [Ok(OutletEnd::Stopped)]), "{sent:?}");
    feeding.join().expect("its pipe is closed");
}
