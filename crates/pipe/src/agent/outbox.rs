//! What an agent says.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::control::{self, AgentReport, ControlMessage};

/// The one way out; shared by all threads.
#[derive(Clone)]
pub struct ReportOutbox(Arc<OutboxShared>);

struct OutboxShared {
    to: Mutex<Box<dyn Write + Send>>,
    is_mute: AtomicBool,
}

impl ReportOutbox {
    pub fn new(to: impl Write + Send + 'static) -> Self {
        Self(Arc::new(OutboxShared { to: Mutex::new(Box::new(to)), is_mute: AtomicBool::new(false) }))
    }

    /// Whoever does not read any more has hung up, which the reading thread notices.
    pub fn report(&self, report: AgentReport) {
        // A word more or less: nothing hangs on the order.
        let is_ending = matches!(report, AgentReport::Ended { .. } | AgentReport::Moved { .. });
        if !(is_ending && self.0.is_mute.load(Ordering::Relaxed)) {
            self.send(&ControlMessage::Word(report));
        }
    }

    /// From now on no ends of stages and movers are told of.
    pub fn mute(&self) {
        self.0.is_mute.store(true, Ordering::Relaxed);
    }

    pub fn data(&self, hop: u32, bytes: Vec<u8>) {
        self.send(&ControlMessage::Data { hop, bytes });
    }

    fn send(&self, message: &ControlMessage<AgentReport>) {
        let mut to = self.0.to.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = control::write(&mut **to, message);
    }
}
