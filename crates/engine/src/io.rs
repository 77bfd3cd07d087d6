//! What an app sees of the engine while it runs.

use rustix::time::{ClockId, clock_gettime};

use crate::layout::DropReason;
use crate::packet::Packet;
use crate::pool::Pool;
use crate::queue::PacketQueue;

/// The links of one app: where its worker's queues are, in the order of the ports' names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppPorts {
    /// Names and queues of the inputs, sorted by name.
    pub inputs: Vec<(String, usize)>,
    /// Names and queues of the outputs, sorted by name.
    pub outputs: Vec<(String, usize)>,
}

/// The links of the app that is being called, the free packets of its worker, and the time.
/// Inputs and outputs are numbered from 0 in the order of their names.
#[derive(Debug)]
pub struct Io<'a> {
    ports: &'a AppPorts,
    queues: &'a mut [PacketQueue],
    pool: &'a mut Pool,
    now_ns: u64,
    moved: u64,
}

impl<'a> Io<'a> {
    /// The worker makes one for each call of an app. Tests of apps use [`crate::testing`].
    pub(crate) fn new(
        ports: &'a AppPorts,
        queues: &'a mut [PacketQueue],
        pool: &'a mut Pool,
        now_ns: u64,
    ) -> Self {
        Self { ports, queues, pool, now_ns, moved: 0 }
    }

    /// Returns how many packets the app has received, sent or dropped in this call.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns the time of the monotonic clock at the start of this breath, in nanoseconds.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the number of inputs that are linked.
    #[inline]
    pub fn inputs(&self) -> usize {
        self.ports.inputs.len()
    }

    /// Returns the number of outputs that are linked.
    #[inline]
    pub fn outputs(&self) -> usize {
        self.ports.outputs.len()
    }

    /// Returns the number of the input called `name`, if it is linked.
    pub fn input(&self, name: &str) -> Option<usize> {
        self.ports.inputs.iter().position(|(port, _)| port == name)
    }

    /// Returns the number of the output called `name`, if it is linked.
    pub fn output(&self, name: &str) -> Option<usize> {
        self.ports.outputs.iter().position(|(port, _)| port == name)
    }

    /// Returns the name of an input.
    pub fn input_name(&self, input: usize) -> &str {
        self.ports.inputs.get(input).map_or("", |(name, _)| name)
    }

    /// Returns the name of an output.
    pub fn output_name(&self, output: usize) -> &str {
        self.ports.outputs.get(output).map_or("", |(name, _)| name)
    }

    /// Returns the number of packets that wait at an input.
    #[inline]
    pub fn waiting(&self, input: usize) -> usize {
        self.ports.inputs.get(input).map_or(0, |&(_, queue)| self.queues[queue].length())
    }

    /// Returns the number of packets that an output still takes.
    #[inline]
    pub fn room(&self, output: usize) -> usize {
        self.ports.outputs.get(output).map_or(0, |&(_, queue)| self.queues[queue].room())
    }

    /// Takes the oldest packet that waits at an input.
    #[inline]
    pub fn receive(&mut self, input: usize) -> Option<Packet> {
        let &(_, queue) = self.ports.inputs.get(input)?;
        let packet = self.queues[queue].take()?;
        self.moved += 1;
        Some(packet)
    }

    /// Sends a packet. If the link is full, the packet is dropped and counted as [`DropReason::Full`]; if there is no
    /// link, as [`DropReason::Unlinked`].
    #[inline]
    pub fn transmit(&mut self, output: usize, packet: Packet) {
        self.moved += 1;
        let Some(&(_, queue)) = self.ports.outputs.get(output) else {
            return self.pool.discard(packet, DropReason::Unlinked);
        };
        if let Some(packet) = self.queues[queue].send(packet) {
            self.pool.discard(packet, DropReason::Full);
        }
    }

    /// Returns an empty packet for the app to fill, with room in front for headers; `None` if the worker has none left
    /// just now.
    #[inline]
    pub fn allocate(&mut self) -> Option<Packet> {
        self.pool.allocate()
    }

