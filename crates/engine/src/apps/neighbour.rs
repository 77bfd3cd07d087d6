//! The Ethernet address of the next hop: asked for, kept, and asked for again.
//!
//! The same for both protocols, [`arp`](super::arp) and [`ndp`](super::ndp), which differ in how they ask and in
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

pub mod config;
pub mod passage;
pub mod responder;
#[cfg(test)]
pub(super) mod trial;

use super::Mac;

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
