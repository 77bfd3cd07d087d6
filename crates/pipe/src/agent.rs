//! The process that runs commands and movers on one host.
//!
//! An agent is two processes. The outer one ([`supervise`]) only waits, and adopts whatever loses its parent; the
//! inner one ([`serve`]) does the work. When the inner one ends without reporting that all is done, the outer one
//! kills all its descendants. A thread that hangs cannot keep the inner one from ending: its main thread never
//! writes to the channel before the end, and another thread kills the process if that takes too long.

mod commands;
mod hops;
mod processes;
mod running;

use std::io;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};

use self::hops::Hops;
pub use self::processes::{keep_held, supervise};
use self::running::RunningStages;
use crate::connect::tcp;
use crate::control::{AgentOrder, AgentReport, ControlMessage, Hello};
use crate::limits::{FIRST_WORD_LIMIT, PING_INTERVAL, TERM_GRACE};
use crate::place::Place;
use crate::{Error, control, lock};

/// The interval between two looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// A tick that is this late was held up by a stopped process or machine, not by the other side.
const TICK_LATE: Duration = Duration::from_millis(1000);
/// How long the inner process may take to end after an abort: commands have [`TERM_GRACE`], the rest takes
/// milliseconds. The outer process kills what is left then: within 5 s of the last message of a coordinator that
/// was cut off.
const ABORT_LIMIT: Duration = Duration::from_millis(1000);
/// How long the inner process may take to end once all is done. This is longer than [`ABORT_LIMIT`], because only a
/// process that hangs is killed then: children of commands live on after a successful end.
const EXIT_LIMIT: Duration = Duration::from_millis(4000);

/// Serves a coordinator until the channel ends. `caller` is the standard input and output of the user's own
/// command, for the agent of the same host. A caller sets `terminated` to end the agent.
///
/// Returns as soon as the coordinator has said that all is done. Returns an error if the coordinator was cut off,
/// gave the order to abort or fell silent, after everything that the agent started was killed. The process must
/// exit then: if it still runs a few seconds later, it is killed.
pub fn serve(
    from: impl Read + Send + 'static,
    to: impl Write + Send + 'static,
    caller: Option<(OwnedFd, OwnedFd)>,
    terminated: &Arc<AtomicBool>,
) -> Result<(), Error> {
    let outbox = ReportOutbox::new(to);
    let shared = Arc::new(AgentShared {
        outbox: outbox.clone(),
        hops: Hops::new(outbox.clone()),
        running: RunningStages::new(outbox, caller),
        heard: Mutex::new(LastHeard { at: Instant::now(), is_paused: false }),
        silence_ns: AtomicU64::new(nanos(FIRST_WORD_LIMIT)),
        end: Mutex::new(None),
        has_ended: AtomicBool::new(false),
    });
    let (listener, talker) = (Arc::clone(&shared), Arc::clone(&shared));
    std::thread::spawn(move || listener.listen(from));
    std::thread::spawn(move || talker.talk());
    let end = shared.watch(terminated);
    // A loop reads the flag again and again; it guards no other memory.
    shared.has_ended.store(true, Ordering::Relaxed);
    match end {
        AgentEnd::Done => end_within(EXIT_LIMIT, || ()),
        // A command whose input ends with this process must not run to see it.
        _ => end_within(ABORT_LIMIT, || {
            _ = processes::end(|| processes::descendants(getpid()), Duration::ZERO, || ())
        }),
    }
    let (why, was_killed) = match end {
        AgentEnd::Done => return Ok(()),
        AgentEnd::Aborted(why) => (why, false),
        AgentEnd::Killed => (Error::Cancelled, true),
    };
    if was_killed {
        shared.outbox.mute();
        shared.outbox.report(AgentReport::Failed("its agent was killed".to_owned()));
    }
    shared.hops.cancel();
    shared.running.abort(TERM_GRACE);
    shared.outbox.report(AgentReport::Gone);
    Err(why)
}

struct AgentShared {
    outbox: ReportOutbox,
    hops: Hops,
    running: RunningStages,
    heard: Mutex<LastHeard>,
    /// How long the coordinator may be silent.
    silence_ns: AtomicU64,
    end: Mutex<Option<AgentEnd>>,
    has_ended: AtomicBool,
}

struct LastHeard {
    at: Instant,
    is_paused: bool,
}

enum AgentEnd {
    Done,
    Aborted(Error),
    /// A signal ended the agent.
    Killed,
}

impl AgentShared {
    /// Checks until the end whether the coordinator is there. Sends nothing, because a write may block until the
    /// coordinator reads.
    fn watch(&self, terminated: &AtomicBool) -> AgentEnd {
        let mut ticked = Instant::now();
        loop {
            if let Some(end) = lock(&self.end).take() {
                return end;
            }
            // A signal handler sets the flag; it guards no other memory.
            if terminated.load(Ordering::Relaxed) {
                return AgentEnd::Killed;
            }
            let now = Instant::now();
            if now - ticked > TICK_LATE {
                self.hear(None);
            }
            ticked = now;
            if self.is_silent(now) {
                return AgentEnd::Aborted(Error::Host {
                    host: "the coordinator".to_owned(),
                    why: "it is silent".to_owned(),
                });
            }
            std::thread::park_timeout(TICK);
        }
    }

    /// Reports until the end that the agent is alive, and what runs on it.
    fn talk(&self) {
        let mut said = None;
        while !self.has_ended.load(Ordering::Relaxed) {
            let now = Instant::now();
            if said.is_none_or(|said| now - said >= PING_INTERVAL) {
                said = Some(now);
                self.outbox.report(AgentReport::Ping);
            }
            self.running.tick(now);
            std::thread::park_timeout(TICK);
        }
    }

