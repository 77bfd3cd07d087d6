//! Both ends of a trace, in an engine's memory without an engine.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use caravan_ring::{Cursors, SharedWord};

use super::*;
use crate::layout;
use crate::view::fake::Fake;

const NAMES: [&str; 6] =
    ["a.output -> b.input", "c.output -> b.second", "d.x -> e.x", "f.x -> g.x", "h.x -> i.x", "j.x -> k.x"];

/// An engine with links [`NAMES`].
fn fake() -> Fake {
    let fake = Fake::new(1);
    let (left, right) = (fake.worker(0, "left", 1), fake.worker(1, "right", 1));
    for (place, name) in NAMES.into_iter().enumerate() {
        fake.link(place, name, left, right);
    }
    fake.start();
    fake
}

fn link(place: usize) -> LinkId {
    LinkId::new(place).unwrap()
}

fn start(fake: &Fake, place: usize) -> Tracer {
    Tracer::start(&fake.found(), NAMES[place], 2000).unwrap()
}

fn record(tap: &mut LinkRecorder, packets: &[&[u8]]) {
    tap.record_data(packets.iter().copied(), 5);
}

fn all(tracer: &mut Tracer) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(record) = tracer.receive().unwrap() {
        all.push(record.data.to_vec());
    }
    all
}

/// Makes a process that has ended. No other process can get its number while it is not reaped.
fn dead() -> (Child, TraceClaim) {
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let claim = TraceClaim::of_process(child.id().into()).unwrap();
    drop(child.stdin.take());
    let process = caravan_segment::process::Process::open(child.id() as i32).unwrap();
    rustix::event::poll(&mut [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)], None)
        .unwrap();
    (child, claim)
}

#[test]
fn what_is_sent_comes_whole_with_its_time_and_length() {
    let fake = fake();
    let mut tap = LinkRecorder::new(&fake.shared, link(0));
    assert!(!tap.is_wanted());
    record(&mut tap, &[b"before anybody traces"]);
    let now =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let before = now();
    let mut tracer = Tracer::start(&fake.found(), "a.output->b.input", 6).unwrap();
    assert_eq!((tracer.link(), tap.is_wanted()), (NAMES[0], true));
    assert_eq!(tracer.receive().unwrap(), None);

    let monotonic = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let sent_ns = monotonic.tv_sec as u64 * 1_000_000_000 + monotonic.tv_nsec as u64;
    tap.record_data([&b"first"[..], b"", b"much longer"].into_iter(), sent_ns);
    let first = tracer.receive().unwrap().unwrap();
    assert_eq!((first.data, first.length), (&b"first"[..], 5));
    assert!((before..=now()).contains(&first.unix_ns), "{before} <= {}", first.unix_ns);
    assert_eq!(tracer.receive().unwrap().unwrap().length, 0);
    let cut = tracer.receive().unwrap().unwrap();
    assert_eq!((cut.data, cut.length), (&b"much l"[..], 11));
    assert_eq!(tracer.receive().unwrap(), None);
    assert_eq!((tracer.dropped(), tracer.tend()), (0, None));

    drop(tracer);
    assert!(!tap.is_wanted());
    record(&mut tap, &[b"after"]);
    assert_eq!(
        all(&mut start(&fake, 0)),
        Vec::<Vec<u8>>::new(),
        "what was left in the ring is not another's"
    );
}

#[test]
fn a_full_ring_drops_and_counts() {
    let fake = fake();
    let (mut tap, mut tracer) = (LinkRecorder::new(&fake.shared, link(1)), start(&fake, 1));
    let data = [7; 1500];
    for _ in 0..1000 {
        record(&mut tap, &[&data]);
    }
    let fit = crate::limits::TRACE_RING_BYTES / (1500 + HEADER_BYTES + 4);
    assert_eq!(tracer.dropped(), 1000 - fit as u64);
    let came = all(&mut tracer);
    assert!(came.len() == fit && came.iter().all(|packet| packet == &data));
    record(&mut tap, &[&data]);
    assert_eq!((all(&mut tracer).len(), tracer.dropped()), (1, 1000 - fit as u64));
}

#[test]
fn the_links_next_worker_goes_on_in_the_same_ring() {
    let fake = fake();
    let (mut tap, mut tracer) = (LinkRecorder::new(&fake.shared, link(0)), start(&fake, 0));
    record(&mut tap, &[b"one"]);
    drop(tap);
    // The worker was killed while it wrote.
    let (mut child, claim) = dead();
    fake.shared.trace(0, trace::WRITER).store(claim.pid(), Ordering::Relaxed);
    record(&mut LinkRecorder::new(&fake.shared, link(0)), &[b"two"]);
    assert_eq!(all(&mut tracer), [b"one", b"two"]);
    assert_eq!(fake.shared.trace(0, trace::WRITER).load(Ordering::Relaxed), 0);
    child.wait().unwrap();
}

