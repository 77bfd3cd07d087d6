//! The process that the user has started: it has agents started, joins them, and says how it all ended.

mod agents;
mod conductor;

use std::io::{IsTerminal, Read, Write};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use self::conductor::Conductor;
use crate::Error;
use crate::connect::PortRange;
use crate::limits::SILENCE_MAX;
use crate::mover::{Compression, DeadOutlet, DigestKind, SlowOutlet};
use crate::plan::PipelinePlan;
use crate::stage::Stage;

/// A pipeline that somebody wants.
#[derive(Clone, Debug)]
pub struct PipelineRequest {
    /// From left to right.
    pub stages: Vec<Stage>,
    /// The last stage's output goes to the first one's input, as the halves of `caravan cp` want it.
    pub is_ring: bool,
    /// Everything else.
    pub options: PipelineOptions,
}

/// What the user may choose.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// Nothing but this carries data between hosts.
    pub transport: Option<HopTransport>,
    /// Where data connections listen.
    pub ports: Option<PortRange>,
    /// The name or address under which other hosts reach this one.
    pub here: Option<String>,
    /// What is encrypted.
    pub sealing: Encryption,
    /// What the end of a stream carries.
    pub digest: DigestKind,
    /// How data between hosts are compressed.
    pub compression: Option<Compression>,
    /// TCP connections of a hop.
    pub streams: u32,
    /// Bytes a second of each stream, from wherever it begins.
    pub rate: Option<u64>,
    /// Bytes that may wait in each mover.
    pub buffer_bytes: u64,
    /// How a stream gets to several hosts.
    pub fan_out: FanOut,
    /// What happens to a host that holds up the others.
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

/// What carries data between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopTransport {
    /// RDMA devices.
    Rdma,
    /// TCP.
    Tcp,
    /// The ssh session.
    Ssh,
}

/// What is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// TCP between hosts.
    #[default]
    Default,
    /// All that leaves a host.
    Always,
    /// Nothing.
    Never,
}

/// How a stream gets to several hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FanOut {
    /// A chain, but a star where hosts may drop out.
    #[default]
    Default,
    /// Each host passes it on to the next.
    Chain,
    /// The source sends to each.
    Star,
}

/// Starts agents.
pub trait Launcher: Sync {
    /// An agent on a host, as the stage names it; `None` is this host. Blocks until it is ready for the
    /// first message, or until soon after `is_given_up` is set: then nobody wants it any more, and it is
    /// [`Error::Cancelled`]. Called from several threads.
    fn launch(&self, host: Option<&str>, is_given_up: &AtomicBool) -> Result<AgentSession, Error>;
}

/// A started agent.
pub struct AgentSession {
    /// What it says.
    pub from: Box<dyn Read + Send>,
    /// What it is told. Its close makes the agent end, whatever it does.
    pub to: Box<dyn Write + Send>,
    /// What holds it.
    pub guard: Box<dyn Guard>,
}

/// What holds an agent: a process of ssh, or of its own.
pub trait Guard: Send {
    /// Why it ended, in a sentence with ssh's own last words; called once its channel has ended.
    fn why_ended(&mut self) -> String;
    /// Makes sure that it ends. Blocks no longer than a second. Called for all agents at once.
    fn end(&mut self);
}

/// Hears what happens.
pub trait Observer {
    /// What users of `-v` want to know: transports, who connects, what is not encrypted.
    fn note(&mut self, text: &str);
    /// What all users must know: what is weaker than they may think.
    fn warn(&mut self, text: &str);
    /// A line of a stage's standard error.
    fn line(&mut self, host: &str, text: &str);
    /// Figures of the movers that send, in the order of the stream: four times a second, where it was asked
    /// for.
    fn progress(&mut self, hops: &[HopFigures]);
}

/// What a hop has carried so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HopFigures {
    /// From which host, "here" for this one.
    pub from: String,
    /// To which.
    pub to: String,
    /// What carries it: `TCP 10.0.0.2:40112, encrypted`, `RDMA mlx5_0/1`, `ssh`, `pipe`.
    pub transport: String,
    /// Whether Caravan moves it and has figures: not so where a pipe was handed to two commands.
    pub is_measured: bool,
    /// Bytes of the stream.
    pub bytes: u64,
    /// Bytes on the wire.
    pub wire_bytes: u64,
    /// Seconds since it began.
    pub seconds: f64,
    /// Seconds waited for the reader (what gives the stream).
    pub reader_wait: f64,
    /// Seconds waited for the network.
    pub network_wait: f64,
    /// Seconds the receiving end waited for the writer (what takes the stream).
    pub writer_wait: f64,
    /// Seconds of processor time of both ends' movers.
    pub cpu: f64,
    /// The whole stream's length in bytes, if it is known: the source is a file.
    pub total: Option<u64>,
    /// Its digest, once it has ended.
    pub digest: Option<(DigestKind, String)>,
}

/// How it all ended.
#[derive(Clone, Debug, Default)]
pub struct PipelineSummary {
    /// The exit status of the whole: 0, the rightmost failing stage's (128 + n for signal n), 255 if it
    /// could not be set up or a host or connection was lost.
    pub status: u8,
    /// Sentences, the cause first: `stage 2 (fs2): 'zfs recv' exited 1`.
    pub failures: Vec<String>,
    /// What each hop has carried.
    pub hops: Vec<HopFigures>,
    /// Of each stage in turn, of each of its hosts: the exit status, `None` if it was killed because
    /// something else failed.
    pub statuses: Vec<Vec<Option<u8>>>,
    /// Seconds from the first launch until all hops were connected, and from there to the end.
    pub seconds: (f64, f64),
}

/// Runs a pipeline to its end. Both flags are looked at all the time: once `interrupted` is set, everything
/// is ended and the status is 130; once `stopped` is (by SIGTSTP), agents are told to be patient and this
/// process stops until it is continued. The observer is called on this thread.
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

/// What `run` would do, a sentence a line, without doing anything: which hosts, commands and hops.
pub fn describe(request: &PipelineRequest) -> Result<Vec<String>, Error> {
    let plan = PipelinePlan::new(request, !std::io::stdin().is_terminal())?;
    Ok(plan.describe())
}
