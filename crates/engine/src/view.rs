//! What runs, seen from another process of the same user.
//!
//! An engine's memory is a memfd, and its processes have it open: the kernel lets who may debug
//! them open it too, under `/proc/PID/fd`. Looking on stops nothing and takes no lock. It is read
//! with `pread(2)` and not mapped, and what stands in it is checked: whatever somebody has written
//! there, it is wrong figures at most.
//!
//! - [`engines`], [`find`]: which engines there are.
//! - [`Snapshot`]: all words of one at a moment; [`Owners`]: whose its packets are.
//! - [`EngineView`]: what two snapshots tell, rates above all.

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