#[test]
fn a_worker_that_slept_through_a_trace_finds_the_next_ones_ring() {
    let fake = fake();
    let (mut tap, mut other) =
        (LinkRecorder::new(&fake.shared, link(0)), LinkRecorder::new(&fake.shared, link(1)));
    let tracer = start(&fake, 0);
    record(&mut tap, &[b"one", b"two"]);
    drop(tracer);
    let tracer = start(&fake, 1);
    record(&mut other, &[b"three"]);
    drop(tracer);
    let mut tracer = start(&fake, 0);
    record(&mut tap, &[b"four"]);
    assert_eq!(all(&mut tracer), [b"four"]);
}

#[test]
fn a_place_has_one_tracer_and_so_has_a_link() {
    let fake = fake();
    let mut tracers: Vec<_> = (0..TRACES_MAX - 1).map(|place| start(&fake, place)).collect();
    let refused = Tracer::start(&fake.found(), NAMES[1], 1).unwrap_err().to_string();
    assert_eq!(refused, format!("{} is traced already, by process {}", NAMES[1], std::process::id()));
    tracers.push(start(&fake, TRACES_MAX - 1));
    let refused = Tracer::start(&fake.found(), NAMES[TRACES_MAX], 1).unwrap_err().to_string();
    assert!(refused.starts_with("an engine takes 4 traces at a time"), "{refused}");

    // Each link has its own trace.
    for (place, name) in NAMES.into_iter().enumerate() {
        record(&mut LinkRecorder::new(&fake.shared, link(place)), &[name.as_bytes()]);
    }
    for (place, tracer) in tracers.iter_mut().enumerate() {
        assert_eq!(all(tracer), [NAMES[place].as_bytes()]);
    }
    drop(tracers.remove(2));
    assert!(
        LinkRecorder::new(&fake.shared, link(1)).is_wanted()
            && !LinkRecorder::new(&fake.shared, link(2)).is_wanted()
    );
    start(&fake, TRACES_MAX);
}

#[test]
fn a_dead_tracers_place_is_swept_or_taken_over() {
    let fake = fake();
    let (mut child, dead) = dead();
    let mut tap = LinkRecorder::new(&fake.shared, link(1));
    let killed = || {
        let tracer = start(&fake, 1);
        fake.shared.trace(0, trace::CLAIM).store(dead.0, Ordering::Relaxed);
        // A tracer does not touch the place of another one.
        drop(tracer);
    };
    killed();
    record(&mut tap, &[b"for nobody"]);
    assert!(tap.is_wanted());
    sweep(&fake.shared);
    assert!(!tap.is_wanted());
    assert_eq!(fake.shared.trace(0, trace::CLAIM).load(Ordering::Relaxed), 0);

    killed();
    record(&mut tap, &[b"for nobody"]);
    let mut other = start(&fake, 5);
    assert!(!tap.is_wanted(), "its link is not traced any more");
    record(&mut tap, &[b"to nobody"]);
    record(&mut LinkRecorder::new(&fake.shared, link(5)), &[b"to the other"]);
    assert_eq!(all(&mut other), [b"to the other"]);
    sweep(&fake.shared);
    assert_eq!(other.tend(), None, "a tracer that lives is not swept");

    drop(other);
    killed();
    let mut successor = start(&fake, 1);
    record(&mut tap, &[b"to the successor"]);
    assert_eq!(all(&mut successor), [b"to the successor"]);
    child.wait().unwrap();
}

#[test]
fn a_place_somebody_writes_to_is_not_given_away() {
    let fake = fake();
    // This process does not stop writing when the trace ends.
    fake.shared.trace(0, trace::WRITER).store(std::process::id().into(), Ordering::Relaxed);
    let _tracer = start(&fake, 0);
    assert_eq!(fake.shared.link(link(0), layout::link::TRACE).load(Ordering::Relaxed), 2);
    assert_eq!(fake.shared.trace(0, trace::CLAIM).load(Ordering::Relaxed), 0);

    let (mut child, dead) = dead();
    fake.shared.trace(0, trace::WRITER).store(dead.pid(), Ordering::Relaxed);
    let _tracer = start(&fake, 1);
    assert_eq!(fake.shared.link(link(1), layout::link::TRACE).load(Ordering::Relaxed), 1);
    child.wait().unwrap();
}

