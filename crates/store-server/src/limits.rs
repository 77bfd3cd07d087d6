//! Every limit of the server, and the reason for each.

use std::time::Duration;

/// Bytes of one word of a request: the longest value, as in Redis.
pub const BULK_BYTES_MAX: usize = caravan_store::limits::VALUE_BYTES_MAX;
/// Words of one request, as in Redis before 7.0.
pub const WORDS_MAX: usize = 1 << 20;
/// Bytes of one request, all of which the server holds until it has done what it says: one of the longest values, with
/// key and options.
pub const REQUEST_BYTES_MAX: usize = BULK_BYTES_MAX + (1 << 20);
/// Bytes of a line: an inline command, or a length. As in Redis.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Words of a request before the client has given the password, as in Redis.
pub const WORDS_UNAUTHENTICATED_MAX: usize = 10;
/// Bytes of a word before the client has given the password, as in Redis.
pub const BULK_UNAUTHENTICATED_BYTES_MAX: usize = 16 << 10;

/// Arrays within arrays of a reply that a client accepts: `COMMAND DOCS` has 4.
pub const NESTING_MAX: usize = 32;

/// Bytes of one reply: one of the longest values. A longer reply is replaced by an error, because it would take the
/// memory that the store needs.
pub const REPLY_BYTES_MAX: usize = BULK_BYTES_MAX + (1 << 20);
/// Bytes of replies that wait for their client before the server stops serving and reading that client's requests.
pub const OUTPUT_PAUSE_BYTES: usize = 1 << 20;
/// How long a client that has replies waiting may read nothing before its connection is closed.
pub const OUTPUT_STALLED_MAX: Duration = Duration::from_secs(60);
/// Bytes that one read takes from a connection.
pub const READ_BYTES: usize = 64 << 10;
/// Bytes of an empty input buffer that a worker keeps. Larger ones are freed.
pub const BUFFER_KEPT_BYTES: usize = 128 << 10;
/// Bytes of an empty output buffer that a connection keeps.
pub const OUTPUT_KEPT_BYTES: usize = 4 << 10;

/// Bytes of all commands between MULTI and EXEC.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Commands between MULTI and EXEC.
pub const QUEUE_COMMANDS_MAX: usize = 1 << 17;
/// Threads that do requests which take other servers: one waits for one connection's request. Further connections wait in line.
pub const ERRAND_THREADS_MAX: usize = 16;
/// How long a server waits for another one in such a request: a part whose server has died is served again before.
pub const ERRAND_WAIT: Duration = Duration::from_secs(2);
/// Threads that serve clients in place of others, whose commits wait for copies. With more, clients wait for these.
pub const RELIEF_THREADS_MAX: usize = 32;
/// The time between two looks whether a thread waits for copies, and at requests that do: a client of another part waits for two looks
/// at most.
pub const RELIEF_LOOK: Duration = Duration::from_millis(1);
/// Keys that one connection watches.
pub const WATCHED_KEYS_MAX: usize = 1 << 16;

/// Connections at a time, unless CONFIG SET changes it. As in Redis.
pub const CLIENTS_DEFAULT: usize = 10_000;
/// The largest number of connections at a time.
pub const CLIENTS_MAX: usize = 1 << 20;
/// Threads that serve connections, unless the options say otherwise; fewer on a host with fewer cores.
pub const WORKERS_DEFAULT: usize = 4;
/// Threads that serve connections.
pub const WORKERS_MAX: usize = 64;
/// How often a worker looks at how busy it is: seldom enough that the measurement costs nothing.
pub const BALANCE_INTERVAL: Duration = Duration::from_millis(100);
/// The percentage of a core from which on a worker hands connections to another one: it has no time left.
pub const SPREAD_BUSY_PERCENT: usize = 90;
/// The percentage of a core that two workers use together, up to which they become one: well below the percentage at which
/// that one would spread again.
pub const GATHERED_BUSY_PERCENT: usize = 60;
/// The longest DEBUG SLEEP.
pub const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// The time between two removals of expired keys.
pub const EXPIRY_INTERVAL: Duration = Duration::from_millis(100);
/// Keys that one removal looks at.
pub const EXPIRY_KEYS: usize = 1000;
/// How long the server tries to send the remaining replies when it ends.
pub const END_MAX: Duration = Duration::from_secs(2);

