//! Words that stand for one of several things.

/// Causes for which packets are dropped; each worker counts them for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(usize)]
pub enum Drop {
    /// The link was full: its consumer does not keep up.
    Full,
    /// There was no empty packet.
    NoPacket,
    /// The app has no link there.
    Unlinked,
    /// The app is there to drop such packets.
    Filtered,
    /// It came faster than its rate allows.
    Limited,
    /// It is not what its protocol says.
    Malformed,
    /// It does not fit: a frame longer than a packet, or no room for one more header.
    Oversize,
    /// The device or the file did not take it.
    Device,
    /// It was in a worker that crashed.
    Crashed,
    /// It was in an app or a link that is no more.
    Removed,
}

/// All causes, in the order of their counters.
pub const DROPS: [Drop; 10] = [
    Drop::Full,
    Drop::NoPacket,
    Drop::Unlinked,
    Drop::Filtered,
    Drop::Limited,
    Drop::Malformed,
    Drop::Oversize,
    Drop::Device,
    Drop::Crashed,
    Drop::Removed,
];

impl Drop {
    /// As users read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::NoPacket => "no_packet",
            Self::Unlinked => "unlinked",
            Self::Filtered => "filtered",
            Self::Limited => "limited",
            Self::Malformed => "malformed",
            Self::Oversize => "oversize",
            Self::Device => "device",
            Self::Crashed => "crashed",
            Self::Removed => "removed",
        }
    }
}

/// What a worker's place in the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u64)]
pub enum State {
    /// Nothing.
    None,
    /// A process that runs its apps.
    Running,
    /// No process, as the last one ended unasked or the first is not there yet: about to be started.
    Restarting,
    /// It has crashed too often: not started again before the next change of the configuration.
    Parked,
}

/// What a worker is doing: what a crash interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u64)]
pub enum Stage {
    /// Its first steps: making its apps, taking over what it owns.
    Starting,
    /// Taking packets from other workers.
    Receiving,
    /// In an app's `pull`.
    Pulling,
    /// In an app's `push`.
    Pushing,
    /// Giving packets to other workers.
    Sending,
    /// Changing its apps and links.
    Configuring,
    /// Waiting for packets it has asked for, or taking them over.
    Growing,
    /// Waiting for something to do.
    Idle,
}

/// All stages, in the order of their codes.
pub const STAGES: [Stage; 8] = [
    Stage::Starting,
    Stage::Receiving,
    Stage::Pulling,
    Stage::Pushing,
    Stage::Sending,
    Stage::Configuring,
    Stage::Growing,
    Stage::Idle,
];

/// How two ends of a link hand packets over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The packet itself changes its owner; an empty one goes back for it.
    #[default]
    Swap,
    /// The consumer copies the data into a packet of its own, before it looks at them.
    Copy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_places() {
        for (place, drop) in DROPS.into_iter().enumerate() {
            assert_eq!(drop as usize, place);
        }
        for (place, stage) in STAGES.into_iter().enumerate() {
            assert_eq!(stage as usize, place);
        }
    }
}
