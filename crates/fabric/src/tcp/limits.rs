//! Every limit of a connection over TCP.

use std::time::Duration;

/// The number of operations of a side that are under way, or whose completions it has not polled.
pub const QUEUE_DEPTH: usize = 1024;
/// The number of immediates that are on their way to a side, or untaken there.
pub const IMMEDIATES_MAX: usize = 1024;
/// A side tells its peer once it has taken this many immediates, so that a peer in full flow never waits for room.
pub const TAKEN_EVERY: u32 = IMMEDIATES_MAX as u32 / 4;
/// The number of answers that a side owes its peer: one for each operation, and counts of writes between them.
pub const ANSWERS_MAX: usize = 2 * QUEUE_DEPTH + 1;
/// The number of bytes of a record's body: what is sealed as one, and sent by one system call. A multiple of 8.
pub const RECORD_BYTES_MAX: usize = 64 << 10;
/// The number of bytes of the longest operation.
pub const OPERATION_BYTES_MAX: u32 = 1 << 30;
/// The number of bytes that one turn takes from a socket, before other connections have their turns.
pub const TURN_BYTES: usize = 1 << 20;
/// How long the owner of a connection may leave it alone before the agent takes it back.
pub const ATTENDANCE: Duration = Duration::from_millis(1);
/// The number of strangers whose greeting a listener awaits at once; the one that came first gives way to another.
pub const STRANGERS_MAX: usize = 16;
/// The number of addresses in a descriptor.
pub const ADDRESSES_MAX: usize = 16;
/// How long a peer's kernel may be silent before the connection ends.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long a connection is idle before the kernel asks whether the peer's is still there.
pub const IDLE_MAX: Duration = Duration::from_secs(15);
/// How often the kernel asks, and after how many questions without an answer it gives up.
pub const PROBE_EVERY: Duration = Duration::from_secs(5);
/// See [`PROBE_EVERY`].
pub const PROBES_MAX: u32 = 3;
