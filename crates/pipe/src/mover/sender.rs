//! The sending end of a hop.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::PollFlags;

use super::backward::{Ear, Word};
use super::compress::Shrinker;
use super::digest::Total;
use super::frame::{HEADER_BYTES, Header, Kind, TAG_BYTES, sentence_bytes};
use super::outlet::Halt;
use super::seal::{Direction, Seal};
use super::wait::{Timing, Waits, Watch, Woken};
use super::wire::{Streams, Want, Wire};
use super::{HopOptions, block_bytes, wire_of};
use crate::Error;
use crate::cancel::Cancel;
use crate::connect::Connection;

/// A piece of the stream that is to be sent.
pub(super) enum Piece<'a> {
    /// It is needed no more: it may be encrypted in place.
    Own(&'a mut [u8]),
    /// Others read it, too.
    Shared(&'a [u8]),
}

impl Piece<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// The sending end of a hop.
pub(super) struct Sender {
    wire: Box<dyn Wire>,
    mouth: Arc<Mutex<Mouth>>,
    options: HopOptions,
    timing: Timing,
    shrinker: Option<Shrinker>,
    /// For blocks that others read, too, and must not see encrypted.
    aside: Vec<u8>,
    /// What is left of a frame that was interrupted: it goes in front of a last one that says why.
    rest: Vec<u8>,
    ears: Ears,
    word: Option<Word>,
    bytes: u64,
    wire_bytes: u64,
}

/// Who listens to the receiver.
enum Ears {
    /// A thread of their own.
    Thread(Listener),
    /// The sender itself, whenever it looks.
    Own(Box<Ear>),
}

/// What is sent, frame after frame.
struct Mouth {
    seals: Vec<Option<Seal>>,
    /// Whose turn it is.
    turn: usize,
    /// What is left of an `Idle`.
    unsent: Vec<u8>,
    /// When anything was sent last.
    sent_at: Instant,
    /// A frame was begun and not ended: nothing can follow.
    is_torn: bool,
    /// The stream has ended.
    has_ended: bool,
}

impl Sender {
    /// Begins to listen.
    pub fn new(connection: Connection, options: HopOptions, timing: Timing) -> Result<Self, Error> {
        let secret = connection.secret;
        let seal =
            |direction, stream| options.sealed.then(|| Seal::new(&secret, direction, stream)).transpose();
        let (wire, streams) = wire_of(connection.channel)?;
        let seals = (0..wire.streams() as u32).map(|stream| seal(Direction::Forward, stream));
        let mouth = Arc::new(Mutex::new(Mouth {
            seals: seals.collect::<Result<_, Error>>()?,
            turn: 0,
            unsent: Vec::new(),
            sent_at: Instant::now(),
            is_torn: false,
            has_ended: false,
        }));
        let ear = Ear::new(seal(Direction::Backward, 0)?);
        let ears = match streams {
            Some(streams) => Ears::Thread(Listener::start(streams, ear, Arc::clone(&mouth), timing)?),
            None => Ears::Own(Box::new(ear)),
        };
        let shrinker = Shrinker::new(&options)?;
        Ok(Self {
            wire,
            mouth,
            options,
            timing,
            shrinker,
            aside: Vec::new(),
            rest: Vec::new(),
            ears,
            word: None,
            bytes: 0,
            wire_bytes: 0,
        })
    }

    /// Bytes that have gone over the wire.
    pub fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    /// Sends a piece of the stream.
    pub fn put(&mut self, piece: Piece, waits: &Waits) -> Result<(), Halt> {
        let most = block_bytes(&self.options);
        match piece {
            Piece::Own(bytes) => {
                bytes.chunks_mut(most).try_for_each(|bytes| self.put_block(Piece::Own(bytes), waits))
            }
            Piece::Shared(bytes) => {
                bytes.chunks(most).try_for_each(|bytes| self.put_block(Piece::Shared(bytes), waits))
            }
        }
    }

    fn put_block(&mut self, piece: Piece, waits: &Waits) -> Result<(), Halt> {
        let raw_length = piece.bytes().len();
        let plain = Header::plain(Kind::Data, raw_length);
        // Both are taken out while the rest of the sender is at work with them.
        let mut shrinker = self.shrinker.take();
        let mut aside = std::mem::take(&mut self.aside);
        let small = shrinker.as_mut().and_then(|shrinker| shrinker.shrink(piece.bytes()));
        let sent = match (small, piece) {
            (Some(small), _) => {
                let header = Header { is_compressed: true, length: small.len(), ..plain };
                self.send(header, Piece::Own(small), waits, None)
            }
            (None, Piece::Shared(bytes)) if self.options.sealed => {
                aside.clear();
                aside.extend_from_slice(bytes);
                self.send(plain, Piece::Own(&mut aside), waits, None)
            }
            (None, piece) => self.send(plain, piece, waits, None),
        };
        (self.shrinker, self.aside) = (shrinker, aside);
        self.bytes += raw_length as u64;
        sent
    }

    /// Says that this was all, and waits until the receiver says that it is where it belongs.
    pub fn finish(&mut self, total: &Total, waits: &Waits) -> Result<(), Halt> {
        let mut payload = total.encode(self.options.digest);
        self.send(Header::plain(Kind::End, payload.len()), Piece::Own(&mut payload), waits, None)?;
        loop {
            match self.look() {
                Err(Halt::Done(bytes)) if bytes == total.bytes => return Ok(()),
                Err(Halt::Done(bytes)) => {
                    let why = format!("says that {bytes} bytes are all of {}", total.bytes);
                    return Err(Error::Protocol(why).into());
                }
                Err(halt) => return Err(halt),
                Ok(()) => {}
            }
            match &self.ears {
                Ears::Thread(listener) => waits.wait(Some(listener.watch()), None, None)?,
                Ears::Own(_) => self.wire.wait(0, Want::Read, None, waits, None)?,
            };
        }
    }

    /// Says why there will be no more, and waits a little until the receiver has heard it.
    pub fn fail(mut self, why: &str, waits: &Waits) {
        let until = Instant::now() + self.timing.linger;
        let mut payload = sentence_bytes(why).to_vec();
        let header = Header::plain(Kind::Failed, payload.len());
        if self.send(header, Piece::Own(&mut payload), waits, Some(until)).is_err() {
            return;
        }
        self.wire.hang_up(waits, until);
        while self.wire.closes() && self.look().is_ok() {
            let woken = match &self.ears {
                Ears::Thread(listener) => waits.wait(Some(listener.watch()), None, Some(until)),
                Ears::Own(_) => self.wire.wait(0, Want::Read, None, waits, Some(until)),
            };
            if !matches!(woken, Ok(Woken::Ready | Woken::Other)) {
                break;
            }
        }
    }

    /// What happens when the receiver has said something. Before a wait; after it, [`look`](Self::look).
    pub fn watch(&mut self) -> Result<Option<Watch<'_>>, Halt> {
        if matches!(self.ears, Ears::Own(_)) {
            loop {
                match self.wire.arm() {
                    Ok(true) => break,
                    Ok(false) => self.look()?,
                    Err(why) => return Err(Error::Truncated { bytes: self.bytes, why }.into()),
                }
            }
            return Ok(self.wire.news());
        }
        Ok(self.news())
    }

    /// What tells that there is a word, where a thread listens.
    fn news(&self) -> Option<Watch<'_>> {
        match &self.ears {
            Ears::Thread(listener) => Some(listener.watch()),
            Ears::Own(_) => None,
        }
    }

    /// Whether it has.
    pub fn look(&mut self) -> Result<(), Halt> {
        let word = match &mut self.ears {
            Ears::Thread(listener) => listener.word(),
            Ears::Own(ear) => {
                self.wire.disarm();
                ear.listen(&mut *self.wire)
            }
        };
        if self.word.is_none() {
            self.word = word;
        }
        match self.word.take() {
            None => Ok(()),
            Some(Word::Stop) => Err(Halt::Stopped),
            Some(Word::Done(bytes)) => Err(Halt::Done(bytes)),
            Some(Word::Failed(why)) => Err(Error::Told(why).into()),
            Some(Word::Cut(why)) => Err(Error::Truncated { bytes: self.bytes, why }.into()),
            Some(Word::Bad(error)) => Err(error.into()),
        }
    }

    /// Sends a frame, whole.
    fn send(
        &mut self,
        header: Header,
        payload: Piece,
        waits: &Waits,
        until: Option<Instant>,
    ) -> Result<(), Halt> {
        let mouth = Arc::clone(&self.mouth);
        let mut mouth = lock(&mouth);
        if mouth.is_torn {
            let rest = std::mem::take(&mut self.rest);
            if rest.is_empty() {
                return Err(Error::Cancelled.into());
            }
            let turn = mouth.turn.checked_sub(1).unwrap_or(mouth.seals.len() - 1);
            self.write(turn, [&rest, &[], &[], &[]], waits, until)?;
            mouth.is_torn = false;
        }
        if mouth.has_ended {
            return Err(Error::Cancelled.into());
        }
        mouth.has_ended = header.kind == Kind::End;
        let turn = mouth.turn;
        mouth.turn = (turn + 1) % mouth.seals.len().max(1);
        mouth.is_torn = true;
        let head = header.encode();
        let mut tag = None;
        let payload = match (payload, mouth.seals.get_mut(turn)) {
            (Piece::Own(payload), Some(Some(seal))) => {
                tag = Some(seal.seal(&head, payload)?);
                &*payload
            }
            (Piece::Own(payload), _) => &*payload,
            (Piece::Shared(payload), _) => payload,
        };
        let unsent = std::mem::take(&mut mouth.unsent);
        let parts = [&unsent[..], &head[..], payload, tag.as_ref().map_or(&[][..], |tag| &tag[..])];
        self.write(turn, parts, waits, until)?;
        mouth.is_torn = false;
        mouth.sent_at = Instant::now();
        self.wire_bytes += (head.len() + payload.len() + tag.map_or(0, |tag| tag.len())) as u64;
        Ok(())
    }

    fn write(
        &mut self,
        stream: usize,
        mut parts: [&[u8]; 4],
        waits: &Waits,
        until: Option<Instant>,
    ) -> Result<(), Halt> {
        while parts.iter().any(|part| !part.is_empty()) {
            match self.wire.write(stream, &parts.map(IoSlice::new)) {
                Ok(Some(mut sent)) => {
                    for part in &mut parts {
                        let bytes = sent.min(part.len());
                        *part = &part[bytes..];
                        sent -= bytes;
                    }
                }
                Ok(None) => {
                    let other = match &self.ears {
                        Ears::Thread(listener) => Some(listener.watch()),
                        Ears::Own(_) => None,
                    };
                    let woken = self.wire.wait(stream, Want::Write, other, waits, until);
                    if matches!(woken, Err(Error::Cancelled)) {
                        self.rest = parts.concat();
                    }
                    match woken? {
                        Woken::Late => return Err(Error::Cancelled.into()),
                        Woken::Ready if matches!(self.ears, Ears::Thread(_)) => {}
                        _ => self.look()?,
                    }
                }
                Err(why) => return Err(self.cut(why, waits)),
            }
        }
        Ok(())
    }

    /// The connection is gone: but the receiver may have said why before.
    fn cut(&mut self, why: String, waits: &Waits) -> Halt {
        let until = Instant::now() + self.timing.linger;
        loop {
            match self.look() {
                Err(Halt::Failed(Error::Truncated { .. })) => break,
                Err(halt) => return halt,
                Ok(()) => {}
            }
            match self.news().map(|news| waits.wait(Some(news), None, Some(until))) {
                Some(Ok(Woken::Ready)) => {}
                Some(Err(error)) => return error.into(),
                _ => break,
            }
        }
        Error::Truncated { bytes: self.bytes, why }.into()
    }
}

