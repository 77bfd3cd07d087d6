//! Every limit of the store, and the reason for each.

use std::time::Duration;

/// The largest number of bytes in a key. Each byte of a key is compared on each read of it, and a key travels
/// in the same object as its value, so a key is kept far below a block.
pub const KEY_BYTES_MAX: usize = 32 << 10;

/// The largest number of bytes in a value, as in Redis. The memory of the store may allow less.
pub const VALUE_BYTES_MAX: usize = 512 << 20;

/// The largest number of bytes in an object without a key, and in a section of a long value: with the longest key
/// and its header it fits in one block of memory. A value of more bytes has several sections.
pub const OBJECT_BYTES_MAX: usize = (1 << 20) - (34 << 10);

/// The smallest memory of a store: room for the directory, one part of the table, and some blocks of objects.
pub const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// The largest memory of a store: a bucket names its chain by 34 bits, in units of 8 bytes.
pub const MEMORY_BYTES_MAX: u64 = 1 << 37;

/// The memory that a growing store leaves to the rest of the host, or of the control group: with less, the kernel would
/// rather end a process than refuse. The server needs some itself to answer.
pub const HOST_MEMORY_LEFT: u64 = 32 << 20;

/// The part of what is left to the host that the store takes before it looks again, and the most that it takes: 1/16, 64 MiB.
pub const HOST_ROOM_PART: u64 = 16;
/// See [`HOST_ROOM_PART`].
pub const HOST_ROOM_BYTES_MAX: u64 = 64 << 20;
/// After how long it looks again in any case: others take memory, too.
pub const HOST_ROOM_INTERVAL: Duration = Duration::from_millis(100);

/// How often a transaction is tried at the same time as others before it is run alone.
pub const ATTEMPTS_BESIDE_OTHERS: u32 = 16;

/// How many threads can commit at the same time; more wait for each other. A machine's cores are what is worth
/// using, and each lane takes 4 KiB of the store's memory.
pub const LANES: usize = 32;

/// The largest object, header included, that is overwritten where it is. A larger one is written to another
/// place and then exchanged, because what is overwritten goes through the log.
pub const IN_PLACE_BYTES_MAX: usize = 1024;

/// The private memory that a lane keeps between two commits; the memory limit of a store counts it. Records that
/// fit in a lane do.
pub const RECORD_BUFFER_BYTES_MAX: usize = 8 << 10;

/// How long an owner waits for the one before to be gone. A process that it was just starting has its descriptors,
/// and thereby its lock, until it runs a program of its own.
pub const OWNER_WAIT: Duration = Duration::from_secs(1);

/// The sleep between two attempts to become the owner.
pub const OWNER_PAUSE: Duration = Duration::from_millis(1);

/// How long a step of a restoration keeps other commits waiting; one block or shard takes less.
pub const RESTORE_STEP: Duration = Duration::from_micros(300);
/// The pause after each such step: long enough that who waits for the gate is woken, and takes it.
pub const RESTORE_PAUSE: Duration = Duration::from_micros(100);
/// The largest number of sessions: each takes 4 KiB of the store's memory, and a server serves fewer clients.
pub const SESSIONS_MAX: u64 = 16 << 10;

/// How many replies a session keeps: so many requests can a client have under way that change something.
pub const SESSION_REPLIES: usize = 256;

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

/// How often a transaction that finds no room has an empty block given to the class that it needs, before it
/// evicts or fails: more blocks than nearly all transactions need.
pub const ROOM_ATTEMPTS_MAX: u32 = 256;

/// After how many of these attempts a store that evicts makes more blocks empty, too: two classes that a
/// transaction needs have one empty block between them.
pub const ROOM_ATTEMPTS_WITHOUT_EVICTION: u32 = 4;

/// How often an eviction goes round before it gives up: one round removes the marks of what has been touched, and
/// further ones allow for what is touched meanwhile. Many objects, such as the buckets of fixed tables, are never
/// evicted.
pub const EVICTION_ROUNDS_MAX: u32 = 4;

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
/// The bytes of the body of a call or of its reply: some 16 objects of the largest size.
pub const CALL_BYTES_MAX: usize = 16 << 20;

/// The keys that one call looks up: with the longest keys it stays far below [`CALL_BYTES_MAX`].
pub const KEYS_OF_CALL: usize = 64;

