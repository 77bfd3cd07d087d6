//! Words that stand for one of several things.

/// Causes for which packets are dropped; each worker counts them for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(usize)]
pub enum DropReason {
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

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = 10;
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Full,
        Self::NoPacket,
        Self::Unlinked,
        Self::Filtered,
        Self::Limited,
        Self::Malformed,
        Self::Oversize,
        Self::Device,
        Self::Crashed,
        Self::Removed,
    ];

    /// The name that users read.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; DropReason::COUNT] = [
            "full",
            "no_packet",
            "unlinked",
            "filtered",
            "limited",
            "malformed",
            "oversize",
            "device",
            "crashed",
            "removed",
        ];
        NAMES[self as usize]
    }
}

/// What a worker's place in the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u64)]
pub enum WorkerState {
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
pub enum WorkerStage {
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

impl WorkerStage {
    /// All stages, in the order of their codes.
    pub const ALL: [Self; 8] = [
        Self::Starting,
        Self::Receiving,
        Self::Pulling,
        Self::Pushing,
        Self::Sending,
        Self::Configuring,
        Self::Growing,
        Self::Idle,
    ];
}

/// How two ends of a link hand packets over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkMode {
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
        for (place, drop) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(drop as usize, place);
            assert_eq!(serde_json::to_value(drop).unwrap(), drop.name());
        }
        for (place, stage) in WorkerStage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, place);
        }
    }
}
