//! One lease: the side that holds it and the side that grants it, without a clock or a socket.
//!
//! The holder counts from the moment at which it sent the request, the granter from the moment at which it answers, and
//! longer by the drift of clocks. So the holder's lease has always ended when the granter believes that it has.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::BootTime;
use crate::faults::{LeaseFault, is_planted};
use crate::times::LeaseTimes;

/// A process of a member, by the time at which it started. A keeper starts one after the other for the same membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProcessNumber(pub u64);

/// How many requests may be without an answer. Older ones are forgotten: their leases would have ended.
const REQUESTS_MAX: usize = 16;

/// The holder's side of a lease.
#[derive(Clone, Debug)]
pub struct LeaseHolder {
    /// The requests without an answer, with the times at which they were sent.
    sent: VecDeque<(u64, BootTime)>,
    next_number: u64,
    until: BootTime,
}

impl LeaseHolder {
    /// Begins without a lease. Its requests have numbers that no earlier holder of this host has used: a late answer to a
    /// process before this one counts for nothing.
    pub fn new(now: BootTime) -> Self {
        Self { sent: VecDeque::new(), next_number: now.0, until: BootTime::default() }
    }

    /// Returns the number of a request that is sent now.
    pub fn request(&mut self, now: BootTime) -> u64 {
        self.next_number += 1;
        self.sent.push_back((self.next_number, now));
        if self.sent.len() > REQUESTS_MAX {
            self.sent.pop_front();
        }
        self.next_number
    }

    /// Takes the answer to a request, which arrives now; but the lease counts from the request. An answer that nobody asked for changes nothing.
    pub fn granted(&mut self, number: u64, now: BootTime, times: LeaseTimes) {
        if let Some(index) = self.sent.iter().position(|(sent, _)| *sent == number) {
            let from = if is_planted(LeaseFault::CountedFromAnswer) { now } else { self.sent[index].1 };
            self.until = self.until.max(from + times.lease());
            self.sent.drain(..=index);
        }
    }

    /// Returns when the lease ends on the holder's clock. It holds before that, not at that moment.
    pub fn until(&self) -> BootTime {
        self.until
    }
}

/// The granter's side of a lease.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaseGranter {
    until: BootTime,
    /// The last process of the holder that has asked, if any has.
    process: Option<ProcessNumber>,
}

impl LeaseGranter {
    /// Notes that a request of this process is answered now; without a process, that one may have been answered.
    pub fn grant(&mut self, now: BootTime, times: LeaseTimes, process: Option<ProcessNumber>) {
        self.process = process;
        let drift = if is_planted(LeaseFault::NoDrift) { Duration::ZERO } else { times.drift() };
        self.until = self.until.max(now + times.lease() + drift);
    }

    /// Returns when the lease has ended for certain, on the granter's clock.
    pub fn until(&self) -> BootTime {
        self.until
    }

    /// Ends the lease now if it is this process's, which has ended. A later process of the holder may have one, too.
    pub fn ended(&mut self, process: ProcessNumber) {
        if self.process == Some(process) || is_planted(LeaseFault::EndOfAnotherProcess) {
            self.until = BootTime::default();
        }
    }

    /// Ends the lease now, because no process of the holder runs any more.
    pub fn testified(&mut self) {
        self.until = BootTime::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(100);

    fn ms(time: u64) -> BootTime {
        BootTime::default() + Duration::from_millis(time)
    }

    #[test]
    fn a_lease_counts_from_its_request() {
        let mut holder = LeaseHolder::new(ms(900));
        let first = holder.request(ms(1000));
        let second = holder.request(ms(1020));
        assert_eq!(holder.until(), BootTime::default());
        holder.granted(second + 1, ms(1090), LeaseTimes::of(LEASE));
        assert_eq!(holder.until(), BootTime::default());
        holder.granted(second, ms(1090), LeaseTimes::of(LEASE));
        assert_eq!(holder.until(), ms(1120));
        // An answer that was overtaken does not shorten it, and none counts twice.
        holder.granted(first, ms(1090), LeaseTimes::of(LEASE));
        holder.granted(second, ms(1090), LeaseTimes::of(LEASE));
        assert_eq!(holder.until(), ms(1120));
    }

    #[test]
    fn an_answer_to_an_earlier_process_counts_for_nothing() {
        let mut earlier = LeaseHolder::new(ms(900));
        let mut later = LeaseHolder::new(ms(950));
        let number = earlier.request(ms(920));
        later.request(ms(960));
        later.granted(number, ms(970), LeaseTimes::of(LEASE));
        assert_eq!(later.until(), BootTime::default());
    }

    #[test]
    fn a_granter_believes_longer_than_the_holder() {
        let (mut holder, mut granter) = (LeaseHolder::new(ms(900)), LeaseGranter::default());
        let number = holder.request(ms(1000));
        granter.grant(ms(1000), LeaseTimes::of(LEASE), Some(ProcessNumber(1)));
        holder.granted(number, ms(1090), LeaseTimes::of(LEASE));
        assert!(granter.until() > holder.until());
        // The end of the process before says nothing of this one.
        granter.ended(ProcessNumber(0));
        assert!(granter.until() > holder.until());
        let mut ended = granter;
        ended.ended(ProcessNumber(1));
        assert_eq!(ended.until(), BootTime::default());
        granter.testified();
        assert_eq!(granter.until(), BootTime::default());
    }

    #[test]
    fn requests_without_answers_are_forgotten() {
        let mut holder = LeaseHolder::new(ms(900));
        let first = holder.request(ms(0));
        for time in 1..1000 {
            holder.request(ms(time));
        }
        assert_eq!(holder.sent.len(), REQUESTS_MAX);
        holder.granted(first, ms(1090), LeaseTimes::of(LEASE));
        assert_eq!(holder.until(), BootTime::default());
    }
}
