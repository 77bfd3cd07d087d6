//! An app without an engine, for tests of apps, and of how they change packets.

use std::ops::Range;
use std::sync::Arc;

use caravan_ring::Corrupt;
use caravan_segment::barrier::Fences;
use caravan_segment::{Pages, Segment};

use crate::app::{App, AppError};
use crate::ends::{ConsumerEnd, ProducerEnd};
use crate::io::{AppPorts, Io};
use crate::layout::{self, DropReason, LinkMode, SharedWords};
use crate::limits::{HEADROOM_BYTES, QUEUE_PACKETS};
use crate::owner::{LinkId, Owner, WorkerId};
use crate::packet::{Packet, PacketMemory};
use crate::pool::Pool;
use crate::queue::PacketQueue;

/// One app with queues at its ports, and a clock that stands still until it is set.
///
/// The [crate's example](crate) uses it to test an app.
#[derive(Debug)]
pub struct AppBench<A> {
    /// The app.
    pub app: A,
    /// The time that [`Io::now_ns`] returns.
    pub now_ns: u64,
    ports: AppPorts,
    queues: Vec<PacketQueue>,
    pool: Pool,
}

impl<A: App> AppBench<A> {
    /// Starts an app with links at these ports, and `packets` free packets.
    ///
    /// Panics if the machine has no memory for them.
    pub fn new(config: A::Config, inputs: &[&str], outputs: &[&str], packets: u32) -> Result<Self, AppError> {
        A::check(&config)?;
        let app = A::start(config, None)?;
        let sorted = |names: &[&str], from: usize| {
            let mut names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            names.sort_unstable();
            names.into_iter().enumerate().map(|(place, name)| (name, from + place)).collect()
        };
        let ports = AppPorts { inputs: sorted(inputs, 0), outputs: sorted(outputs, inputs.len()) };
        let queues =
            std::iter::repeat_with(PacketQueue::default).take(inputs.len() + outputs.len()).collect();
        let worker = WorkerId::new(0).expect("a worker");
        let pool = pool(&memory(packets), packets, worker, 0..packets);
        Ok(Self { app, now_ns: 1, ports, queues, pool })
    }

    fn input(&self, name: &str) -> usize {
        self.ports.inputs.iter().find(|(port, _)| port == name).expect("an input of that name").1
    }

    fn output(&self, name: &str) -> usize {
        self.ports.outputs.iter().find(|(port, _)| port == name).expect("an output of that name").1
    }

    /// Joins an output and an input: the packets that the app sends to the output come to it by the input.
    pub fn link(&mut self, output: &str, input: &str) {
        let (from, to) = (self.output(output), self.input(input));
        self.ports.inputs.iter_mut().filter(|(_, queue)| *queue == to).for_each(|(_, queue)| *queue = from);
    }

    /// Puts a packet with these bytes at an input. The longer it is, the less room is in front of the data.
    pub fn put(&mut self, input: &str, data: &[u8]) {
        let queue = self.input(input);
        let mut packet = self.pool.allocate().expect("a free packet");
        assert!(packet.fill(data), "{} bytes fit into a packet", data.len());
        assert!(self.queues[queue].put(packet).is_none());
    }

    /// Calls the app's `pull`.
    pub fn pull(&mut self) {
        self.app.pull(&mut Io::new(&self.ports, &mut self.queues, &mut self.pool, self.now_ns));
        self.pool.collect_dropped();
    }

    /// Calls the app's `push`.
    pub fn push(&mut self) {
        self.app.push(&mut Io::new(&self.ports, &mut self.queues, &mut self.pool, self.now_ns));
        self.pool.collect_dropped();
    }

    /// Calls the app's `stop`.
    pub fn stop(&mut self) -> Option<Vec<u8>> {
        let state = self.app.stop(&mut Io::new(&self.ports, &mut self.queues, &mut self.pool, self.now_ns));
        self.pool.collect_dropped();
        state
    }

    /// Takes the packets that the app has sent to an output, oldest first.
    pub fn sent(&mut self, output: &str) -> Vec<Vec<u8>> {
        let queue = self.output(output);
        let mut sent = Vec::new();
        while let Some(packet) = self.queues[queue].take() {
            sent.push(packet.data().to_vec());
            self.pool.free(packet);
        }
        sent
    }

    /// Returns the number of packets that wait at an input.
    pub fn waiting(&self, input: &str) -> usize {
        self.queues[self.input(input)].length()
    }

    /// Returns the number of free packets: all packets, if none is at a port or in the app.
    pub fn free(&self) -> usize {
        self.pool.length()
    }

    /// Returns the number of packets dropped for a reason.
    pub fn drops(&self, why: DropReason) -> u64 {
        self.pool.drops()[DropReason::ALL.iter().position(|drop| *drop == why).unwrap_or(0)]
    }