fn lock(mouth: &Mutex<Mouth>) -> MutexGuard<'_, Mouth> {
    mouth.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mouth {
    /// Says that the sender is alive, if nothing else is being said.
    fn say_idle(&mut self, wire: &mut Streams, timing: &Timing) -> Result<(), Error> {
        if self.is_torn || self.has_ended || self.sent_at.elapsed() < timing.ping {
            return Ok(());
        }
        if self.unsent.is_empty() {
            let head = Header::plain(Kind::Idle, 0).encode();
            self.unsent.extend_from_slice(&head);
            if let Some(Some(seal)) = self.seals.get_mut(self.turn) {
                self.unsent.extend_from_slice(&seal.seal(&head, &mut [])?);
            }
            debug_assert!(self.unsent.len() <= HEADER_BYTES + TAG_BYTES);
        }
        if let Ok(Some(sent)) = wire.write(self.turn, &[IoSlice::new(&self.unsent)]) {
            self.unsent.drain(..sent.min(self.unsent.len()));
            self.sent_at = Instant::now();
        }
        // That the receiver is gone is found out by listening.
        Ok(())
    }
}

/// A thread that hears what the receiver says while the sender's own waits for something else, and that
/// says that the sender is alive.
struct Listener {
    /// Fired once there is a word.
    news: Cancel,
    word: Arc<Mutex<Option<Word>>>,
    end: Cancel,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(
        mut streams: Streams,
        mut ear: Ear,
        mouth: Arc<Mutex<Mouth>>,
        timing: Timing,
    ) -> Result<Self, Error> {
        let (news, end) = (Cancel::new()?, Cancel::new()?);
        let word = Arc::new(Mutex::new(None));
        let (heard, rung, ended) = (Arc::clone(&word), news.clone(), end.clone());
        let listen = move || {
            let last = hear(&mut streams, &mut ear, &mouth, &timing, &Waits::new(&ended));
            if let Some(last) = last {
                *heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
                rung.fire();
            }
        };
        let thread = super::spawn("caravan-listen", listen)?;
        Ok(Self { news, word, end, thread: Some(thread) })
    }

    fn watch(&self) -> Watch<'_> {
        (self.news.as_fd(), PollFlags::IN)
    }

    fn word(&self) -> Option<Word> {
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
    mouth: &Mutex<Mouth>,
    timing: &Timing,
    waits: &Waits,
) -> Option<Word> {
    loop {
        if let Some(word) = ear.listen(streams) {
            return Some(word);
        }
        match mouth.try_lock() {
            Ok(mut mouth) => {
                if let Err(error) = mouth.say_idle(streams, timing) {
                    return Some(Word::Bad(error));
                }
            }
            // Something is being said just now.
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Poisoned(_)) => return None,
        }
        // Half an interval, so that two in a row are never further apart than one and a half.
        let until = Instant::now() + timing.ping / 2;
        match streams.clone().wait(0, Want::Read, None, waits, Some(until)) {
            Err(_) => return None,
            Ok(Woken::Late) if ear.heard_at.elapsed() > timing.silence => {
                let silence = timing.silence.as_secs_f64();
                return Some(Word::Cut(format!("the other end was silent for {silence} s")));
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
