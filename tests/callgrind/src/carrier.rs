//! Probes of the paths that every message takes, from the emulator into the ring and out of it.

use std::hint::black_box;
use std::ops::Range;

use caravan_driver::connection::{Connection, Next};
use caravan_driver::counters;
use caravan_driver::emulator::{Binary, Emulator};
use caravan_driver::seal::{KeyExchange, KeyRole, NodeNames, Sealing};
use caravan_fabric::contract::Armed;
use caravan_fabric::{Link, SpinMode, shm};

use crate::unmapped::Unmapped;

const RING_BYTES: u64 = 64 << 10;
/// A record of the ring's probes.
const RECORD: [u8; 64] = [7; 64];
/// A distribution message in the two parts that the emulator gives: header and payload.
const HEADER: [u8; 24] = [131; 24];
const PAYLOAD: [u8; 200] = [9; 200];
const NOW: u64 = 1_000_000;

/// Binaries that are used again, so that the allocator is not counted.
struct CountedBinary(Vec<u8>);

impl Binary for CountedBinary {
    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.0[range]
    }
    fn length(&self) -> usize {
        self.0.len()
    }
    fn resized(mut self, bytes: usize) -> Option<Self> {
        self.0.resize(bytes, 0);
        Some(self)
    }
}

/// An emulator that counts delivered messages. Its queue stays empty: the ring has room. Each kind of link has
/// a type of its own, because a second caller of the same code would change how it is compiled.
#[derive(Default)]
struct Counting<const KIND: u8> {
    delivered: usize,
}

impl<const KIND: u8> Emulator for Counting<KIND> {
    type Binary = CountedBinary;
    fn allocate(&mut self, bytes: usize) -> Option<CountedBinary> {
        Some(CountedBinary(vec![0; bytes]))
    }
    fn deliver(&mut self, binary: &CountedBinary, offset: usize, length: usize) {
        self.delivered += black_box(&binary.0[offset..offset + length]).len();
    }
    fn queued_bytes(&self) -> usize {
        0
    }
    fn enqueue(&mut self, _: &[u8]) {
        unreachable!("the ring has room");
    }
    fn enqueue_output(&mut self, _: usize) {
        unreachable!("the ring has room");
    }
    fn peek_queue(&self, _: &mut dyn FnMut(&[u8]) -> bool) {}
    fn dequeue(&mut self, _: usize) {}
    fn set_busy(&mut self, _: bool) {}
}

type Plain = Counting<0>;
type Sealed = Counting<1>;
/// A link as over RDMA, but without a device: with copies, immediates and credits instead of mapped memory.
type Staged = Counting<2>;

/// The two ends of a link, and a connection at each end of another link, of one that is sealed, and of one whose
/// peer's memory is not mapped.
struct CallgrindWorld {
    here: Link,
    there: Link,
    sending: Connection<Plain>,
    receiving: Connection<Plain>,
    emulator: Plain,
    sealing: Connection<Sealed>,
    opening: Connection<Sealed>,
    sealed_emulator: Sealed,
    staging: Connection<Staged>,
    unstaging: Connection<Staged>,
    staged_emulator: Staged,
}

fn staged_links() -> Result<(Link, Link), caravan_fabric::Error> {
    let (connecting, accepting) = shm::pair(Link::arena_bytes(RING_BYTES)?)?;
    let [a, b] = [connecting, accepting].map(|end| Box::new(Unmapped(end)));
    Ok((Link::new(a, RING_BYTES)?, Link::new(b, RING_BYTES)?))
}

fn connection<E: Emulator>(link: Link, name: &str) -> Connection<E> {
    let row = counters::row(name, "peer").expect("a row of counters");
    let mut connection = Connection::new(link, row, SpinMode::Off, 1 << 20);
    connection.start();
    connection
}

fn keys() -> [Sealing; 2] {
    let exchange = |role| KeyExchange::new(role).expect("random numbers");
    let [a, b] = [exchange(KeyRole::Initiator), exchange(KeyRole::Acceptor)];
    let publics = [b.public(), a.public()];
    let keys = |exchange: KeyExchange, public| {
        exchange.agree(public, b"cookie", NodeNames { initiator: "a", acceptor: "b" }).expect("keys")
    };
    [keys(a, &publics[0]), keys(b, &publics[1])]
}

