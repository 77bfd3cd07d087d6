//! Tests movers between threads of one process, with socket pairs for connections.

mod damage;
mod endings;

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use caravan_fabric::sim::{Faults, Faulty, World};
use caravan_fabric::{Link, shm};
use proptest::prelude::*;
use rustix::pipe::{PipeFlags, pipe_with};

use super::single::Splice;
use super::*;
use crate::connect::{DataChannel, Secret};

const BLOCK: u32 = 16 << 10;
const OPTIONS: HopOptions = HopOptions {
    digest: DigestKind::Xxh3,
    sealed: false,
    compression: None,
    block_bytes: BLOCK,
    silence: Some(SILENCE),
};
const SILENCE: Duration = Duration::from_millis(2000);
/// The durations are short enough for a test to outwait, and long enough for a busy machine not to.
const TIMING: MoverTiming = MoverTiming {
    ping: Duration::from_millis(50),
    slow: Duration::from_millis(100),
    linger: Duration::from_secs(1),
};

/// A mover in a thread of its own.
struct Running {
    cancel: Cancel,
    gauge: Arc<Gauge>,
    thread: JoinHandle<MoverOutcome>,
}

impl Running {
    fn start(inlet: MoverInlet, outlets: Vec<MoverOutlet>, options: MoverOptions) -> Self {
        let (cancel, gauge) = (Cancel::new().expect("an event"), Arc::new(Gauge::default()));
        let (theirs, counts) = (cancel.clone(), Arc::clone(&gauge));
        let thread =
            std::thread::spawn(move || run_timed(inlet, outlets, &options, &counts, &theirs, TIMING));
        Self { cancel, gauge, thread }
    }

    fn join(self) -> MoverOutcome {
        self.thread.join().expect("no panic")
    }
}

fn connection(streams: Vec<OwnedFd>) -> DataConnection {
    DataConnection {
        channel: DataChannel::Streams(streams),
        secret: Secret([3; 32]),
        description: "a test".into(),
    }
}

/// Returns both ends of a hop.
fn hop(streams: u32) -> (DataConnection, DataConnection) {
    let pairs = (0..streams).map(|_| UnixStream::pair().expect("a pair"));
    let (near, far) = pairs.map(|(near, far)| (OwnedFd::from(near), OwnedFd::from(far))).unzip();
    (connection(near), connection(far))
}

fn from_hop(connection: DataConnection, options: &HopOptions) -> MoverInlet {
    MoverInlet::Hop(Box::new(connection), options.clone())
}

fn to_hop(connection: DataConnection, options: &HopOptions) -> MoverOutlet {
    MoverOutlet::Hop(Box::new(connection), options.clone())
}

/// Returns a pipe as an inlet, and the file that feeds it.
fn fed() -> (MoverInlet, File) {
    let (from, feed) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    (MoverInlet::Descriptor(from), feed.into())
}

/// Returns a pipe as an outlet, and the file to read from.
fn drained() -> (MoverOutlet, File) {
    let (drain, to) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    (MoverOutlet::Descriptor(to), drain.into())
}

fn all_of(mut drain: impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    drain.read_to_end(&mut all).expect("read");
    all
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect()
}

/// Writes all of `data` from a thread of its own, as far as somebody reads it, and then closes.
fn feeding(mut feed: impl Write + Send + 'static, data: &[u8]) -> JoinHandle<()> {
    let data = data.to_vec();
    std::thread::spawn(move || drop(feed.write_all(&data)))
}

/// Returns the shape of a mover with one thread that sends over a hop.
fn shape(digest: DigestKind) -> MoverShape {
    MoverShape {
        block_bytes: BLOCK as usize,
        digests: vec![digest],
        digest: Some(digest),
        sends: true,
        rate: None,
    }
}

fn is_complete(outcome: &MoverOutcome) -> bool {
    let all_took_it = outcome.outlets.iter().all(|outlet| matches!(outlet, Ok(OutletEnd::Complete)));
    matches!(outcome.inlet, Ok(InletEnd::Complete)) && all_took_it && outcome.unfinished.is_empty()
}

/// Starts a mover at each end of a hop: the sender's, the receiver's.
fn movers(
    inlet: MoverInlet,
    (near, far): (DataConnection, DataConnection),
    outlet: MoverOutlet,
    options: &HopOptions,
) -> (Running, Running) {
    let sender = Running::start(inlet, vec![to_hop(near, options)], MoverOptions::default());
    (sender, Running::start(from_hop(far, options), vec![outlet], MoverOptions::default()))
}

/// Starts both with a pipe before and behind them. Returns their far ends, too.
fn piped(
    connections: (DataConnection, DataConnection),
    options: &HopOptions,
) -> (File, Running, Running, File) {
    let ((inlet, feed), (outlet, drain)) = (fed(), drained());
    let (sender, receiver) = movers(inlet, connections, outlet, options);
    (feed, sender, receiver, drain)
}

