//! The Ethernet address of the next hop: how it is asked for, kept, and asked for again.
//!
//! This is the same for both protocols, [`arp`](super::arp) and [`ndp`](super::ndp), which differ in how they ask and
//! in what they take for an answer. The app is a [`Responder`].
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
//! An **answer** is a reply to a question of ours; a **hint** is any other message that tells an address.

#[cfg(test)]
pub(super) mod trial;

use std::fmt::{Debug, Display};
use std::net::IpAddr;

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
/// How often that time is doubled: the longest is 32 seconds.
const DOUBLINGS_MAX: u32 = 5;
/// For how long an answer is believed (RFC 4861, section 10: ReachableTime; RFC 1122, section 2.3.2.1).
pub const KNOWN_NS: u64 = 30 * SECOND_NS;
/// How often a neighbour is asked whether it is still there (RFC 4861, section 10: MaxUnicastSolicit).
pub const PROBES_MAX: u32 = 3;

/// The receivers of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// All hosts that may have the address.
    Everybody,
    /// The host that last had it.
    Only(Mac),
}

/// The state of a neighbour. A new one is unknown, and is asked for at once.
#[derive(Debug, Default)]
pub struct Neighbour {
    mac: Option<Mac>,
    /// The number of questions since the last answer.
    asked: u32,
    /// The time of the next question.
    due_ns: u64,
}

impl Neighbour {
    /// Makes a neighbour that had an address a while ago.
    pub fn once_at(mac: Mac) -> Self {
        Self { mac: Some(mac), ..Self::default() }
    }

    /// Returns the neighbour's address, if that is known.
    #[inline]
    pub fn mac(&self) -> Option<Mac> {
        self.mac
    }

    /// Returns the time of the next question.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Returns whom to ask, if it is time; the caller must ask then.
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

    /// Notes that the neighbour answered.
    pub fn answered(&mut self, mac: Mac, now_ns: u64) {
        *self = Self { mac: Some(mac), asked: 0, due_ns: now_ns + KNOWN_NS };
    }

    /// Notes a hint that the neighbour is at `mac`.
    pub fn hinted(&mut self, mac: Mac, now_ns: u64) {
        if self.mac != Some(mac) {
            *self = Self { mac: Some(mac), asked: 0, due_ns: now_ns };
        }
    }
}

/// The number of addresses that one app answers for at most.
pub const ADDRESSES_MAX: usize = 64;

/// The configuration of an app of either protocol.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerConfig<A> {
    /// The Ethernet address that has the addresses.
    pub mac: Mac,
    /// The addresses that the app answers for. It asks from the first one.
    pub addresses: Vec<A>,
    /// The next hop, whose Ethernet address packets from the north get. Without it, they keep their addresses.
    pub next_hop: Option<A>,
}

/// The addresses of one version of IP, and the protocol by which their Ethernet addresses are asked for.
pub trait NeighbourAddress:
    Copy + PartialEq + Debug + Display + Into<IpAddr> + DeserializeOwned + 'static
{
    /// The type of the frames whose next hop the protocol finds.
    const CARRIED: [u8; 2];

    /// True if the address can be that of one host.
    fn is_host(self) -> bool;
    /// Handles a frame from the network, and notes what it says about the next hop.
    fn hear(app: &mut Responder<Self>, frame: &[u8], now_ns: u64) -> Reception;
    /// Makes the question for the next hop's address.
    fn question(config: &AnswerConfig<Self>, ask: Query) -> Vec<u8>;
}

impl<A: NeighbourAddress> AnswerConfig<A> {
    /// Checks that the app can answer and ask by this configuration.
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

/// The ports of an app of either protocol, in both directions.
pub const PORTS: Named = Named::Only(&["north", "south"]);
/// The result of a packet from the network.
#[derive(Debug)]
pub enum Reception {
    /// The packet goes on.
    Pass,
    /// The packet was for the app alone, and ends here.
    Done,
    /// The packet is answered by this frame.
    Answer(Vec<u8>),
    /// The packet violates its protocol.
    Malformed,
}

/// The app that answers for addresses of one kind.
#[derive(Debug)]
pub struct Responder<A> {
    /// The addresses that the app answers for, and the next hop's.
    pub config: AnswerConfig<A>,
    /// Messages of others that claimed one of the app's addresses.
    pub conflicts: u64,
    next_hop: Option<Neighbour>,
    /// The last packet for a next hop that is not known yet.
    held: Option<Packet>,
    /// The number of questions answered.
    answers: u64,
    /// The number of questions asked.
    questions: u64,
    /// Packets dropped because the next hop was not known.
    unresolved: u64,
}

impl<A: NeighbourAddress> App for Responder<A> {
    type Config = AnswerConfig<A>;
    const INPUTS: Named = PORTS;
    const OUTPUTS: Named = PORTS;

    fn check(config: &AnswerConfig<A>) -> Result<(), AppError> {
        config.check()
    }

