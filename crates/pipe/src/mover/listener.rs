//! A thread that listens to the receiver for a sender, and says that the sender is alive.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::backward::{Ear, Word};
use super::forward::Forward;
use super::start::spawn;
use super::wait::{Waits, Watch, Woken};
use super::wire::{Streams, Want, Wire};
use crate::Error;
use crate::cancel::Cancel;

/// Who listens to the receiver.
pub(super) enum Ears {
    /// A thread of their own.
    Thread(Listener),
    /// The sender itself, whenever it looks.
    Own(Box<Ear>),
}

impl Ears {
    /// What tells that there is a word, where a thread listens.
    pub fn news(&self) -> Option<Watch<'_>> {
        match self {
            Self::Thread(listener) => Some(listener.watch()),
            Self::Own(_) => None,
        }
    }
}

/// A thread that hears what the receiver says while the sender's own waits for something else, and that
/// says that the sender is alive.
pub(super) struct Listener {
    /// Fired once there is a word.
    news: Cancel,
    word: Arc<Mutex<Option<Word>>>,
    end: Cancel,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Begins to listen. `times`: how often the sender says that it is alive, and after how long without a
    /// word the receiver is dead.
    pub fn start(
        mut streams: Streams,
        mut ear: Ear,
        forward: Arc<Mutex<Forward>>,
        times: (Duration, Option<Duration>),
    ) -> Result<Self, Error> {
        let (news, end) = (Cancel::new()?, Cancel::new()?);
        let word = Arc::new(Mutex::new(None));
        let (heard, rung, ended) = (Arc::clone(&word), news.clone(), end.clone());
        let listen = move || {
            let last = hear(&mut streams, &mut ear, &forward, times, &Waits::new(&ended));
            if let Some(last) = last {
                *heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
                rung.fire();
            }
        };
        let thread = spawn("caravan-listen", listen)?;
        Ok(Self { news, word, end, thread: Some(thread) })
    }

    /// Readable once there is a word.
    pub fn watch(&self) -> Watch<'_> {
        (self.news.as_fd(), PollFlags::IN)
    }

    /// The receiver's last word, once.
    pub fn word(&self) -> Option<Word> {
        if !self.news.is_fired() {
            return None;
        }
        self.word.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Listens until the receiver's last word, or until it is silent; `None` if it was told to end.
fn hear(
    streams: &mut Streams,
    ear: &mut Ear,
    forward: &Mutex<Forward>,
    (ping, silence): (Duration, Option<Duration>),
    waits: &Waits,
) -> Option<Word> {
    loop {
        if let Some(word) = ear.listen(streams) {
            return Some(word);
        }
        match forward.try_lock() {
            Ok(mut forward) => {
                if let Err(error) = forward.say_idle(streams, ping) {
                    return Some(Word::Bad(error));
                }
            }
            // Something is being said just now.
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Poisoned(_)) => return None,
        }
        // Half an interval, so that two in a row are never further apart than one and a half.
        let until = Instant::now() + ping / 2;
        match streams.clone().wait(0, Want::Read, None, waits, Some(until)) {
            Err(_) => return None,
            Ok(Woken::Late) => {
                if let Some(silence) = silence.filter(|silence| ear.heard_at.elapsed() > *silence) {
                    let silence = silence.as_secs_f64();
                    return Some(Word::Cut(format!("the other end was silent for {silence} s")));
                }
            }
            Ok(_) => {}
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.end.fire();
        if let Some(thread) = self.thread.take() {
            // It has nothing more to report, and a panic of it was printed.
            let _ = thread.join();
        }
    }
}
