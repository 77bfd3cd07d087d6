//! What the sink has said about files that were offered.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Condvar, Mutex};

use super::super::format::{self, TreeFrameKind, nonsense};
use super::super::parser::RecordParser;
use super::super::records::SinkHas;
use crate::Error;

/// Answers of one offer.
pub const OFFER_FILES_MAX: usize = 512;

/// From the thread that reads them to those who wait for them.
#[derive(Debug, Default)]
pub struct OfferAnswers {
    state: Mutex<AnswersState>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct AnswersState {
    /// By the number of the offer. Nothing is kept that nobody has asked for.
    given: HashMap<u64, Option<Vec<SinkHas>>>,
    is_done: bool,
    is_closed: bool,
}

impl OfferAnswers {
    /// Before the offer is sent.
    pub fn expect(&self, offer: u64) {
        self.lock().given.insert(offer, None);
    }

    /// Waits for the answer. Nothing if the sink has ended.
    pub fn wait(&self, offer: u64) -> Option<Vec<SinkHas>> {
        let mut state = self.lock();
        loop {
            if let Some(Some(_)) = state.given.get(&offer) {
                return state.given.remove(&offer).flatten();
            }
            if state.is_closed {
                return None;
            }
            state = self.news.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Reads until the sink closes. `position` bytes were read before.
    pub fn read(&self, from: &mut impl Read, mut position: u64) -> Result<(), Error> {
        let mut payload = Vec::new();
        let result = loop {
            if let Err(error) = self.read_one(from, &mut payload, &mut position) {
                break error;
            }
            if self.lock().is_done {
                return Ok(());
            }
        };
        self.close();
        Err(result)
    }

    /// Wakes all who wait: nothing more will come.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.news.notify_all();
    }

    fn read_one(&self, from: &mut impl Read, payload: &mut Vec<u8>, position: &mut u64) -> Result<(), Error> {
        let header = format::read(from, payload, position)?;
        header.check(payload)?;
        match header.kind {
            TreeFrameKind::Done => self.lock().is_done = true,
            TreeFrameKind::Answer => {
                let mut parser = RecordParser(payload);
                let offer = parser.u64()?;
                let mut had = Vec::new();
                while !parser.is_empty() && had.len() <= OFFER_FILES_MAX {
                    had.push(parser.had()?);
                }
                match self.lock().given.get_mut(&offer) {
                    Some(answer) => *answer = Some(had),
                    None => return Err(nonsense("answer")),
                }
                self.news.notify_all();
            }
            _ => return Err(nonsense("answer")),
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, AnswersState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