/// The bytes of a value in a call or its reply, which has room for the longest key beside it.
pub const CALL_VALUE_BYTES_MAX: usize = CALL_BYTES_MAX - (64 << 10);

/// The bytes of replies that wait for a client before its further calls wait, too.
pub const REPLIES_PAUSE_BYTES: usize = 1 << 20;

/// The objects that one client has allocated and not committed yet: they take memory that only that client can
/// use.
pub const ALLOCATIONS_HELD_MAX: usize = 1 << 16;

/// The keys that one call of a scan asks for: with the longest keys their reply stays far below
/// [`CALL_BYTES_MAX`].
pub const SCAN_KEYS_MAX: usize = 128;

/// The calls of one client without an answer; a further one waits for an answer first.
pub const CALLS_MAX: usize = 1024;

/// The bytes of calls that wait for room in the link; a further call waits first.
pub const CALLS_WAITING_BYTES: usize = 1 << 20;

/// The bytes of each ring of a client's link.
pub const RING_BYTES: u64 = 64 << 10;

/// The one-sided reads of one client that are under way; further reads go by calls.
pub const ONE_SIDED_READS_MAX: usize = 256;

/// The bytes of an object that is read one-sided; a longer one goes by a call, for which a copy at the server is
/// little of the cost.
pub const ONE_SIDED_BYTES_MAX: usize = 4096;

/// The addresses of keys that a client remembers, so that it reads their objects at once: 64 Ki of 24 bytes.
pub const ADDRESSES_REMEMBERED: usize = 1 << 16;

/// How long a client that has lost its connection tries to reach the server again: as long as a read waits.
pub const RECONNECT_WAIT: Duration = READ_WAIT;

/// How long a client waits while its server says nothing, unless its options say otherwise: as long as a read waits.
pub const ANSWER_WAIT: Duration = READ_WAIT;

/// How long a client may be absent until its session ends: much longer than a client tries to come back
/// ([`RECONNECT_WAIT`]).
pub const SESSION_ABSENT_MAX: Duration = Duration::from_secs(60);

/// The bytes of writes without an answer, which a client keeps to repeat them; a further one waits. One alone may
/// have more. It also waits if [`SESSION_REPLIES`] writes have no answer.
pub const WRITES_UNANSWERED_BYTES: usize = 1 << 20;

/// The bytes of memory that a client keeps of a write that has its answer, for a later one.
pub const WRITE_KEPT_BYTES: usize = 1 << 10;

/// The pause before a client that is told where its part of the store is goes there: while a part moves, each of two servers
/// may send it to the other one.
pub const MOVED_PAUSE: Duration = Duration::from_millis(1);

/// How long connecting may take, unless the options say otherwise: a peer's device may need seconds to set a connection up.
pub const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// How long the server of a part may say nothing until its client asks other servers where the part is; twice as long before each
/// further time.
pub const PART_SILENCE: Duration = Duration::from_millis(200);

/// How long each of several servers may take to answer before the next one is asked; twice as long in each further round.
pub const ELSEWHERE_WAIT: Duration = Duration::from_millis(500);

/// How long a client waits for any answer before it looks whether its server is still there.
pub const GLANCE: Duration = Duration::from_secs(1);

/// How long a client's transaction is run again and again because others interfere.
pub const CONFLICT_WAIT: Duration = Duration::from_secs(10);

/// How long a client's share in its server's lease lasts at least when it asks for more: half of a usual lease.
pub const READ_LEASE_LEAST: Duration = Duration::from_millis(125);

/// How often a client asks whether it can be lent parts of the store that have come since, and how long the server's lease lasts.
pub const REGIONS_INTERVAL: Duration = Duration::from_millis(100);
/// The largest number of bytes in a key and a value of a fixed table together: a lookup reads eight of them.
pub const FIXED_PAIR_BYTES_MAX: usize = 1024;

/// The largest number of buckets in a shard of a fixed table, which is split by one transaction.
pub const FIXED_SHARD_BUCKETS_MAX: u64 = 256;

/// The most bits of a hash that choose a shard of a fixed table: its directory is one object, of 512 KiB at most.
/// That is enough for 60 million keys. A larger table keeps further keys in chains.
pub const FIXED_DEPTH_MAX: u32 = 16;

