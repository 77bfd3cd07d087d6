//! Peers that lie: in the hand-over, in the shared memory, in operations, in the stream.
//!
//! The same functions run under cargo-fuzz: see `fuzz/`.
#![forbid(unsafe_code)]

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use caravan_fabric::contract::{Endpoint, Local, Operation};
use caravan_fabric::shm::{self, Listener};
use caravan_fabric::sim::Random;
use caravan_fabric::{Error, LOANS_MAX, Link, RING_BYTES_MIN, Region, RegionAccess, RegionToken};
use caravan_segment::passing::{self, DoorwayAddress};
use caravan_segment::{Pages, Segment};
use common::hostile;
use common::pair::shm_ends;
use proptest::prelude::*;
use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, SealFlags};

const ARENA_BYTES: u64 = 4096;
/// The number of bytes of both arenas, both rings of immediates, and a bit for each loan of either side.
const SEGMENT_BYTES: u64 = 2 * (ARENA_BYTES + 512 + 4 * shm::QUEUE_DEPTH as u64 + LOANS_MAX as u64 / 8);
const MAGIC: &[u8] = b"caravan\x03";
/// The first bytes of a hand-over message: the magic, and a choice of symmetric fences.
const HELLO: &[u8] = b"caravan\x03\x00";
/// The offset of the arena's size in a descriptor; the address of the doorway is last.
const SIZE_AT: usize = 9;
const ADDRESS_AT: usize = 17;

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn tether() -> OwnedFd {
    UnixStream::pair().unwrap().0.into()
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file =
        rustix::fs::memfd_create("caravan-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

fn sealed(bytes: u64) -> OwnedFd {
    memfd(bytes, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// Returns the result of a listener for a hand-over that its peer made up.
fn hand_over(payload: &[u8], descriptors: &[&OwnedFd]) -> Result<(), Error> {
    let (listener, descriptor) = Listener::listen(ARENA_BYTES).unwrap();
    let address = DoorwayAddress::from_bytes(&descriptor[ADDRESS_AT..]).unwrap();
    let borrowed: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
    passing::send(&address, payload, &borrowed).unwrap();
    listener.accept().map(drop)
}

#[test]
fn a_correct_hand_over_made_by_hand_is_taken() {
    let early = eventfd();
    rustix::io::write(&early, &1u64.to_ne_bytes()).unwrap();
    hand_over(HELLO, &[&sealed(SEGMENT_BYTES), &eventfd(), &early, &tether()]).unwrap();
    // The bell was rung before the hand-over, and still is.
    let mut count = [0; 8];
    rustix::io::read(&early, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
}

#[test]
fn hand_overs_with_wrong_descriptors_are_refused() {
    let good = sealed(SEGMENT_BYTES);
    let (bell, tether) = (eventfd(), tether());
    let (pipe, pipe_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    let blocking = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let one_at_a_time =
        rustix::event::eventfd(5, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE);
    let one_at_a_time = one_at_a_time.unwrap();
    let file = OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
    let unsealed = memfd(SEGMENT_BYTES, SealFlags::empty());
    let may_shrink = memfd(SEGMENT_BYTES, SealFlags::GROW | SealFlags::SEAL);
    let may_be_sealed = memfd(SEGMENT_BYTES, SealFlags::SHRINK | SealFlags::GROW);
    let read_only =
        memfd(SEGMENT_BYTES, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::FUTURE_WRITE);
    let short = sealed(SEGMENT_BYTES - 8);
    let long = sealed(SEGMENT_BYTES + 4096);
    let cases: &[(&str, &[u8], &[&OwnedFd])] = &[
        ("no descriptors", HELLO, &[]),
        ("too few", HELLO, &[&good, &bell, &bell]),
        ("too many", HELLO, &[&good, &bell, &bell, &tether, &tether]),
        ("another version", b"caravan\x09\x00", &[&good, &bell, &bell, &tether]),
        ("no version", b"", &[&good, &bell, &bell, &tether]),
        ("no fences", MAGIC, &[&good, &bell, &bell, &tether]),
        ("unheard-of fences", b"caravan\x03\x02", &[&good, &bell, &bell, &tether]),
        ("a longer message", b"caravan\x03\x00 and more", &[&good, &bell, &bell, &tether]),
        ("a pipe as bell", HELLO, &[&good, &pipe, &bell, &tether]),
        ("a pipe's end as bell", HELLO, &[&good, &bell, &pipe_end, &tether]),
        ("a blocking bell", HELLO, &[&good, &bell, &blocking, &tether]),
        ("a semaphore as bell", HELLO, &[&good, &bell, &one_at_a_time, &tether]),
        ("memory as bell", HELLO, &[&good, &good, &bell, &tether]),
        ("a bell as memory", HELLO, &[&bell, &bell, &bell, &tether]),
        ("a pipe as tether", HELLO, &[&good, &bell, &bell, &pipe]),
        ("memory as tether", HELLO, &[&good, &bell, &bell, &good]),
        ("a device as memory", HELLO, &[&file, &bell, &bell, &tether]),
        ("a pipe as memory", HELLO, &[&pipe, &bell, &bell, &tether]),
        ("no seals", HELLO, &[&unsealed, &bell, &bell, &tether]),
        ("no seal against shrinking", HELLO, &[&may_shrink, &bell, &bell, &tether]),
        ("no seal against seals", HELLO, &[&may_be_sealed, &bell, &bell, &tether]),
        ("a seal against writing", HELLO, &[&read_only, &bell, &bell, &tether]),
        ("too short", HELLO, &[&short, &bell, &bell, &tether]),
        ("too long", HELLO, &[&long, &bell, &bell, &tether]),
    ];
    for (what, payload, descriptors) in cases {
        let error = hand_over(payload, descriptors).expect_err(what);
        assert!(matches!(error, Error::Protocol(..) | Error::Segment(_)), "{what}: {error}");
    }
}

/// A peer that sends a wrong thing through the tether in place of a region's memory.
#[test]
fn wrong_loans_are_refused() {
    const REGION_BYTES: u64 = 8192;
    let (mut owner, _peer) = shm_ends(ARENA_BYTES);
    let region = Region::create("caravan-test", REGION_BYTES).unwrap();
    // The first two tokens that any endpoint lends.
    let token = owner.lend(&region, RegionAccess::Read).unwrap();
    let for_writing = owner.lend(&region, RegionAccess::Write).unwrap();
    let (good, device) = (sealed(REGION_BYTES), OwnedFd::from(std::fs::File::open("/dev/zero").unwrap()));
    let no_seals = memfd(REGION_BYTES, SealFlags::empty());
    let readable = region.memory().segment().read_only_descriptor().unwrap();
    let (small, other) = (sealed(REGION_BYTES - 8), for_writing.to_bytes());
    let token_bytes = token.to_bytes();
    let cases: &[(&str, RegionToken, &[u8], &[&OwnedFd])] = &[
        ("nothing", token, b"", &[]),
        ("no descriptor", token, &token_bytes, &[]),
        ("no token", token, b"what is this?", &[&good]),
        ("half a token", token, &token_bytes[..9], &[&good]),
        ("another token", token, &other, &[&good]),
        ("a device", token, &token_bytes, &[&device]),
        ("memory that may shrink", token, &token_bytes, &[&no_seals]),
        ("memory that is too small", token, &token_bytes, &[&small]),
        ("memory for reading, lent for writing", for_writing, &other, &[&readable]),
    ];
    for (what, token, bytes, descriptors) in cases {
        let (listener, descriptor) = Listener::listen(ARENA_BYTES).unwrap();
        let address = DoorwayAddress::from_bytes(&descriptor[ADDRESS_AT..]).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let [memory, bell] = [sealed(SEGMENT_BYTES), eventfd()];
        let handed = [memory.as_fd(), bell.as_fd(), bell.as_fd(), theirs.as_fd()];
        passing::send(&address, HELLO, &handed).unwrap();
        let mut victim = listener.accept().unwrap();
        if !bytes.is_empty() {
            let descriptors: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
            send_through(&ours, bytes, &descriptors);
        }
        let error = victim.borrow(token).expect_err(what);
        assert!(matches!(error, Error::Protocol(..) | Error::Segment(_)), "{what}: {error}");
        let read = Operation::Read {
            from: token.number().place(0),
            into: Local { offset: 0, bytes: 8 },
            context: 0,
        };
        assert!(matches!(victim.post(read), Err(Error::NoRegion { .. })), "{what}");
    }
}

fn send_through(socket: &UnixStream, bytes: &[u8], descriptors: &[std::os::fd::BorrowedFd<'_>]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let parts = [std::io::IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::empty()).unwrap();
}

#[test]
fn descriptors_with_wrong_bytes_are_refused() {
    let (listener, descriptor) = Listener::listen(ARENA_BYTES).unwrap();
    assert_eq!(shm::offered_arena_bytes(&descriptor).unwrap(), ARENA_BYTES);
    for length in 0..descriptor.len() {
        assert!(shm::connect(&descriptor[..length]).is_err(), "its first {length} bytes");
    }
    assert!(shm::connect(&[&descriptor[..], b"x"].concat()).is_err());
    for at in 0..8 {
        let mut changed = descriptor.clone();
        changed[at] ^= 1;
        assert!(matches!(shm::connect(&changed), Err(Error::Protocol(..))), "byte {at} of the magic");
    }
    let mut unheard_of = descriptor.clone();
    unheard_of[8] = 2;
    assert!(matches!(shm::connect(&unheard_of), Err(Error::Protocol(..))), "fences of another kind");
    for bytes in [0, 7, 4097, (1 << 40) + 8, u64::MAX] {
        let changed = [&descriptor[..SIZE_AT], &bytes.to_le_bytes(), &descriptor[ADDRESS_AT..]].concat();
        assert!(matches!(shm::connect(&changed), Err(Error::Protocol(..))), "an arena of {bytes}");
    }
    let mut elsewhere = descriptor.clone();
    elsewhere[ADDRESS_AT] ^= 1;
    assert!(matches!(shm::connect(&elsewhere), Err(Error::Segment(caravan_segment::Error::Unreachable))));
    // First a peer with the name and without the nonce; then one with another size.
    let mut stranger = descriptor.clone();
    stranger[ADDRESS_AT + 16] ^= 1;
    let _strange = shm::connect(&stranger).unwrap();
    let larger =
        [&descriptor[..SIZE_AT], &(2 * ARENA_BYTES).to_le_bytes(), &descriptor[ADDRESS_AT..]].concat();
    let _larger = shm::connect(&larger).unwrap();
    let error = listener.accept().unwrap_err();
    assert!(matches!(error, Error::Segment(caravan_segment::Error::Foreign(_))), "{error}");
}

/// A peer scribbles in another thread while its victim works.
#[test]
fn a_racing_scribbler_is_named() {
    for seed in 0..60 {
        let (victim, attacker) = shm_ends(Link::mapped_arena_bytes(RING_BYTES_MIN).unwrap());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random::new(seed);
                let words = attacker.peer_arena().unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let at = [0, 128, 256, 384][random.below(4) as usize];
                    let bits = random.below(40);
                    words.word(at).store(random.below(1 << bits), Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
            let mut input = vec![0; 4000];
            let mut random = Random::new(!seed);
            input.iter_mut().for_each(|byte| *byte = random.below(160) as u8);
            hostile::work(Box::new(victim), &input);
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// Returns random inputs as a fuzzer would make them, the same in every run.
fn inputs(count: u64, length: u64) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(move |seed| {
        let mut random = Random::new(seed);
        (0..random.below(length)).map(|_| random.number() as u8).collect()
    })
}

#[test]
fn scribbling_over_mapped_memory_is_named() {
    inputs(2000, 1000).for_each(|input| hostile::through_mapped_memory(&input));
}

#[test]
fn hostile_operations_are_named() {
    inputs(2000, 1000).for_each(|input| hostile::through_operations(&input));
}

#[test]
fn the_memory_of_the_other_side_cannot_be_taken_away() {
    let (listener, descriptor) = Listener::listen(ARENA_BYTES).unwrap();
    let ours = shm::connect(&descriptor).unwrap();
    let theirs = listener.accept().unwrap();
    let file = ours.arena().segment().as_fd();
    assert!(rustix::fs::ftruncate(file, 0).is_err());
    drop(ours);
    theirs.peer_arena().unwrap().word(0).store(1, Ordering::Relaxed);
    assert!(Segment::create("caravan-test", 4096, Pages::Small).is_ok());
}

fn cases() -> ProptestConfig {
    ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }
}

/// Returns streams of plausible records, some of which are malformed.
fn records() -> impl Strategy<Value = Vec<u8>> {
    let record = prop_oneof![
        8 => (0..300u32).prop_map(|length| (length, length)),
        2 => (0..hostile::RECORD_BYTES_MAX).prop_map(|length| (length, length)),
        1 => (any::<u32>(), 0..50u32),
    ];
    prop::collection::vec(record, 0..20).prop_map(|records| {
        records
            .into_iter()
            .flat_map(|(says, has)| says.to_le_bytes().into_iter().chain((0..has).map(|at| at as u8)))
            .collect()
    })
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn any_scribbling(input in prop::collection::vec(any::<u8>(), 0..400)) {
        hostile::through_mapped_memory(&input);
    }

    #[test]
    fn any_operations(input in prop::collection::vec(any::<u8>(), 0..400)) {
        hostile::through_operations(&input);
    }

    #[test]
    fn any_records(input in records()) {
        hostile::as_records(&input);
    }

    #[test]
    fn any_stream(input in prop::collection::vec(any::<u8>(), 0..400)) {
        hostile::as_records(&input);
    }

    #[test]
    fn any_descriptor(input in prop::collection::vec(any::<u8>(), 0..64), size in any::<u64>()) {
        hostile::as_descriptor(&input);
        hostile::as_descriptor(&[MAGIC, &input].concat());
        hostile::as_descriptor(&[HELLO, &size.to_le_bytes(), &[7; 32]].concat());
    }
}
