//! A link between two processes, without the processes.

use caravan_ring::Corrupt;

use super::{memory, pool};
use crate::ends::{ConsumerEnd, ProducerEnd};
use crate::layout::LinkMode;
use crate::owner::{LinkId, WorkerId};
use crate::pool::Pool;
use crate::queue::PacketQueue;

/// Both ends of a link, each with the free packets and the queue that its worker would have: for
/// what it costs to pass packets.
#[derive(Debug)]
pub struct LinkBench {
    producer: (ProducerEnd, PacketQueue, Pool),
    consumer: (ConsumerEnd, PacketQueue, Pool),
}

impl LinkBench {
    /// A link, and `packets` free packets at each end.
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

    /// Puts `count` packets of so many bytes where the producer's app would.
    pub fn queue(&mut self, count: usize, bytes: usize) {
        let (_, queue, pool) = &mut self.producer;
        for _ in 0..count {
            let mut packet = pool.allocate().expect("a free packet");
            packet.resize(bytes).expect("room");
            assert!(queue.put(packet).is_none());
        }
    }

    /// The producer gives what is queued, as far as there is room. Returns how many packets that was.
    #[inline]
    pub fn send(&mut self) -> Result<usize, Corrupt> {
        let (end, queue, pool) = &mut self.producer;
        Ok(end.send(queue, pool.memory())?.packets)
    }

    /// The consumer takes what has come, a batch at most.
    #[inline]
    pub fn receive(&mut self) -> Result<usize, Corrupt> {
        let (end, queue, pool) = &mut self.consumer;
        Ok(end.receive(queue, pool)?.packets)
    }

    /// Frees what the consumer has taken, as its app would.
    pub fn consume(&mut self) {
        let (_, queue, pool) = &mut self.consumer;
        pool.free_all(queue.drain(usize::MAX));
    }

    /// The consumer gives empty packets back.
    #[inline]
    pub fn repay(&mut self) -> Result<usize, Corrupt> {
        let (end, _, pool) = &mut self.consumer;
        Ok(end.repay(pool)?.packets)
    }

    /// The producer takes the empty packets that came back, a batch at most.
    #[inline]
    pub fn collect(&mut self) -> Result<usize, Corrupt> {
        let (end, _, pool) = &mut self.producer;
        Ok(end.collect(pool)?.packets)
    }

    /// Free packets of the producer and of the consumer.
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
            // Round the ring more than once.
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
