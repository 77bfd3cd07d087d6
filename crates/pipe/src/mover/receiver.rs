//! The receiving end of a hop.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use caravan_segment::printable;

use super::backward::{BackwardWriter, Pulse, broken};
use super::frame::{Block, FrameHeader, FrameKind, HEADER_BYTES, TAG_BYTES, WORD_BYTES_MAX, sentence_bytes};
use super::payload::{Expander, Total};
use super::seal::{FrameDirection, FrameSeal};
use super::wait::{MoverTiming, WaitSet, Watch, Woken};
use super::wire::{CLOSED, HopWire, Want};
use super::{HopOptions, block_bytes, wire_of};
use crate::connect::DataConnection;
use crate::{Error, lock};

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// A piece of the stream.
    Data,
    /// The stream has ended.
    End,
    /// Nothing has come yet.
    Nothing,
}

/// One stream of the hop.
struct Lane {
    seal: Option<FrameSeal>,
    /// The next header, as far as it has come.
    head: [u8; HEADER_BYTES],
    head_bytes: usize,
}

/// The receiving end of a hop.
pub(super) struct HopReceiver {
    wire: Box<dyn HopWire>,
    lanes: Vec<Lane>,
    /// The stream of the next frame.
    turn: usize,
    options: HopOptions,
    timing: MoverTiming,
    /// The frame that is being read, and how many of the bytes behind its header have come.
    frame: Option<FrameHeader>,
    frame_bytes: usize,
    /// Memory for compressed blocks and for payloads that are not blocks.
    aside: Block,
    expander: Option<Expander>,
    /// Bytes of the stream so far.
    bytes: u64,
    wire_bytes: u64,
    /// Since when the receiver has waited in vain for bytes.
    waits_since: Option<Instant>,
    /// The payload of the `End`.
    end: Option<Vec<u8>>,
    mouth: Arc<Mutex<BackwardWriter>>,
    pulse: Option<Pulse>,
}

impl HopReceiver {
    /// Starts the receiver, which reports from now on that it is alive.
    pub fn new(connection: DataConnection, options: HopOptions, timing: MoverTiming) -> Result<Self, Error> {
        let secret = connection.secret;
        let seal = |direction, stream| {
            options.sealed.then(|| FrameSeal::new(&secret, direction, stream)).transpose()
        };
        let (wire, streams) = wire_of(connection.channel, options.silence)?;
        let lanes = (0..wire.streams() as u32).map(|stream| {
            Ok(Lane { seal: seal(FrameDirection::Forward, stream)?, head: [0; HEADER_BYTES], head_bytes: 0 })
        });
        let lanes = lanes.collect::<Result<_, Error>>()?;
        let mouth = Arc::new(Mutex::new(BackwardWriter::new(seal(FrameDirection::Backward, 0)?)));
        let pulse = streams.map(|streams| Pulse::start(streams, Arc::clone(&mouth), timing)).transpose()?;
        Ok(Self {
            wire,
            lanes,
            turn: 0,
            timing,
            frame: None,
            frame_bytes: 0,
            aside: Block::new(block_bytes(&options).max(WORD_BYTES_MAX)),
            expander: options.compression.map(Expander::new).transpose()?,
            options,
            bytes: 0,
            wire_bytes: 0,
            waits_since: None,
            end: None,
            mouth,
            pulse,
        })
    }

    /// Returns the number of bytes that came over the wire.
    pub fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    /// Reads the next piece of the stream. After [`Filled::Nothing`], call it again with the same block: part of
    /// the piece may be in it.
    pub fn get(&mut self, block: &mut Block) -> Result<Filled, Error> {
        let Some(header) = self.read(block)? else { return Ok(Filled::Nothing) };
        self.waits_since = None;
        self.take(header, block)
    }

    /// Waits until bytes may have come.
    pub fn wait(&mut self, other: Option<Watch>, waits: &WaitSet) -> Result<Woken, Error> {
        let since = *self.waits_since.get_or_insert_with(Instant::now);
        let silence = self.options.silence.filter(|_| self.pulse.is_some());
        let until = silence.and_then(|silence| since.checked_add(silence));
        let woken = self.wire.wait(self.turn, Want::Read, other, waits, until)?;
        match woken {
            Woken::Ready => self.waits_since = None,
            Woken::Other => {}
            Woken::Late => {
                let silence = silence.unwrap_or_default().as_secs_f64();
                return Err(self.cut(format!("the other end was silent for {silence} s")));
            }
        }
        Ok(woken)
    }

