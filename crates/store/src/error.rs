use crate::layout::BLOCK_BYTES;
use crate::limits;

/// What can go wrong with a store, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The key is longer than a key may be.
    #[error(
        "the key has {bytes} bytes; the limit is {}: use a shorter key, such as a digest",
        limits::KEY_BYTES_MAX
    )]
    KeyTooLong {
        /// The number of bytes in the key.
        bytes: usize,
    },
    /// The value is longer than a value may be.
    #[error(
        "the value has {bytes} bytes; the limit is {}: store it in several keys",
        limits::VALUE_BYTES_MAX
    )]
    ValueTooLong {
        /// The number of bytes in the value.
        bytes: usize,
    },
    /// A value is too long to travel in a call of a client to the server, or in the reply.
    #[error(
        "the value has {bytes} bytes; over a link, a value {} may have {limit}: {}",
        if *.limit < limits::CALL_VALUE_BYTES_MAX { "in a transaction" } else { "in a call" },
        if *.limit < limits::CALL_VALUE_BYTES_MAX {
            "put it by itself, or in MULTI of the Redis protocol"
        } else {
            "write it by the Redis protocol, and read it by that or where the store is mapped"
        }
    )]
    CallTooLong {
        /// The number of bytes in the value.
        bytes: usize,
        /// The limit: of a single operation, or of a value in a transaction.
        limit: usize,
    },
    /// The bytes for an object are more than an object may have.
    #[error(
        "the object would have {bytes} bytes; the limit is {}: use several objects, or a key",
        limits::OBJECT_BYTES_MAX
    )]
    ObjectTooLong {
        /// The number of bytes.
        bytes: usize,
    },
    /// The store's memory is used up, or [the host's](Self::is_host_full) is, and its options forbid eviction or
    /// nothing can be evicted.
    #[error(
        "the store is full: {used_bytes} of {memory_bytes} bytes are in use, and {needed_bytes} more are needed; {}",
        if is_host_full(*.needed_bytes, *.used_bytes, *.memory_bytes) {
            "this host, or the control group, has no memory left: free some, or raise memory.max"
        } else {
            "delete keys, give it more memory, or let it evict"
        }
    )]
    Full {
        /// The number of bytes that were needed.
        needed_bytes: u64,
        /// The number of bytes in use.
        used_bytes: u64,
        /// The limit that the options set.
        memory_bytes: u64,
    },
    /// The options contradict each other or a limit.
    #[error("the options of the store are not usable: {0}")]
    Options(String),
    /// Another transaction changed what this one has read. `transaction` runs the body again by itself: the
    /// body hands this error on.
    #[error("another transaction changed what this one has read; return this error from the body")]
    Conflict,
    /// A required version is not the current one.
    #[error("the key has another version than the one that was required: read it again")]
    VersionChanged,
    /// No object is at this address: it was freed, or never allocated.
    #[error("no object is at {0}: it was freed, or the address is of another store")]
    NoObject(crate::ObjectAddress),
    /// A transaction has more reads and writes than one may have.
    #[error(
        "the transaction has more than {} reads and writes, or more than {} MiB to send to the server: split it",
        limits::TRANSACTION_OPERATIONS_MAX,
        limits::CALL_BYTES_MAX >> 20
    )]
    TransactionTooLarge,
    /// This process is a child (fork) of the one that owns the store.
    #[error(
        "this process is a child (fork) of the store's owner, which alone writes it: open a Reader, or connect to a server"
    )]
    Forked,
    /// The body of a transaction called the store instead of the transaction.
    #[error(
        "the body of a transaction called a writing method of its store: call the transaction's method instead"
    )]
    Nested,
    /// What was to be read stayed locked for longer than any writer that runs takes.
    #[error(
        "a part of the store stayed locked for {wait:?}: the process that owns the store is stopped or has died; continue or restart it",
        wait = limits::READ_WAIT
    )]
    Contended,
    /// The server has no function with this number.
    #[error(
        "the server has no function {number} of this kind: start it with that function, or ask another one"
    )]
    NoFunction {
        /// The number.
        number: u16,
    },
    /// A function that only reads has written.
    #[error("function {number} was added as one that only reads, and has written: add it as one that writes")]
    FunctionWrites {
        /// The number.
        number: u16,
    },
    /// A transaction over several parts has locked what is wanted, and is not decided yet.
    #[error(
        "a transaction over several parts of the store is not decided yet, and has locked this: try again"
    )]
    Undecided,
    /// A transaction over several parts was given up, because its client was silent for too long or its home has another owner.
    #[error("the transaction was given up before it was committed: run it again")]
    Closed,
    /// A transaction over several parts allocates an object in another part than that of its first write.
    #[error(
        "a transaction over several parts allocates objects only in the part of the first key that it writes"
    )]
    ObjectElsewhere,
    /// A transaction has keys in more parts than one may have.
    #[error(
        "the transaction has keys in {parts} parts of the store; the limit is {}: give keys that belong together one hash tag",
        limits::PARTICIPANTS_MAX + 1
    )]
    TooManyParts {
        /// In how many parts.
        parts: usize,
    },
    /// The bytes for an object do not fit where it is.
    #[error("{bytes} bytes do not fit in an object of {capacity}: allocate another one")]
    ObjectTooSmall {
        /// The number of bytes to write.
        bytes: usize,
        /// The number of bytes that the object can have.
        capacity: usize,
    },
    /// The object belongs to a key, and is written by its key alone.
    #[error("the object at {0} belongs to a key: write it by its key")]
    Keyed(crate::ObjectAddress),
    /// There is no such session.
    #[error("the store has no such session: it was closed; open another one")]
    NoSession,
    /// There are as many sessions as there may be.
    #[error(
        "the store has {} sessions, which is the limit: close those of clients that are gone",
        limits::SESSIONS_MAX
    )]
    TooManySessions,
    /// The session does not keep the reply to the request any more, so whether it was done cannot be known.
    #[error(
        "request {request} is refused: the session keeps the last {} replies, and the client has sent a later request in its place",
        limits::SESSION_REPLIES
    )]
    RequestForgotten {
        /// The number of the request.
        request: u64,
    },
    /// A transaction does a second request of a session.
    #[error("a transaction does one request of a session: do the other one in a transaction of its own")]
    SecondRequest,
    /// A fixed table cannot have pairs of these sizes.
    #[error(
        "a fixed table takes keys of at least 1 byte, and at most {} bytes for key and value together; these have {key_bytes} and {value_bytes}: put larger values under keys of the store",
        limits::FIXED_PAIR_BYTES_MAX
    )]
    FixedSizes {
        /// The number of bytes in a key.
        key_bytes: usize,
        /// The number of bytes in a value.
        value_bytes: usize,
    },
    /// The key has another size than the keys of the fixed table.
    #[error("the key has {bytes} bytes; the keys of this table have {takes}")]
    FixedKey {
        /// The number of bytes in the key.
        bytes: usize,
        /// The number of bytes that the table's keys have.
        takes: usize,
    },
    /// The value has another size than the values of the fixed table.
    #[error("the value has {bytes} bytes; the values of this table have {takes}")]
    FixedValue {
        /// The number of bytes in the value.
        bytes: usize,
        /// The number of bytes that the table's values have.
        takes: usize,
    },
    /// The object at an address is no fixed table.
    #[error("the object at {0} is no fixed table: use the address that FixedTable::address returned")]
    NotAFixedTable(crate::ObjectAddress),
    /// A descriptor is not of the memory of a store.
    #[error("the descriptor is not of a store's memory: {0}; ask the owner for another one")]
    NotAStore(&'static str),
    /// Another process owns the memory.
    #[error("another process owns the memory of this store: end it first")]
    Owned,
    /// The memory contradicts itself.
    #[error("the memory of the store is damaged: {0}; restart it empty")]
    Damaged(String),
    /// Another thread is saving this store.
    #[error("a save of this store is under way: wait until it has ended")]
    SaveUnderWay,
    /// The snapshot could not be written.
    #[error("the snapshot could not be written: {0}")]
    SnapshotWrite(#[source] std::io::Error),
    /// The snapshot could not be read.
    #[error("the snapshot could not be read: {0}")]
    SnapshotRead(#[source] std::io::Error),
    /// The bytes are not those of a snapshot.
    #[error("this is no snapshot of a store: it does not begin with the words `caravan snapshot`")]
    NotASnapshot,
    /// The snapshot has a format that this version does not know.
    #[error(
        "the snapshot has format {format}, and this version reads format {known}: use the version that wrote it"
    )]
    SnapshotFormat {
        /// The format of the snapshot.
        format: u64,
        /// The format that this version reads.
        known: u64,
    },
    /// The snapshot ends too early, or its bytes have changed.
    #[error("the snapshot is damaged at byte {position}: {what}; load another copy")]
    SnapshotDamaged {
        /// Where the part begins that is not as it was written.
        position: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The store has too little memory for the snapshot.
    #[error(
        "the snapshot does not fit: the {memory_bytes} bytes of the store were full after {keys} keys; give it more memory"
    )]
    SnapshotTooLarge {
        /// The limit that the options set.
        memory_bytes: u64,
        /// The number of keys that the store had then.
        keys: u64,
    },
    /// A snapshot is loaded into an empty store only.
    #[error("the store has {keys} keys already: load a snapshot into an empty store")]
    NotEmpty {
        /// The number of keys.
        keys: u64,
    },
    /// The text is no address of a store.
    #[error("{0:?} is no address of a store: give HOST:PORT, unix:PATH, or the name of a store of this host")]
    Address(String),
    /// No server answers at the address.
    #[error("no store answers at {address}: {source}; start one with `caravan store serve`")]
    Unreachable {
        /// The address.
        address: String,
        /// Why it does not answer.
        source: std::io::Error,
    },
    /// The server refused.
    #[error("the store refused: {0}")]
    Refused(String),
    /// The connection broke before the answer came.
    #[error(
        "the connection to the store broke before it answered, so it is unknown whether the operation was done: look, or repeat it if that does no harm"
    )]
    Disconnected,
    /// The server has said nothing for as long as the options allow.
    #[error(
        "the store has said nothing for {wait:?}: its server is stopped, hangs or is busy, or the network to it is cut. {}",
        if *.is_started {
            "Its memory can still be read where it is mapped. What was called for may have been done, or may still be done, once: look before you repeat it"
        } else {
            "Nothing was called for: try again once the server runs"
        }
    )]
    NoAnswer {
        /// How long the client has waited.
        wait: std::time::Duration,
        /// Whether the operation may have reached the server.
        is_started: bool,
    },
    /// The server that answers now has another store than the one that was connected.
    #[error("another store answers at the address now, the first one's memory is gone: connect again")]
    Replaced,
    /// The link to the server failed.
    #[error("the link to the store: {0}")]
    Link(#[from] caravan_fabric::Error),
    /// The server does not keep to the protocol.
    #[error("the store's answer breaks the protocol: {0}; use the same version of Caravan on both sides")]
    Protocol(&'static str),
    /// Shared memory could not be made.
    #[error("no shared memory for the store: {0}")]
    Memory(#[from] caravan_segment::Error),
    /// The owner's lease has ended: another copy of the store may have taken over.
    #[error(
        "this server does not own the store any more, so it is unknown whether the operation was done: connect to the store's new server, and look"
    )]
    NotPrimary,
    /// A copy does not have the whole memory of the store yet.
    #[error(
        "the copy does not have the whole store: take over with another copy, or restart the owner over its memory"
    )]
    IncompleteCopy,
    /// There is no such copy.
    #[error("the store has no such copy: it was removed; add another one")]
    NoCopy,
    /// A copy cannot go on: it follows another stream, or lacks what cannot be sent again.
    #[error("the copy follows another owner's stream: add it as a new one")]
    OtherStream,
    /// There are as many copies as there may be.
    #[error("the store has {} copies, which is the limit: remove one", limits::COPIES_MAX)]
    TooManyCopies,
    /// The host of a copy does nothing.
    #[error(
        "the host of a copy has not completed an operation for {wait:?}: it is stopped, or the network to it is cut"
    )]
    CopySilent {
        /// How long nothing has happened.
        wait: std::time::Duration,
    },
    /// Any other failure of a system call.
    #[error("{call}: {source}")]
    System {
        /// The call that failed.
        call: &'static str,
        /// The error of the kernel.
        source: std::io::Error,
    },
}

/// A store at its own limit has no room for one more block.
fn is_host_full(needed_bytes: u64, used_bytes: u64, memory_bytes: u64) -> bool {
    used_bytes.saturating_add(needed_bytes.max(BLOCK_BYTES)).saturating_add(BLOCK_BYTES) < memory_bytes
}

impl StoreError {
    /// Tells whether there was no room although the store has not reached its own limit: the host, or the control
    /// group, has no memory left.
    pub fn is_host_full(&self) -> bool {
        match *self {
            Self::Full { needed_bytes, used_bytes, memory_bytes } => {
                is_host_full(needed_bytes, used_bytes, memory_bytes)
            }
            _ => false,
        }
    }

    /// Tells whether a server has refused for the moment: the part that was asked for is being taken over, or moves.
    pub(crate) fn is_passing_refusal(&self) -> bool {
        matches!(self, Self::Refused(text) if text.ends_with("try again") || text.starts_with("MOVED PART "))
    }

    pub(crate) fn system(call: &'static str, error: impl Into<std::io::Error>) -> Self {
        Self::System { call, source: error.into() }
    }
}