impl CallgrindWorld {
    fn new() -> Self {
        let (here, there) = Link::pair(RING_BYTES).expect("shared memory");
        let (a, b) = Link::pair(RING_BYTES).expect("shared memory");
        let (c, d) = Link::pair(RING_BYTES).expect("shared memory");
        let (e, f) = staged_links().expect("shared memory");
        let [to_seal, to_open] = keys();
        Self {
            here,
            there,
            sending: connection(a, "a"),
            receiving: connection(b, "b"),
            emulator: Plain::default(),
            sealing: connection(c, "c").sealed(to_seal),
            opening: connection(d, "d").sealed(to_open),
            sealed_emulator: Sealed::default(),
            staging: connection(e, "e"),
            unstaging: connection(f, "f"),
            staged_emulator: Staged::default(),
        }
    }

    fn sent(&mut self) {
        self.here.append(&RECORD).expect("room");
        self.here.publish().expect("published");
    }

    fn taken(&mut self) {
        self.there.refresh().expect("no error");
        let unread = self.there.unread();
        self.there.skip(unread);
        self.there.release().expect("released");
    }

    /// Delivers everything, and makes the receiver wait for its bell.
    fn received(&mut self) {
        receive(&mut self.receiving, &mut self.emulator);
    }

    fn output(&mut self) {
        output(&mut self.sending, &mut self.emulator);
    }

    fn opened(&mut self) {
        receive(&mut self.opening, &mut self.sealed_emulator);
    }

    fn output_sealed(&mut self) {
        output(&mut self.sealing, &mut self.sealed_emulator);
    }

    fn unstaged(&mut self) {
        receive(&mut self.unstaging, &mut self.staged_emulator);
    }

    fn output_staged(&mut self) {
        output(&mut self.staging, &mut self.staged_emulator);
    }

    /// Makes the sender take its completions and its credit.
    fn completed(&mut self) {
        receive(&mut self.staging, &mut self.staged_emulator);
    }
}

#[inline(always)]
fn receive<E: Emulator>(receiving: &mut Connection<E>, emulator: &mut E) {
    while receiving.poll(emulator, NOW).expect("no error") == Next::Poll {}
}

#[inline(always)]
fn output<E: Emulator>(sending: &mut Connection<E>, emulator: &mut E) {
    let parts = [&HEADER[..], &PAYLOAD].into_iter();
    let next = sending.send(emulator, parts, HEADER.len() + PAYLOAD.len(), || NOW);
    assert_eq!(next.expect("sent"), Next::Armed, "there was room");
}

probes! {
    CallgrindWorld, 2000;
    probe_append,
        |_| {},
        |world| { black_box(world.here.append(black_box(&RECORD)).expect("room")); },
        |world| { world.here.publish().expect("published"); world.taken(); };
    probe_publish,
        |world| { world.here.append(&RECORD).expect("room"); },
        |world| world.here.publish().expect("published"),
        CallgrindWorld::taken;
    probe_wake,
        |world| {
            assert_eq!(world.there.arm(0).expect("no error"), Armed::Wait);
            world.here.append(&RECORD).expect("room");
        },
        |world| world.here.publish().expect("published, and the bell rung"),
        |world| { world.there.acknowledge().expect("rung"); world.taken(); };
    probe_poll_empty,
        |_| {},
        |world| { black_box(world.there.refresh().expect("no error")); },
        |_| {};
    probe_poll_read,
        CallgrindWorld::sent,
        |world| {
            world.there.refresh().expect("no error");
            let mut record = RECORD;
            black_box(world.there.read(&mut record));
            black_box(&record);
        },
        |world| world.there.release().expect("released");
    probe_release,
        |world| {
            world.sent();
            world.there.refresh().expect("no error");
            world.there.skip(RECORD.len());
        },
        |world| world.there.release().expect("released"),
        |_| {};
    probe_outputv,
        |_| {},
        CallgrindWorld::output,
        |world| { world.received(); world.receiving.link().awake(); };
    probe_outputv_wake,
        |_| {},
        CallgrindWorld::output,
        CallgrindWorld::received;
    probe_turn,
        CallgrindWorld::output,
        CallgrindWorld::received,
        |_| {};
    probe_outputv_sealed,
        |_| {},
        CallgrindWorld::output_sealed,
        |world| { world.opened(); world.opening.link().awake(); };
    probe_turn_sealed,
        CallgrindWorld::output_sealed,
        CallgrindWorld::opened,
        |_| {};
    probe_outputv_staged,
        |_| {},
        CallgrindWorld::output_staged,
        |world| { world.unstaged(); world.completed(); };
    probe_turn_staged,
        CallgrindWorld::output_staged,
        CallgrindWorld::unstaged,
        CallgrindWorld::completed;
}