#[test]
fn a_broken_tracer_goes_without_and_so_does_one_of_a_broken_engine() {
    let fake = fake();
    let (mut tap, mut tracer) = (LinkRecorder::new(&fake.shared, link(0)), start(&fake, 0));
    record(&mut tap, &[b"one"]);
    let (cursors, bytes) = fake.shared.trace_ring(0).unwrap();
    SharedWord::store(cursors.head_position(), 1 << 60, Ordering::Relaxed);
    let data = [0; 2000];
    for _ in 0..1000 {
        record(&mut tap, &[&data]);
    }
    assert!(!tap.is_wanted(), "the worker has ended it");
    drop(tracer);

    for (tail, length) in [(1 << 60, 100), (40, 100), (40, 5), (40, u32::MAX)] {
        tracer = start(&fake, 0);
        caravan_ring::RingBytes::copy_in(&bytes, 0, &caravan_ring::record::prefix(length));
        SharedWord::store(cursors.tail_position(), tail, Ordering::Release);
        let broken = tracer.receive().unwrap_err().to_string();
        assert!(broken.starts_with("what the engine wrote"), "{broken}");
        drop(tracer);
    }
}

#[test]
fn a_trace_ends_with_its_link_or_its_engine() {
    let fake = fake();
    let state = fake.shared.link(link(0), layout::link::STATE);
    let mut tracer = start(&fake, 0);
    state.store(0, Ordering::Relaxed);
    assert_eq!(tracer.tend(), Some(TraceEnd::Link));
    fake.shared.link(link(0), layout::link::TRACE).store(0, Ordering::Relaxed);
    state.store(2, Ordering::Relaxed);
    assert_eq!(tracer.tend(), None, "it is back, and goes on");
    assert!(LinkRecorder::new(&fake.shared, link(0)).is_wanted());
    fake.shared.write_name(layout::link_at(link(0)) + layout::link::NAME, 64, "other.x -> b.input");
    assert_eq!(tracer.tend(), Some(TraceEnd::Link));
    fake.shared.trace(0, trace::CLAIM).store(0, Ordering::Relaxed);
    assert_eq!(tracer.tend(), Some(TraceEnd::Taken));

    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let engine = crate::view::FoundEngine { pid: child.id() as i32, ..fake.found() };
    let mut tracer = Tracer::start(&engine, NAMES[1], 1).unwrap();
    assert_eq!(tracer.tend(), None);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(tracer.tend(), Some(TraceEnd::Engine));
}

#[test]
fn a_link_is_named_whole_or_by_an_end_that_tells_which() {
    let fake = fake();
    let name = |wanted| Tracer::start(&fake.found(), wanted, 1).map(|tracer| tracer.link().to_owned());
    for wanted in ["a.output -> b.input", " a.output->b.input ", "a.output", "b.input"] {
        assert_eq!(name(wanted).unwrap(), NAMES[0], "{wanted}");
    }
    fake.link(
        9,
        "a.output -> z.input",
        crate::owner::WorkerId::new(0).unwrap(),
        crate::owner::WorkerId::new(1).unwrap(),
    );
    let refused = name("a.output").unwrap_err().to_string();
    assert!(
        refused.contains("does not name one link") && refused.contains("\n  'a.output -> z.input'"),
        "{refused}"
    );
    assert!(name("nonsense").is_err());
}

#[test]
fn who_is_late_does_not_touch_the_ring_of_another_link() {
    let fake = fake();
    let mut tracer = start(&fake, 0);
    let mut tap = LinkRecorder::new(&fake.shared, link(0));
    let writer = fake.shared.trace(0, trace::WRITER);
    let (mut child, dead) = dead();
    let ours = std::process::id().into();
    for (theirs, after, records) in [(ours, ours, 0), (dead.pid(), 0, 1), (0, 0, 1)] {
        writer.store(theirs, Ordering::Relaxed);
        record(&mut tap, &[&[0; 60]]);
        assert_eq!((writer.load(Ordering::Relaxed), all(&mut tracer).len()), (after, records), "{theirs}");
    }
    child.wait().unwrap();
}

/// Tracers come and go while two workers send: every record is whole and from the right link.
#[test]
fn no_record_is_torn_whoever_traces() {
    const ROUNDS: usize = 100;
    const RECORDS: usize = 300;
    /// Ends the workers, even if the test fails.
    struct Stop(Arc<AtomicBool>);
    impl std::ops::Drop for Stop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let fake = fake();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = Stop(Arc::clone(&stop));
        for place in 0..2 {
            let (shared, stop) = (fake.shared.clone(), Arc::clone(&stop));
            scope.spawn(move || {
                let mut tap = LinkRecorder::new(&shared, link(place));
                let packets = [[place as u8; 60], [place as u8 + 10; 60]];
                while !stop.load(Ordering::Relaxed) {
                    tap.record_data(packets.iter().map(|packet| &packet[..]), 5);
                }
            });
        }
        for round in 0..ROUNDS {
            let place = round % 2;
            let mut tracer = start(&fake, place);
            let mut came = 0;
            while came < RECORDS {
                let Some(record) = tracer.receive().unwrap() else {
                    std::thread::yield_now();
                    continue;
                };
                let first = record.data[0];
                assert!(record.data == [first; 60] && usize::from(first % 10) == place, "{:?}", record.data);
                came += 1;
            }
        }
    });
}
