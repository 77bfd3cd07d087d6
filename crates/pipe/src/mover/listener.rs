//! A thread that listens to the receiver for a sender, and says that the sender is alive.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::backward::{BackwardReader, LastWord};
use super::forward::Forward;
use super::start::spawn;
use super::wait::{WaitSet, Watch, Woken};
use super::wire::{HopWire, Streams, Want};
use crate::Error;
use crate::cancel::Cancel;

/// Who listens to the receiver.
pub(super) enum BackwardSource {
    /// A thread of their own.
    Thread(BackwardListener),
    /// The sender itself, whenever it looks.
    Own(Box<BackwardReader>),
}

impl BackwardSource {
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
pub(super) struct BackwardListener {
    /// Fired once there is a word.
    news: Cancel,
    word: Arc<Mutex<Option<LastWord>>>,
    end: Cancel,
    thread: Option<JoinHandle<()>>,
}

impl BackwardListener {
    /// Begins to listen. `times`: how often the sender says that it is alive, and after how long without a
    /// word the receiver is dead.
    pub fn start(
        mut streams: Streams,
        mut ear: BackwardReader,
        forward: Arc<Mutex<Forward>>,
        times: (Duration, Option<Duration>),
    ) -> Result<Self, Error> {
        let (news, end) = (Cancel::new()?, Cancel::new()?);
        let word = Arc::new(Mutex::new(None));
        let (heard, rung, ended) = (Arc::clone(&word), news.clone(), end.clone());
        let listen = move || {
            let last = hear(&mut streams, &mut ear, &forward, times, &WaitSet::new(&ended));
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
    pub fn word(&self) -> Option<LastWord> {
        if !self.news.is_fired() {
            return None;
        }
        self.word.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Listens until the receiver's last word, or until it is silent; `None` if it was told to end.
fn hear(
    streams: &mut Streams,
    ear: &mut BackwardReader,
    forward: &Mutex<Forward>,
    (ping, silence): (Duration, Option<Duration>),
    waits: &WaitSet,
) -> Option<LastWord> {
    loop {
        if let Some(word) = ear.listen(streams) {
            return Some(word);
        }
        match forward.try_lock() {
            Ok(mut forward) => {
                if let Err(error) = forward.say_idle(streams, ping) {
                    return Some(LastWord::Bad(error));
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
                    return Some(LastWord::Cut(format!("the other end was silent for {silence} s")));
                }
            }
            Ok(_) => {}
        }
    }
}

impl Drop for BackwardListener {
    fn drop(&mut self) {
        self.end.fire();
        if let Some(thread) = self.thread.take() {
            // It has nothing more to report, and a panic of it was printed.
            let _ = thread.join();
        }
    }
}