/// Sends a stream from a pipe over a hop into a pipe, fed in pieces.
fn through(
    data: &[u8],
    pieces: &[usize],
    options: &HopOptions,
    streams: u32,
) -> (Vec<u8>, MoverOutcome, MoverOutcome) {
    let (mut feed, sender, receiver, drain) = piped(hop(streams), options);
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
        let MoverFigures { bytes, wire_bytes, .. } = gauge.read();
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

/// Sends nothing for longer than an end may be silent; then reads nothing for as long.
fn stall(options: &HopOptions) {
    let (mut feed, sender, receiver, drain) = piped(hop(1), options);
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

/// If something else notices that an end is gone, its user may stop it for any time; otherwise for as long as both
/// ends have agreed.
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
        // The pipe is full, and so is everything before it.
        while sender.gauge.read().bytes < 1 << 20 {
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

const PLAIN: HopOptions = HopOptions { digest: DigestKind::Off, ..OPTIONS };

fn moved(inlet: MoverInlet, streams: u32) -> (MoverOutcome, MoverOutcome, Vec<u8>) {
    let (outlet, drain) = drained();
    let (sender, receiver) = movers(inlet, hop(streams), outlet, &PLAIN);
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
            // A file is read from its current position.
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

const RING_BYTES: u64 = 64 << 10;
const FAULTS: Faults =
    Faults { full: 5, short_poll: 5, empty_look: 5, empty_wake: 5, end_at_call: 0, unmapped: false };

fn over(link: Link) -> DataConnection {
    DataConnection {
        channel: DataChannel::Link(Box::new(link)),
        secret: Secret([5; 32]),
        description: "a test".into(),
    }
}

/// Returns both ends of a hop through mapped memory.
fn mapped() -> (DataConnection, DataConnection) {
    let arena_bytes = Link::mapped_arena_bytes(RING_BYTES).expect("a size");
    let (listener, descriptor) = shm::Listener::listen(arena_bytes).expect("a doorway");
    let near = shm::connect(&descriptor).expect("connected");
    let far = listener.accept().expect("accepted");
    let link = |end| over(Link::new(Box::new(end), RING_BYTES).expect("a link"));
    (link(near), link(far))
}

/// Returns both ends of a hop over a simulated network, and the network.
fn simulated(seed: u64, faults: Faults) -> (DataConnection, DataConnection, Arc<World>, JoinHandle<()>) {
    let arena_bytes = Link::arena_bytes(RING_BYTES).expect("a size");
    let (network, near, far) = World::pair(seed, arena_bytes, World::capabilities(seed)).expect("a network");
    let network = Arc::new(network);
    let carried = Arc::clone(&network);
    let carrier = std::thread::spawn(move || carried.carry());
    let near = Link::new(Box::new(Faulty::new(near, faults, seed)), RING_BYTES).expect("a link");
    let far = Link::new(Box::new(Faulty::new(far, FAULTS, !seed)), RING_BYTES).expect("a link");
    (over(near), over(far), network, carrier)
}

fn over_links(
    connections: (DataConnection, DataConnection),
    data: &[u8],
    options: &HopOptions,
) -> [MoverOutcome; 2] {
    let (feed, sender, receiver, drain) = piped(connections, options);
    let feeder = feeding(feed, data);
    assert!(all_of(drain) == data);
    feeder.join().expect("no panic");
    [sender.join(), receiver.join()]
}

#[test]
fn streams_arrive_through_mapped_memory() {
    for bytes in [0, 1, BLOCK as usize, 5 << 20] {
        for sealed in [false, true] {
            let options = HopOptions { sealed, ..OPTIONS };
            let outcomes = over_links(mapped(), &pattern(bytes), &options);
            assert!(outcomes.iter().all(is_complete), "{outcomes:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn streams_arrive_over_any_network(seed in any::<u64>(), bytes in 0_usize..300_000, sealed in any::<bool>()) {
        let (near, far, _network, carrier) = simulated(seed, FAULTS);
        let outcomes = over_links((near, far), &pattern(bytes), &HopOptions { sealed, ..OPTIONS });
        prop_assert!(outcomes.iter().all(is_complete), "{outcomes:?}");
        carrier.join().expect("no panic");
    }

    #[test]
    fn a_network_that_ends_cuts_the_stream_off(seed in any::<u64>(), end_at_call in 1_u64..2000) {
        let (near, far, _network, carrier) = simulated(seed, Faults { end_at_call, ..FAULTS });
        let (feed, sender, receiver, drain) = piped((near, far), &OPTIONS);
        let data = pattern(3 << 20);
        let feeder = feeding(feed, &data);
        let got = std::thread::spawn(|| all_of(drain));
        let (sent, received) = (sender.join(), receiver.join());
        let is_whole = is_complete(&received);
        drop(received);
        let got = got.join().expect("no panic");
        prop_assert!(data.starts_with(&got));
        prop_assert!(is_whole || matches!(sent.outlets[..], [Err(Error::Truncated { .. })]), "{sent:?}");
        feeder.join().expect("no panic");
        carrier.join().expect("no panic");
    }
}
