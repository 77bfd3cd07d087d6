//! The sending end of a hop.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::backward::{BackwardListener, BackwardReader, BackwardSource, LastWord, Liveness};
use super::ends::Halt;
use super::frame::{FrameHeader, FrameKind, HEADER_BYTES, OutletPiece, TAG_BYTES, sentence_bytes};
use super::payload::{Shrinker, Total};
use super::seal::{FrameDirection, FrameSeal};
use super::wait::{MoverTiming, WaitSet, Watch, Woken};
use super::wire::{HopWire, Streams, Want};
use super::{HopOptions, block_bytes, wire_of};
use crate::connect::DataConnection;
use crate::{Error, lock};

/// The sending end of a hop.
pub(super) struct HopSender {
    wire: Box<dyn HopWire>,
    forward: Arc<Mutex<Forward>>,
    options: HopOptions,
    timing: MoverTiming,
    shrinker: Option<Shrinker>,
    /// Memory to encrypt blocks that others read as well.
    aside: Vec<u8>,
    /// The rest of an interrupted frame, which is sent before a last frame that says why.
    rest: Vec<u8>,
    ears: BackwardSource,
    word: Option<LastWord>,
    bytes: u64,
    wire_bytes: u64,
}

impl HopSender {
    /// Starts the sender, which listens to the receiver from now on.
    pub fn new(connection: DataConnection, options: HopOptions, timing: MoverTiming) -> Result<Self, Error> {
        let secret = connection.secret;
        let seal = |direction, stream| {
            options.sealed.then(|| FrameSeal::new(&secret, direction, stream)).transpose()
        };
        let (wire, streams) = wire_of(connection.channel, options.silence)?;
        let seals = (0..wire.streams() as u32).map(|stream| seal(FrameDirection::Forward, stream));
        let seals = seals.collect::<Result<_, Error>>()?;
        let forward = Arc::new(Mutex::new(Forward::new(seals)));
        let ear = BackwardReader::new(seal(FrameDirection::Backward, 0)?);
        let ears = match streams {
            Some(streams) => {
                let liveness = Liveness { ping: timing.ping, silence: options.silence };
                BackwardSource::Thread(BackwardListener::start(streams, ear, Arc::clone(&forward), liveness)?)
            }
            None => BackwardSource::Own(Box::new(ear)),
        };
        let shrinker = Shrinker::new(&options)?;
        Ok(Self {
            wire,
            forward,
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

    /// Returns the number of bytes that went over the wire.
    pub fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    /// Sends a piece of the stream.
    pub fn put(&mut self, piece: OutletPiece, waits: &WaitSet) -> Result<(), Halt> {
        let most = block_bytes(&self.options);
        match piece {
            OutletPiece::Own(bytes) => {
                bytes.chunks_mut(most).try_for_each(|bytes| self.put_block(OutletPiece::Own(bytes), waits))
            }
            OutletPiece::Shared(bytes) => {
                bytes.chunks(most).try_for_each(|bytes| self.put_block(OutletPiece::Shared(bytes), waits))
            }
        }
    }

    fn put_block(&mut self, piece: OutletPiece, waits: &WaitSet) -> Result<(), Halt> {
        let raw_length = piece.bytes().len();
        let plain = FrameHeader::plain(FrameKind::Data, raw_length);
        // Both are taken out because the rest of the sender is borrowed meanwhile.
        let mut shrinker = self.shrinker.take();
        let mut aside = std::mem::take(&mut self.aside);
        let small = shrinker.as_mut().and_then(|shrinker| shrinker.shrink(piece.bytes()));
        let sent = match (small, piece) {
            (Some(small), _) => {
                let header = FrameHeader { is_compressed: true, length: small.len(), ..plain };
                self.send(header, OutletPiece::Own(small), waits, None)
            }
            (None, OutletPiece::Shared(bytes)) if self.options.sealed => {
                aside.clear();
                aside.extend_from_slice(bytes);
                self.send(plain, OutletPiece::Own(&mut aside), waits, None)
            }
            (None, piece) => self.send(plain, piece, waits, None),
        };
        (self.shrinker, self.aside) = (shrinker, aside);
        self.bytes += raw_length as u64;
        sent
    }

    /// True if pieces may come in a pipe, because their bytes are sent unchanged.
    pub fn takes_pipes(&self) -> bool {
        !self.options.sealed && self.shrinker.is_none() && self.wire.splices()
    }

    /// Sends a piece of the stream, at most a block, from a pipe.
    pub fn put_pipe(&mut self, pipe: &OwnedFd, bytes: usize, waits: &WaitSet) -> Result<(), Halt> {
        let header = FrameHeader::plain(FrameKind::Data, bytes);
        self.send_with(header, OutletPiece::Shared(&[]), Some(pipe), waits, None)?;
        self.bytes += bytes as u64;
        Ok(())
    }

    /// Ends the stream, and waits until the receiver reports that it has delivered it.
    pub fn finish(&mut self, total: &Total, waits: &WaitSet) -> Result<(), Halt> {
        let mut payload = total.encode(self.options.digest);
        self.send(
            FrameHeader::plain(FrameKind::End, payload.len()),
            OutletPiece::Own(&mut payload),
            waits,
            None,
        )?;
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
            self.wait(waits, None)?;
        }
    }

    /// Reports why the stream ends early, and waits for a short time until the receiver has read it.
    pub fn fail(mut self, why: &str, waits: &WaitSet) {
        let until = Instant::now() + self.timing.linger;
        let mut payload = sentence_bytes(why).to_vec();
        let header = FrameHeader::plain(FrameKind::Failed, payload.len());
        if self.send(header, OutletPiece::Own(&mut payload), waits, Some(until)).is_err() {
            return;
        }
        self.wire.hang_up(waits, until);
        while self.wire.closes() && self.look().is_ok() {
            let woken = self.wait(waits, Some(until));
            if !matches!(woken, Ok(Woken::Ready | Woken::Other)) {
                break;
            }
        }
    }

    /// Returns what to poll to learn that the receiver has sent its last word. Call this before a wait, and
    /// [`look`](Self::look) after it.
    pub fn watch(&mut self) -> Result<Option<Watch<'_>>, Halt> {
        if matches!(self.ears, BackwardSource::Own(_)) {
            loop {
                match self.wire.arm() {
                    Ok(true) => break,
                    Ok(false) => self.look()?,
                    Err(why) => return Err(Error::Truncated { bytes: self.bytes, why }.into()),
                }
            }
            return Ok(self.wire.news());
        }
        Ok(self.ears.news())
    }

    /// Fails with the receiver's last word, if it has come.
    pub fn look(&mut self) -> Result<(), Halt> {
        let word = match &mut self.ears {
            BackwardSource::Thread(listener) => listener.word(),
            BackwardSource::Own(ear) => {
                self.wire.disarm();
                ear.listen(&mut *self.wire)
            }
        };
        if self.word.is_none() {
            self.word = word;
        }
        match self.word.take() {
            None => Ok(()),
            Some(LastWord::Stop) => Err(Halt::Stopped),
            Some(LastWord::Done(bytes)) => Err(Halt::Done(bytes)),
            Some(LastWord::Failed(why)) => Err(Error::Told(why).into()),
            Some(LastWord::Cut(why)) => Err(Error::Truncated { bytes: self.bytes, why }.into()),
            Some(LastWord::Bad(error)) => Err(error.into()),
        }
    }

    /// Waits for the receiver's last word.
    fn wait(&mut self, waits: &WaitSet, until: Option<Instant>) -> Result<Woken, Error> {
        match &self.ears {
            BackwardSource::Thread(listener) => waits.wait(Some(listener.watch()), None, until),
            BackwardSource::Own(_) => self.wire.wait(0, Want::Read, None, waits, until),
        }
    }

    /// Sends a whole frame.
    fn send(
        &mut self,
        header: FrameHeader,
        payload: OutletPiece,
        waits: &WaitSet,
        until: Option<Instant>,
    ) -> Result<(), Halt> {
        self.send_with(header, payload, None, waits, until)
    }

    /// Sends a whole frame. With a pipe, the payload is in the pipe.
    fn send_with(
        &mut self,
        header: FrameHeader,
        payload: OutletPiece,
        pipe: Option<&OwnedFd>,
        waits: &WaitSet,
        until: Option<Instant>,
    ) -> Result<(), Halt> {
        let forward = Arc::clone(&self.forward);
        let mut forward = lock(&forward);
        if forward.is_torn {
            let rest = std::mem::take(&mut self.rest);
            if rest.is_empty() {
                return Err(Error::Cancelled.into());
            }
            let turn = forward.turn.checked_sub(1).unwrap_or(forward.seals.len() - 1);
            self.write((turn, false), [&rest, &[], &[], &[]], waits, until)?;
            forward.is_torn = false;
        }
        if forward.has_ended {
            return Err(Error::Cancelled.into());
        }
        forward.has_ended = header.kind == FrameKind::End;
        let turn = forward.turn;
        forward.turn = (turn + 1) % forward.seals.len().max(1);
        forward.is_torn = true;
        let head = header.encode();
        let mut tag = None;
        let payload = match (payload, forward.seals.get_mut(turn)) {
            (OutletPiece::Own(payload), Some(Some(seal))) => {
                tag = Some(seal.seal(&head, payload)?);
                &*payload
            }
            (OutletPiece::Own(payload), _) => &*payload,
            (OutletPiece::Shared(payload), _) => payload,
        };
        let unsent = std::mem::take(&mut forward.unsent);
        let parts = [&unsent[..], &head[..], payload, tag.as_ref().map_or(&[][..], |tag| &tag[..])];
        self.write((turn, pipe.is_some()), parts, waits, until)?;
        if let Some(pipe) = pipe {
            self.splice(turn, pipe, header.length, waits)?;
        }
        forward.is_torn = false;
        forward.sent_at = Instant::now();
        self.wire_bytes += (head.len() + header.length + tag.map_or(0, |tag| tag.len())) as u64;
        Ok(())
    }

    /// Moves so many bytes from a pipe to a stream. Nothing can follow an interrupted call.
    fn splice(&mut self, stream: usize, pipe: &OwnedFd, bytes: usize, waits: &WaitSet) -> Result<(), Halt> {
        let mut left = bytes;
        while left > 0 {
            match self.wire.splice(stream, pipe, left) {
                Ok(Some(moved)) => left = left.saturating_sub(moved),
                Ok(None) => match self.wire.wait(stream, Want::Write, self.ears.news(), waits, None)? {
                    Woken::Ready => {}
                    Woken::Other | Woken::Late => self.look()?,
                },
                Err(why) => return Err(self.cut(why, waits)),
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        (stream, is_ahead): (usize, bool),
        mut parts: [&[u8]; 4],
        waits: &WaitSet,
        until: Option<Instant>,
    ) -> Result<(), Halt> {
        while parts.iter().any(|part| !part.is_empty()) {
            let slices = parts.map(IoSlice::new);
            let did = match is_ahead {
                true => self.wire.write_ahead(stream, &slices),
                false => self.wire.write(stream, &slices),
            };
            match did {
                Ok(Some(mut sent)) => {
                    for part in &mut parts {
                        let bytes = sent.min(part.len());
                        *part = &part[bytes..];
                        sent -= bytes;
                    }
                }
                Ok(None) => {
                    let other = self.ears.news();
                    let woken = self.wire.wait(stream, Want::Write, other, waits, until);
                    // Nothing can follow a header whose payload is in a pipe.
                    if matches!(woken, Err(Error::Cancelled)) && !is_ahead {
                        self.rest = parts.concat();
                    }
                    match woken? {
                        Woken::Late => return Err(Error::Cancelled.into()),
                        Woken::Ready if matches!(self.ears, BackwardSource::Thread(_)) => {}
                        _ => self.look()?,
                    }
                }
                Err(why) => return Err(self.cut(why, waits)),
            }
        }
        Ok(())
    }

    /// Returns why a connection that is gone was cut: the receiver may have said it before.
    fn cut(&mut self, why: String, waits: &WaitSet) -> Halt {
        let until = Instant::now() + self.timing.linger;
        loop {
            match self.look() {
                Err(Halt::Failed(Error::Truncated { .. })) => break,
                Err(halt) => return halt,
                Ok(()) => {}
            }
            match self.ears.news().map(|news| waits.wait(Some(news), None, Some(until))) {
                Some(Ok(Woken::Ready)) => {}
                Some(Err(error)) => return error.into(),
                _ => break,
            }
        }
        Error::Truncated { bytes: self.bytes, why }.into()
    }
}

/// The state of the forward direction.
pub(super) struct Forward {
    pub seals: Vec<Option<FrameSeal>>,
    /// The stream of the next frame.
    pub turn: usize,
    /// The rest of an unfinished `Idle`.
    pub unsent: Vec<u8>,
    /// When bytes were last sent.
    pub sent_at: Instant,
    /// Whether a frame is unfinished for good: nothing can follow.
    pub is_torn: bool,
    /// Whether the stream has ended.
    pub has_ended: bool,
}

impl Forward {
    /// Returns the state before the first frame, with a seal, or none, for each stream.
    pub fn new(seals: Vec<Option<FrameSeal>>) -> Self {
        Self { seals, turn: 0, unsent: Vec::new(), sent_at: Instant::now(), is_torn: false, has_ended: false }
    }

    /// Sends an `Idle`, if no other frame is being sent.
    pub fn say_idle(&mut self, wire: &mut Streams, ping: Duration) -> Result<(), Error> {
        if self.is_torn || self.has_ended || self.sent_at.elapsed() < ping {
            return Ok(());
        }
        if self.unsent.is_empty() {
            let head = FrameHeader::plain(FrameKind::Idle, 0).encode();
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
        // The sender notices by listening that the receiver is gone.
        Ok(())
    }
}
