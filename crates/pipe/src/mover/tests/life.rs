//! Who is alive, and who is not.

use super::*;

/// Nothing to send for longer than anybody may be silent; then nobody reads for as long.
fn stall(options: &HopOptions) {
    let (near, far) = hop(1);
    let (inlet, mut feed) = fed();
    let (outlet, drain) = drained();
    let sender = Running::start(inlet, vec![to_hop(near, options)], MoverOptions::default());
    let receiver = Running::start(from_hop(far, options), vec![outlet], MoverOptions::default());
    std::thread::sleep(SILENCE * 3 / 2);
    let data = pattern(5 << 20);
    let head = data.clone();
    let feeder = std::thread::spawn(move || {
        feed.write_all(&head).expect("written");
        feed
    });
    std::thread::sleep(SILENCE * 3 / 2);
    let got = std::thread::spawn(|| all_of(drain));
    drop(feeder.join().expect("no panic"));
    assert!(got.join().expect("no panic") == data);
    for outcome in [sender.join(), receiver.join()] {
        assert!(is_complete(&outcome), "{outcome:?}");
    }
}

#[test]
fn a_stalled_reader_and_an_idle_source_are_waited_for() {
    std::thread::scope(|scope| {
        for sealed in [false, true] {
            scope.spawn(move || stall(&HopOptions { sealed, ..OPTIONS }));
        }
    });
}

#[test]
fn a_silent_end_is_a_dead_one() {
    let told = |outcome: &Result<InletEnd, Error>, outlet: &Result<OutletEnd, Error>| {
        [outcome.as_ref().err(), outlet.as_ref().err()]
            .into_iter()
            .flatten()
            .any(|error| matches!(error, Error::Truncated { why, .. } if why.contains("silent for 2 s")))
    };
    let (idle, _feed) = fed();
    let zeros = std::fs::File::open("/dev/zero").expect("opened");
    let (outlet, _drain) = drained();
    let ((a, _peer_a), (b, _peer_b), (c, _peer_c)) = (hop(1), hop(1), hop(1));
    let movers = [
        Running::start(idle, vec![to_hop(a, &OPTIONS)], MoverOptions::default()),
        Running::start(
            MoverInlet::Descriptor(zeros.into()),
            vec![to_hop(b, &OPTIONS)],
            MoverOptions::default(),
        ),
        Running::start(from_hop(c, &OPTIONS), vec![outlet], MoverOptions::default()),
    ];
    for mover in movers {
        let outcome = mover.join();
        assert!(told(&outcome.inlet, &outcome.outlets[0]), "{outcome:?}");
    }
}

/// Where something else notices that an end is gone, one may be stopped for as long as its user likes; and for as
/// long as they say.
#[test]
fn an_end_may_be_silent_for_as_long_as_both_agree() {
    for silence in [None, Some(Duration::from_secs(60))] {
        let options = HopOptions { silence, ..OPTIONS };
        let (idle, _feed) = fed();
        let (outlet, _drain) = drained();
        let ((a, _peer_a), (b, _peer_b)) = (hop(1), hop(1));
        let movers = [
            Running::start(idle, vec![to_hop(a, &options)], MoverOptions::default()),
            Running::start(from_hop(b, &options), vec![outlet], MoverOptions::default()),
        ];
        std::thread::sleep(SILENCE * 3 / 2);
        for mover in movers {
            assert!(!mover.thread.is_finished(), "{silence:?}");
            mover.cancel.fire();
            let outcome = mover.join();
            assert!(matches!(outcome.inlet, Err(Error::Cancelled)), "{outcome:?}");
        }
    }
}

#[test]
fn a_sender_that_is_gone_ends_a_receiver_whose_own_reader_is_stalled() {
    for options in [MoverOptions::default(), MoverOptions { buffer_bytes: 1, ..MoverOptions::default() }] {
        let (near, far) = hop(1);
        let zeros = File::open("/dev/zero").expect("opened");
        let (outlet, drain) = drained();
        let inlet = MoverInlet::Descriptor(zeros.into());
        let sender = Running::start(inlet, vec![to_hop(near, &OPTIONS)], MoverOptions::default());
        let receiver = Running::start(from_hop(far, &OPTIONS), vec![outlet], options);
        // The pipe is full, and so is what is in front of it.
        while sender.gauge.read()[0] < 1 << 20 {
            std::thread::yield_now();
        }
        std::thread::sleep(TIMING.ping);
        sender.cancel.fire();
        sender.join();
        let outcome = receiver.join();
        assert!(matches!(outcome.inlet, Err(Error::Truncated { .. })), "{outcome:?}");
        assert!(matches!(outcome.outlets[..], [Err(Error::Cancelled)]), "{outcome:?}");
        assert_eq!(outcome.unfinished.len(), 1);
        drop(drain);
    }
}
