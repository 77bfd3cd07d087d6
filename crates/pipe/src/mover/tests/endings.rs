//! Tests streams that end early, and several outlets that end differently.

use std::fs::File;
use std::sync::Mutex;
use std::time::Instant;

use super::*;

#[test]
fn a_reader_that_has_seen_enough_stops_even_an_idle_source() {
    for (connections, sealed) in [(hop(2), false), (hop(2), true), (mapped(), false)] {
        let options = HopOptions { sealed, ..OPTIONS };
        let (mut feed, sender, receiver, mut drain) = piped(connections, &options);
        feed.write_all(b"y\n").expect("written");
        drain.read_exact(&mut [0; 2]).expect("read");
        // Both are silent for as long as an end may be.
        std::thread::sleep(SILENCE * 3 / 2);
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
    for (connections, options) in [(hop(2), &OPTIONS), (hop(1), &PLAIN), (mapped(), &OPTIONS)] {
        let (feed, sender, receiver, mut drain) = piped(connections, options);
        let fed = feeding(feed, &pattern(20 << 20));
        drain.read_exact(&mut [0; 70_000]).expect("read");
        drop(drain);
        for outcome in [sender.join(), receiver.join()] {
            assert!(matches!(outcome.inlet, Ok(InletEnd::Unread)), "{outcome:?}");
            assert!(matches!(outcome.outlets[..], [Ok(OutletEnd::Stopped)]), "{outcome:?}");
        }
        fed.join().expect("the source's pipe is closed");
    }
}

#[test]
fn a_full_disk_is_told_to_both_sides() {
    let (inlet, feed) = fed();
    let full = File::options().write(true).open("/dev/full").expect("opened");
    let options = HopOptions { sealed: true, ..OPTIONS };
    let (sender, receiver) = movers(inlet, hop(2), MoverOutlet::Descriptor(full.into()), &options);
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
    let folder = MoverInlet::Descriptor(File::open("/proc").expect("opened").into());
    let (sender, receiver) = movers(folder, hop(2), outlet, &OPTIONS);
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
    let (link, _link_peer) = mapped();
    let (spliced, _spliced_peer) = hop(1);
    let (piped, feed) = fed();
    let feeding = feeding(feed, &pattern(8 << 20));
    let null = || MoverOutlet::Descriptor(File::create("/dev/null").expect("opened").into());
    let buffered = MoverOptions { buffer_bytes: 1 << 20, ..MoverOptions::default() };
    let slow = MoverOptions { rate: Some(1), ..MoverOptions::default() };
    let (a, b, c) = (full_pipe(), full_pipe(), full_pipe());
    let movers = [
        Running::start(idle, vec![null()], MoverOptions::default()),
        Running::start(busy(), vec![a.0], MoverOptions::default()),
        Running::start(busy(), vec![b.0, null()], buffered),
        Running::start(busy(), vec![to_hop(near, &OPTIONS)], MoverOptions::default()),
        Running::start(busy(), vec![to_hop(link, &OPTIONS)], MoverOptions::default()),
        Running::start(piped, vec![to_hop(spliced, &PLAIN)], MoverOptions::default()),
        Running::start(busy(), vec![null()], slow),
        Running::start(busy(), vec![null()], MoverOptions::default()),
        Running::start(from_hop(far, &OPTIONS), vec![c.0], MoverOptions::default()),
        Running::start(from_hop(idle_hop, &OPTIONS), vec![null(), null()], buffered),
    ];
    // Most of them wait by now; those that do not yet wait must end as well.
    std::thread::sleep(Duration::from_millis(50));
    for (at, mover) in movers.into_iter().enumerate() {
        let since = Instant::now();
        mover.cancel.fire();
        let outcome = mover.join();
        assert!(since.elapsed() < Duration::from_secs(20), "mover {at} took {:?}", since.elapsed());
        assert!(matches!(outcome.inlet, Err(Error::Cancelled)), "mover {at}: {outcome:?}");
        assert!(outcome.outlets.iter().all(|outlet| matches!(outlet, Err(Error::Cancelled))));
    }
    feeding.join().expect("its pipe is closed");
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

#[test]
fn each_outlet_gets_the_whole_stream_down_a_chain() {
    let data = pattern(3 << 20);
    for (buffer_bytes, (near, far), (next, last)) in
        [(0, hop(1), hop(2)), (1 << 20, hop(1), hop(2)), (0, mapped(), mapped())]
    {
        let sealed = HopOptions { sealed: true, block_bytes: 5000, digest: DigestKind::Sha256, ..OPTIONS };
        let (inlet, feed) = fed();
        let ((outlet_a, drain_a), (outlet_b, drain_b)) = (drained(), drained());
        let options = MoverOptions { buffer_bytes, ..MoverOptions::default() };
        let first = Running::start(inlet, vec![to_hop(near, &OPTIONS)], options);
        let middle = Running::start(from_hop(far, &OPTIONS), vec![outlet_a, to_hop(next, &sealed)], options);
        let end = Running::start(from_hop(last, &sealed), vec![outlet_b], options);
        let feeder = feeding(feed, &data);
        let got = [drain_a, drain_b].map(|drain| std::thread::spawn(|| all_of(drain)));
        assert!(got.into_iter().all(|got| got.join().expect("no panic") == data));
        let outcomes = [first.join(), middle.join(), end.join()];
        assert!(outcomes.iter().all(is_complete), "{outcomes:?}");
        assert_eq!(outcomes[0].digest, outcomes[1].digest);
        feeder.join().expect("no panic");
    }
}

#[test]
fn an_outlet_in_the_way_is_waited_for_or_cut_off() {
    for on_slow in [SlowOutlet::Wait, SlowOutlet::Drop] {
        let data = pattern(10 << 20);
        let (inlet, feed) = fed();
        let ((slow, slow_drain), (fast, fast_drain)) = (drained(), drained());
        let options = MoverOptions { on_slow, ..MoverOptions::default() };
        let mover = Running::start(inlet, vec![slow, fast], options);
        let feeder = feeding(feed, &data);
        let (told, hear) = std::sync::mpsc::channel();
        let expected = data.clone();
        let fast = std::thread::spawn(move || {
            assert!(all_of(fast_drain) == expected);
            told.send(()).expect("heard");
        });
        // Nobody reads the slow outlet.
        let patience = if on_slow == SlowOutlet::Wait { TIMING.slow * 3 } else { Duration::from_secs(10) };
        let dropped = hear.recv_timeout(patience).is_ok();
        assert_eq!(dropped, on_slow == SlowOutlet::Drop);
        if on_slow == SlowOutlet::Wait {
            assert!(all_of(slow_drain) == data);
        }
        let outcome = mover.join();
        fast.join().expect("no panic");
        feeder.join().expect("no panic");
        match on_slow {
            SlowOutlet::Wait => assert!(is_complete(&outcome), "{outcome:?}"),
            SlowOutlet::Drop => {
                let ended = matches!(
                    &outcome.outlets[..],
                    [Err(Error::Truncated { why, .. }), Ok(OutletEnd::Complete)] if why.contains("held up")
                );
                assert!(ended && matches!(outcome.inlet, Ok(InletEnd::Complete)), "{outcome:?}");
                assert_eq!(outcome.unfinished.len(), 1);
            }
        }
    }
}

#[test]
fn a_dead_outlet_ends_all_or_itself_alone() {
    for on_dead in [DeadOutlet::Fail, DeadOutlet::Continue] {
        let data = pattern(5 << 20);
        let (near, far) = hop(1);
        let (inlet, feed) = fed();
        let (outlet, drain) = drained();
        let full = File::options().write(true).open("/dev/full").expect("opened");
        let options = MoverOptions { on_dead, ..MoverOptions::default() };
        let outlets = vec![MoverOutlet::Descriptor(full.into()), to_hop(near, &OPTIONS)];
        let mover = Running::start(inlet, outlets, options);
        let receiver = Running::start(from_hop(far, &OPTIONS), vec![outlet], MoverOptions::default());
        let feeder = feeding(feed, &data);
        let got = std::thread::spawn(|| all_of(drain));
        let (outcome, received) = (mover.join(), receiver.join());
        let is_whole = is_complete(&received);
        let told = matches!(&received.inlet, Err(Error::Told(why)) if why.contains("No space left"));
        drop(received);
        feeder.join().expect("no panic");
        let got = got.join().expect("no panic");
        assert!(matches!(outcome.outlets[0], Err(Error::File { .. })), "{outcome:?}");
        match on_dead {
            DeadOutlet::Fail => {
                assert!(told && matches!(outcome.inlet, Err(Error::Cancelled)), "{outcome:?}");
                assert!(matches!(outcome.outlets[1], Err(Error::Cancelled)));
            }
            DeadOutlet::Continue => {
                assert!(is_whole && got == data);
                assert!(matches!(outcome.inlet, Ok(InletEnd::Complete)), "{outcome:?}");
                assert!(matches!(outcome.outlets[1], Ok(OutletEnd::Complete)));
            }
        }
    }
}

#[test]
fn when_all_have_seen_enough_nobody_reads_on() {
    let (inlet, mut feed) = fed();
    let ((a, drain_a), (b, mut drain_b)) = (drained(), drained());
    let mover = Running::start(inlet, vec![a, b], MoverOptions::default());
    drop(drain_a);
    feed.write_all(b"still read").expect("written");
    drain_b.read_exact(&mut [0; 10]).expect("the other gets all of it");
    drop(drain_b);
    let outcome = mover.join();
    assert!(matches!(outcome.inlet, Ok(InletEnd::Unread)), "{outcome:?}");
    assert!(matches!(outcome.outlets[..], [Ok(OutletEnd::Stopped), Ok(OutletEnd::Stopped)]));
}

#[test]
fn a_buffer_takes_in_what_nobody_reads_yet() {
    let data = pattern(6 << 20);
    let (inlet, mut feed) = fed();
    let (outlet, drain) = drained();
    let options = MoverOptions { buffer_bytes: 8 << 20, ..MoverOptions::default() };
    let mover = Running::start(inlet, vec![outlet], options);
    // Without a buffer, this write would block.
    feed.write_all(&data).expect("written");
    drop(feed);
    assert!(all_of(drain) == data);
    assert!(is_complete(&mover.join()));
}

#[test]
fn small_pieces_among_large_ones_take_no_more_of_a_buffer_than_they_need() {
    let (near, far) = hop(2);
    let (inlet, mut feed) = fed();
    let (outlet, drain) = drained();
    let options = MoverOptions { buffer_bytes: 1 << 20, ..MoverOptions::default() };
    let sender = Running::start(inlet, vec![to_hop(near, &OPTIONS)], options);
    let receiver = Running::start(from_hop(far, &OPTIONS), vec![outlet], options);
    let data = pattern(2 << 20);
    let drain = std::thread::spawn(|| all_of(drain));
    let (small, large) = data.split_at(1 << 20);
    for piece in small.chunks(700).chain([large]) {
        feed.write_all(piece).expect("written");
    }
    drop(feed);
    assert!(drain.join().expect("no panic") == data);
    assert!(is_complete(&sender.join()) && is_complete(&receiver.join()));
}

#[test]
fn a_hop_in_the_way_is_cut_off_and_a_dead_one_left_behind() {
    let ((slow, _stalled), (dead, gone), (near, far)) = (hop(1), hop(1), hop(1));
    drop(gone);
    let (inlet, feed) = fed();
    let (outlet, drain) = drained();
    let options =
        MoverOptions { on_slow: SlowOutlet::Drop, on_dead: DeadOutlet::Continue, ..MoverOptions::default() };
    let outlets = [slow, dead, near].map(|connection| to_hop(connection, &OPTIONS));
    let mover = Running::start(inlet, outlets.into(), options);
    let receiver = Running::start(from_hop(far, &OPTIONS), vec![outlet], MoverOptions::default());
    let data = pattern(5 << 20);
    let feeder = feeding(feed, &data);
    assert!(all_of(drain) == data);
    let (outcome, received) = (mover.join(), receiver.join());
    assert!(is_complete(&received) && matches!(outcome.inlet, Ok(InletEnd::Complete)), "{outcome:?}");
    let ended = matches!(
        &outcome.outlets[..],
        [Err(Error::Truncated { .. }), Err(Error::Truncated { .. }), Ok(OutletEnd::Complete)]
    );
    assert!(ended, "{outcome:?}");
    feeder.join().expect("no panic");
}

#[test]
fn lines_stay_whole_behind_their_prefixes() {
    let scratch = std::env::temp_dir().join(format!("caravan-lines-{}", std::process::id()));
    let to = Arc::new(Mutex::new(File::create(&scratch).expect("created")));
    let movers: Vec<_> = ["a: ", "b: "]
        .into_iter()
        .map(|prefix| {
            let (inlet, mut feed) = fed();
            let outlet = MoverOutlet::Lines { prefix: prefix.into(), to: Arc::clone(&to) };
            let mover = Running::start(inlet, vec![outlet], MoverOptions::default());
            for piece in
                [&b"on"[..], b"e\n\ntw", b"o\n", &[b'x'; crate::limits::LINE_BYTES_MAX + 3], b"\nend"]
            {
                feed.write_all(piece).expect("written");
            }
            mover
        })
        .collect();
    for mover in movers {
        assert!(is_complete(&mover.join()));
    }
    let text = std::fs::read_to_string(&scratch).expect("read");
    std::fs::remove_file(scratch).expect("removed");
    for prefix in ["a: ", "b: "] {
        let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(prefix)).collect();
        let long = "x".repeat(crate::limits::LINE_BYTES_MAX);
        assert_eq!(lines, ["one", "", "two", &long, "xxx", "end"]);
    }
    assert!(text.ends_with('\n'));
}
