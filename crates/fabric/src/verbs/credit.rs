//! Flow control of immediates: a peer's receive queue holds a limited number of them; one more would have to be
//! sent again, or would end the connection.
//!
//! `acknowledged <= taken by the peer <= sent <= acknowledged + credit`

use super::limits::ACKNOWLEDGE_EVERY;

/// One side's account of the immediates in both directions.
#[derive(Debug)]
pub struct ImmediateCredit {
    /// The number of immediates that the peer takes without having acknowledged any.
    credit: u32,
    /// The number of immediates that this side has sent and the peer has not acknowledged.
    unacknowledged: u32,
    /// The number of the peer's immediates that this side has taken, whose receives it has posted again, and that it
    /// has not acknowledged.
    owed: u32,
}

impl ImmediateCredit {
    /// Returns an account for a peer that takes `credit` immediates.
    pub fn new(credit: u32) -> Self {
        Self { credit, unacknowledged: 0, owed: 0 }
    }

    /// True if one more immediate may be sent.
    pub fn may_send(&self) -> bool {
        self.unacknowledged < self.credit
    }

    /// Counts one immediate as sent.
    pub fn sent(&mut self) {
        self.unacknowledged += 1;
    }

    /// Counts `count` more immediates as acknowledged by the peer. False if fewer were sent.
    pub fn acknowledged(&mut self, count: u32) -> bool {
        let left = self.unacknowledged.checked_sub(count);
        self.unacknowledged = left.unwrap_or(0);
        left.is_some()
    }

    /// Counts `count` receives for the peer's immediates as posted again.
    pub fn reposted(&mut self, count: u32) {
        self.owed = self.owed.saturating_add(count);
    }

    /// Returns the number of immediates to acknowledge now, if any.
    pub fn due(&self) -> Option<u32> {
        (self.owed >= ACKNOWLEDGE_EVERY).then_some(self.owed)
    }

    /// Counts `count` immediates as acknowledged to the peer.
    pub fn told(&mut self, count: u32) {
        self.owed -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::{IMMEDIATE_CREDIT, RECEIVE_RESERVE, REPOST_EVERY};
    use super::*;

    /// With a sender that never stops and a receiver that takes at random, receives never run out, and the
    /// sender never waits for an acknowledgement that does not come.
    #[test]
    fn receives_never_run_out() {
        let mut random = crate::sim::Random::new(7);
        let (mut sender, mut receiver) =
            (ImmediateCredit::new(IMMEDIATE_CREDIT), ImmediateCredit::new(IMMEDIATE_CREDIT));
        let (mut posted, mut untaken, mut taken) = (IMMEDIATE_CREDIT + RECEIVE_RESERVE, 0u32, 0u32);
        let mut acknowledgements = Vec::new();
        let mut sent = 0;
        while sent < 100_000 {
            if random.once_in(2) && sender.may_send() {
                sender.sent();
                posted = posted.checked_sub(1).expect("no receive is posted");
                untaken += 1;
                sent += 1;
            } else if untaken > 0 {
                untaken -= 1;
                taken += 1;
                if taken >= REPOST_EVERY {
                    posted += taken;
                    receiver.reposted(taken);
                    taken = 0;
                }
                if let Some(count) = receiver.due() {
                    receiver.told(count);
                    acknowledgements.push(count);
                    assert!(acknowledgements.len() < RECEIVE_RESERVE as usize);
                }
            } else {
                assert!(!acknowledgements.is_empty() || sender.may_send(), "both wait for ever");
            }
            if random.once_in(9) {
                acknowledgements.drain(..).for_each(|count| assert!(sender.acknowledged(count)));
            }
        }
    }

    #[test]
    fn a_peer_cannot_acknowledge_what_was_not_sent() {
        let mut account = ImmediateCredit::new(2);
        account.sent();
        assert!(account.acknowledged(1));
        assert!(!account.acknowledged(1));
    }
}
