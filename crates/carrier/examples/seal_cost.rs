//! Measures the cost of sealing: the same messages over two links in shared memory, one of them
//! sealed, from `outputv` on one side to the emulator on the other, in one thread.
//!
//!     cargo run --release -p caravan-carrier --example seal_cost
//!
//! Prints the rows of the table in docs/trust.md: medians of nine rounds, which take turns.

use std::cell::RefCell;
use std::ops::Range;

use caravan_driver::connection::{Connection, Next};
use caravan_driver::counters;
use caravan_driver::emulator::{Binary, Emulator};
use caravan_driver::seal::{KeyExchange, KeyRole, NodeNames, Sealing};
use caravan_fabric::{Link, SpinMode};

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// The default of the option `ring_bytes`.
const RING_BYTES_DEFAULT: u64 = 512 << 10;
const ROUNDS: usize = 9;
/// The number of bytes that each round moves.
const ROUND_BYTES: usize = 64 << 20;
/// The largest number of messages of a round.
const ROUND_MESSAGES: usize = 100_000;
/// The number of bytes sent before the other side takes them: they fit the ring.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_MESSAGES: usize = 32;
/// The emulator sends larger messages in fragments.
const FRAGMENT_BYTES: usize = 64 << 10;

thread_local! {
    /// Freed binaries, to be used again for the same size: allocating fresh memory costs
    /// more than sealing it, and is not to be measured.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

struct SpareBinary(Vec<u8>);

impl Binary for SpareBinary {
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

impl Drop for SpareBinary {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| spare.push(std::mem::take(&mut self.0)));
    }
}

#[derive(Default)]
struct DiscardingEmulator {
    delivered_bytes: usize,
}

impl Emulator for DiscardingEmulator {
    type Binary = SpareBinary;
    fn allocate(&mut self, bytes: usize) -> Option<SpareBinary> {
        let spare = SPARE.with_borrow_mut(|spare| {
            let found = spare.iter().position(|spare| spare.len() == bytes);
            found.map(|found| spare.swap_remove(found))
        });
        Some(SpareBinary(spare.unwrap_or_else(|| vec![0; bytes])))
    }
    fn deliver(&mut self, _: &SpareBinary, _: usize, length: usize) {
        self.delivered_bytes += length;
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

/// Both ends of a link.
struct SealedEnds {
    sending: Connection<DiscardingEmulator>,
    receiving: Connection<DiscardingEmulator>,
    emulator: DiscardingEmulator,
}

impl SealedEnds {
    fn new(sealed: bool) -> Fallible<Self> {
        let (connecting, accepting) = Link::pair(RING_BYTES_DEFAULT)?;
        let mut sending = Connection::new(connecting, counters::row("a", "b")?, SpinMode::Off, 1 << 20);
        let mut receiving = Connection::new(accepting, counters::row("b", "a")?, SpinMode::Off, 1 << 20);
        if sealed {
            let [to_send, to_receive] = keys()?;
            (sending, receiving) = (sending.sealed(to_send), receiving.sealed(to_receive));
        }
        sending.start();
        receiving.start();
        Ok(Self { sending, receiving, emulator: DiscardingEmulator::default() })
    }

    /// Sends `messages` messages of these fragments, and takes them. Returns the nanoseconds of processor time for
    /// one message.
    fn round(&mut self, fragments: &[Vec<u8>], messages: usize) -> Fallible<f64> {
        let start = processor_ns();
        let (mut bytes, mut count) = (0, 0);
        for _ in 0..messages {
            for fragment in fragments {
                self.sending.send(
                    &mut self.emulator,
                    std::iter::once(&fragment[..]),
                    fragment.len(),
                    || 1,
                )?;
                (bytes, count) = (bytes + fragment.len(), count + 1);
                if bytes + fragment.len() > BATCH_BYTES || count == BATCH_MESSAGES {
                    self.take()?;
                    (bytes, count) = (0, 0);
                }
            }
        }
        self.take()?;
        let spent = processor_ns() - start;
        assert!(self.emulator.delivered_bytes > messages * (fragments.len() - 1) * FRAGMENT_BYTES, "lost");
        self.emulator.delivered_bytes = 0;
        Ok(spent as f64 / messages as f64)
    }

    fn take(&mut self) -> Fallible<()> {
        while self.receiving.poll(&mut self.emulator, 1)? == Next::Poll {}
        self.receiving.link().awake();
        Ok(())
    }
}

fn keys() -> Fallible<[Sealing; 2]> {
    let (a, b) = (KeyExchange::new(KeyRole::Initiator)?, KeyExchange::new(KeyRole::Acceptor)?);
    let (to_b, to_a) = (a.public(), b.public());
    let names = NodeNames { initiator: "a", acceptor: "b" };
    Ok([a.agree(&to_a, b"cookie", names)?, b.agree(&to_b, b"cookie", names)?])
}

fn processor_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the fragments of a message of `bytes` bytes, as the emulator sends it.
fn fragments(bytes: usize) -> Vec<Vec<u8>> {
    if bytes <= FRAGMENT_BYTES {
        return vec![[&[131, 68, 0][..], &vec![7; bytes - 3]].concat()];
    }
    let count = bytes.div_ceil(FRAGMENT_BYTES) as u64;
    let fragment = |left: u64| {
        let (tag, references): (u8, &[u8]) = if left == count { (69, &[0]) } else { (70, &[]) };
        let numbers = [1u64.to_be_bytes(), left.to_be_bytes()].concat();
        [&[131, tag], &numbers[..], references, &[7; FRAGMENT_BYTES]].concat()
    };
    (1..=count).rev().map(fragment).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Fallible<()> {
    println!("| message | plain | sealed | more | plain | sealed |");
    println!("|---|---|---|---|---|---|");
    for bytes in [64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20] {
        let (mut plain, mut sealed) = (SealedEnds::new(false)?, SealedEnds::new(true)?);
        let (fragments, messages) = (fragments(bytes), (ROUND_BYTES / bytes).min(ROUND_MESSAGES));
        plain.round(&fragments, messages / 8)?;
        sealed.round(&fragments, messages / 8)?;
        let (mut plain_ns, mut sealed_ns) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            plain_ns.push(plain.round(&fragments, messages)?);
            sealed_ns.push(sealed.round(&fragments, messages)?);
        }
        let (plain_ns, sealed_ns) = (median(plain_ns), median(sealed_ns));
        println!(
            "| {bytes} | {plain_ns:.0} ns | {sealed_ns:.0} ns | {:.0} ns | {:.2} GB/s | {:.2} GB/s |",
            sealed_ns - plain_ns,
            bytes as f64 / plain_ns,
            bytes as f64 / sealed_ns,
        );
    }
    Ok(())
}
