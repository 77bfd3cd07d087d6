//! The process that the user has started: it starts agents, joins their hops, and reports how the pipeline ended.

mod agents;
mod conductor;

use std::io::{IsTerminal, Read, Write};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde::Serialize;

use self::conductor::Conductor;
use crate::Error;
use crate::connect::PortRange;
use crate::limits::SILENCE_MAX;
use crate::mover::{Compression, DeadOutlet, DigestKind, SlowOutlet};
use crate::plan::PipelinePlan;
use crate::stage::Stage;

/// A pipeline to run.
#[derive(Clone, Debug)]
pub struct PipelineRequest {
    /// The stages, from left to right.
    pub stages: Vec<Stage>,
    /// Whether the last stage's output goes to the first stage's input, as the halves of `caravan cp` need it.
    pub is_ring: bool,
    /// All other options.
    pub options: PipelineOptions,
}

/// The options of a pipeline.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// The only transport that may carry data between hosts; `None` for any.
    pub transport: Option<HopTransport>,
    /// The ports on which data connections listen.
    pub ports: Option<PortRange>,
    /// The name or address under which other hosts reach this one.
    pub here: Option<String>,
    /// Which data connections are encrypted.
    pub sealing: Encryption,
    /// The digest that the end of a stream carries.
    pub digest: DigestKind,
    /// How data between hosts are compressed.
    pub compression: Option<Compression>,
    /// The number of TCP connections of a hop.
    pub streams: u32,
    /// The most bytes a second of each stream, kept where the stream begins.
    pub rate: Option<u64>,
    /// The number of bytes that may wait in each mover.
    pub buffer_bytes: u64,
    /// How a stream gets to several hosts.
    pub fan_out: FanOut,
    /// What happens to a host that slows down the others.
    pub on_slow: SlowOutlet,
    /// What happens when one of several hosts fails.
    pub on_dead: DeadOutlet,
    /// Whether the observer gets [`Observer::progress`].
    pub progress: bool,
    /// How long a host may be silent before it is taken for dead.
    pub silence: Duration,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        Self {
            transport: None,
            ports: None,
            here: None,
            sealing: Encryption::Default,
            digest: DigestKind::Xxh3,
            compression: None,
            streams: 1,
            rate: None,
            buffer_bytes: 0,
            fan_out: FanOut::Default,
            on_slow: SlowOutlet::Wait,
            on_dead: DeadOutlet::Fail,
            progress: false,
            silence: SILENCE_MAX,
        }
    }
}

/// A transport between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopTransport {
    /// RDMA devices.
    Rdma,
    /// TCP.
    Tcp,
    /// The ssh session.
    Ssh,
}

/// Which data connections are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// Encrypts TCP between hosts.
    #[default]
    Default,
    /// Encrypts all data that leave a host.
    Always,
    /// Encrypts nothing.
    Never,
}

/// How a stream gets to several hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FanOut {
    /// A chain, or a star if hosts may drop out.
    #[default]
    Default,
    /// Each host passes the stream on to the next.
    Chain,
    /// The source sends to each host.
    Star,
}

/// Starts agents.
pub trait Launcher: Sync {
    /// Starts an agent on a host, as the stage names it; `None` is this host. Blocks until the agent is ready for
    /// its first message. Soon after `is_given_up` is set, returns [`Error::Cancelled`]. Called from several
    /// threads.
    fn launch(&self, host: Option<&str>, is_given_up: &AtomicBool) -> Result<AgentSession, Error>;
}

/// A started agent.
pub struct AgentSession {
    /// The agent's reports.
    pub from: Box<dyn Read + Send>,
    /// The agent's orders. The agent ends when this is closed, whatever it is doing.
    pub to: Box<dyn Write + Send>,
    /// The guard of the agent's process.
    pub guard: Box<dyn Guard>,
}

/// The process behind an agent: ssh, or the agent itself.
pub trait Guard: Send {
    /// Returns why the agent ended, in a sentence with ssh's own last words. Called once its channel has ended.
    fn why_ended(&mut self) -> String;
    /// Makes sure that the agent ends. Blocks for at most a second. Called for all agents at once.
    fn end(&mut self);
}

