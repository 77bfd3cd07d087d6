//! The coordinator's side of control channels: a thread that reads and one that writes for each agent.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{AgentSession, Guard};
use crate::control;
use crate::control::{AgentOrder, AgentReport, ControlMessage};
use crate::limits::RELAY_CREDIT_BYTES;
use crate::lock;

/// The number of messages that may wait to be written to one agent: orders, and relayed data, which credit limits.
const QUEUE_MESSAGES_MAX: usize = 1024;

/// What happened at an agent.
pub enum AgentEvent {
    /// The agent was started, or could not be.
    Launched(usize, Result<AgentSession, crate::Error>),
    /// The agent sent a report.
    Report(usize, AgentReport),
    /// The agent's channel has ended; the reason, if the agent broke the protocol.
    Lost(usize, Option<String>),
}

/// The routes of relayed hops: from an agent and a hop to the other agent.
pub type RelayRoutes = Arc<Mutex<HashMap<(usize, u32), RelayRoute>>>;

/// One direction of a relayed hop.
#[derive(Clone)]
pub struct RelayRoute {
    to: SyncSender<ControlMessage<AgentOrder>>,
    /// Bytes that were passed on and that the other agent has not yet given credit for.
    under_way: Arc<AtomicU64>,
    /// Bytes that were passed on in the other direction, without credit yet.
    back: Arc<AtomicU64>,
}

/// Returns both directions of a relayed hop: to one agent, and to the other.
pub fn both_ways(
    one: SyncSender<ControlMessage<AgentOrder>>,
    other: SyncSender<ControlMessage<AgentOrder>>,
) -> [RelayRoute; 2] {
    let (under_way, back) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let to_one = RelayRoute { to: one, under_way: Arc::clone(&under_way), back: Arc::clone(&back) };
    [to_one, RelayRoute { to: other, under_way: back, back: under_way }]
}

impl RelayRoute {
    /// Passes data or credit on. Fails if an agent sends more than its credit, or gives credit for bytes that it
    /// was not sent.
    fn pass(&self, order: ControlMessage<AgentOrder>) -> Result<(), String> {
        // The counters guard no other memory: the queue passes each message on.
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
        // This blocks while the other agent does not read: credit keeps the wait short, and the agent's silence
        // ends it.
        let _ = self.to.send(order);
        Ok(())
    }
}

/// A started agent.
pub struct AgentChannel {
    orders: SyncSender<ControlMessage<AgentOrder>>,
    guard: Box<dyn Guard>,
    begin: Instant,
    /// Milliseconds from `begin` until the agent's last message.
    heard_ms: Arc<AtomicU64>,
    /// The cost of the agent's lines that wait for the observer.
    pub lines_bytes: Arc<AtomicU64>,
}

impl AgentChannel {
    /// Starts the thread that reads and the thread that writes.
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
                // The value is only compared with the clock; it guards no other memory.
                heard.store(now, Ordering::Relaxed);
            });
            let _ = events.send(AgentEvent::Lost(number, why));
        });
        Self { orders, guard: session.guard, begin, heard_ms, lines_bytes: Arc::default() }
    }

    /// Queues an order. Drops it if the queue is full: the agent has not read a thousand others and is as good as
    /// dead, and its silence ends it.
    pub fn order(&self, order: AgentOrder) {
        let _ = self.orders.try_send(ControlMessage::Word(order));
    }

    /// Returns the queue of orders, for the thread that gives credit.
    pub fn sender(&self) -> SyncSender<ControlMessage<AgentOrder>> {
        self.orders.clone()
    }

    /// Returns the time since the agent's last message.
    pub fn silence(&self) -> Duration {
        let heard = Duration::from_millis(self.heard_ms.load(Ordering::Relaxed));
        self.begin.elapsed().saturating_sub(heard)
    }

    /// Restarts the silence, as if the agent had just sent a message.
    pub fn forgive(&self) {
        let now = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(now, Ordering::Relaxed);
    }

    /// Returns why the agent's channel has ended.
    pub fn why_lost(&mut self) -> String {
        self.guard.why_ended()
    }

    /// Closes the channel and makes sure that the agent ends.
    pub fn end(self) {
        let Self { orders, mut guard, .. } = self;
        drop(orders);
        guard.end();
    }
}

fn write(mut to: Box<dyn Write + Send>, queue: &Receiver<ControlMessage<AgentOrder>>) {
    for message in queue {
        if control::write(&mut *to, &message).is_err() {
            // The reading thread notices that the channel has ended.
            return;
        }
    }
}

/// Reads reports until the channel ends. Returns why it ended, if the agent broke the protocol.
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
