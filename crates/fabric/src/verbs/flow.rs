//! How many immediates are on their way: a peer's queue of receives holds a number of them, and one
//! more would have to be sent again, or would end the connection.
//!
//! `acknowledged <= taken by the peer <= sent <= acknowledged + window`

use super::limits::ACKNOWLEDGE_EVERY;

/// Both directions of one side.
#[derive(Debug)]
pub struct Flow {
    /// What the peer takes without having acknowledged any.
    window: u32,
    /// Ours that it has not acknowledged.
    unacknowledged: u32,
    /// Its that we have taken, and for which receives are posted again, without a word.
    owed: u32,
}

impl Flow {
    /// A peer that takes `window` immediates.
    pub fn new(window: u32) -> Self {
        Self { window, unacknowledged: 0, owed: 0 }
    }

    /// There is room for one more.
    pub fn may_send(&self) -> bool {
        self.unacknowledged < self.window
    }

    /// One is on its way.
    pub fn sent(&mut self) {
        self.unacknowledged += 1;
    }

    /// The peer has taken `count` more. False if it cannot have.
    pub fn acknowledged(&mut self, count: u32) -> bool {
        let left = self.unacknowledged.checked_sub(count);
        self.unacknowledged = left.unwrap_or(0);
        left.is_some()
    }

    /// Receives for `count` of the peer's are posted again.
    pub fn reposted(&mut self, count: u32) {
        self.owed = self.owed.saturating_add(count);
    }

    /// What the peer is to be told now, if anything.
    pub fn due(&self) -> Option<u32> {
        (self.owed >= ACKNOWLEDGE_EVERY).then_some(self.owed)
    }

    /// It has been told.
    pub fn told(&mut self, count: u32) {
        self.owed -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::{RECEIVE_RESERVE, REPOST_EVERY, WINDOW};
    use super::*;

    /// A sender that never stops and a receiver that takes at random: receives never run out, and the
    /// sender never waits for an acknowledgement that does not come.
    #[test]
    fn receives_never_run_out() {
        let mut random = crate::sim::Random::new(7);
        let (mut sender, mut receiver) = (Flow::new(WINDOW), Flow::new(WINDOW));
        let (mut posted, mut untaken, mut taken) = (WINDOW + RECEIVE_RESERVE, 0u32, 0u32);
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
        let mut flow = Flow::new(2);
        flow.sent();
        assert!(flow.acknowledged(1));
        assert!(!flow.acknowledged(1));
    }
}