    fn is_silent(&self, now: Instant) -> bool {
        // The value is compared with the clock; it guards no other memory.
        let silence = Duration::from_nanos(self.silence_ns.load(Ordering::Relaxed));
        let heard = lock(&self.heard);
        !heard.is_paused && now.saturating_duration_since(heard.at) > silence
    }

    fn hear(&self, pause: Option<bool>) {
        let mut heard = lock(&self.heard);
        heard.at = Instant::now();
        heard.is_paused = pause.unwrap_or(heard.is_paused);
    }

    fn end(&self, end: AgentEnd) {
        lock(&self.end).get_or_insert(end);
    }

    fn listen(&self, mut from: impl Read) {
        loop {
            match control::read::<AgentOrder>(&mut from) {
                Ok(message) => {
                    self.hear(None);
                    if self.take(message) {
                        return;
                    }
                }
                Err(error) => {
                    let why = match error.kind() {
                        io::ErrorKind::UnexpectedEof => "it is gone".to_owned(),
                        _ => error.to_string(),
                    };
                    return self
                        .end(AgentEnd::Aborted(Error::Host { host: "the coordinator".to_owned(), why }));
                }
            }
        }
    }

    /// Executes an order. Returns true if it was the last one.
    fn take(&self, message: ControlMessage<AgentOrder>) -> bool {
        let order = match message {
            ControlMessage::Word(order) => order,
            ControlMessage::Data { hop, bytes } => {
                self.hops.relayed(hop, bytes);
                return false;
            }
        };
        match order {
            AgentOrder::Hello { silence, fabric } => {
                self.silence_ns.store(nanos(silence), Ordering::Relaxed);
                self.outbox.report(AgentReport::Hello(Box::new(hello(fabric))));
            }
            AgentOrder::Prepare { files } => self.running.prepare(files),
            AgentOrder::Command(command) => self.running.add(command),
            AgentOrder::Start { movers, figures } => self.running.start(movers, figures, &self.hops),
            AgentOrder::Credit { hop: Some(hop), bytes } => self.hops.credit(hop, bytes),
            AgentOrder::Credit { hop: None, bytes } => self.running.credit(bytes),
            AgentOrder::Kill { stage } => self.running.kill(stage),
            AgentOrder::Abort => {
                self.end(AgentEnd::Aborted(Error::Cancelled));
                return true;
            }
            AgentOrder::End => {
                self.end(AgentEnd::Done);
                return true;
            }
            AgentOrder::Ping => {}
            AgentOrder::Pause(is_paused) => self.hear(Some(is_paused)),
            AgentOrder::Hop { hop, attempt, order } => self.hops.take(hop, attempt, order),
            AgentOrder::RelayEnd { hop } => self.hops.relay_end(hop),
        }
        false
    }
}

/// Kills this process, and whatever hangs in it, if it has not ended by itself after `limit`. `first` has half as long again.
fn end_within(limit: Duration, first: impl FnOnce() + Send + 'static) {
    let kill = move || {
        std::thread::sleep(limit);
        let (done, is_done) = std::sync::mpsc::channel();
        let begun = std::thread::Builder::new().spawn(move || {
            first();
            done.send(())
        });
        let _ = begun.map(|_| is_done.recv_timeout(limit / 2));
        let _ = kill_process(getpid(), Signal::KILL);
    };
    // If no thread can be created, only this protection is lost.
    let _ = std::thread::Builder::new().spawn(kill);
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn hello(fabric: bool) -> Hello {
    let connection = std::env::var("SSH_CONNECTION").unwrap_or_default();
    let mut words = connection.split(' ');
    let offer = match fabric {
        true => crate::connect::fabric::offer().map_err(|error| error.to_string()),
        false => Err("it was not asked for".to_owned()),
    };
    Hello {
        identity: control::identity(),
        place: Place::here(),
        addresses: tcp::addresses().unwrap_or_default(),
        ssh_client: words.next().and_then(|word| word.parse().ok()),
        ssh_address: words.nth(1).and_then(|word| word.parse().ok()),
        offer,
    }
}

/// The agent's way to send reports, shared by all its threads.
#[derive(Clone)]
struct ReportOutbox(Arc<OutboxShared>);

struct OutboxShared {
    to: Mutex<Box<dyn Write + Send>>,
    is_mute: AtomicBool,
}

impl ReportOutbox {
    fn new(to: impl Write + Send + 'static) -> Self {
        Self(Arc::new(OutboxShared { to: Mutex::new(Box::new(to)), is_mute: AtomicBool::new(false) }))
    }

    /// Sends a report. A coordinator that no longer reads has hung up, which the reading thread notices.
    fn report(&self, report: AgentReport) {
        // The flag guards no other memory: one report more or less does not matter.
        let is_ending = matches!(report, AgentReport::Ended { .. } | AgentReport::Moved { .. });
        if !(is_ending && self.0.is_mute.load(Ordering::Relaxed)) {
            self.send(&ControlMessage::Word(report));
        }
    }

    /// Drops all further reports about the ends of stages and movers.
    fn mute(&self) {
        self.0.is_mute.store(true, Ordering::Relaxed);
    }

    fn data(&self, hop: u32, bytes: Vec<u8>) {
        self.send(&ControlMessage::Data { hop, bytes });
    }

    fn send(&self, message: &ControlMessage<AgentReport>) {
        let mut to = lock(&self.0.to);
        let _ = control::write(&mut **to, message);
    }
}