/// Receives what happens in a pipeline.
pub trait Observer {
    /// Receives what users of `-v` want to know: transports, who connects, what is not encrypted.
    fn note(&mut self, text: &str);
    /// Receives what all users must know: what is weaker than they may think.
    fn warn(&mut self, text: &str);
    /// Receives a line of a stage's standard error.
    fn line(&mut self, host: &str, text: &str);
    /// Receives the figures of the legs, in the order of the stream, four times a second if
    /// [`PipelineOptions::progress`] is set.
    fn progress(&mut self, hops: &[HopFigures]);
}

/// The figures of a leg of the stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HopFigures {
    /// The host that sends, "here" for this one.
    pub from: String,
    /// The host that receives.
    pub to: String,
    /// What carries the leg: `TCP 10.0.0.2:40112, encrypted`, `RDMA mlx5_0/1`, `ssh`, `pipe`.
    pub transport: String,
    /// Whether Caravan moves the bytes and has figures. It does not where a pipe was handed to two commands.
    #[serde(rename = "measured")]
    pub is_measured: bool,
    /// Bytes of the stream.
    pub bytes: u64,
    /// Bytes on the wire.
    pub wire_bytes: u64,
    /// Seconds since the leg began.
    pub seconds: f64,
    /// Seconds waited for the reader, which gives the stream.
    #[serde(rename = "reader_wait_seconds")]
    pub reader_wait: f64,
    /// Seconds waited for the network.
    #[serde(rename = "network_wait_seconds")]
    pub network_wait: f64,
    /// Seconds that the receiving end waited for the writer, which takes the stream.
    #[serde(rename = "writer_wait_seconds")]
    pub writer_wait: f64,
    /// Seconds of processor time of both ends' movers.
    #[serde(rename = "cpu_seconds")]
    pub cpu: f64,
    /// The length of the whole stream in bytes, if the source is a file of known length.
    #[serde(rename = "total_bytes")]
    pub total: Option<u64>,
    /// The digest of the stream, once it has ended.
    pub digest: Option<StreamDigest>,
}

/// The digest of a whole stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StreamDigest {
    /// The kind, as the option is called.
    pub kind: &'static str,
    /// The digest in hexadecimal.
    pub value: String,
}

impl StreamDigest {
    /// Returns the digest of that kind.
    pub fn new(kind: DigestKind, value: String) -> Self {
        Self { kind: kind.name(), value }
    }
}

/// How a pipeline ended.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PipelineSummary {
    /// The exit status of the pipeline: 0, the status of the rightmost failing stage (128 + n for signal n), or 255
    /// if the pipeline could not be set up or a host or connection was lost.
    pub status: u8,
    /// What failed, in sentences, the cause first: `stage 2 (fs2): 'zfs recv' exited 1`.
    pub failures: Vec<String>,
    /// The figures of each leg.
    pub hops: Vec<HopFigures>,
    /// The exit status of each stage on each of its hosts; `None` if the stage was killed because something else
    /// failed.
    pub statuses: Vec<Vec<Option<u8>>>,
    /// Seconds from the first launch until all hops were connected.
    pub setup_seconds: f64,
    /// Seconds from then to the end.
    pub stream_seconds: f64,
}

/// Runs a pipeline to its end. Checks both flags all the time: once `interrupted` is set, it ends everything and
/// the status is 130; once `stopped` is set (by SIGTSTP), it tells the agents to be patient and stops this process
/// until it is continued. Calls the observer on this thread.
pub fn run(
    request: &PipelineRequest,
    launcher: &dyn Launcher,
    observer: &mut dyn Observer,
    interrupted: &Arc<AtomicBool>,
    stopped: &Arc<AtomicBool>,
) -> Result<PipelineSummary, Error> {
    let plan = PipelinePlan::new(request, !std::io::stdin().is_terminal())?;
    let (notices, heard) = mpsc::channel();
    let (interrupted, stopped) = (Arc::clone(interrupted), Arc::clone(stopped));
    std::thread::scope(|scope| {
        let conducting = scope
            .spawn(move || Conductor::new(plan, request, notices, interrupted, stopped).run(scope, launcher));
        for notice in heard {
            notice.tell(observer);
        }
        conducting.join().unwrap_or(Err(Error::Cancelled))
    })
}

/// Returns what [`run`] would do, a sentence a line, without doing it: the hosts, commands and hops.
pub fn describe(request: &PipelineRequest) -> Result<Vec<String>, Error> {
    let plan = PipelinePlan::new(request, !std::io::stdin().is_terminal())?;
    Ok(plan.describe())
}
