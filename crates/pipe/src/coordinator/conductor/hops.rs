//! How hops come to what carries them, and what users are told of it.

use std::sync::PoisonError;

use super::super::Encryption;
use super::super::agents::{AgentChannel, both_ways};
use super::super::joining::{HopEnds, HopMethod, Joined, Joining, JoiningStep};
use super::super::outcome::PipelineTrouble;
use super::{Conductor, Notice};
use crate::control::AgentOrder;
use crate::plan::{self, HopCarrier};

impl Conductor<'_> {
    pub(super) fn join(&mut self) -> bool {
        for number in 0..self.agents.len() {
            let jobs = self.plan.jobs.iter().zip(0_u32..);
            let files: Vec<_> = jobs
                .filter(|(job, _)| job.agent == number)
                .filter_map(|(job, id)| job.file.clone().map(|(path, mode)| (id, path, mode)))
                .collect();
            match files.is_empty() {
                true => self.is_prepared.iter_mut().skip(number).take(1).for_each(|is| *is = true),
                false => self.order(number, AgentOrder::Prepare { files }),
            }
        }
        for hop in self.plan.hops.clone() {
            let made = self.with_ends(hop.number, |ends| Joining::new(hop, ends));
            match made {
                Some(Ok(joining)) => {
                    self.joinings.insert(hop.number, joining);
                    self.step(hop.number, Joining::begin);
                }
                Some(Err(error)) => self.fail(PipelineTrouble::SetUp(error.to_string()), true),
                None => {}
            }
        }
        true
    }

    pub(super) fn step(&mut self, hop: u32, step: impl FnOnce(&mut Joining, &HopEnds<'_>) -> JoiningStep) {
        let Some(mut joining) = self.joinings.remove(&hop) else { return };
        let step = self.with_ends(hop, |ends| step(&mut joining, ends));
        self.joinings.insert(hop, joining);
        match step {
            Some(JoiningStep::Orders(orders)) => {
                for (number, order) in orders {
                    if matches!(order, AgentOrder::Relay { .. }) {
                        self.route(hop);
                    }
                    self.order(number, order);
                }
            }
            Some(JoiningStep::Joined(joined)) => self.join_hop(hop, joined),
            Some(JoiningStep::Failed(tried)) => {
                let ends = self.plan.hops.iter().find(|known| known.number == hop);
                let name = |agent: Option<usize>| agent.map_or("?", |agent| self.plan.name(agent));
                let (from, to) = (name(ends.map(|hop| hop.from)), name(ends.map(|hop| hop.to)));
                let text = format!("no data can go from {from} to {to}. {}", tried.join(". "));
                self.fail(PipelineTrouble::SetUp(text), true);
            }
            None => {}
        }
    }

    pub(super) fn with_ends<T>(&self, hop: u32, with: impl FnOnce(&HopEnds<'_>) -> T) -> Option<T> {
        let hop = self.plan.hops.iter().find(|known| known.number == hop)?;
        let hello = |agent: usize| self.hellos.get(agent).and_then(Option::as_ref);
        let name = |agent: usize| self.plan.agents.get(agent).and_then(Option::as_deref);
        let (from, to) = (hello(hop.from)?, hello(hop.to)?);
        let names = [name(hop.from), name(hop.to)];
        Some(with(&HopEnds { from, to, names, options: &self.request.options }))
    }

    /// Data of this hop go through here.
    pub(super) fn route(&self, hop: u32) {
        let Some(ends) = self.plan.hops.iter().find(|known| known.number == hop) else { return };
        let sender = |agent: usize| self.agents.get(agent).and_then(Option::as_ref).map(AgentChannel::sender);
        let (Some(from), Some(to)) = (sender(ends.from), sender(ends.to)) else { return };
        let [to_from, to_to] = both_ways(from, to);
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        // Once for both ends.
        routes.entry((ends.from, hop)).or_insert(to_to);
        routes.entry((ends.to, hop)).or_insert(to_from);
    }

    pub(super) fn join_hop(&mut self, hop: u32, joined: Joined) {
        let options = &self.request.options;
        let Some(ends) = self.plan.hops.iter().find(|known| known.number == hop).copied() else { return };
        let is_sealed = is_sealed(joined.way, options.sealing);
        let (from, to) = (self.plan.name(ends.from), self.plan.name(ends.to));
        for why in &joined.tried {
            let _ = self.notices.send(Notice::Note(format!("{from} -> {to}: not by {why}")));
        }
        let carrier = match joined.way {
            HopMethod::Pipe => HopCarrier::Pipe,
            // Through this process, which Ctrl-Z stops for as long as the user likes. Who is silent on the
            // control channels is noticed there.
            HopMethod::Relay => HopCarrier::Connection(plan::hop_options(options, is_sealed, None)),
            _ => HopCarrier::Connection(plan::hop_options(options, is_sealed, Some(options.silence))),
        };
        let secrecy = match (joined.way, is_sealed) {
            (HopMethod::Pipe, _) => "",
            (HopMethod::Relay, _) => ", encrypted by ssh",
            (_, true) => ", encrypted",
            (_, false) => ", not encrypted",
        };
        let text = format!("{}{secrecy}", joined.description);
        let _ = self.notices.send(Notice::Note(format!("{from} -> {to}: {text}")));
        if let Some(warning) = warning(joined.way, options.sealing) {
            let _ = self.notices.send(Notice::Warn(format!("{from} -> {to}: {warning}")));
        }
        self.joined.insert(hop, (carrier, text));
    }
}

/// Whether Caravan itself encrypts what goes that way. That both ends are on one host is no reason not to: only a
/// pipe proves it, as machines that were restored from one snapshot are alike in all that they can say of themselves.
fn is_sealed(way: HopMethod, sealing: Encryption) -> bool {
    match (way, sealing) {
        // A pipe leaves nothing, and ssh encrypts.
        (HopMethod::Pipe | HopMethod::Relay, _)
        | (_, Encryption::Never)
        | (HopMethod::Fabric, Encryption::Default) => false,
        (_, Encryption::Always) | (HopMethod::Tcp | HopMethod::TcpReversed, Encryption::Default) => true,
    }
}

/// What all users must know of a way that others can listen to.
fn warning(way: HopMethod, sealing: Encryption) -> Option<String> {
    if is_sealed(way, sealing) {
        return None;
    }
    let carrier = match way {
        HopMethod::Pipe | HopMethod::Relay => return None,
        HopMethod::Fabric => "RDMA",
        HopMethod::Tcp | HopMethod::TcpReversed => "TCP",
    };
    let why = if sealing == Encryption::Never { "as --insecure says" } else { "as --encrypt is not given" };
    Some(format!("over {carrier} in the clear, {why}: whoever is on the way can read and change the data"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_a_process_in_the_clear_is_told_in_the_same_words() {
        let clear = |carrier: &str, why: &str| {
            Some(format!(
                "over {carrier} in the clear, {why}: whoever is on the way can read and change the data"
            ))
        };
        for (way, sealing, sealed, expected) in [
            (HopMethod::Tcp, Encryption::Default, true, None),
            (HopMethod::TcpReversed, Encryption::Always, true, None),
            (HopMethod::Tcp, Encryption::Never, false, clear("TCP", "as --insecure says")),
            (HopMethod::TcpReversed, Encryption::Never, false, clear("TCP", "as --insecure says")),
            (HopMethod::Fabric, Encryption::Default, false, clear("RDMA", "as --encrypt is not given")),
            (HopMethod::Fabric, Encryption::Never, false, clear("RDMA", "as --insecure says")),
            (HopMethod::Fabric, Encryption::Always, true, None),
            (HopMethod::Relay, Encryption::Always, false, None),
            (HopMethod::Pipe, Encryption::Never, false, None),
        ] {
            assert_eq!(is_sealed(way, sealing), sealed, "{way:?} {sealing:?}");
            assert_eq!(warning(way, sealing), expected, "{way:?} {sealing:?}");
        }
    }
}
