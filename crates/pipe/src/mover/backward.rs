//! What a receiver tells its sender, and the threads that keep a hop alive.
//!
//! The receiver's [`Pulse`] says that the receiver is alive while its own thread is held up. The sender's
//! [`BackwardListener`] reads what the receiver says, and says that the sender is alive, while the sender's own
//! thread waits for something else.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use caravan_segment::printable;
use rustix::event::PollFlags;

use super::frame::{FrameHeader, FrameKind, HEADER_BYTES, TAG_BYTES, WORD_BYTES_MAX};
use super::seal::Seal;
use super::sender::Forward;
use super::spawn;
use super::wait::{MoverTiming, WaitSet, Watch, Woken};
use super::wire::{CLOSED, HopWire, Streams, Want};
use crate::cancel::Cancel;
use crate::{Error, lock};

/// Reads in a row: a receiver that never ends to say that it is alive is not listened to for ever.
const READS_MAX: usize = 16;

/// What the receiver has said last: nothing follows it.
#[derive(Debug)]
pub(super) enum LastWord {
    /// Nobody wants the rest.
    Stop,
    /// All of it, so many bytes, is where it belongs.
    Done(u64),
    /// It cannot go there.
    Failed(String),
    /// Nothing: its connection is gone.
    Cut(String),
    /// Nothing that makes sense.
    Bad(Error),
}

/// The receiver's mouth.
pub(super) struct BackwardWriter {
    seal: Option<Seal>,
    unsent: Vec<u8>,
}

impl BackwardWriter {
    /// One that has said nothing.
    pub fn new(seal: Option<Seal>) -> Self {
        Self { seal, unsent: Vec::new() }
    }

    /// Says that it is alive, unless there is no room for that now.
    pub fn say_alive(&mut self, wire: &mut dyn HopWire) -> Result<(), Error> {
        if self.unsent.is_empty() {
            self.add(FrameKind::Alive, &[])?;
        }
        self.flush(wire).map(drop)
    }

    /// Says its last word. Waits until a time at most.
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

    /// Whether all is sent.
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

/// The sender's ear.
pub(super) struct BackwardReader {
    seal: Option<Seal>,
    /// A frame, or the beginning of one.
    heard: Vec<u8>,
    /// When anything came last.
    pub heard_at: Instant,
}

impl BackwardReader {
    /// One that has heard nothing.
    pub fn new(seal: Option<Seal>) -> Self {
        Self { seal, heard: Vec::new(), heard_at: Instant::now() }
    }

    /// Listens to what is there: the last word, if it is among it.
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

    /// Takes all whole frames out of what was heard.
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

/// The peer's bytes are no valid frame. On a sealed hop, somebody else has changed them.
pub(super) fn broken(why: &str, is_sealed: bool) -> Error {
    match is_sealed {
        true => Error::Damaged(format!("something between the hosts changes data: one {why}")),
        false => Error::Protocol(why.into()),
    }
}

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

/// How the two ends of a hop know that the other one is alive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Liveness {
    /// How often the sender says that it is alive.
    pub ping: Duration,
    /// After how long without a frame the receiver is dead; `None`: never.
    pub silence: Option<Duration>,
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
    /// Begins to listen.
    pub fn start(
        mut streams: Streams,
        mut ear: BackwardReader,
        forward: Arc<Mutex<Forward>>,
        liveness: Liveness,
    ) -> Result<Self, Error> {
        let (news, end) = (Cancel::new()?, Cancel::new()?);
        let word = Arc::new(Mutex::new(None));
        let (heard, rung, ended) = (Arc::clone(&word), news.clone(), end.clone());
        let listen = move || {
            let last = hear(&mut streams, &mut ear, &forward, liveness, &WaitSet::new(&ended));
            if let Some(last) = last {
                *lock(&heard) = Some(last);
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
        lock(&self.word).take()
    }
}

/// Listens until the receiver's last word, or until it is silent; `None` if it was told to end.
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

/// Says so whatever holds up the receiver's own thread; ends with its drop.
pub(super) struct Pulse {
    end: Cancel,
    thread: Option<JoinHandle<()>>,
}

impl Pulse {
    /// Begins.
    pub fn start(
        mut streams: Streams,
        mouth: Arc<Mutex<BackwardWriter>>,
        timing: MoverTiming,
    ) -> Result<Self, Error> {
        let end = Cancel::new()?;
        let ended = end.clone();
        let beat = move || {
            let waits = WaitSet::new(&ended);
            while let Ok(Woken::Late) = waits.wait(None, None, Some(Instant::now() + timing.ping)) {
                // If the sender is gone, whoever reads from it finds that out.
                if lock(&mouth).say_alive(&mut streams).is_err() {
                    break;
                }
            }
        };
        Ok(Self { end, thread: Some(spawn("caravan-alive", beat)?) })
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.end.fire();
        if let Some(thread) = self.thread.take() {
            // It has nothing to report, and a panic of it was printed.
            let _ = thread.join();
        }
    }
}
