//! An app without an engine: for tests of apps, and of what they do to packets.

use std::sync::Arc;

use caravan_segment::barrier::Fences;
use caravan_segment::{Pages, Segment};

use crate::app::{App, Trouble};
use crate::io::{Io, Ports};
use crate::layout::{self, DROPS, Drop, Shared};
use crate::limits::{HEADROOM_BYTES, QUEUE_PACKETS};
use crate::owner::{Owner, WorkerId};
use crate::packet::{Packet, PacketMemory};
use crate::pool::Pool;
use crate::queue::Queue;

/// One app with queues at its ports, and a clock that stands still until it is set.
#[derive(Debug)]
pub struct Bench<A> {
    /// The app.
    pub app: A,
    /// What [`Io::now_ns`] says.
    pub now_ns: u64,
    ports: Ports,
    queues: Vec<Queue>,
    pool: Pool,
}

impl<A: App> Bench<A> {
    /// Starts an app with links at these ports, and `packets` free packets.
    ///
    /// Panics if the machine has no memory for them.
    pub fn new(config: A::Config, inputs: &[&str], outputs: &[&str], packets: u32) -> Result<Self, Trouble> {
        A::check(&config)?;
        let app = A::start(config, None)?;
        let sorted = |names: &[&str], from: usize| {
            let mut names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            names.sort_unstable();
            names.into_iter().enumerate().map(|(place, name)| (name, from + place)).collect()
        };
        let ports = Ports { inputs: sorted(inputs, 0), outputs: sorted(outputs, inputs.len()) };
        let queues = std::iter::repeat_with(Queue::default).take(inputs.len() + outputs.len()).collect();
        Ok(Self { app, now_ns: 1, ports, queues, pool: pool(packets) })
    }

    fn input(&self, name: &str) -> usize {
        self.ports.inputs.iter().find(|(port, _)| port == name).expect("an input of that name").1
    }

    fn output(&self, name: &str) -> usize {
        self.ports.outputs.iter().find(|(port, _)| port == name).expect("an output of that name").1
    }

    /// Puts a packet with these bytes at an input.
    pub fn put(&mut self, input: &str, data: &[u8]) {
        let queue = self.input(input);
        let mut packet = self.pool.allocate().expect("a free packet");
        assert!(packet.append(data), "{} bytes fit into a packet", data.len());
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

    /// What the app has sent to an output, oldest first.
    pub fn sent(&mut self, output: &str) -> Vec<Vec<u8>> {
        let queue = self.output(output);
        let mut sent = Vec::new();
        while let Some(packet) = self.queues[queue].take() {
            sent.push(packet.data().to_vec());
            self.pool.free(packet);
        }
        sent
    }

    /// Packets that wait at an input.
    pub fn waiting(&self, input: &str) -> usize {
        self.queues[self.input(input)].length()
    }

    /// Free packets. All of them, once nothing is at a port or in the app.
    pub fn free(&self) -> usize {
        self.pool.length()
    }

    /// Packets dropped for a cause.
    pub fn drops(&self, why: Drop) -> u64 {
        self.pool.drops()[DROPS.iter().position(|drop| *drop == why).unwrap_or(0)]
    }

    /// Fills an output, so that it takes no more.
    pub fn fill(&mut self, output: &str) {
        let queue = self.output(output);
        while self.queues[queue].length() < QUEUE_PACKETS {
            let packet: Packet = self.pool.allocate().expect("a free packet");
            assert!(self.queues[queue].put(packet).is_none());
        }
    }
}

fn pool(packets: u32) -> Pool {
    let segment = Segment::create("caravan-bench", layout::bytes(packets), Pages::Small).expect("memory");
    segment.grow(layout::bytes(packets)).expect("memory");
    let shared = Shared::new(&Arc::new(segment), Fences::Symmetric).expect("memory");
    let owner = Owner::Worker(WorkerId::new(0).expect("a worker"));
    let mut pool = Pool::new(PacketMemory::new(shared.memory(), packets), owner, HEADROOM_BYTES);
    (0..packets).for_each(|index| pool.add(index));
    pool
}