    /// `state` is the next hop's address, followed by its Ethernet address.
    fn start(config: AnswerConfig<A>, state: Option<Vec<u8>>) -> Result<Self, AppError> {
        let known = |address: A| Some(Mac(state?.strip_prefix(&bytes(address)[..])?.try_into().ok()?));
        let neighbour = |address: A| match known(address).filter(|mac| mac.is_station()) {
            Some(mac) => Neighbour::once_at(mac),
            None => Neighbour::default(),
        };
        let next_hop = config.next_hop.map(neighbour);
        Ok(Self { config, conflicts: 0, next_hop, held: None, answers: 0, questions: 0, unresolved: 0 })
    }

    fn push(&mut self, io: &mut Io) {
        self.northward(io);
        self.release(io);
        self.southward(io);
        self.ask(io);
    }

    /// Drops the packet that waits, as its next hop is not known.
    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>> {
        if let Some(packet) = self.held.take() {
            self.drop_unresolved(io, packet);
        }
        Some([&bytes(self.config.next_hop?)[..], &self.mac()?.0].concat())
    }

    fn wake_ns(&self) -> Option<u64> {
        self.next_hop.as_ref().map(Neighbour::due_ns)
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("answers", self.answers),
            ("questions", self.questions),
            ("resolved", u64::from(self.mac().is_some())),
            ("unresolved", self.unresolved),
            ("conflicts", self.conflicts),
        ]
    }
}

impl<A: NeighbourAddress> Responder<A> {
    /// Returns the next hop, if it has this address.
    pub fn next_hop_at(&mut self, address: A) -> Option<&mut Neighbour> {
        self.next_hop.as_mut().filter(|_| self.config.next_hop == Some(address))
    }

    fn mac(&self) -> Option<Mac> {
        self.next_hop.as_ref().and_then(Neighbour::mac)
    }

    fn northward(&mut self, io: &mut Io) {
        let Some(south) = io.input("south") else { return };
        let (north, back) = (output(io, "north"), output(io, "south"));
        for _ in 0..io.waiting(south) {
            let Some(mut packet) = io.receive(south) else { break };
            match A::hear(self, packet.data(), io.now_ns()) {
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

    fn southward(&mut self, io: &mut Io) {
        let Some(north) = io.input("north") else { return };
        let south = output(io, "south");
        let mac = self.mac();
        for _ in 0..io.waiting(north) {
            let Some(packet) = io.receive(north) else { break };
            let is_for_next_hop = self.next_hop.is_some() && is_for_next_hop::<A>(packet.data());
            match mac.filter(|_| is_for_next_hop) {
                Some(mac) => self.send(io, packet, mac),
                None if !is_for_next_hop => io.transmit(south, packet),
                None => {
                    if let Some(older) = self.held.replace(packet) {
                        self.drop_unresolved(io, older);
                    }
                }
            }
        }
    }

    /// Sends the packet that waits, once the next hop is known.
    fn release(&mut self, io: &mut Io) {
        let Some(mac) = self.mac() else { return };
        if let Some(packet) = self.held.take() {
            self.send(io, packet, mac);
        }
    }

    /// Sends a packet to the next hop.
    fn send(&self, io: &mut Io, mut packet: Packet, to: Mac) {
        if let Some(header) = packet.data_mut().first_chunk_mut::<12>() {
            header[..6].copy_from_slice(&to.0);
            header[6..].copy_from_slice(&self.config.mac.0);
        }
        io.transmit(output(io, "south"), packet);
    }

    fn ask(&mut self, io: &mut Io) {
        let (Some(next_hop), Some(south)) = (&mut self.next_hop, io.output("south")) else { return };
        let Some(ask) = next_hop.ask(io.now_ns()) else { return };
        // Without an empty packet, the question is asked again when it is next due.
        let Some(mut packet) = io.allocate() else { return io.count_drops(DropReason::NoPacket, 1) };
        if packet.fill(&A::question(&self.config, ask)) {
            self.questions += 1;
            io.transmit(south, packet);
        }
    }

    /// Drops a packet whose next hop is not known: there is no link to it.
    fn drop_unresolved(&mut self, io: &mut Io, packet: Packet) {
        self.unresolved += 1;
        io.discard(packet, DropReason::Unlinked);
    }
}

/// Returns the number of an output. Without a link it is no output's: packets sent there are dropped and counted.
fn output(io: &Io, name: &str) -> usize {
    io.output(name).unwrap_or(usize::MAX)
}

/// True if a frame from the north goes to the next hop: it is of the protocol, and for one station.
#[inline]
fn is_for_next_hop<A: NeighbourAddress>(frame: &[u8]) -> bool {
    frame.first_chunk::<14>().is_some_and(|header| header[12..] == A::CARRIED && header[0] & 1 == 0)
}

/// Returns an address as it is in a packet.
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

    /// Returns the seconds at which the neighbour asks between `from` and `until`, and whom.
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
        // It goes on without end, and without overflow.
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
