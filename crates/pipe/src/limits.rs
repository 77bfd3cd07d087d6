//! Every limit, with its reason.

use std::time::Duration;

/// Bytes of a pipe that a mover reads or writes: the most that an ordinary user may ask for
/// (`/proc/sys/fs/pipe-max-size`). One between two commands stays as the system makes it: a larger one leaves a
/// core's cache, and two commands that copy may then move less than in a shell.
pub const PIPE_BYTES: usize = 1 << 20;
/// The longest message of a control channel.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a piece of data that goes over the control channel as the last resort.
pub const RELAY_BYTES_MAX: usize = 64 << 10;
/// Bytes of a relayed hop that may be under way towards an agent that has not said that it took them.
pub const RELAY_CREDIT_BYTES: u64 = 1 << 20;
/// Lines of standard error under way that the coordinator has not said it printed, in bytes.
pub const LINES_CREDIT_BYTES: u64 = 256 << 10;
/// What an agent may have said and the coordinator not taken: it reads on once it has.
pub const EVENTS_MAX: usize = 1024;
/// The longest line of standard error; longer ones are broken there.
pub const LINE_BYTES_MAX: usize = 8 << 10;
/// How often both ends of a control channel say that they are there.
pub const PING_INTERVAL: Duration = Duration::from_secs(1);
/// How long one end may say nothing before the other takes it for dead. Everything ends within 5 s.
pub const SILENCE_MAX: Duration = Duration::from_millis(3000);
/// How long an agent that was started waits for its coordinator's first word, which says how long silences
/// may be. Nothing runs yet that would take time to end.
pub const FIRST_WORD_LIMIT: Duration = Duration::from_millis(4000);
/// How long commands have to end by themselves once they were told to, before they are killed.
pub const TERM_GRACE: Duration = Duration::from_millis(500);
/// Processes that an agent could not end, and that users are told of.
pub const SPARED_MAX: usize = 16;
/// Until two ends of a hop are connected in one way.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How long the listening end of a hop waits for the other: longer than that one looks names up and tries, as its
/// reason ("did not answer: a firewall, or no such host") says more than "nobody came".
pub const ACCEPT_LIMIT: Duration = Duration::from_secs(6);
/// Stages of a pipeline.
pub const STAGES_MAX: usize = 64;
/// Hosts of a stage.
pub const HOSTS_MAX: usize = 64;
/// Streams of a hop.
pub const STREAMS_MAX: u32 = 64;
/// Connections of two ends that belong together: the streams, and one for words beside them.
pub const CONNECTIONS_MAX: u32 = STREAMS_MAX + 1;
/// Connections that a listening side has taken and that have not proved anything yet. All connections of one peer may
/// come at once; of more than this, those who have waited longest go.
pub const STRANGERS_MAX: usize = 2 * CONNECTIONS_MAX as usize;
/// How long one of them may take: three round trips of the longest path, and the time to send a lost
/// packet again.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(3);
/// Bytes of each ring of a fabric's link: both ends sleep and wake less often the more it holds.
pub const FABRIC_RING_BYTES: u64 = 8 << 20;
/// Where that much memory cannot be locked, rings are smaller, down to this: below it, a connection waits more
/// than it carries.
pub const FABRIC_RING_BYTES_MIN: u64 = 64 << 10;
/// Addresses of one host that are tried.
pub const ADDRESSES_MAX: usize = 64;
/// Until the next address is tried while earlier ones have not answered: RFC 8305 recommends 250 ms and
/// allows 100 ms.
pub const CONNECT_STAGGER: Duration = Duration::from_millis(100);
/// Until all addresses are tried again where nobody listens yet.
pub const CONNECT_AGAIN: Duration = Duration::from_millis(200);
/// Bytes of a word between two ends that have no other channel.
pub const WORD_BYTES_MAX: usize = 4 << 10;
/// How often a connection without traffic is tried, and after how long the first time.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Tries without an answer after which the other host is dead: 4 s in all.
pub const KEEPALIVE_PROBES: u32 = 3;
/// The longest round trip of a path on which losses mean a full queue and nothing else: a rack, a campus.
pub const SHORT_PATH: Duration = Duration::from_millis(5);
/// Bytes of a socket's send buffer, which the kernel doubles: 10 Gbit/s around half the world (100 ms).
pub const SEND_BUFFER_BYTES_MAX: u64 = 128 << 20;
/// Bytes of a stage's command: Linux passes no longer argument to a program (`MAX_ARG_STRLEN`).
pub const COMMAND_BYTES_MAX: usize = (128 << 10) - 1;
/// Bytes of the name of a file that is a stage: Linux opens no longer one (`PATH_MAX`, with the NUL at its end). So those
/// of all stages fit into one message.
pub const PATH_BYTES_MAX: usize = (4 << 10) - 1;
/// Bytes of a block: large enough that system calls do not count, small enough to stay in a core's cache.
pub const BLOCK_BYTES: u32 = 256 << 10;
