//! Every limit, with its reason.

use std::time::Duration;

/// Bytes of a pipe between two commands of one host: the most that an ordinary user may ask for
/// (`/proc/sys/fs/pipe-max-size`).
pub const PIPE_BYTES: usize = 1 << 20;
/// The longest message of a control channel.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 20;
/// Bytes of a piece of data that goes over the control channel as the last resort.
pub const RELAY_BYTES_MAX: usize = 64 << 10;
/// Such bytes under way towards an agent that has not said that it took them.
pub const RELAY_WINDOW_BYTES: u64 = 1 << 20;
/// Lines of standard error under way that the coordinator has not said it printed, in bytes.
pub const LINES_WINDOW_BYTES: u64 = 256 << 10;
/// The longest line of standard error; longer ones are broken there.
pub const LINE_BYTES_MAX: usize = 8 << 10;
/// How often both ends of a control channel say that they are there.
pub const PING_INTERVAL: Duration = Duration::from_secs(1);
/// How long one end may say nothing before the other takes it for dead. Everything ends within 5 s.
pub const SILENCE_MAX: Duration = Duration::from_millis(3500);
/// How long commands have to end by themselves once they were told to, before they are killed.
pub const TERM_GRACE: Duration = Duration::from_millis(500);
/// Until two ends of a hop are connected in one way.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Stages of a pipeline.
pub const STAGES_MAX: usize = 64;
/// Hosts of a stage.
pub const HOSTS_MAX: usize = 64;
/// Streams of a hop.
pub const STREAMS_MAX: u32 = 64;
/// Bytes of a stage's command: Linux passes no longer argument to a program (`MAX_ARG_STRLEN`).
pub const COMMAND_BYTES_MAX: usize = (128 << 10) - 1;
