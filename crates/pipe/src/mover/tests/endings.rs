//! Streams that end before their end.

use std::fs::File;
use std::time::Instant;

use super::*;

/// A mover over a hop: the sender's, the receiver's.
fn pair(inlet: MoverInlet, outlet: MoverOutlet, sealed: bool) -> (Running, Running) {
    let options = HopOptions { sealed, ..OPTIONS };
    let (near, far) = hop(2);
    let sender = Running::start(inlet, vec![to_hop(near, &options)], MoverOptions::default());
    let receiver = Running::start(from_hop(far, &options), vec![outlet], MoverOptions::default());
    (sender, receiver)
}

#[test]
fn a_reader_that_has_seen_enough_stops_even_an_idle_source() {
    for sealed in [false, true] {
        let (inlet, mut feed) = fed();
        let (outlet, mut drain) = drained();
        let (sender, receiver) = pair(inlet, outlet, sealed);
        feed.write_all(b"y\n").expect("written");
        let mut line = [0; 2];
        drain.read_exact(&mut line).expect("read");
        drop(drain);
        for outcome in [sender.join(), receiver.join()] {
            assert!(matches!(outcome.inlet, Ok(InletEnd::Unread)), "{outcome:?}");
            assert!(matches!(outcome.outlets[..], [Ok(OutletEnd::Stopped)]), "{outcome:?}");
            assert!(outcome.unfinished.is_empty());
        }
        assert_eq!(feed.write(b"y\n").expect_err("closed").kind(), std::io::ErrorKind::BrokenPipe);
    }
}

#[test]
fn a_reader_that_has_seen_enough_stops_a_busy_source() {
    let (inlet, feed) = fed();
    let (outlet, mut drain) = drained();
    let (sender, receiver) = pair(inlet, outlet, false);
    let fed = feeding(feed, &pattern(20 << 20));
    drain.read_exact(&mut [0; 70_000]).expect("read");
    drop(drain);
    for outcome in [sender.join(), receiver.join()] {
        assert!(matches!(outcome.inlet, Ok(InletEnd::Unread)), "{outcome:?}");
        assert!(matches!(outcome.outlets[..], [Ok(OutletEnd::Stopped)]), "{outcome:?}");
    }
    fed.join().expect("the source's pipe is closed");
}

#[test]
fn a_full_disk_is_told_to_both_sides() {
    let (inlet, feed) = fed();
    let full = File::options().write(true).open("/dev/full").expect("opened");
    let (sender, receiver) = pair(inlet, MoverOutlet::Descriptor(full.into()), true);
    let fed = feeding(feed, &pattern(5 << 20));
    let (sent, received) = (sender.join(), receiver.join());
    let told = "cannot write /dev/full: No space left on device (os error 28)";
    assert!(matches!(&received.outlets[..], [Err(error)] if error.to_string() == told), "{received:?}");
    assert!(matches!(received.inlet, Err(Error::Cancelled)));
    assert!(matches!(&sent.outlets[..], [Err(Error::Told(why))] if why == told), "{sent:?}");
    assert!(matches!(sent.inlet, Err(Error::Cancelled)));
    fed.join().expect("the source's pipe is closed");
}

#[test]
fn a_source_that_cannot_be_read_is_told_to_both_sides() {
    let (outlet, drain) = drained();
    let (sender, receiver) =
        pair(MoverInlet::Descriptor(File::open("/proc").expect("opened").into()), outlet, false);
    let (sent, received) = (sender.join(), receiver.join());
    let told = "cannot read /proc: Is a directory (os error 21)";
    assert!(matches!(&sent.inlet, Err(error) if error.to_string() == told), "{sent:?}");
    assert!(matches!(sent.outlets[..], [Err(Error::Cancelled)]));
    assert!(matches!(&received.inlet, Err(Error::Told(why)) if why == told), "{received:?}");
    assert_eq!(received.unfinished.len(), 1, "a reader must not take it for the end");
    drop(received);
    assert!(all_of(drain).is_empty());
}

#[test]
fn whatever_a_mover_waits_for_it_ends_when_it_is_told_to() {
    let full_pipe = || {
        let (outlet, drain) = drained();
        (outlet, Box::new(drain) as Box<dyn Send>)
    };
    let busy = || MoverInlet::Descriptor(File::open("/dev/zero").expect("opened").into());
    let (idle, _feed) = fed();
    let (near, _near_peer) = hop(1);
    let (far, _far_peer) = hop(1);
    let (idle_hop, _idle_peer) = hop(1);
    let null = || MoverOutlet::Descriptor(File::create("/dev/null").expect("opened").into());
    let buffered = MoverOptions { buffer_bytes: 1 << 20, ..MoverOptions::default() };
    let slow = MoverOptions { rate: Some(1), ..MoverOptions::default() };
    let (a, b, c) = (full_pipe(), full_pipe(), full_pipe());
    let movers = [
        Running::start(idle, vec![null()], MoverOptions::default()),
        Running::start(busy(), vec![a.0], MoverOptions::default()),
        Running::start(busy(), vec![b.0, null()], buffered),
        Running::start(busy(), vec![to_hop(near, &OPTIONS)], MoverOptions::default()),
        Running::start(busy(), vec![null()], slow),
        Running::start(busy(), vec![null()], MoverOptions::default()),
        Running::start(from_hop(far, &OPTIONS), vec![c.0], MoverOptions::default()),
        Running::start(from_hop(idle_hop, &OPTIONS), vec![null(), null()], buffered),
    ];
    // Most of them wait by now; those that do not yet must end as well.
    std::thread::sleep(Duration::from_millis(50));
    for (at, mover) in movers.into_iter().enumerate() {
        let since = Instant::now();
        mover.cancel.fire();
        let outcome = mover.join();
        assert!(since.elapsed() < Duration::from_secs(20), "mover {at} took {:?}", since.elapsed());
        assert!(matches!(outcome.inlet, Err(Error::Cancelled)), "mover {at}: {outcome:?}");
        assert!(outcome.outlets.iter().all(|outlet| matches!(outlet, Err(Error::Cancelled))));
    }
}

#[test]
fn a_hop_that_cannot_begin_ends_everything() {
    let (inlet, _feed) = fed();
    let (outlet, _drain) = drained();
    let nothing = to_hop(connection(Vec::new()), &OPTIONS);
    let outcome = Running::start(inlet, vec![outlet, nothing], MoverOptions::default()).join();
    assert!(matches!(outcome.outlets[..], [Err(Error::Cancelled), Err(Error::Protocol(_))]), "{outcome:?}");
    assert!(matches!(outcome.inlet, Err(Error::Cancelled)));
    assert_eq!(outcome.unfinished.len(), 1);
}
