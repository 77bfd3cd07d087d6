use crate::error::StoreError;
use crate::limits;

/// What a store does when its memory is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// It refuses writes that need more memory ([`StoreError::Full`]).
    #[default]
    Refuse,
    /// It deletes keys that the owner's threads have not read or written lately. Reads by a
    /// `Reader` in another process leave no trace, so they do not count.
    LeastRecentlyUsed,
}

/// The options of a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The name in `/proc/PID/maps`.
    pub name: String,
    /// The largest number of bytes that the store uses, everything included.
    pub memory_bytes: u64,
    /// What happens when they are used up.
    pub eviction: Eviction,
}

impl StoreOptions {
    /// Returns the options of a store of at most `memory_bytes` bytes that refuses writes when it is full.
    pub fn new(memory_bytes: u64) -> Self {
        Self { name: "caravan-store".to_owned(), memory_bytes, eviction: Eviction::Refuse }
    }

    /// Sets what happens when the memory is used up.
    pub fn eviction(mut self, eviction: Eviction) -> Self {
        self.eviction = eviction;
        self
    }

    /// Sets the name in `/proc/PID/maps`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let (least, most) = (limits::MEMORY_BYTES_MIN, limits::MEMORY_BYTES_MAX);
        if !(least..=most).contains(&self.memory_bytes) {
            let bytes = self.memory_bytes;
            return Err(StoreError::Options(format!("memory_bytes is {bytes}; it takes {least} to {most}")));
        }
        Ok(())
    }
}
