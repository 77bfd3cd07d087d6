//! What an engine does, seen from another process of the same user.
//!
//! An engine's memory is a memfd that its processes have open. The kernel lets a process that may debug
//! them open it too, under `/proc/PID/fd`. A viewer stops nothing and takes no lock. It reads the memory
//! with `pread(2)` without mapping it, and checks what it reads: if some process has written nonsense
//! there, the viewer shows wrong figures at most.
//!
//! - [`engines`], [`find`]: the engines that run.
//! - [`Snapshot`]: all words of an engine at a moment; [`Owners`]: the number of packets of each owner.
//! - [`EngineView`]: what two snapshots tell, above all rates.

#[cfg(test)]
pub(crate) mod fake;
mod find;
mod rates;
mod snapshot;
#[cfg(test)]
mod tests;

pub(crate) use find::text;
pub use find::{FoundEngine, engines, find};
pub use rates::{Breaths, EngineView, LinkView, WorkerView};
pub use snapshot::{LinkSnapshot, Owners, Snapshot, WorkerSnapshot};
