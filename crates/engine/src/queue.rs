//! Packets that wait at a link's end, within one process.
//!
//! `head <= tail <= QUEUE_PACKETS_MAX`; places `head..tail` hold packets, all others none. An
//! empty queue starts again at place 0, so that a link that is emptied in each breath stays in a
//! few cache lines.

use crate::limits::{QUEUE_PACKETS, QUEUE_PACKETS_MAX};
use crate::packet::Packet;

/// A queue of packets, oldest first.
#[derive(Debug)]
pub struct Queue {
    places: Box<[Option<Packet>]>,
    head: usize,
    tail: usize,
    packets: u64,
    bytes: u64,
    drops: u64,
    taken: u64,
}

impl Default for Queue {
    fn default() -> Self {
        let places = std::iter::repeat_with(|| None).take(QUEUE_PACKETS_MAX).collect();
        Self { places, head: 0, tail: 0, packets: 0, bytes: 0, drops: 0, taken: 0 }
    }
}

impl Queue {
    /// Packets in it.
    #[inline]
    pub fn length(&self) -> usize {
        self.tail - self.head
    }

    /// Packets that an app may add.
    #[inline]
    pub fn room(&self) -> usize {
        QUEUE_PACKETS.saturating_sub(self.length())
    }

    /// Packets, bytes and refused packets since it was made.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.packets, self.bytes, self.drops)
    }

    /// Packets taken out since it was made.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Goes on counting from where another left off.
    pub fn set_counts(&mut self, (packets, bytes, drops): (u64, u64, u64)) {
        (self.packets, self.bytes, self.drops) = (packets, bytes, drops);
    }

    /// Puts a packet behind the others, and counts it. Gives it back if there is no room.
    #[inline]
    pub fn send(&mut self, packet: Packet) -> Option<Packet> {
        if self.room() == 0 {
            self.drops += 1;
            return Some(packet);
        }
        self.packets += 1;
        self.bytes += packet.length() as u64;
        self.put(packet)
    }

    /// Puts a packet behind the others, uncounted, up to `QUEUE_PACKETS_MAX`.
    #[inline]
    pub fn put(&mut self, packet: Packet) -> Option<Packet> {
        if self.tail == self.places.len() && !self.compact() {
            return Some(packet);
        }
        self.places[self.tail] = Some(packet);
        self.tail += 1;
        None
    }

    /// The oldest packet, out of the queue.
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

    /// The packets `from` places behind the oldest on, in place.
    pub fn iter_from(&self, from: usize) -> impl Iterator<Item = &Packet> {
        self.places[(self.head + from).min(self.tail)..self.tail].iter().flatten()
    }

    /// Moves what waits to the front. False if that makes no room.
    #[cold]
    fn compact(&mut self) -> bool {
        if self.head == 0 {
            return false;
        }
        self.places[..self.tail].rotate_left(self.head);
        (self.head, self.tail) = (0, self.tail - self.head);
        true
    }
}