    /// Fills an output, so that it takes no more packets.
    pub fn fill(&mut self, output: &str) {
        let queue = self.output(output);
        while self.queues[queue].length() < QUEUE_PACKETS {
            let packet: Packet = self.pool.allocate().expect("a free packet");
            assert!(self.queues[queue].put(packet).is_none());
        }
    }
}

/// Makes the memory of an engine with `packets` packets.
fn memory(packets: u32) -> SharedWords {
    let segment = Segment::create("caravan-bench", layout::bytes(packets), Pages::Small).expect("memory");
    segment.grow(layout::bytes(packets)).expect("memory");
    SharedWords::new(&Arc::new(segment), Fences::Symmetric).expect("memory")
}

/// Makes a worker's pool of the packets in `range`, of `packets` in all.
fn pool(shared: &SharedWords, packets: u32, worker: WorkerId, range: Range<u32>) -> Pool {
    let memory = PacketMemory::new(shared.memory(), packets);
    let mut pool = Pool::new(memory, Owner::Worker(worker), HEADROOM_BYTES);
    range.for_each(|index| pool.add(index));
    pool
}

/// Both ends of a link, each with the pool and the queue that its worker would have, to
/// measure the cost of passing packets.
#[derive(Debug)]
pub struct LinkBench {
    producer: (ProducerEnd, PacketQueue, Pool),
    consumer: (ConsumerEnd, PacketQueue, Pool),
}

impl LinkBench {
    /// Makes a link with `packets` free packets at each end.
    ///
    /// Panics if the machine has no memory for them.
    pub fn new(mode: LinkMode, packets: u32) -> Self {
        let shared = memory(2 * packets);
        let worker = |place| WorkerId::new(place).expect("a worker");
        let mut sending = pool(&shared, 2 * packets, worker(0), 0..packets);
        let receiving = pool(&shared, 2 * packets, worker(1), packets..2 * packets);
        let link = LinkId::new(0).expect("a link");
        let producer = ProducerEnd::resume(&shared, link, &mut sending).expect("an empty ring");
        let consumer = ConsumerEnd::resume(&shared, link, mode).expect("an empty ring");
        Self {
            producer: (producer, PacketQueue::default(), sending),
            consumer: (consumer, PacketQueue::default(), receiving),
        }
    }

    /// Queues `count` packets of `bytes` bytes at the producer's end, as its app would.
    pub fn queue(&mut self, count: usize, bytes: usize) {
        let (_, queue, pool) = &mut self.producer;
        for _ in 0..count {
            let mut packet = pool.allocate().expect("a free packet");
            packet.resize(bytes).expect("room");
            assert!(queue.put(packet).is_none());
        }
    }

    /// Gives the queued packets from the producer to the ring, as far as there is room. Returns their number.
    #[inline]
    pub fn send(&mut self) -> Result<usize, Corrupt> {
        let (end, queue, pool) = &mut self.producer;
        Ok(end.send(queue, pool.memory())?.packets)
    }

    /// Takes the packets that have come to the consumer, a batch at most.
    #[inline]
    pub fn receive(&mut self) -> Result<usize, Corrupt> {
        let (end, queue, pool) = &mut self.consumer;
        Ok(end.receive(queue, pool)?.packets)
    }

    /// Frees the packets that the consumer has taken, as its app would.
    pub fn consume(&mut self) {
        let (_, queue, pool) = &mut self.consumer;
        pool.free_all(queue.drain(usize::MAX));
    }

    /// Gives empty packets back from the consumer.
    #[inline]
    pub fn repay(&mut self) -> Result<usize, Corrupt> {
        let (end, _, pool) = &mut self.consumer;
        Ok(end.repay(pool)?.packets)
    }

    /// Takes the empty packets that came back to the producer, a batch at most.
    #[inline]
    pub fn collect(&mut self) -> Result<usize, Corrupt> {
        let (end, _, pool) = &mut self.producer;
        Ok(end.collect(pool)?.packets)
    }

    /// Returns the number of free packets of the producer and of the consumer.
    pub fn free(&self) -> (usize, usize) {
        (self.producer.2.length(), self.consumer.2.length())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BATCH_PACKETS;

    #[test]
    fn for_each_packet_an_empty_one_comes_back() {
        const PACKETS: usize = 4 * BATCH_PACKETS;
        for mode in [LinkMode::Swap, LinkMode::Copy] {
            let mut link = LinkBench::new(mode, PACKETS as u32);
            // More than once round the ring.
            for _ in 0..20 {
                link.queue(BATCH_PACKETS, 60);
                assert_eq!(link.send(), Ok(BATCH_PACKETS));
                assert_eq!(link.receive(), Ok(BATCH_PACKETS));
                link.consume();
                assert_eq!(link.repay(), Ok(BATCH_PACKETS));
                assert_eq!(link.free(), (PACKETS - BATCH_PACKETS, PACKETS));
                assert_eq!(link.collect(), Ok(BATCH_PACKETS));
                assert_eq!(link.free(), (PACKETS, PACKETS));
            }
        }
    }
}
