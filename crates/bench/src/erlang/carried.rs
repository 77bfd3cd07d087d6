//! The proof of what carried a round's traffic: the links' own counters.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::args::ErlangTransport;
use crate::erlang::cluster::NodeAnswer;
use crate::error::Error;
use crate::number::number;

/// The counters of links, as `caravan_bench_links:counts/1` writes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErlangLinkTotals {
    transports: BTreeSet<String>,
    count: usize,
    sent_messages: u64,
    received_messages: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

/// The work that the benchmark sent: each RPC and each ping is two messages at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SentWork {
    pub rpcs: u64,
    pub pings: u64,
    pub streamed_bytes: u64,
}

/// The traffic of a round's links.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Carried {
    /// The transport that every link reported: `inet_tcp`, `shm`, or `tcp` under Caravan.
    pub transport: String,
    pub links: usize,
    pub sent_messages: u64,
    pub received_messages: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    #[serde(flatten)]
    pub work: SentWork,
}

impl ErlangLinkTotals {
    /// Parses the links of one node; `None` if a word is malformed.
    pub fn parse(answer: &NodeAnswer) -> Option<Self> {
        let mut links = Self::default();
        for word in answer.all("link") {
            let fields: Vec<_> = word.split(',').collect();
            let &[_peer, transport, sent, received, sent_bytes, received_bytes] = &fields[..] else {
                return None;
            };
            links.transports.insert(transport.to_owned());
            links.count += 1;
            links.sent_messages += sent.parse::<u64>().ok()?;
            links.received_messages += received.parse::<u64>().ok()?;
            links.sent_bytes += sent_bytes.parse::<u64>().ok()?;
            links.received_bytes += received_bytes.parse::<u64>().ok()?;
        }
        Some(links)
    }
}

impl FromIterator<ErlangLinkTotals> for ErlangLinkTotals {
    fn from_iter<I: IntoIterator<Item = ErlangLinkTotals>>(all: I) -> Self {
        let mut sum = Self::default();
        for links in all {
            sum.transports.extend(links.transports);
            sum.count += links.count;
            sum.sent_messages += links.sent_messages;
            sum.received_messages += links.received_messages;
            sum.sent_bytes += links.sent_bytes;
            sum.received_bytes += links.received_bytes;
        }
        sum
    }
}

impl Carried {
    /// Checks the counters' growth against the transport that was asked for and the work that was sent.
    pub fn between(
        before: &ErlangLinkTotals,
        after: &ErlangLinkTotals,
        work: SentWork,
        asked: ErlangTransport,
    ) -> Result<Self, Error> {
        let wrong = |what| Err(Error::NotCarried { asked, what });
        let expected = carrier(asked);
        let transports: BTreeSet<_> = before.transports.union(&after.transports).collect();
        if transports.iter().any(|&transport| transport != expected) || transports.is_empty() {
            return wrong(format!("links should be {expected}, and are {transports:?}"));
        }
        if before.count != after.count {
            return wrong(format!("there were {} links, then {}", before.count, after.count));
        }
        let carried = Self {
            transport: expected.to_owned(),
            links: after.count,
            sent_messages: after.sent_messages.saturating_sub(before.sent_messages),
            received_messages: after.received_messages.saturating_sub(before.received_messages),
            sent_bytes: after.sent_bytes.saturating_sub(before.sent_bytes),
            received_bytes: after.received_bytes.saturating_sub(before.received_bytes),
            work,
        };
        let messages = 2 * (work.rpcs + work.pings);
        for (counter, value, least) in [
            ("sent_messages", carried.sent_messages, messages),
            ("received_messages", carried.received_messages, messages),
            ("sent_bytes", carried.sent_bytes, work.streamed_bytes),
            ("received_bytes", carried.received_bytes, work.streamed_bytes),
        ] {
            if value < least {
                return wrong(format!("the {expected} links count {value} {counter}, but {least} were sent"));
            }
        }
        Ok(carried)
    }

    /// Adds the traffic of another round.
    pub fn add(&mut self, other: &Self) {
        self.transport.clone_from(&other.transport);
        self.links = other.links;
        self.sent_messages += other.sent_messages;
        self.received_messages += other.received_messages;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.work.rpcs += other.work.rpcs;
        self.work.pings += other.work.pings;
        self.work.streamed_bytes += other.work.streamed_bytes;
    }

    /// Describes the traffic in one line.
    pub fn text(&self) -> String {
        format!(
            "{} on all {} link ends; {} messages and {:.1} GB for {} RPCs, {} round trips and {:.1} GB streamed",
            self.transport,
            self.links,
            number(self.sent_messages as f64),
            self.sent_bytes as f64 / 1e9,
            number(self.work.rpcs as f64),
            number(self.work.pings as f64),
            self.work.streamed_bytes as f64 / 1e9,
        )
    }
}

/// Returns the name that the links of a transport must report.
pub fn carrier(asked: ErlangTransport) -> &'static str {
    match asked {
        ErlangTransport::Tcp => "inet_tcp",
        ErlangTransport::Caravan => "shm",
        ErlangTransport::CaravanTcp => "tcp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::erlang::cluster::NodeLine;

    fn links(words: &str) -> ErlangLinkTotals {
        let NodeLine::Answer(answer) = NodeLine::parse(&format!("@caravan ok {words}")) else {
            panic!("an answer")
        };
        ErlangLinkTotals::parse(&answer).expect("links")
    }

    const WORK: SentWork = SentWork { rpcs: 10, pings: 5, streamed_bytes: 1000 };

    #[test]
    fn growth_that_covers_the_work_is_proof() {
        let before = links("link=b,shm,7,7,100,100");
        let after = links("link=b,shm,37,40,1100,1200");
        let carried = Carried::between(&before, &after, WORK, ErlangTransport::Caravan).expect("proof");
        assert_eq!((carried.sent_messages, carried.received_messages), (30, 33));
        assert_eq!((carried.sent_bytes, carried.received_bytes), (1000, 1100));
    }

    #[test]
    fn another_transport_is_refused_by_name() {
        let before = links("link=b,shm,0,0,0,0 link=c,tcp,0,0,0,0");
        let after = links("link=b,shm,99,99,9999,9999 link=c,tcp,99,99,9999,9999");
        let error = Carried::between(&before, &after, WORK, ErlangTransport::Caravan);
        let text = error.expect_err("refused").to_string();
        assert!(text.contains("should be shm") && text.contains("tcp"), "{text}");
        let plain = links("link=b,inet_tcp,0,0,0,0");
        assert!(Carried::between(&plain, &plain, SentWork::default(), ErlangTransport::Caravan).is_err());
        assert!(Carried::between(&plain, &plain, SentWork::default(), ErlangTransport::Tcp).is_ok());
    }

    #[test]
    fn counters_that_stand_still_are_refused() {
        let before = links("link=b,shm,7,7,100,100");
        let after = links("link=b,shm,36,40,1100,1200");
        let error = Carried::between(&before, &after, WORK, ErlangTransport::Caravan);
        let text = error.expect_err("refused").to_string();
        assert!(text.contains("count 29 sent_messages, but 30 were sent"), "{text}");
    }

    #[test]
    fn a_word_of_another_shape_is_not_taken_for_a_link() {
        let NodeLine::Answer(answer) = NodeLine::parse("@caravan ok link=b,shm,1,2") else {
            panic!("an answer")
        };
        assert_eq!(ErlangLinkTotals::parse(&answer), None);
    }
}
