//! What a supervisor has to tell.

use serde::Serialize;

use crate::layout::WorkerStage;
use crate::recovery::Recovered;

/// What happened, as [`Engine::poll`](crate::Engine::poll) tells it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EngineEvent {
    /// A worker's process ended unasked.
    Crashed {
        /// Its name.
        worker: String,
        /// The process.
        pid: i32,
        /// `signal 11 (SIGSEGV)`, `status 1`.
        how: String,
        /// What it was doing.
        stage: WorkerStage,
        /// Whether it was waiting for packets it had asked for.
        growing: bool,
        /// Packets that it had taken from rings without giving the slots back.
        half_received: u64,
        /// What became of its packets.
        recovered: Recovered,
    },
    /// Its successor runs.
    Restarted {
        /// Its name.
        worker: String,
        /// The process.
        pid: i32,
        /// Nanoseconds since the crash was noticed.
        after_ns: u64,
    },
    /// It is not started again before the configuration changes.
    Parked {
        /// Its name.
        worker: String,
        /// Why.
        why: String,
    },
    /// It did not do as it was told in time, and was killed: a crash follows.
    Hung {
        /// Its name.
        worker: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// It could not be started again, and will be tried again later.
    NotStarted {
        /// Its name.
        worker: String,
        /// Why.
        why: String,
    },
    /// A worker has been waiting for packets for a while: there are no more, and the other workers cannot
    /// do without theirs. Told once, until there are enough again.
    Short {
        /// Its name.
        worker: String,
        /// How many there are: less than there may be where the machine has no memory for more.
        packets: u32,
        /// How many there may be.
        packets_max: u32,
    },
    /// The memory has grown.
    Grown {
        /// Packets there are now.
        packets: u32,
    },
}
