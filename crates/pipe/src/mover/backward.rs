//! What a receiver sends to its sender, and the threads that keep a hop alive.
//!
//! The receiver's [`Pulse`] reports that the receiver is alive while its own thread is held up. The sender's
//! [`BackwardListener`] reads what the receiver sends, and reports that the sender is alive, while the sender's own
//! thread waits for something else.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use caravan_segment::printable;
use rustix::event::PollFlags;

use super::frame::{FrameHeader, FrameKind, HEADER_BYTES, TAG_BYTES, WORD_BYTES_MAX};
use super::seal::FrameSeal;
use super::sender::Forward;
use super::spawn;
use super::wait::{MoverTiming, WaitSet, Watch, Woken};
use super::wire::{CLOSED, HopWire, Streams, Want};
use crate::cancel::Cancel;
use crate::{Error, lock};

/// The most reads in a row, so that a receiver that sends without a pause does not keep its sender from its work.
const READS_MAX: usize = 16;

/// The receiver's last message: nothing follows it.
#[derive(Debug)]
pub(super) enum LastWord {
    /// The receiver wants no more.
    Stop,
    /// The receiver has delivered the whole stream, of so many bytes.
    Done(u64),
    /// The receiver cannot deliver the stream.
    Failed(String),
    /// The connection is gone before a last word.
    Cut(String),
    /// The receiver broke the protocol.
    Bad(Error),
}

/// The receiver's side of the backward direction.
pub(super) struct BackwardWriter {
    seal: Option<FrameSeal>,
    unsent: Vec<u8>,
}

impl BackwardWriter {
    /// Returns a writer that has sent nothing.
    pub fn new(seal: Option<FrameSeal>) -> Self {
        Self { seal, unsent: Vec::new() }
    }

    /// Sends an `Alive`, unless there is no room for it now.
    pub fn say_alive(&mut self, wire: &mut dyn HopWire) -> Result<(), Error> {
        if self.unsent.is_empty() {
            self.add(FrameKind::Alive, &[])?;
        }
        self.flush(wire).map(drop)
    }

    /// Sends the last word. Waits until `until` at most.
    pub fn say_last(
        &mut self,
        wire: &mut dyn HopWire,
        (kind, payload): (FrameKind, &[u8]),
        waits: &WaitSet,
        until: Instant,
    ) -> Result<(), Error> {
        self.add(kind, payload)?;
        while !self.flush(wire)? {
            if wire.wait(0, Want::Write, None, waits, Some(until))? == Woken::Late {
                break;
            }
        }
        Ok(())
    }

    fn add(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), Error> {
        let header = FrameHeader::plain(kind, payload.len()).encode();
        let mut payload = payload.to_vec();
        let tag = self.seal.as_mut().map(|seal| seal.seal(&header, &mut payload)).transpose()?;
        self.unsent.extend_from_slice(&header);
        self.unsent.extend_from_slice(&payload);
        self.unsent.extend(tag.into_iter().flatten());
        Ok(())
    }

    /// Sends what is queued. Returns true once all of it is sent.
    fn flush(&mut self, wire: &mut dyn HopWire) -> Result<bool, Error> {
        while !self.unsent.is_empty() {
            match wire.write(0, &[IoSlice::new(&self.unsent)]) {
                Ok(Some(sent)) => drop(self.unsent.drain(..sent.min(self.unsent.len()))),
                Ok(None) => return Ok(false),
                Err(why) => return Err(Error::Truncated { bytes: 0, why }),
            }
        }
        Ok(true)
    }
}

/// The sender's side of the backward direction.
pub(super) struct BackwardReader {
    seal: Option<FrameSeal>,
    /// The beginning of a frame.
    heard: Vec<u8>,
    /// When bytes last came.
    pub heard_at: Instant,
}

impl BackwardReader {
    /// Returns a reader that has read nothing.
    pub fn new(seal: Option<FrameSeal>) -> Self {
        Self { seal, heard: Vec::new(), heard_at: Instant::now() }
    }

    /// Reads what is there. Returns the last word, if it has come.
    pub fn listen(&mut self, wire: &mut dyn HopWire) -> Option<LastWord> {
        let mut buffer = [0; HEADER_BYTES + WORD_BYTES_MAX + TAG_BYTES];
        for _ in 0..READS_MAX {
            match wire.read(0, &mut buffer) {
                Ok(None) => return None,
                Ok(Some(0)) => return Some(LastWord::Cut(CLOSED.into())),
                Ok(Some(bytes)) => {
                    self.heard_at = Instant::now();
                    self.heard.extend_from_slice(&buffer[..bytes.min(buffer.len())]);
                }
                Err(why) => return Some(LastWord::Cut(why)),
            }
            match self.parse() {
                Ok(None) => {}
                Ok(Some(word)) => return Some(word),
                Err(error) => return Some(LastWord::Bad(error)),
            }
        }
        None
    }

