//! The coordinator's side of control channels: a thread that reads and one that writes for each agent.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{AgentSession, Guard};
use crate::control;
use crate::control::{AgentOrder, AgentReport, ControlMessage};
use crate::limits::RELAY_CREDIT_BYTES;
use crate::lock;

/// Messages that wait to be written to one agent: orders, and relayed data, which windows limit.
const QUEUE_MESSAGES_MAX: usize = 1024;

/// What happened at an agent.
pub enum AgentEvent {
    /// It was started, or not.
    Launched(usize, Result<AgentSession, crate::Error>),
    /// It says something.
    Report(usize, AgentReport),
    /// Its channel has ended: why, if it has said what no agent says.
    Lost(usize, Option<String>),
}

/// Where data of relayed hops go: from an agent and a hop to the other agent.
pub type RelayRoutes = Arc<Mutex<HashMap<(usize, u32), RelayRoute>>>;

/// One way of a relayed hop.
#[derive(Clone)]
pub struct RelayRoute {
    to: SyncSender<ControlMessage<AgentOrder>>,
    /// Bytes that were passed on and that the other agent has not given credit for.
    under_way: Arc<AtomicU64>,
    /// Bytes that were passed on in the other direction without credit.
    back: Arc<AtomicU64>,
}

/// Both ways of a relayed hop: to one agent, and to the other.
pub fn both_ways(
    one: SyncSender<ControlMessage<AgentOrder>>,
    other: SyncSender<ControlMessage<AgentOrder>>,
) -> [RelayRoute; 2] {
    let (under_way, back) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let to_one = RelayRoute { to: one, under_way: Arc::clone(&under_way), back: Arc::clone(&back) };
    [to_one, RelayRoute { to: other, under_way: back, back: under_way }]
}

impl RelayRoute {
    /// Passes data or credit on. Fails where an agent sends more than it may, or gives credit for what it
    /// was not sent.
    fn pass(&self, order: ControlMessage<AgentOrder>) -> Result<(), String> {
        // Counts alone matter: each message is passed on by the queue.
        match &order {
            ControlMessage::Data { bytes, .. } => {
                let bytes = bytes.len() as u64;
                if self.under_way.fetch_add(bytes, Ordering::Relaxed) + bytes > RELAY_CREDIT_BYTES {
                    return Err("its agent sent more data than it was given leave for".to_owned());
                }
            }
            ControlMessage::Word(AgentOrder::Credit { bytes, .. }) => {
                let given = |left: u64| left.checked_sub(*bytes);
                if self.back.fetch_update(Ordering::Relaxed, Ordering::Relaxed, given).is_err() {
                    return Err("its agent gave credit for data that it was not sent".to_owned());
                }
            }
            ControlMessage::Word(_) => {}
        }
        // Blocks where the other one does not read: windows keep that short, its silence ends it.
        let _ = self.to.send(order);
        Ok(())
    }
}

/// A started agent.
pub struct AgentChannel {
    orders: SyncSender<ControlMessage<AgentOrder>>,
    guard: Box<dyn Guard>,
    begin: Instant,
    /// Milliseconds after `begin` at which it was last heard.
    heard_ms: Arc<AtomicU64>,
    /// What its lines that wait to be told count for.
    pub lines_bytes: Arc<AtomicU64>,
    /// Its channel has ended.
    pub is_lost: bool,
}

impl AgentChannel {
    /// Starts both threads.
    pub fn new(
        number: usize,
        session: AgentSession,
        events: SyncSender<AgentEvent>,
        routes: RelayRoutes,
    ) -> Self {
        let (orders, queue) = sync_channel(QUEUE_MESSAGES_MAX);
        let begin = Instant::now();
        let heard_ms = Arc::new(AtomicU64::new(0));
        let heard = Arc::clone(&heard_ms);
        std::thread::spawn(move || write(session.to, &queue));
        std::thread::spawn(move || {
            let why = read(session.from, number, &events, &routes, || {
                let now = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
                // A figure that is only compared with the clock: nothing hangs on its order.
                heard.store(now, Ordering::Relaxed);
            });
            let _ = events.send(AgentEvent::Lost(number, why));
        });
        Self { orders, guard: session.guard, begin, heard_ms, lines_bytes: Arc::default(), is_lost: false }
    }

    /// Gives an order. One that has no room any more has not read a thousand others: it is as good as
    /// dead, and its silence ends it.
    pub fn order(&self, order: AgentOrder) {
        match self.orders.try_send(ControlMessage::Word(order)) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// For the thread that gives credit.
    pub fn sender(&self) -> SyncSender<ControlMessage<AgentOrder>> {
        self.orders.clone()
    }

    /// How long it has said nothing.
    pub fn silence(&self) -> Duration {
        let heard = Duration::from_millis(self.heard_ms.load(Ordering::Relaxed));
        self.begin.elapsed().saturating_sub(heard)
    }

    /// As if it had just said something.
    pub fn forgive(&self) {
        let now = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(now, Ordering::Relaxed);
    }

    /// Why its channel has ended.
    pub fn why_lost(&mut self) -> String {
        self.guard.why_ended()
    }

    /// Lets go of its channel and makes sure that it ends.
    pub fn end(self) {
        let Self { orders, mut guard, .. } = self;
        drop(orders);
        guard.end();
    }
}

fn write(mut to: Box<dyn Write + Send>, queue: &Receiver<ControlMessage<AgentOrder>>) {
    for message in queue {
        if control::write(&mut *to, &message).is_err() {
            // The reading thread notices that it has ended.
            return;
        }
    }
}

/// Reads reports until the channel ends. Returns why it ended, if the agent sent something else than a report.
fn read(
    mut from: Box<dyn Read + Send>,
    number: usize,
    events: &SyncSender<AgentEvent>,
    routes: &RelayRoutes,
    hear: impl Fn(),
) -> Option<String> {
    loop {
        let message = match control::read::<AgentReport>(&mut *from) {
            Ok(message) => message,
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Some(format!("its agent says what no agent says: {error}"));
            }
            Err(_) => return None,
        };
        hear();
        let (hop, order) = match message {
            ControlMessage::Data { hop, bytes } => (hop, ControlMessage::Data { hop, bytes }),
            ControlMessage::Word(AgentReport::Credit { hop, bytes }) => {
                (hop, ControlMessage::Word(AgentOrder::Credit { hop: Some(hop), bytes }))
            }
            ControlMessage::Word(AgentReport::RelayEnd { hop }) => {
                (hop, ControlMessage::Word(AgentOrder::RelayEnd { hop }))
            }
            ControlMessage::Word(report) => {
                if events.send(AgentEvent::Report(number, report)).is_err() {
                    return None;
                }
                continue;
            }
        };
        let route = lock(routes).get(&(number, hop)).cloned();
        if let Some(Err(why)) = route.map(|route| route.pass(order)) {
            return Some(why);
        }
    }
}
