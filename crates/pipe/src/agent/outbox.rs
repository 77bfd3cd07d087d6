//! What an agent says.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use crate::control::{self, Message, Report};

/// The one way out; shared by all threads.
#[derive(Clone)]
pub struct Outbox(Arc<Mutex<Box<dyn Write + Send>>>);

impl Outbox {
    pub fn new(to: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Box::new(to))))
    }

    /// Whoever does not read any more has hung up, which the reading thread notices.
    pub fn report(&self, report: Report) {
        self.send(&Message::Word(report));
    }

    pub fn data(&self, hop: u32, bytes: Vec<u8>) {
        self.send(&Message::Data { hop, bytes });
    }

    fn send(&self, message: &Message<Report>) {
        let mut to = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = control::write(&mut **to, message);
    }
}
