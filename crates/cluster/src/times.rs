//! The times of a cluster. All of them follow from the lease, which its configuration says.

use std::time::Duration;

/// How long members wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    lease: Duration,
}

impl LeaseTimes {
    /// Returns the times of a cluster with this lease.
    pub fn of(lease: Duration) -> Self {
        Self { lease }
    }

    /// Returns how long a lease lasts on the holder's clock, from the moment at which it was asked for.
    pub fn lease(self) -> Duration {
        self.lease
    }

    /// Returns by how much more of its own clock a granter waits: two clocks differ by at most one hundredth. Those of real
    /// machines differ by a thousandth of that.
    pub fn drift(self) -> Duration {
        self.lease / 100
    }

    /// Returns how often a holder asks for a lease: four requests may be lost before it ends.
    pub fn renewal(self) -> Duration {
        self.lease / 5
    }

    /// Returns how long a member that has been silent for a lease already has to answer a probe.
    pub fn probe_of_silent(self) -> Duration {
        self.lease / 10
    }

    /// Returns how long a member has to answer a probe that was not silent: nobody suspects it, or its connection broke.
    pub fn probe(self) -> Duration {
        self.lease
    }

    /// Returns how long each further successor waits for those before it, when the manager is silent.
    pub fn succession(self) -> Duration {
        self.lease
    }

    /// Returns how long a member tries to do the work of a manager that does not reach the register, before it is asked
    /// again.
    pub fn relief(self) -> Duration {
        5 * self.lease
    }

    /// Returns how long a primary waits for its commits under way before another member takes its place. Without an end of them its
    /// memory is filled anew then.
    pub fn leaving(self) -> Duration {
        self.lease / 5
    }

    /// Returns how often a member looks at what changes while it has somebody to wait for.
    pub fn glance(self) -> Duration {
        // An answer wakes it, so this is for what only time changes.
        (self.lease / 40).min(Duration::from_millis(5))
    }
}