    /// Returns what to poll to learn that the sender is gone while nothing is read: a sender does not close before
    /// it has read the last word.
    pub fn hung_up(&self) -> Option<Watch<'_>> {
        self.wire.hung_up()
    }

    /// Reads on. Returns the header of the frame once the frame is complete. Reads an uncompressed block into
    /// `block`, and anything else into `aside`.
    fn read(&mut self, block: &mut Block) -> Result<Option<FrameHeader>, Error> {
        let tag_bytes = if self.options.sealed { TAG_BYTES } else { 0 };
        loop {
            let Some(lane) = self.lanes.get_mut(self.turn) else {
                return Err(Error::Protocol("has no such stream".into()));
            };
            let Some(header) = self.frame else {
                if lane.head_bytes < HEADER_BYTES {
                    match self.wire.read(self.turn, &mut lane.head[lane.head_bytes..]) {
                        Ok(Some(bytes)) if bytes > 0 => lane.head_bytes += bytes,
                        Ok(None) => return Ok(None),
                        Ok(_) => return Err(self.cut(CLOSED.into())),
                        Err(why) => return Err(self.cut(why)),
                    }
                    continue;
                }
                let header = FrameHeader::decode(&lane.head, Some(block_bytes(&self.options)))
                    .map_err(|why| broken(why, self.options.sealed))?;
                if header.is_compressed && self.expander.is_none() {
                    return Err(broken(
                        "sent a compressed block though none was asked for",
                        self.options.sealed,
                    ));
                }
                (self.frame, self.frame_bytes) = (Some(header), 0);
                continue;
            };
            let wanted = header.length + tag_bytes;
            if self.frame_bytes < wanted {
                let place = if is_in_place(&header) { &mut *block } else { &mut self.aside };
                // The read includes the next header if it is there.
                let Some(rest) = place.memory().get_mut(self.frame_bytes..wanted + HEADER_BYTES) else {
                    return Err(Error::Protocol("sent more than a block".into()));
                };
                match self.wire.read(self.turn, rest) {
                    Ok(Some(bytes)) if bytes > 0 => self.frame_bytes += bytes,
                    Ok(None) => return Ok(None),
                    Ok(_) => return Err(self.cut(CLOSED.into())),
                    Err(why) => return Err(self.cut(why)),
                }
                continue;
            }
            return Ok(Some(header));
        }
    }

    /// Handles a complete frame.
    fn take(&mut self, header: FrameHeader, block: &mut Block) -> Result<Filled, Error> {
        let tag_bytes = if self.options.sealed { TAG_BYTES } else { 0 };
        let wanted = header.length + tag_bytes;
        let extra = self.frame_bytes.saturating_sub(wanted);
        self.wire_bytes += (HEADER_BYTES + wanted) as u64;
        self.frame = None;
        let place = if is_in_place(&header) { &mut *block } else { &mut self.aside };
        let memory = place.memory();
        let Some(lane) = self.lanes.get_mut(self.turn) else { return Ok(Filled::Nothing) };
        let head = lane.head;
        lane.head[..extra].copy_from_slice(&memory[wanted..wanted + extra]);
        lane.head_bytes = extra;
        let (payload, tag) = memory[..wanted].split_at_mut(header.length);
        if let (Some(seal), Some(tag)) = (&mut lane.seal, tag.first_chunk()) {
            seal.open(&head, *tag, payload)?;
        }
        if header.kind != FrameKind::Idle {
            self.turn = (self.turn + 1) % self.lanes.len();
        }
        let payload = &self.aside.memory()[..header.length];
        match header.kind {
            FrameKind::Data => {
                if let (true, Some(expander)) = (header.is_compressed, &mut self.expander) {
                    expander.expand(payload, &mut block.memory()[..header.raw_length])?;
                }
                block.set_length(header.raw_length);
                self.bytes += header.raw_length as u64;
                Ok(Filled::Data)
            }
            FrameKind::End => {
                self.end = Some(payload.to_vec());
                Ok(Filled::End)
            }
            FrameKind::Failed => Err(Error::Told(printable(payload))),
            // The frame only says that the sender is alive: the caller also gets to check everything else.
            _ => Ok(Filled::Nothing),
        }
    }

    /// Compares the stream that came with the length and digest in its `End`.
    pub fn verify(&self, total: &Total) -> Result<(), Error> {
        let Some(end) = &self.end else {
            return Err(self.cut(CLOSED.into()));
        };
        let expected = total.encode(self.options.digest);
        if end.get(..8) != expected.get(..8) {
            let sent = end.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).unwrap_or_default();
            return Err(Error::Damaged(format!("{} bytes came of {sent}", self.bytes)));
        }
        match *end == expected {
            true => Ok(()),
            false => Err(Error::Damaged(format!(
                "its digest is not what the sender has made of its {} bytes: send it again",
                self.bytes
            ))),
        }
    }

    /// Reports that the whole stream was delivered. A sender that is gone by now need not be told.
    pub fn done(self, waits: &WaitSet) {
        let bytes = self.bytes;
        let _ = self.say_last(FrameKind::Done, &bytes.to_le_bytes(), waits);
    }

    /// Reports that nobody wants the rest. A sender that is gone by now need not be told.
    pub fn stop(self, waits: &WaitSet) {
        let _ = self.say_last(FrameKind::Stop, &[], waits);
    }

    /// Reports why the stream cannot be delivered. A sender that is gone by now need not be told.
    pub fn fail(self, why: &str, waits: &WaitSet) {
        let _ = self.say_last(FrameKind::CannotPut, sentence_bytes(why), waits);
    }

    fn say_last(mut self, kind: FrameKind, payload: &[u8], waits: &WaitSet) -> Result<(), Error> {
        self.pulse = None;
        let until = Instant::now() + self.timing.linger;
        lock(&self.mouth).say_last(&mut *self.wire, (kind, payload), waits, until)?;
        self.wire.hang_up(waits, until);
        if !self.wire.closes() {
            return Ok(());
        }
        // A close while there is something to read resets a TCP connection, and the last word would be lost. So
        // this reads until the sender has got the last word and closes.
        for stream in 0..self.wire.streams() {
            loop {
                match self.wire.read(stream, self.aside.memory()) {
                    Ok(Some(0)) | Err(_) => break,
                    Ok(Some(_)) => waits.check()?,
                    Ok(None) => {
                        self.wire.wait(stream, Want::Read, None, waits, Some(until))?;
                    }
                }
                if Instant::now() > until {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns the error for a stream that was cut off here.
    pub fn cut(&self, why: String) -> Error {
        Error::Truncated { bytes: self.bytes, why }
    }
}

fn is_in_place(header: &FrameHeader) -> bool {
    header.kind == FrameKind::Data && !header.is_compressed
}