/// The share of a shard's slots, in percent, from which on it is split when a key finds no room near its home. Up
/// to this share a lookup takes at most 1.05 reads on average.
pub const FIXED_FULL_PERCENT: u64 = 90;

/// How many keys of a fixed table move on to make room for another one: with more, hardly any further key finds
/// room.
pub const FIXED_PATH_MAX: usize = 32;

/// How many copies of its memory a store has at most: it sends each of them all that it changes.
pub const COPIES_MAX: usize = 8;

/// The least bytes of the ring of a copy: many of the longest records.
pub const RING_COPY_BYTES_MIN: u64 = 1 << 20;

/// The bytes of the stream that have not arrived at all copies before more data of long values waits. Small records wait by
/// themselves, as each belongs to a commit that waits.
pub const STREAM_PENDING_BYTES_MAX: usize = 1 << 20;

/// The bytes of new objects that travel within the record of their commit; more go before it.
pub const INLINE_IMAGE_BYTES_MAX: usize = 16 << 10;

/// How many records, of 32 KiB each, are sent of the memory for a new copy while commits wait: some 10 us.
pub const FILL_STEP_RECORDS: usize = 2;

/// How long a commit waits for a copy before others are told, and how long a wait for an arrival goes on before it looks whether the
/// copy has been removed: longer than a copy that is well takes, and as long as others may be kept waiting.
pub const COMMIT_WAIT_LONG: Duration = Duration::from_millis(1);

/// For how long a wait for an arrival keeps its core: a network takes some microseconds.
pub const COPY_WAIT_SPIN: Duration = Duration::from_micros(20);

/// How long an operation on a ring may take to get under way before its copy counts as out of reach.
pub const COPY_SILENCE: Duration = Duration::from_secs(5);

/// The shortest sleep while the ring of a copy is full.
pub const COPY_ROOM_PAUSE_MIN: Duration = Duration::from_micros(20);

/// The longest sleep while the ring of a copy is full.
pub const COPY_ROOM_PAUSE_MAX: Duration = Duration::from_millis(1);

/// The parts that a transaction may have beside its home: a decision names them in 64 bytes.
pub const PARTICIPANTS_MAX: usize = 16;

/// The bytes of what a transaction reads and writes in one of its parts but the home: an object keeps it until it is decided.
pub const BRANCH_BYTES_MAX: usize = OBJECT_BYTES_MAX - (64 << 10);

/// How often a branch that is being prepared tries again to lock what others have locked: a commit takes about a microsecond.
pub const BRANCH_ATTEMPTS: u32 = 8;

/// How long a branch waits for its client before its home is asked: many round trips.
pub const BRANCH_PATIENCE: Duration = Duration::from_millis(20);

/// How long a branch waits for a client that still may commit: what it has locked is not readable meanwhile.
pub const BRANCH_WAIT: Duration = Duration::from_millis(250);

/// How long a decision is kept for its client to end it, before all parts are told again.
pub const DECISION_PATIENCE: Duration = Duration::from_secs(1);

/// How long reads and commits wait for what a branch has locked, at a server of several parts: some round trips. The client then
/// asks again, and others are served meanwhile.
pub const BRANCH_LOCK_WAIT: Duration = Duration::from_millis(2);

/// The pause before a client asks again for what a transaction over several parts has locked: about as long as that takes.
pub const UNDECIDED_PAUSE: Duration = Duration::from_micros(100);

/// How many transactions over several parts a client has decided and not ended: it ends one when all parts have answered.
pub const DECISIONS_UNENDED_MAX: usize = 4;

/// The bytes of the answer in which a server tells a client of its parts: a line for each of 4096 parts and 1024 servers.
pub const PARTS_ANSWER_BYTES_MAX: usize = 512 << 10;

/// The numbers of transactions that a client has opened and not used.
pub const TRANSACTIONS_OPEN_MAX: u64 = 16;

/// How long an owner that is started again waits until a copy has applied all of its filling: some rings.
pub const COPY_RESUME_WAIT: Duration = Duration::from_secs(2);

/// The sleep between two looks at a lease that has run out.
pub const LEASE_PAUSE: Duration = Duration::from_millis(1);
