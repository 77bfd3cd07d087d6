//! Every limit of the server, and the reason for each.

use std::time::Duration;

/// Bytes of one word of a request. A value may be slightly shorter (`caravan_store::limits::VALUE_BYTES_MAX`), so
/// that a value which is a little too long gets an answer, not the end of its connection.
pub const BULK_BYTES_MAX: usize = 1 << 20;
/// Words of one request, as in Redis.
pub const WORDS_MAX: usize = 1 << 20;
/// Bytes of one request: enough for an MSET of 60 of the longest values.
pub const REQUEST_BYTES_MAX: usize = 64 << 20;
/// Bytes of a line: an inline command, or a length. As in Redis.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Words of a request before the client has given the password, as in Redis.
pub const WORDS_UNAUTHENTICATED_MAX: usize = 10;
/// Bytes of a word before the client has given the password, as in Redis.
pub const BULK_UNAUTHENTICATED_BYTES_MAX: usize = 16 << 10;

/// Arrays within arrays of a reply that a client accepts: `COMMAND DOCS` has 4.
pub const NESTING_MAX: usize = 32;

/// Bytes of one reply. A longer one is replaced by an error, because it would take the memory that the store needs.
pub const REPLY_BYTES_MAX: usize = 256 << 20;
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
/// The longest DEBUG SLEEP.
pub const SLEEP_MAX: Duration = Duration::from_secs(3600);
/// The time between two removals of expired keys.
pub const EXPIRY_INTERVAL: Duration = Duration::from_millis(100);
/// Keys that one removal looks at.
pub const EXPIRY_KEYS: usize = 1000;
/// How long the server tries to send the remaining replies when it ends.
pub const END_MAX: Duration = Duration::from_secs(2);

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
/// How long a client may take for the handshake of TLS: it holds a connection, and has proved nothing.
pub const TLS_HANDSHAKE_MAX: Duration = Duration::from_secs(10);
