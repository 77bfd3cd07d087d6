//! The Ethernet address of the next hop: asked for, kept, and asked for again.
//!
//! This is the same for both protocols, [`arp`](super::arp) and [`ndp`](super::ndp), which differ in how they ask and in
//! what they take for an answer; the app is a [`responder`], and its ports, and what waits for an answer, are in
//! [`passage`].
//!
//! | state | what happens | then |
//! |---|---|---|
//! | unknown | time to ask | unknown: everybody is asked, and the next time is twice as far off |
//! | unknown | an answer, or a hint | known |
//! | known | an answer | known, for [`KNOWN_NS`] before it is asked again |
//! | known | a hint of the same address | known, as before |
//! | known | a hint of another address | known by that address, which is asked at once |
//! | known | time to ask | known: it alone is asked, [`PROBES_MAX`] times |
//! | known | none of these was answered | unknown: everybody is asked at once |
//!
//! An **answer** is to a question of ours, a **hint** whatever else tells of an address.

#[cfg(test)]
pub(super) mod trial;

use std::fmt::{Debug, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Mac;
use crate::app::{App, AppError, Named};
use crate::io::Io;
use crate::layout::DropReason;
use crate::packet::Packet;

const SECOND_NS: u64 = 1_000_000_000;
/// Time for an answer (RFC 4861, section 10: RetransTimer), and before everybody is asked a second time.
pub const ASK_NS_MIN: u64 = SECOND_NS;
/// How often that time is doubled: 32 seconds are the longest.
const DOUBLINGS_MAX: u32 = 5;
/// For how long an answer is believed (RFC 4861, section 10: ReachableTime; RFC 1122, section 2.3.2.1).
pub const KNOWN_NS: u64 = 30 * SECOND_NS;
/// How often a neighbour is asked whether it is still there (RFC 4861, section 10: MaxUnicastSolicit).
pub const PROBES_MAX: u32 = 3;

/// Whom to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// All who may have the address.
    Everybody,
    /// Who last had it.
    Only(Mac),
}

/// What is known of a neighbour. New, it is unknown and to be asked for at once.
#[derive(Debug, Default)]
pub struct Neighbour {
    mac: Option<Mac>,
    /// Questions since the last answer.
    asked: u32,
    /// When to ask next.
    due_ns: u64,
}

impl Neighbour {
    /// One that had an address a while ago.
    pub fn once_at(mac: Mac) -> Self {
        Self { mac: Some(mac), ..Self::default() }
    }

    /// Its address, if that is known.
    #[inline]
    pub fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// When it is to be asked for next.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Whom to ask now, if it is time; who is told so asks.
    #[inline]
    pub fn ask(&mut self, now_ns: u64) -> Option<Query> {
        if now_ns < self.due_ns { None } else { Some(self.ask_now(now_ns)) }
    }

    fn ask_now(&mut self, now_ns: u64) -> Query {
        if self.mac.is_some() && self.asked >= PROBES_MAX {
            (self.mac, self.asked) = (None, 0);
        }
        let wait_ns = match self.mac {
            Some(_) => ASK_NS_MIN,
            None => ASK_NS_MIN << self.asked.min(DOUBLINGS_MAX),
        };
        self.asked = self.asked.saturating_add(1);
        self.due_ns = now_ns + wait_ns;
        self.mac.map_or(Query::Everybody, Query::Only)
    }

    /// It answered.
    pub fn answered(&mut self, mac: Mac, now_ns: u64) {
        *self = Self { mac: Some(mac), asked: 0, due_ns: now_ns + KNOWN_NS };
    }

    /// Somebody said that it is at `mac`.
    pub fn hinted(&mut self, mac: Mac, now_ns: u64) {
        if self.mac != Some(mac) {
            *self = Self { mac: Some(mac), asked: 0, due_ns: now_ns };
        }
    }
}

/// Addresses that one app answers for.
pub const ADDRESSES_MAX: usize = 64;

/// What it answers, and what it asks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerConfig<A> {
    /// The Ethernet address that has the addresses.
    pub mac: Mac,
    /// The addresses that are answered for. The first one asks.
    pub addresses: Vec<A>,
    /// Whose Ethernet address packets from the north get; left out, they keep what they have.
    pub next_hop: Option<A>,
}

/// An IP address.
pub trait NeighbourAddress:
    Copy + PartialEq + Debug + Display + Into<IpAddr> + DeserializeOwned + 'static
{
    /// Whether it can be that of one host.
    fn is_host(self) -> bool;
}

impl NeighbourAddress for Ipv4Addr {
    fn is_host(self) -> bool {
        !(self.is_unspecified() || self.is_multicast() || self.is_broadcast() || self.is_loopback())
    }
}

impl NeighbourAddress for Ipv6Addr {
    fn is_host(self) -> bool {
        !(self.is_unspecified() || self.is_multicast() || self.is_loopback())
    }
}

