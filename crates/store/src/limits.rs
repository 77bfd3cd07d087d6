//! Every limit of the store, and the reason for each.

use std::time::Duration;

/// The largest number of bytes in a key. Each byte of a key is compared on each read of it, and a key travels
/// in the same object as its value, so a key is kept far below a block.
pub const KEY_BYTES_MAX: usize = 32 << 10;

/// The largest number of bytes in a value: with the longest key and its header it fits in one block of
/// memory.
pub const VALUE_BYTES_MAX: usize = (1 << 20) - (34 << 10);

/// The smallest memory of a store: room for the directory, one part of the table, and some blocks of objects.
pub const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// The largest memory of a store: a bucket names its chain by 34 bits, in units of 8 bytes.
pub const MEMORY_BYTES_MAX: u64 = 1 << 37;

/// How often a transaction is tried at the same time as others before it is run alone.
pub const ATTEMPTS_BESIDE_OTHERS: u32 = 16;

/// How many threads can commit at the same time; more wait for each other. A machine's cores are what is worth
/// using, and each lane takes 4 KiB of the store's memory.
pub const LANES: usize = 32;

/// The largest object, header included, that is overwritten where it is. A larger one is written to another
/// place and then exchanged, because what is overwritten goes through the log.
pub const IN_PLACE_BYTES_MAX: usize = 1024;

/// The private memory that a lane keeps between two commits.
pub const RECORD_BUFFER_BYTES_MAX: usize = 64 << 10;

/// How long an owner waits for the one before to be gone. A process that it was just starting has its descriptors,
/// and thereby its lock, until it runs a program of its own.
pub const OWNER_WAIT: Duration = Duration::from_secs(1);

/// The sleep between two attempts to become the owner.
pub const OWNER_PAUSE: Duration = Duration::from_millis(1);

/// The largest number of sessions: each takes 4 KiB of the store's memory, and a server serves fewer clients.
pub const SESSIONS_MAX: u64 = 16 << 10;

/// The bytes of a session: what it keeps of replies, with 16 bytes for each and 8 more.
pub const SESSION_BYTES: usize = 4064;

/// The largest number of replies that a session keeps: as many requests can a client have under way that change
/// something.
pub const SESSION_REPLIES_MAX: usize = 64;

/// The largest number of bytes in a reply that is kept. Replies to writes are short, and a request that fetches a
/// large value can be made one that only reads.
pub const REPLY_BYTES_MAX: usize = 2 << 10;

/// The largest number of reads and writes of one transaction: it revalidates what it has read, so its cost
/// grows faster than its size.
pub const TRANSACTION_OPERATIONS_MAX: usize = 1 << 20;

/// How often a read is tried at once before it counts as contended: a writer holds a small object for some 50
/// ns, so eight failures mean that it holds a large one, or does not run.
pub const READ_ATTEMPTS: u32 = 8;

/// How long a read waits for a writer in all. A writer that runs is done in less than a millisecond. One that
/// was killed is done once the next owner has taken the memory over: about half a second for each GiB, and a
/// moment for somebody to notice and to start it.
pub const READ_WAIT: Duration = Duration::from_secs(10);

/// For how long a waiting read only gives its core away, before it sleeps.
pub const READ_YIELD: Duration = Duration::from_micros(200);

/// The shortest sleep of a waiting read.
pub const READ_PAUSE_MIN: Duration = Duration::from_micros(50);

/// The longest sleep of a waiting read.
pub const READ_PAUSE_MAX: Duration = Duration::from_millis(2);

/// The largest number of buckets in a chain that a reader follows: a longer one is memory that has been
/// reused under it. Chains have more than one or two buckets only if the memory is too full to split a shard.
pub const CHAIN_BUCKETS_MAX: usize = 4096;

/// The share of a shard's slots, in percent, above which it is split. Higher is denser, and puts more keys
/// into chains.
pub const SHARD_FULL_PERCENT: u64 = 80;

/// How many lookups `get_many` has under way: enough to keep all of a core's outstanding misses busy.
pub const LOOKUPS_UNDER_WAY: usize = 32;

/// How many objects an eviction looks at before it gives up: some rounds through a store in which everything
/// has been touched.
pub const EVICTION_STEPS_MAX: usize = 1 << 24;

/// Up to which attempt a transaction that lost only spins before the next one; then it gives its core away,
/// too, as the winner may need it.
pub const BACK_OFF_SPINS_MAX: u32 = 5;

/// How many keys a save collects before it writes them.
pub const SAVE_STEP_KEYS: usize = 1000;

/// Bytes of keys that commits have changed and a running save has not written yet; beyond it, commits wait for
/// the save. About 200,000 short keys, which take less than a second to write.
pub const SAVE_BACKLOG_BYTES_MAX: usize = 16 << 20;

/// How many changed keys a save may still have to write when it keeps all commits out: some 100 us.
pub const SAVE_REST_KEYS: usize = 100;

/// How often a save writes what has changed meanwhile before it keeps commits out in any case. Each time takes
/// less than the one before, unless the store is written faster than the snapshot.
pub const SAVE_ROUNDS_MAX: usize = 16;
