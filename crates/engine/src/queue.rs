//! Packets that wait at a link's end, within one process.
//!
//! `head <= tail <= QUEUE_PACKETS_MAX`; places `head..tail` hold packets, all others hold none. An
//! empty queue starts again at place 0, so that a link that is emptied in each breath stays in a
//! few cache lines.

use crate::limits::{QUEUE_PACKETS, QUEUE_PACKETS_MAX};
use crate::packet::Packet;

/// A queue of packets, oldest first.
#[derive(Debug)]
pub struct PacketQueue {
    places: Box<[Option<Packet>]>,
    head: usize,
    tail: usize,
    counts: QueueCounts,
    taken: u64,
}

/// The number of packets that apps have sent to a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Packets that the queue took.
    pub packets: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Packets for which there was no room.
    pub drops: u64,
}

impl Default for PacketQueue {
    fn default() -> Self {
        let places = std::iter::repeat_with(|| None).take(QUEUE_PACKETS_MAX).collect();
        Self { places, head: 0, tail: 0, counts: QueueCounts::default(), taken: 0 }
    }
}

impl PacketQueue {
    /// Returns the number of packets in the queue.
    #[inline]
    pub fn length(&self) -> usize {
        self.tail - self.head
    }

    /// Returns the number of packets that an app may add.
    #[inline]
    pub fn room(&self) -> usize {
        QUEUE_PACKETS.saturating_sub(self.length())
    }

    /// Returns the counts of what apps have sent to the queue.
    pub fn counts(&self) -> QueueCounts {
        self.counts
    }

    /// Returns the number of packets taken out since the queue was made.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Makes the queue count on from the counts of its predecessor.
    pub fn set_counts(&mut self, counts: QueueCounts) {
        self.counts = counts;
    }

    /// Adds a packet at the tail, and counts it. Returns the packet if there is no room.
    #[inline]
    pub fn send(&mut self, packet: Packet) -> Option<Packet> {
        if self.room() == 0 {
            self.counts.drops += 1;
            return Some(packet);
        }
        self.counts.packets += 1;
        self.counts.bytes += packet.length() as u64;
        self.put(packet)
    }

    /// Adds a packet at the tail without counting it, up to `QUEUE_PACKETS_MAX`.
    #[inline]
    pub fn put(&mut self, packet: Packet) -> Option<Packet> {
        match self.places.get_mut(self.tail) {
            Some(place) => {
                *place = Some(packet);
                self.tail += 1;
                None
            }
            None => self.put_compacting(packet),
        }
    }

    #[cold]
    fn put_compacting(&mut self, packet: Packet) -> Option<Packet> {
        if self.compact() { self.put(packet) } else { Some(packet) }
    }

    /// Takes the oldest packet out of the queue.
    #[inline]
    pub fn take(&mut self) -> Option<Packet> {
        if self.head == self.tail {
            return None;
        }
        let packet = self.places[self.head].take();
        self.head += 1;
        self.taken += 1;
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        }
        packet
    }

    /// Takes the `count` oldest packets out of the queue, or all if there are fewer. Those that are not
    /// taken from the iterator are dropped with it.
    #[inline]
    pub fn drain(&mut self, count: usize) -> impl Iterator<Item = Packet> + '_ {
        let first = self.head;
        let count = count.min(self.length());
        self.head += count;
        self.taken += count as u64;
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        }
        // All of these places hold packets.
        self.places[first..first + count].iter_mut().filter_map(Option::take)
    }

    /// Adds packets at the tail without counting them, as far as there are places: at least
    /// [`room`](Self::room). Returns the number of packets added.
    #[inline]
    pub fn extend(&mut self, count: usize, mut packets: impl Iterator<Item = Packet>) -> usize {
        if self.places.len() - self.tail < count {
            self.compact();
        }
        let first = self.tail;
        let end = (first + count).min(self.places.len());
        let mut tail = first;
        for place in &mut self.places[first..end] {
            let Some(packet) = packets.next() else { break };
            *place = Some(packet);
            tail += 1;
        }
        self.tail = tail;
        tail - first
    }

    /// Adds packets that an app sends, as [`extend`](Self::extend) does, and counts them and their bytes.
    #[inline]
    pub fn send_all(&mut self, count: usize, packets: impl Iterator<Item = Packet>) -> usize {
        let mut bytes = 0;
        let sent = self.extend(count, packets.inspect(|packet| bytes += packet.length() as u64));
        self.counts.packets += sent as u64;
        self.counts.bytes += bytes;
        sent
    }

    /// Returns the `count` youngest packets, in place.
    pub fn youngest(&self, count: usize) -> impl Iterator<Item = &Packet> {
        self.places[self.tail - count.min(self.length())..self.tail].iter().flatten()
    }

    /// Moves the waiting packets to the front. Returns false if that makes no room.
    fn compact(&mut self) -> bool {
        if self.head == 0 {
            return false;
        }
        self.places[..self.tail].rotate_left(self.head);
        (self.head, self.tail) = (0, self.tail - self.head);
        true
    }
}