impl<A: NeighbourAddress> AnswerConfig<A> {
    /// Whether one can answer and ask by it.
    pub fn check(&self) -> Result<(), AppError> {
        let Self { mac, addresses, next_hop } = self;
        let count = addresses.len();
        if !mac.is_station() {
            return Err(AppError(format!("mac = {mac}: it has to be the address of one station")));
        }
        if !(1..=ADDRESSES_MAX).contains(&count) {
            return Err(AppError(format!(
                "addresses: there are {count}, where 1 to {ADDRESSES_MAX} are possible"
            )));
        }
        if let Some(address) = addresses.iter().chain(next_hop).find(|address| !address.is_host()) {
            return Err(AppError(format!("{address} cannot be the address of one host")));
        }
        match next_hop.filter(|next_hop| addresses.contains(next_hop)) {
            Some(own) => {
                Err(AppError(format!("next_hop = {own}: it is one of `addresses`; it must be another's")))
            }
            None => Ok(()),
        }
    }
}

/// The ports of such an app, both ways.
pub const PORTS: Named = Named::Only(&["north", "south"]);
/// What becomes of a packet from the network.
#[derive(Debug)]
pub enum Reception {
    /// It goes on.
    Pass,
    /// It was for us alone, and ends here.
    Done,
    /// It is answered.
    Answer(Vec<u8>),
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
    fn question(&self, ask: Query) -> Vec<u8>;
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
                Reception::Answer(frame) if packet.fill(&frame) => {
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
        if packet.fill(&protocol.question(ask)) {
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

/// Answers for addresses of one kind.
#[derive(Debug)]
pub struct Responder<A> {
    speaker: Speaker<A>,
    passage: Passage,
}

/// Who speaks an address's protocol.
#[derive(Debug)]
pub struct Speaker<A> {
    /// What it answers, and what it asks.
    pub config: AnswerConfig<A>,
    /// Others that said to have one of our addresses.
    pub conflicts: u64,
}

impl<A: NeighbourAddress> App for Responder<A>
where
    Speaker<A>: Protocol,
{
    type Config = AnswerConfig<A>;
    const INPUTS: Named = PORTS;
    const OUTPUTS: Named = PORTS;

    fn check(config: &AnswerConfig<A>) -> Result<(), AppError> {
        config.check()
    }

    fn start(config: AnswerConfig<A>, state: Option<Vec<u8>>) -> Result<Self, AppError> {
        let next_hop = config.next_hop.map(bytes);
        let passage = Passage::new(next_hop.as_deref(), state.as_deref());
        Ok(Self { speaker: Speaker { config, conflicts: 0 }, passage })
    }

    fn push(&mut self, io: &mut Io) {
        self.passage.push(io, &mut self.speaker);
    }

    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>> {
        let next_hop = self.speaker.config.next_hop.map(bytes);
        self.passage.stop(io, next_hop.as_deref())
    }

    fn wake_ns(&self) -> Option<u64> {
        self.passage.wake_ns()
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        self.passage.report(self.speaker.conflicts)
    }
}

/// An address as it stands in a packet.
fn bytes(address: impl Into<IpAddr>) -> Vec<u8> {
    match address.into() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const THERE: Mac = Mac([2, 0, 0, 0, 0, 2]);

    /// Seconds at which it asks until `until`, and whom.
    fn asks(neighbour: &mut Neighbour, from: u64, until: u64) -> Vec<(u64, Query)> {
        let at = |second| (second, neighbour.ask(second * SECOND_NS));
        (from..until).map(at).filter_map(|(second, ask)| Some((second, ask?))).collect()
    }

    #[test]
    fn who_is_unknown_is_asked_for_ever_more_rarely() {
        let mut neighbour = Neighbour::default();
        let seconds: Vec<_> = asks(&mut neighbour, 0, 200).into_iter().map(|(second, _)| second).collect();
        assert_eq!(seconds, [0, 1, 3, 7, 15, 31, 63, 95, 127, 159, 191]);
        assert_eq!(neighbour.mac(), None);
        // Without end, and without overflow.
        neighbour.asked = u32::MAX;
        assert_eq!(asks(&mut neighbour, 1000, 1040), [(1000, Query::Everybody), (1032, Query::Everybody)]);
    }

    #[test]
    fn who_is_known_is_asked_itself_and_then_everybody() {
        let mut neighbour = Neighbour::default();
        neighbour.answered(HERE, 100 * SECOND_NS);
        let only = Query::Only(HERE);
        let expected =
            [(130, only), (131, only), (132, only), (133, Query::Everybody), (134, Query::Everybody)];
        assert_eq!(asks(&mut neighbour, 100, 136), expected);
        assert_eq!(neighbour.mac(), None);

        neighbour.answered(HERE, 200 * SECOND_NS);
        assert_eq!(asks(&mut neighbour, 200, 232), [(230, only), (231, only)]);
        neighbour.answered(HERE, 232 * SECOND_NS);
        assert_eq!(asks(&mut neighbour, 232, 262), []);
        assert_eq!(neighbour.mac(), Some(HERE));
    }

    #[test]
    fn a_hint_is_taken_and_asked_about() {
        let mut neighbour = Neighbour::default();
        neighbour.hinted(HERE, 0);
        assert_eq!((neighbour.mac(), neighbour.ask(0)), (Some(HERE), Some(Query::Only(HERE))));
        neighbour.answered(HERE, 0);
        neighbour.hinted(HERE, SECOND_NS);
        assert_eq!(neighbour.due_ns(), KNOWN_NS, "nothing new");
        neighbour.hinted(THERE, SECOND_NS);
        assert_eq!((neighbour.mac(), neighbour.ask(SECOND_NS)), (Some(THERE), Some(Query::Only(THERE))));
        assert_eq!(Neighbour::once_at(HERE).ask(1), Some(Query::Only(HERE)));
    }
}
