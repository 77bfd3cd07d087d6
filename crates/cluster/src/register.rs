//! Where a configuration is held: three verbs, over a file or etcd.

mod envelope;
mod etcd;
mod file;

pub use etcd::{EtcdOptions, EtcdRegister, EtcdTls};
pub use file::FileRegister;

use std::fmt;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::configuration::Configuration;
use crate::error::ClusterError;

/// Holds the configuration of one store, and decides which change of it is the next.
///
/// Threads and processes may use one register together. Each call ends at its deadline at the latest. No server needs the
/// register to serve: it is asked when the members change.
pub trait ConfigurationRegister: Send + Sync {
    /// Returns the configuration; none if none was ever written. A call that begins after a swap has ended sees that swap.
    fn read(&self, deadline: Instant) -> Result<Option<StoredConfiguration>, ClusterError>;

    /// Writes the configuration if nobody has written since `expected`, which is [`Revision::NONE`] if there should be
    /// none yet. After an error the caller does not know whether it was written, and reads.
    fn compare_and_swap(
        &self,
        expected: Revision,
        next: &Configuration,
        deadline: Instant,
    ) -> Result<SwapOutcome, ClusterError>;

    /// Waits until there is a configuration of another revision than `since`, and returns it; none if the deadline came
    /// first. Configurations between may be skipped.
    fn watch(&self, since: Revision, deadline: Instant) -> Result<Option<StoredConfiguration>, ClusterError>;

    /// Says where the configuration is, for messages.
    fn place(&self) -> String;
}

/// Which writing of a register it is. It grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl Revision {
    /// Nothing was ever written.
    pub const NONE: Self = Self(0);
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A configuration as a register holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredConfiguration {
    /// Which writing it is.
    pub revision: Revision,
    /// What was written.
    pub configuration: Configuration,
}

/// What came of a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapOutcome {
    /// It was written, as this revision.
    Swapped(Revision),
    /// Somebody else has written: this is there now.
    Changed(Option<StoredConfiguration>),
}

/// Refuses to write the configuration of a store in the place of another store's. Who expected none there is told what there is: two
/// servers may make their store at the same moment.
fn refuse_another_store(
    expected: Revision,
    before: Option<&StoredConfiguration>,
    next: &Configuration,
    place: impl Fn() -> String,
) -> Result<(), ClusterError> {
    match before.map(|before| &before.configuration) {
        Some(before) if before.instance != next.instance && expected != Revision::NONE => {
            Err(ClusterError::Foreign {
                place: place(),
                found: before.store.clone(),
                found_instance: before.instance,
                wanted: next.store.clone(),
            })
        }
        _ => Ok(()),
    }
}

/// Returns random bytes of the kernel.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], ClusterError> {
    let mut bytes = [0; N];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    match got.map_err(ClusterError::system("get random bytes"))? {
        count if count == N => Ok(bytes),
        _ => Err(ClusterError::Options("the kernel gave too few random bytes".into())),
    }
}
