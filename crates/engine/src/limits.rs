//! Every limit of the engine.

use std::time::Duration;

/// Worker processes of one engine.
pub const WORKERS_MAX: usize = 64;
/// Links of one engine.
pub const LINKS_MAX: usize = 256;
/// Apps of one engine.
pub const APPS_MAX: usize = 1024;
/// Bytes of a name of an app, of one of its ports, or of a worker.
pub const NAME_BYTES_MAX: usize = 62;

/// Bytes of a configuration file.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Mistakes of a configuration file that are shown: users hardly read more.
pub const MISTAKES_MAX: usize = 32;

/// Bytes between the starts of two packets in memory: an odd number of cache lines, so that the
/// first lines of packets spread over all sets of a cache.
pub const PACKET_STRIDE: usize = 33 * 64;
/// Bytes in front of a packet's data that are no data: the packet header.
pub const PACKET_HEADER_BYTES: usize = 8;
/// Bytes of data in a packet at most, headers put in front included.
pub const PACKET_BYTES_MAX: usize = PACKET_STRIDE - PACKET_HEADER_BYTES;
/// Room in front of a new packet's data, for headers that are put there later, unless the
/// configuration says otherwise. With the header word it fills two cache lines.
pub const HEADROOM_BYTES: usize = 120;

/// Packets of one engine, unless the configuration says otherwise.
pub const PACKETS_DEFAULT: u32 = 1 << 16;
/// Packets of one engine at most: 4.4 GB of address space.
pub const PACKETS_MAX: u32 = 1 << 21;
/// Packets by which the memory grows, and which a worker gets at a time.
pub const GRANT_PACKETS: u32 = 1024;
/// How long a worker goes without packets before it asks for more. Those that it has sent may be on
/// their way back, and the fewer packets there are, the more of them stay in the caches.
pub const STARVED_NS: u64 = 50_000;
/// Free packets above which a worker gives some back.
pub const SURPLUS_PACKETS: usize = 4 * GRANT_PACKETS as usize;
/// Free packets that a worker keeps while another one waits for some and the pool is empty. The number is below
/// [`GRANT_PACKETS`], which each worker is sure to get, so that no worker keeps the packets in excess.
pub const SHORT_PACKETS: usize = GRANT_PACKETS as usize / 2;
/// How long a worker waits for packets before the supervisor reports that there are too few.
pub const SHORT_TOLD: Duration = Duration::from_secs(1);

/// Packets that a link holds within one process: more are dropped, and counted.
pub const QUEUE_PACKETS: usize = 1024;
/// Packets that a link's end can hold for a moment, while apps move: at least those that wait at both ends and
/// in the ring between them.
pub const QUEUE_PACKETS_MAX: usize = 4 * QUEUE_PACKETS;
/// Packets in the ring of a link between two processes.
pub const RING_PACKETS: usize = 1024;
/// Packets that pass between two processes in one go.
pub const BATCH_PACKETS: usize = 128;
/// Packets that an app should make in one pull at most.
pub const PULL_PACKETS: usize = 128;

/// How long a worker may take to carry out an order, before it counts as hung and is killed.
pub const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Bytes of one message between supervisor and worker.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Bytes of the configurations of all apps, as JSON, so that an order fits into a message.
pub const CONFIG_BYTES_MAX: usize = MESSAGE_BYTES_MAX - (1 << 20);
/// Bytes of an app state.
pub const STATE_BYTES_MAX: usize = 256 << 10;

/// How long the supervisor waits before it starts a worker that crashed: not at all the first time, then
/// this, doubled each time.
pub const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The longest of these waits.
pub const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Crashes within [`CRASH_WINDOW`] that park a worker.
pub const CRASHES_MAX: usize = 8;
/// The time within which crashes of a worker are counted.
pub const CRASH_WINDOW: Duration = Duration::from_secs(60);

/// Links of one engine that can be traced at a time.
pub const TRACES_MAX: usize = 4;
/// Bytes of the ring that a trace goes through.
pub const TRACE_RING_BYTES: usize = 256 << 10;