    /// Returns a copy of a packet; `None` if the worker has no empty packet left just now.
    #[inline]
    pub fn copy(&mut self, packet: &Packet) -> Option<Packet> {
        let mut copy = self.pool.allocate()?;
        copy.fill(packet.data()).then_some(copy)
    }

    /// Makes up to `count` packets, as many as the output takes and the worker has, fills each by `fill`, and
    /// sends them. Returns the number of them. This is the fast way for an app that makes packets.
    #[inline]
    pub fn generate(&mut self, output: usize, count: usize, mut fill: impl FnMut(&mut Packet)) -> usize {
        let Some(&(_, queue)) = self.ports.outputs.get(output) else { return 0 };
        let queue = &mut self.queues[queue];
        let count = count.min(queue.room());
        let sent = queue.send_all(
            count,
            self.pool.allocate_all(count).map(|mut packet| {
                fill(&mut packet);
                packet
            }),
        );
        self.moved += sent as u64;
        sent
    }

    /// Frees all packets that wait at an input. Returns the number of them. This is the fast way for an app at which
    /// packets end.
    #[inline]
    pub fn free_all(&mut self, input: usize) -> usize {
        let Some(&(_, queue)) = self.ports.inputs.get(input) else { return 0 };
        let freed = self.pool.free_all(self.queues[queue].drain(usize::MAX));
        self.moved += freed as u64;
        freed
    }

    /// Passes the packets that wait at an input on to an output. `change` gets each packet first, and may refuse
    /// it by a reason, under which the packet is dropped. Packets for which the output has no room are dropped and
    /// counted, as by [`transmit`](Self::transmit). Returns the number of packets that were not refused. This is the
    /// fast way for an app that sends packets on.
    #[inline]
    pub fn pass(
        &mut self,
        input: usize,
        output: usize,
        mut change: impl FnMut(&mut Packet) -> Result<(), DropReason>,
    ) -> usize {
        let Some(&(_, from)) = self.ports.inputs.get(input) else { return 0 };
        let to = self.ports.outputs.get(output).map(|&(_, queue)| queue).filter(|&to| to != from);
        let count = self.queues[from].length();
        let Some(to) = to.filter(|&to| count <= self.queues[to].room()) else {
            return self.pass_slowly(input, output, count, change);
        };
        let (low, high) = self.queues.split_at_mut(from.max(to));
        let (from, to) =
            if from < to { (&mut low[from], &mut high[0]) } else { (&mut high[0], &mut low[to]) };
        let pool = &mut *self.pool;
        let changed = from.drain(count).filter_map(|mut packet| match change(&mut packet) {
            Ok(()) => Some(packet),
            Err(why) => {
                pool.discard(packet, why);
                None
            }
        });
        self.moved += count as u64;
        to.send_all(count, changed)
    }

    /// Passes packets on one by one, where the output has not enough room, is not linked, or leads back here.
    #[cold]
    fn pass_slowly(
        &mut self,
        input: usize,
        output: usize,
        count: usize,
        mut change: impl FnMut(&mut Packet) -> Result<(), DropReason>,
    ) -> usize {
        let mut passed = 0;
        for _ in 0..count {
            let Some(mut packet) = self.receive(input) else { break };
            match change(&mut packet) {
                Ok(()) => {
                    passed += 1;
                    self.transmit(output, packet);
                }
                Err(why) => self.discard(packet, why),
            }
        }
        passed
    }

    /// Frees a packet that has reached its end.
    #[inline]
    pub fn free(&mut self, packet: Packet) {
        self.moved += 1;
        self.pool.free(packet);
    }

    /// Frees a packet that is dropped, and counts the reason.
    #[inline]
    pub fn discard(&mut self, packet: Packet, why: DropReason) {
        self.moved += 1;
        self.pool.discard(packet, why);
    }

    /// Counts packets that were lost outside of the engine, such as those that a device has dropped.
    pub fn count_drops(&mut self, why: DropReason, count: u64) {
        self.moved += count;
        self.pool.count_drops(why, count);
    }
}

/// Returns the time of the monotonic clock, which the engine uses, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// Returns the time of a clock of this host, in nanoseconds.
pub(crate) fn clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
