//! An emulator for tests: it keeps what is delivered, and queues as a port does.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;

use caravan_driver::Error;
use caravan_driver::connection::{Connection, Next};
use caravan_driver::counters;
use caravan_driver::emulator::{Binary, Emulator};
use caravan_driver::seal::{KeyExchange, KeyRole, NodeNames, Sealing};
use caravan_fabric::{Link, SpinMode};

/// The bytes, and the ranges that have been delivered: the emulator reads those from then on.
pub struct TestBinary(Vec<u8>, RefCell<Vec<Range<usize>>>);

impl Binary for TestBinary {
    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let is_read = |read: &Range<usize>| read.start < range.end && range.start < read.end;
        assert!(!self.1.get_mut().iter().any(is_read), "bytes that have been delivered are written");
        &mut self.0[range]
    }
    fn length(&self) -> usize {
        self.0.len()
    }
    fn resized(mut self, bytes: usize) -> Option<Self> {
        self.0.resize(bytes, 0xee);
        Some(self)
    }
}

#[derive(Default)]
pub struct TestEmulator {
    pub delivered: Vec<Vec<u8>>,
    pub queue: VecDeque<u8>,
    pub busy: bool,
    pub allocated: usize,
    /// The size above which no binary can be allocated.
    pub memory: Option<usize>,
    sending: Vec<u8>,
}

impl Emulator for TestEmulator {
    type Binary = TestBinary;

    fn allocate(&mut self, bytes: usize) -> Option<TestBinary> {
        self.allocated += bytes;
        match self.memory {
            Some(most) if bytes > most => None,
            _ => Some(TestBinary(vec![0xdd; bytes], RefCell::default())),
        }
    }
    fn deliver(&mut self, binary: &TestBinary, offset: usize, length: usize) {
        binary.1.borrow_mut().push(offset..offset + length);
        self.delivered.push(binary.0[offset..offset + length].to_vec());
    }
    fn queued_bytes(&self) -> usize {
        self.queue.len()
    }
    fn enqueue(&mut self, bytes: &[u8]) {
        self.queue.extend(bytes);
    }
    fn enqueue_output(&mut self, skip: usize) {
        self.queue.extend(&self.sending[skip..]);
    }
    fn peek_queue(&self, each: &mut dyn FnMut(&[u8]) -> bool) {
        let (first, second) = self.queue.as_slices();
        let _ = each(first) && each(second);
    }
    fn dequeue(&mut self, bytes: usize) {
        self.queue.drain(..bytes);
    }
    fn set_busy(&mut self, busy: bool) {
        assert_ne!(self.busy, busy, "told twice");
        self.busy = busy;
    }
}

/// One node: a connection and its emulator, on a clock that the test moves.
pub struct Node {
    pub connection: Connection<TestEmulator>,
    pub emulator: TestEmulator,
    pub now: u64,
}

impl Node {
    fn new(link: Link, name: &str, busy_bytes: usize) -> Self {
        let row = counters::row(name, "peer@test").unwrap();
        let mut connection = Connection::new(link, row, SpinMode::Off, busy_bytes);
        connection.start();
        Self { connection, emulator: TestEmulator::default(), now: 1_000_000 }
    }

    /// Makes the node's connection seal.
    pub fn sealed(self, sealing: Sealing) -> Self {
        Self { connection: self.connection.sealed(sealing), ..self }
    }

    pub fn send(&mut self, message: &[u8]) -> Result<Next, Error> {
        self.emulator.sending = message.to_vec();
        // Sent in two parts, as the emulator passes header and payload.
        let (first, second) = message.split_at(message.len() / 3);
        let now = self.now;
        self.connection.send(&mut self.emulator, [first, second].into_iter(), message.len(), || now)
    }

    /// Polls until nothing more comes.
    pub fn settle(&mut self) -> Result<(), Error> {
        for _ in 0..10_000 {
            self.now += 1_000;
            if self.connection.poll(&mut self.emulator, self.now)? == Next::Armed {
                return Ok(());
            }
        }
        panic!("it never came to rest");
    }
}

/// Makes two nodes that are connected.
pub fn nodes(ring_bytes: u64, busy_bytes: usize) -> (Node, Node) {
    let (a, b) = Link::pair(ring_bytes).unwrap();
    (Node::new(a, "a@test", busy_bytes), Node::new(b, "b@test", busy_bytes))
}

/// Makes two connected nodes, which seal what they send if `sealed`.
pub fn pair(sealed: bool, ring_bytes: u64, busy_bytes: usize) -> (Node, Node) {
    let (a, b) = nodes(ring_bytes, busy_bytes);
    if !sealed {
        return (a, b);
    }
    let [to_a, to_b] = sealings([b"cookie", b"cookie"]);
    (a.sealed(to_a), b.sealed(to_b))
}

/// Returns the keys that two nodes agree on, each with its own cookie.
pub fn sealings(cookies: [&[u8]; 2]) -> [Sealing; 2] {
    let [a, b] = [KeyRole::Initiator, KeyRole::Acceptor].map(|role| KeyExchange::new(role).unwrap());
    let (to_b, to_a) = (a.public(), b.public());
    let names = NodeNames { initiator: "a@test", acceptor: "b@test" };
    [a.agree(&to_a, cookies[0], names).unwrap(), b.agree(&to_b, cookies[1], names).unwrap()]
}

/// Makes one node, and the bare link of a peer that sends what it likes.
pub fn node_and_stranger(ring_bytes: u64) -> (Node, Link) {
    let (a, b) = Link::pair(ring_bytes).unwrap();
    (Node::new(a, "a@test", 1 << 20), b)
}

/// Lets both sides run until `to` has everything that `from` had queued.
pub fn flow(from: &mut Node, to: &mut Node) {
    while !from.emulator.queue.is_empty() {
        to.settle().unwrap();
        from.settle().unwrap();
    }
    to.settle().unwrap();
}
