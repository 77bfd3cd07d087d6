//! The coordinator's side of control channels: a thread that reads and one that writes for each agent.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Guard, Session};
use crate::control::{self, Message, Order, Report};

/// Messages that wait to be written to one agent: orders, and relayed data, which windows limit.
const QUEUE_MESSAGES_MAX: usize = 1024;

/// What happened at an agent.
pub enum Event {
    /// It was started, or not.
    Launched(usize, Result<Session, crate::Error>),
    /// It says something.
    Report(usize, Report),
    /// Its channel has ended.
    Lost(usize),
}

/// Where data of relayed hops go: from an agent and a hop to the other agent.
pub type Routes = Arc<Mutex<HashMap<(usize, u32), SyncSender<Message<Order>>>>>;

/// A started agent.
pub struct Agent {
    orders: SyncSender<Message<Order>>,
    guard: Box<dyn Guard>,
    begin: Instant,
    /// Milliseconds after `begin` at which it was last heard.
    heard_ms: Arc<AtomicU64>,
    /// Its channel has ended.
    pub is_lost: bool,
}

impl Agent {
    /// Starts both threads.
    pub fn new(number: usize, session: Session, events: Sender<Event>, routes: Routes) -> Self {
        let (orders, queue) = sync_channel(QUEUE_MESSAGES_MAX);
        let begin = Instant::now();
        let heard_ms = Arc::new(AtomicU64::new(0));
        let heard = Arc::clone(&heard_ms);
        std::thread::spawn(move || write(session.to, &queue));
        std::thread::spawn(move || {
            read(session.from, number, &events, &routes, || {
                let now = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
                // A figure that is only compared with the clock: nothing hangs on its order.
                heard.store(now, Ordering::Relaxed);
            });
            let _ = events.send(Event::Lost(number));
        });
        Self { orders, guard: session.guard, begin, heard_ms, is_lost: false }
    }

    /// Gives an order. One that has no room any more has not read a thousand others: it is as good as
    /// dead, and its silence ends it.
    pub fn order(&self, order: Order) {
        match self.orders.try_send(Message::Word(order)) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// For the thread that gives credit.
    pub fn sender(&self) -> SyncSender<Message<Order>> {
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

fn write(mut to: Box<dyn Write + Send>, queue: &Receiver<Message<Order>>) {
    for message in queue {
        if control::write(&mut *to, &message).is_err() {
            // The reading thread notices that it has ended.
            return;
        }
    }
}

fn read(
    mut from: Box<dyn Read + Send>,
    number: usize,
    events: &Sender<Event>,
    routes: &Routes,
    hear: impl Fn(),
) {
    while let Ok(message) = control::read::<Report>(&mut *from) {
        hear();
        let (hop, order) = match message {
            Message::Data { hop, bytes } => (hop, Message::Data { hop, bytes }),
            Message::Word(Report::Credit { hop, bytes }) => {
                (hop, Message::Word(Order::Credit { hop: Some(hop), bytes }))
            }
            Message::Word(Report::RelayEnd { hop }) => (hop, Message::Word(Order::RelayEnd { hop })),
            Message::Word(report) => {
                if events.send(Event::Report(number, report)).is_err() {
                    return;
                }
                continue;
            }
        };
        let other = routes.lock().unwrap_or_else(PoisonError::into_inner).get(&(number, hop)).cloned();
        // Blocks where the other one does not read: windows keep that short, its silence ends it.
        let _ = other.map(|other| other.send(order));
    }
}