/// Bytes of a message between a keeper and its server or a command: three paths of the greatest length as numbers in text,
/// and the files of TLS.
pub const KEEPER_MESSAGE_BYTES_MAX: usize = 128 << 10;
/// Connections to a keeper that have given no order yet. Then the oldest one is closed.
pub const KEEPER_CALLERS_MAX: usize = 16;
/// How long a program may take until it runs as a server: far longer than a loaded machine needs to start one.
pub const SERVER_START_MAX: Duration = Duration::from_secs(30);
/// How long a server may take to end before an upgrade; it has [`END_MAX`] for its clients.
pub const SERVER_END_MAX: Duration = Duration::from_secs(30);
/// How long a server serves until its death counts as the first one again.
pub const SERVER_CALM: Duration = Duration::from_secs(10);
/// The pause before a server is started after the second death in a row; it doubles with each further one. After
/// the first death there is none.
pub const RESTART_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause before a server is started again.
pub const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Connections that become links at the same time: each takes a thread until the client has done its part.
pub const ATTACHING_MAX: usize = 16;
/// How long a client may take for one step of becoming a link: a device may need seconds.
pub const ATTACH_STEP: Duration = Duration::from_secs(15);
/// Turns over the links that are awake between two looks at those that sleep. A look is a system call.
pub const LINK_TURNS: u32 = 32;
/// The least bytes of an extent of a store that is lent: clients ask again for each.
pub const EXTENT_BYTES_MIN: u64 = 1 << 20;
/// The least extent of a store that is lent, as a share of what is lent already: so a connection never takes more than
/// some 200 loans.
pub const EXTENT_SHARE: u64 = 16;
/// Kinds of errors that are counted apart: more than there are, as in Redis.
pub const ERROR_CODES_MAX: usize = 128;
/// Percentiles that INFO's section Latencystats shows, unless CONFIG SET changes them. As in Redis.
pub const PERCENTILES_DEFAULT: [f64; 3] = [50.0, 99.0, 99.9];
/// Percentiles that INFO's section Latencystats shows: more make no line that anybody reads.
pub const PERCENTILES_MAX: usize = 16;

/// Bytes of a request for the metrics: Prometheus sends some 300.
pub const METRICS_HEAD_BYTES_MAX: usize = 8 << 10;
/// How long a request for the metrics may take to arrive, and its answer to leave: others wait meanwhile.
pub const METRICS_REQUEST_MAX: Duration = Duration::from_secs(2);

/// Bytes that wait in a connection with TLS, on top of its replies: some records.
pub const TLS_OUTPUT_BYTES: usize = 64 << 10;
/// Bytes of the file of a certificate, or of its key: a chain of certificates takes some 8 KiB.
pub const TLS_FILE_BYTES_MAX: u64 = 32 << 10;
/// How long a client may take for the handshake of TLS: it holds a connection, and has proved nothing.
pub const TLS_HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Sets of descriptors that a keeper holds for its servers: two for each part of which its member has a copy.
pub const HELD_MAX: usize = 1024;
/// Bytes of a message between two members of a cluster: the longest one names all members and parts.
pub const LINE_MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes of messages that wait for a member that takes none. Then its connection is closed.
pub const LINE_UNSENT_BYTES_MAX: usize = 4 << 20;

/// How long the end of a server waits until the others know.
pub const MEMBER_END_MAX: Duration = Duration::from_secs(1);
/// The pause between two looks at whether a new member serves.
pub const SERVING_PAUSE: Duration = Duration::from_millis(2);
/// How long a call of the register may take.
pub const REGISTER_CALL_MAX: Duration = Duration::from_secs(5);
/// How long one wait for news of the register takes: it bounds how long its thread outlives the member.
pub const REGISTER_WATCH: Duration = Duration::from_secs(5);
/// The pause before a register that has failed is asked again.
pub const REGISTER_PAUSE: Duration = Duration::from_secs(1);
/// The pause before a server asks again to become a member.
pub const JOIN_PAUSE: Duration = Duration::from_millis(100);
/// The pause before a member that was not reached is connected to again.
pub const LINE_PAUSE: Duration = Duration::from_millis(10);
/// Messages that wait until a member is connected to. Later ones are lost, as on the way.
pub const LINE_MESSAGES_WAITING: usize = 16;
/// How often a server looks at branches that their clients have left: half as long as those wait for them.
pub const BRANCHES_LOOK: Duration = Duration::from_millis(10);
/// How long a server waits for the home of such a branch: meanwhile it decides no others.
pub const BRANCH_HOME_WAIT: Duration = Duration::from_millis(200);
/// How often a member looks at what its parts have sent, and tells the copies: it bounds how much a copy has still to apply
/// when it takes over.
pub const MEMBER_TICK: Duration = Duration::from_millis(20);
/// Records that a copy applies before it looks at its orders.
pub const COPY_RECORDS: usize = 1 << 12;
/// Bytes of the ring of a copy: 20 ms of the records of a fast line.
pub const COPY_RING_BYTES: u64 = 8 << 20;
/// Bytes of the arena through which a primary writes to a copy elsewhere.
pub const FEED_ARENA_BYTES: u64 = 1 << 20;
/// The pause before a copy that was not reached is tried again.
pub const FEED_PAUSE: Duration = Duration::from_millis(20);
/// The pause between two looks at the ring of a copy whose primary has just come.
pub const COPY_PAUSE: Duration = Duration::from_millis(1);
/// How long a primary has just come.
pub const NEW_SOURCE: Duration = Duration::from_millis(500);
/// The longest wait of the thread of a part.
pub const PART_GLANCE: Duration = Duration::from_secs(1);
/// Bytes of the memory that a copy gets between two pauses of its filling.
pub const FILL_PIECE_BYTES: u64 = 64 << 10;
