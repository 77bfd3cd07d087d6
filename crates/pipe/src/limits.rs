//! Every limit, with its reason.

use std::time::Duration;

/// The capacity of a pipe that a mover reads or writes: the most that an ordinary user may ask for
/// (`/proc/sys/fs/pipe-max-size`). A pipe between two commands keeps the system's default: a larger one leaves a
/// core's cache, and two commands that copy may then move less than in a shell.
pub const PIPE_BYTES: usize = 1 << 20;
/// The most bytes of a message on a control channel.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// The most bytes of one message of relayed data.
pub const RELAY_BYTES_MAX: usize = 64 << 10;
/// The most bytes of a relayed hop that may be under way to an agent that has not yet given credit for them.
pub const RELAY_CREDIT_BYTES: u64 = 1 << 20;
/// The most bytes of standard error lines that may be under way before the coordinator reports them as printed.
pub const LINES_CREDIT_BYTES: u64 = 256 << 10;
/// The number of events from agents that may wait for the coordinator; its reading threads pause at this limit.
pub const EVENTS_MAX: usize = 1024;
/// The most bytes of a line of standard error; longer lines are broken there.
pub const LINE_BYTES_MAX: usize = 8 << 10;
/// How often each end of a control channel sends a ping.
pub const PING_INTERVAL: Duration = Duration::from_secs(1);
/// How long one end may be silent before the other takes it for dead. Everything ends within 5 s.
pub const SILENCE_MAX: Duration = Duration::from_millis(3000);
/// How long a newly started agent waits for its coordinator's first message, which says how long silences may be.
/// Nothing runs yet that would take time to end.
pub const FIRST_WORD_LIMIT: Duration = Duration::from_millis(4000);
/// How long commands have to end by themselves after SIGTERM, before they are killed.
pub const TERM_GRACE: Duration = Duration::from_millis(500);
/// The most processes that an agent reports as impossible to end.
pub const SPARED_MAX: usize = 16;
/// How long one attempt to connect the two ends of a hop may take.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How long the listening end of a hop waits for the connecting end. It is longer than the connecting end looks up
/// names and tries, because that end's reason ("did not answer: a firewall, or no such host") says more than
/// "nobody came".
pub const ACCEPT_LIMIT: Duration = Duration::from_secs(6);
/// The most stages of a pipeline.
pub const STAGES_MAX: usize = 64;
/// The most hosts of a stage.
pub const HOSTS_MAX: usize = 64;
/// The most streams of a hop.
pub const STREAMS_MAX: u32 = 64;
/// The most connections between the same two ends: the streams, and a side channel.
pub const CONNECTIONS_MAX: u32 = STREAMS_MAX + 1;
/// The most accepted connections that have not yet proved that they know the key. All connections of one peer may
/// come at once; beyond this number, the ones that have waited longest are closed.
pub const STRANGERS_MAX: usize = 2 * CONNECTIONS_MAX as usize;
/// How long a handshake may take: three round trips of the longest path, and the time to send a lost packet again.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(3);
/// The bytes of each ring of a fabric link: the larger the ring, the less often both ends sleep and wake.
pub const FABRIC_RING_BYTES: u64 = 8 << 20;
/// The smallest ring of a fabric link, used where less memory can be locked: below this size, a connection waits
/// more than it carries.
pub const FABRIC_RING_BYTES_MIN: u64 = 64 << 10;
/// The most addresses of one host that are tried.
pub const ADDRESSES_MAX: usize = 64;
/// How long to wait for an answer before the next address is tried: RFC 8305 recommends 250 ms and allows 100 ms.
pub const CONNECT_STAGGER: Duration = Duration::from_millis(100);
/// How long to wait before all addresses are tried again if nobody listens yet.
pub const CONNECT_AGAIN: Duration = Duration::from_millis(200);
/// The most bytes of a message on a side channel.
pub const WORD_BYTES_MAX: usize = 4 << 10;
/// How long a connection is idle before the first keepalive probe, and the interval between probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The number of unanswered probes after which the other host is dead: 4 s in all.
pub const KEEPALIVE_PROBES: u32 = 3;
/// The longest round trip of a path on which losses mean a full queue and nothing else: within a rack or a campus.
pub const SHORT_PATH: Duration = Duration::from_millis(5);
/// The most bytes of a socket's send buffer, which the kernel doubles: 10 Gbit/s around half the world (100 ms).
pub const SEND_BUFFER_BYTES_MAX: u64 = 128 << 20;
/// The most bytes of a stage's command: Linux passes no longer argument to a program (`MAX_ARG_STRLEN`).
pub const COMMAND_BYTES_MAX: usize = (128 << 10) - 1;
/// The most bytes of the name of a file that is a stage: Linux opens no longer name (`PATH_MAX`, with the NUL at
/// its end). The names of all stages fit into one message.
pub const PATH_BYTES_MAX: usize = (4 << 10) - 1;
/// The default bytes of a block: large enough that system calls do not count, small enough to stay in a core's
/// cache.
pub const BLOCK_BYTES: u32 = 256 << 10;
