//! The memory of a store as a client of its host has mapped it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock};

use crate::copies::lease::LeaseView;
use crate::error::StoreError;
use crate::limits;
use crate::reader::Reader;

/// Mapped memory, and until when it may be read: that of a part is the store only as long as its owner has a lease.
#[derive(Debug)]
pub(crate) struct MappedMemory {
    pub(crate) reader: Reader,
    /// `None` for a store of one server, whose memory is the store for as long as anybody has it.
    lease: Option<LeaseView>,
}

impl MappedMemory {
    /// Maps what a server has handed over: the memory, and for a part its lease.
    pub(crate) fn open(memory: OwnedFd, lease: Option<OwnedFd>) -> Result<Self, StoreError> {
        let reader = Reader::open(memory)?;
        let lease = lease.map(LeaseView::open).transpose()?;
        if lease.is_some() {
            // What waits longer for a lock asks the owner, who may be another one by now.
            reader.view.set_lock_wait(limits::BRANCH_LOCK_WAIT);
        }
        Ok(Self { reader, lease })
    }

    /// Tells whether what was read before this call was the store then.
    #[inline]
    pub(crate) fn may_be_believed(&self) -> bool {
        self.lease.as_ref().is_none_or(LeaseView::holds)
    }

    /// Returns what a transaction has read, which is run again if the memory was not to be believed: by calls, then.
    pub(crate) fn believed<T>(&self, read: Result<T, StoreError>) -> Result<T, StoreError> {
        if self.may_be_believed() { read } else { Err(StoreError::Conflict) }
    }

    /// Reads; `None` if it takes a call.
    #[inline]
    fn read<T>(&self, read: impl FnOnce(&Reader) -> Result<T, StoreError>) -> Option<Result<T, StoreError>> {
        let found = read(&self.reader);
        let is_settled = !matches!(found, Err(StoreError::Undecided));
        (is_settled && self.may_be_believed()).then_some(found)
    }
}

/// What a client has mapped now, if anything. It changes with the server of a part.
#[derive(Debug)]
pub(crate) enum MappedReads {
    /// A store of one server.
    Store(Option<Arc<MappedMemory>>),
    Part(RwLock<Option<Arc<MappedMemory>>>),
}

impl MappedReads {
    pub(crate) fn new(memory: Option<MappedMemory>, is_part: bool) -> Self {
        let memory = memory.map(Arc::new);
        if is_part { Self::Part(RwLock::new(memory)) } else { Self::Store(memory) }
    }

    /// Takes what a later connection has brought.
    pub(crate) fn exchange(&self, memory: Option<MappedMemory>) {
        // The memory of a store of one server is the same as before.
        if let Self::Part(mapped) = self {
            *mapped.write().unwrap_or_else(PoisonError::into_inner) = memory.map(Arc::new);
        }
    }

    /// Returns the memory to read now, for several reads.
    pub(crate) fn memory(&self) -> Option<Arc<MappedMemory>> {
        match self {
            Self::Store(memory) => memory.clone(),
            Self::Part(mapped) => {
                let memory = mapped.read().unwrap_or_else(PoisonError::into_inner).clone();
                memory.filter(|memory| memory.may_be_believed())
            }
        }
    }

    /// Returns the reader of a store of one server, which may always be believed.
    pub(crate) fn always(&self) -> Option<&Reader> {
        match self {
            Self::Store(memory) => memory.as_ref().map(|memory| &memory.reader),
            Self::Part(_) => None,
        }
    }

    /// Reads mapped memory. Returns `None` if the server has to be called: nothing is mapped, or not believed any more, or a
    /// transaction over several parts holds a lock.
    #[inline]
    pub(crate) fn read<T>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, StoreError>,
    ) -> Option<Result<T, StoreError>> {
        match self {
            Self::Store(memory) => memory.as_ref().map(|memory| read(&memory.reader)),
            Self::Part(mapped) => {
                let memory = mapped.read().unwrap_or_else(PoisonError::into_inner).clone();
                memory?.read(read)
            }
        }
    }
}