    /// Parses all complete frames.
    fn parse(&mut self) -> Result<Option<LastWord>, Error> {
        loop {
            let Some((head, rest)) = self.heard.split_first_chunk_mut::<HEADER_BYTES>() else {
                return Ok(None);
            };
            let header = FrameHeader::decode(head, None).map_err(|why| broken(why, self.seal.is_some()))?;
            let tag_bytes = if self.seal.is_some() { TAG_BYTES } else { 0 };
            let Some((frame, _)) = rest.split_at_mut_checked(header.length + tag_bytes) else {
                return Ok(None);
            };
            let (payload, tag) = frame.split_at_mut(header.length);
            if let (Some(seal), Some(tag)) = (&mut self.seal, tag.first_chunk()) {
                seal.open(head, *tag, payload)?;
            }
            let word = match header.kind {
                FrameKind::Stop => Some(LastWord::Stop),
                FrameKind::Done => {
                    payload.first_chunk().map(|bytes| LastWord::Done(u64::from_le_bytes(*bytes)))
                }
                FrameKind::CannotPut => Some(LastWord::Failed(printable(payload))),
                _ => None,
            };
            if word.is_some() {
                return Ok(word);
            }
            self.heard.drain(..HEADER_BYTES + header.length + tag_bytes);
        }
    }
}

/// Returns the error for an invalid frame. On a sealed hop, somebody else has changed it.
pub(super) fn broken(why: &str, is_sealed: bool) -> Error {
    match is_sealed {
        true => Error::Damaged(format!("something between the hosts changes data: one {why}")),
        false => Error::Protocol(why.into()),
    }
}

/// Who reads what the receiver sends.
pub(super) enum BackwardSource {
    /// A thread of its own.
    Thread(BackwardListener),
    /// The sender itself, whenever it looks.
    Own(Box<BackwardReader>),
}

impl BackwardSource {
    /// Returns what becomes readable when there is a last word, if a thread reads.
    pub fn news(&self) -> Option<Watch<'_>> {
        match self {
            Self::Thread(listener) => Some(listener.watch()),
            Self::Own(_) => None,
        }
    }
}

/// How the two ends of a hop know that the other end is alive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Liveness {
    /// How often the sender reports that it is alive.
    pub ping: Duration,
    /// How long the receiver may send no frame before it is dead; `None`: for ever.
    pub silence: Option<Duration>,
}

/// A thread that reads what the receiver sends, and reports that the sender is alive, while the sender's own thread
/// waits for something else.
pub(super) struct BackwardListener {
    /// Fired once there is a last word.
    news: Cancel,
    word: Arc<Mutex<Option<LastWord>>>,
    _thread: HelperThread,
}

/// A thread that is told to end, and waited for, when the value is dropped.
struct HelperThread {
    end: Cancel,
    thread: Option<JoinHandle<()>>,
}

impl HelperThread {
    fn start(name: &str, run: impl FnOnce(&WaitSet) + Send + 'static) -> Result<Self, Error> {
        let end = Cancel::new()?;
        let ended = end.clone();
        let thread = spawn(name, move || run(&WaitSet::new(&ended)))?;
        Ok(Self { end, thread: Some(thread) })
    }
}

impl Drop for HelperThread {
    fn drop(&mut self) {
        self.end.fire();
        if let Some(thread) = self.thread.take() {
            // The thread has nothing more to report, and its panic was printed.
            let _ = thread.join();
        }
    }
}

impl BackwardListener {
    /// Starts the thread.
    pub fn start(
        mut streams: Streams,
        mut ear: BackwardReader,
        forward: Arc<Mutex<Forward>>,
        liveness: Liveness,
    ) -> Result<Self, Error> {
        let (news, word) = (Cancel::new()?, Arc::new(Mutex::new(None)));
        let (heard, rung) = (Arc::clone(&word), news.clone());
        let thread = HelperThread::start("caravan-listen", move |waits| {
            if let Some(last) = hear(&mut streams, &mut ear, &forward, liveness, waits) {
                *lock(&heard) = Some(last);
                rung.fire();
            }
        })?;
        Ok(Self { news, word, _thread: thread })
    }

    /// Returns what becomes readable once there is a last word.
    pub fn watch(&self) -> Watch<'_> {
        (self.news.as_fd(), PollFlags::IN)
    }

    /// Returns the receiver's last word, once.
    pub fn word(&self) -> Option<LastWord> {
        if !self.news.is_fired() {
            return None;
        }
        lock(&self.word).take()
    }
}

/// Reads until the receiver's last word, or until the receiver is silent. Returns `None` if the thread was told to
/// end.
fn hear(
    streams: &mut Streams,
    ear: &mut BackwardReader,
    forward: &Mutex<Forward>,
    Liveness { ping, silence }: Liveness,
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
            // The sender is sending something just now.
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Poisoned(_)) => return None,
        }
        // The wait is half an interval, so that two `Idle`s are never more than one and a half intervals apart.
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

/// A thread that reports that the receiver is alive, whatever holds up the receiver's own thread; it ends with its
/// drop.
pub(super) struct Pulse {
    _thread: HelperThread,
}

impl Pulse {
    /// Starts the thread.
    pub fn start(
        mut streams: Streams,
        mouth: Arc<Mutex<BackwardWriter>>,
        timing: MoverTiming,
    ) -> Result<Self, Error> {
        let thread = HelperThread::start("caravan-alive", move |waits| {
            while let Ok(Woken::Late) = waits.wait(None, None, Some(Instant::now() + timing.ping)) {
                // If the sender is gone, the receiver notices it when it reads.
                if lock(&mouth).say_alive(&mut streams).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { _thread: thread })
    }
}
