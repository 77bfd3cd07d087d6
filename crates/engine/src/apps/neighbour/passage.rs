//! The way through an app that answers for addresses: `south` is the network, `north` what is behind the app.
//!
//! All passes, both ways, but for two things. What the network asks about our addresses is answered here. And
//! where a next hop is configured, packets of the protocol that go south to one station get its Ethernet
//! address, and ours as their source; while it is not known, the last of them waits for it (RFC 4861, section
//! 7.2.2; RFC 1122, section 2.3.2.2), and those before are dropped.

use super::{Neighbour, Query};
use crate::app::Named;
use crate::apps::Mac;
use crate::io::Io;
use crate::layout::DropReason;
use crate::packet::Packet;

/// The ports of such an app, both ways.
pub const PORTS: Named = Named::Only(&["north", "south"]);
/// Bytes of the longest frame that such an app makes: Ethernet, IPv6, ICMPv6, an address, an option.
pub const FRAME_BYTES_MAX: usize = 14 + 40 + 8 + 16 + 8;

/// A frame that an app makes.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    bytes: [u8; FRAME_BYTES_MAX],
    length: usize,
}

impl Frame {
    /// Its parts, one behind the other; what is longer than any frame is cut.
    pub fn new(parts: &[&[u8]]) -> Self {
        let mut frame = Self { bytes: [0; FRAME_BYTES_MAX], length: 0 };
        for byte in parts.iter().copied().flatten().take(FRAME_BYTES_MAX) {
            frame.bytes[frame.length] = *byte;
            frame.length += 1;
        }
        frame
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// What becomes of a packet from the network.
#[derive(Debug)]
pub enum Reception {
    /// It goes on.
    Pass,
    /// It was for us alone, and ends here.
    Done,
    /// It is answered.
    Answer(Frame),
    /// It is not what its protocol says.
    Malformed,
}

/// One of the protocols by which addresses are asked for.
pub trait Protocol {
    /// The type of frames whose next hop it finds.
    const CARRIED: [u8; 2];

    /// Our own Ethernet address.
    fn mac(&self) -> Mac;
    /// Takes in what the network sends, and notes what it says about the next hop.
    fn hear(&mut self, frame: &[u8], next_hop: Option<&mut Neighbour>, now_ns: u64) -> Reception;
    /// The question for the next hop's address.
    fn question(&self, ask: Query) -> Frame;
}

/// The way through, and what waits in it.
#[derive(Debug)]
pub struct Passage {
    next_hop: Option<Neighbour>,
    held: Option<Packet>,
    /// Questions answered.
    answers: u64,
    /// Questions asked.
    questions: u64,
    /// Packets dropped as the next hop was not known.
    unresolved: u64,
}

impl Passage {
    /// Towards the next hop of that address, if there is one; `state` is what an earlier passage
    /// [left](Self::stop).
    pub fn new(next_hop: Option<&[u8]>, state: Option<&[u8]>) -> Self {
        let known = |address: &[u8]| Some(Mac(state?.strip_prefix(address)?.try_into().ok()?));
        let neighbour = |address: &[u8]| match known(address).filter(|mac| mac.is_station()) {
            Some(mac) => Neighbour::once_at(mac),
            None => Neighbour::default(),
        };
        Self { next_hop: next_hop.map(neighbour), held: None, answers: 0, questions: 0, unresolved: 0 }
    }

    /// When it wants to be called, whatever comes.
    pub fn wake_ns(&self) -> Option<u64> {
        self.next_hop.as_ref().map(Neighbour::due_ns)
    }

    fn mac(&self) -> Option<Mac> {
        self.next_hop.as_ref().and_then(Neighbour::mac)
    }

    /// One breath.
    pub fn push(&mut self, io: &mut Io, protocol: &mut impl Protocol) {
        self.northward(io, protocol);
        self.release(io, protocol);
        self.southward(io, protocol);
        self.ask(io, protocol);
    }

    /// The end: what waits is dropped, as it is not known where to. Returns the next hop's address, and behind
    /// it its Ethernet address, if that is known.
    pub fn stop(&mut self, io: &mut Io, next_hop: Option<&[u8]>) -> Option<Vec<u8>> {
        if let Some(packet) = self.held.take() {
            self.drop_unresolved(io, packet);
        }
        Some([next_hop?, &self.mac()?.0].concat())
    }

    /// Its figures, and the number of others that said to have one of our addresses.
    pub fn report(&self, conflicts: u64) -> Vec<(&'static str, u64)> {
        vec![
            ("answers", self.answers),
            ("questions", self.questions),
            ("resolved", u64::from(self.mac().is_some())),
            ("unresolved", self.unresolved),
            ("conflicts", conflicts),
        ]
    }

    fn northward(&mut self, io: &mut Io, protocol: &mut impl Protocol) {
        let Some(south) = io.input("south") else { return };
        let (north, back) = (output(io, "north"), output(io, "south"));
        for _ in 0..io.waiting(south) {
            let Some(mut packet) = io.receive(south) else { break };
            match protocol.hear(packet.data(), self.next_hop.as_mut(), io.now_ns()) {
                Reception::Pass => io.transmit(north, packet),
                Reception::Done => io.free(packet),
                Reception::Malformed => io.discard(packet, DropReason::Malformed),
                Reception::Answer(frame) if packet.fill(frame.bytes()) => {
                    self.answers += 1;
                    io.transmit(back, packet);
                }
                Reception::Answer(_) => io.discard(packet, DropReason::Oversize),
            }
        }
    }

    fn southward(&mut self, io: &mut Io, protocol: &impl Protocol) {
        let Some(north) = io.input("north") else { return };
        let south = output(io, "south");
        let mac = self.mac();
        for _ in 0..io.waiting(north) {
            let Some(mut packet) = io.receive(north) else { break };
            if self.next_hop.is_none() || !is_for_next_hop(packet.data(), protocol) {
                io.transmit(south, packet);
                continue;
            }
            match mac {
                Some(mac) => {
                    address(&mut packet, mac, protocol);
                    io.transmit(south, packet);
                }
                None => {
                    if let Some(older) = self.held.replace(packet) {
                        self.drop_unresolved(io, older);
                    }
                }
            }
        }
    }

    /// Sends what waits, once it is known where to.
    fn release(&mut self, io: &mut Io, protocol: &impl Protocol) {
        let Some(mac) = self.mac() else { return };
        if let Some(mut packet) = self.held.take() {
            address(&mut packet, mac, protocol);
            let south = output(io, "south");
            io.transmit(south, packet);
        }
    }

    fn ask(&mut self, io: &mut Io, protocol: &impl Protocol) {
        let (Some(next_hop), Some(south)) = (&mut self.next_hop, io.output("south")) else { return };
        let Some(ask) = next_hop.ask(io.now_ns()) else { return };
        // Without a packet for it, it is asked again in its time.
        let Some(mut packet) = io.allocate() else { return io.count_drops(DropReason::NoPacket, 1) };
        if packet.fill(protocol.question(ask).bytes()) {
            self.questions += 1;
            io.transmit(south, packet);
        }
    }

    /// There is no link to where the packet should go: not one that is known.
    fn drop_unresolved(&mut self, io: &mut Io, packet: Packet) {
        self.unresolved += 1;
        io.discard(packet, DropReason::Unlinked);
    }
}

/// Its number; that of no output where there is no link: what is sent there is dropped, and counted.
fn output(io: &Io, name: &str) -> usize {
    io.output(name).unwrap_or(usize::MAX)
}

/// Whether a frame from the north goes to the next hop: one of the protocol, for one station.
#[inline]
fn is_for_next_hop<P: Protocol>(frame: &[u8], _: &P) -> bool {
    frame.first_chunk::<14>().is_some_and(|header| header[12..] == P::CARRIED && header[0] & 1 == 0)
}

/// Writes a frame's Ethernet addresses.
#[inline]
fn address(packet: &mut Packet, to: Mac, protocol: &impl Protocol) {
    if let Some(header) = packet.data_mut().first_chunk_mut::<12>() {
        header[..6].copy_from_slice(&to.0);
        header[6..].copy_from_slice(&protocol.mac().0);
    }
}
