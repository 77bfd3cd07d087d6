//! The app itself, the same by either protocol: it answers for addresses, and finds the next hop's Ethernet
//! address.

use std::net::IpAddr;

use super::config::{AnswerConfig, HostAddress};
use super::passage::{PORTS, Passage, Protocol};
use crate::app::{App, AppError, Named};
use crate::io::Io;

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

impl<A: HostAddress> App for Responder<A>
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
