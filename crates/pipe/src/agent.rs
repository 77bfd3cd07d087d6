//! The process that runs commands and movers on one host.
//!
//! Two processes, in fact. The outer one ([`supervise`]) does nothing but wait, and adopts whatever loses
//! its parent; the inner one ([`serve`]) does the work. However the inner one ends, unless it said that all
//! is done, the outer one kills everything that came of it.

mod commands;
mod hops;
mod lines;
mod outbox;
mod processes;
mod relay;
mod running;
mod supervisor;

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Error;
use crate::connect::tcp;
use crate::control::{self, Hello, Message, Order, Report};
use crate::limits::{PING_INTERVAL, TERM_GRACE};
use crate::place::Place;

use hops::Hops;
use outbox::Outbox;
use running::Running;

pub use supervisor::supervise;

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// A tick that comes this late was held up by a stopped process or machine, not by the other side.
const TICK_LATE: Duration = Duration::from_millis(1000);

/// Serves a coordinator until the channel ends. `caller` is the standard input and output of the user's
/// own command, for the agent of the same host. `terminated` is set by whoever wants it to end.
///
/// Returns as soon as the coordinator has said that all is done; an error if it was cut off, told to
/// abort or fell silent, once all it has started was killed.
pub fn serve(
    from: impl Read + Send + 'static,
    to: impl Write + Send + 'static,
    caller: Option<(OwnedFd, OwnedFd)>,
    terminated: &Arc<AtomicBool>,
) -> Result<(), Error> {
    let outbox = Outbox::new(to);
    let shared = Arc::new(Shared {
        outbox: outbox.clone(),
        hops: Hops::new(outbox.clone()),
        running: Running::new(outbox, caller)?,
        heard: Mutex::new(Heard { at: Instant::now(), is_paused: false }),
        silence_ns: AtomicU64::new(0),
        end: Mutex::new(None),
    });
    let listener = Arc::clone(&shared);
    std::thread::spawn(move || listener.listen(from));
    let end = shared.watch(terminated);
    match end {
        End::Done => Ok(()),
        End::Aborted(why) => {
            shared.hops.cancel();
            shared.running.abort(TERM_GRACE);
            shared.outbox.report(Report::Gone);
            Err(why)
        }
    }
}

struct Shared {
    outbox: Outbox,
    hops: Hops,
    running: Running,
    heard: Mutex<Heard>,
    /// How long the coordinator may be silent; 0 before it has said so.
    silence_ns: AtomicU64,
    end: Mutex<Option<End>>,
}

struct Heard {
    at: Instant,
    is_paused: bool,
}

enum End {
    Done,
    Aborted(Error),
}

impl Shared {
    /// Until the end: says that this side is there, and looks whether the other one is.
    fn watch(&self, terminated: &AtomicBool) -> End {
        let mut said = Instant::now();
        let mut ticked = Instant::now();
        loop {
            if let Some(end) = self.end.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return end;
            }
            // Set by a signal handler; nothing else hangs on it.
            if terminated.load(Ordering::Relaxed) {
                self.outbox.mute();
                self.outbox.report(Report::Failed("its agent was killed".to_owned()));
                return End::Aborted(Error::Cancelled);
            }
            let now = Instant::now();
            if now - ticked > TICK_LATE {
                self.hear(None);
            }
            ticked = now;
            if self.is_silent(now) {
                return End::Aborted(Error::Host {
                    host: "the coordinator".to_owned(),
                    why: "it is silent".to_owned(),
                });
            }
            if now - said >= PING_INTERVAL {
                said = now;
                self.outbox.report(Report::Ping);
            }
            self.running.tick(now);
            std::thread::park_timeout(TICK);
        }
    }

    fn is_silent(&self, now: Instant) -> bool {
        // Written before the first word of it could matter.
        let silence = Duration::from_nanos(self.silence_ns.load(Ordering::Relaxed));
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        !silence.is_zero() && !heard.is_paused && now.saturating_duration_since(heard.at) > silence
    }

    fn hear(&self, pause: Option<bool>) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.at = Instant::now();
        heard.is_paused = pause.unwrap_or(heard.is_paused);
    }

    fn end(&self, end: End) {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
    }

    fn listen(&self, mut from: impl Read) {
        loop {
            match control::read::<Order>(&mut from) {
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
                    return self.end(End::Aborted(Error::Host { host: "the coordinator".to_owned(), why }));
                }
            }
        }
    }

    /// Whether it was the last.
    fn take(&self, message: Message<Order>) -> bool {
        let order = match message {
            Message::Word(order) => order,
            Message::Data { hop, bytes } => {
                self.hops.relayed(hop, bytes);
                return false;
            }
        };
        match order {
            Order::Hello { silence, fabric } => {
                let nanos = u64::try_from(silence.as_nanos()).unwrap_or(u64::MAX);
                self.silence_ns.store(nanos, Ordering::Relaxed);
                self.outbox.report(Report::Hello(Box::new(hello(fabric))));
            }
            Order::Prepare { files } => self.running.prepare(files),
            Order::Start(part) => self.running.start(part, &self.hops),
            Order::Credit { hop: Some(hop), bytes } => self.hops.credit(hop, bytes),
            Order::Credit { hop: None, bytes } => self.running.credit(bytes),
            Order::Kill { stage } => self.running.kill(stage),
            Order::Abort => {
                self.end(End::Aborted(Error::Cancelled));
                return true;
            }
            Order::End => {
                self.end(End::Done);
                return true;
            }
            Order::Ping => {}
            Order::Pause(is_paused) => self.hear(Some(is_paused)),
            other => self.hops.take(other),
        }
        false
    }
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
