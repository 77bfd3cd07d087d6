//! A consumer of a stream: it maps the memory for reading, and sleeps until there is a frame.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use caravan_segment::SegmentView;
use caravan_segment::counters::CounterRow;
use caravan_segment::passing::Doorway;

use crate::clock::monotonic_ns;
use crate::counters;
use crate::error::{Error, system};
use crate::layout::{self, HEADER_BYTES, MAGIC, PAGE_BYTES, StreamLayout};
use crate::limits::{ATTACH_LIMIT, LOOK};
use crate::picture::Picture;
use crate::protocol::{Found, Looking, SlotReader};
use crate::seat::Seat;
use crate::service::{self, ACCEPTED, CUT_OFF, FULL, HANDOVER_BYTES};
use crate::view::{FrameView, FrameWords, ViewedWords};

/// Which frames a consumer takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameChoice {
    /// The newest one; those that it did not come to are dropped.
    #[default]
    Newest,
    /// Each one in turn. If the stream is lossless its producer waits for this consumer, and none is lost; otherwise those that
    /// were overwritten before it came to them are dropped.
    Every,
}

/// What came of waiting for a frame.
#[derive(Debug)]
pub enum Received<'a> {
    /// A frame.
    Frame(FrameView<'a>),
    /// No frame came within the limit.
    Nothing,
    /// The producer has ended the stream.
    End,
    /// The producer has died, or was killed. All its frames that were complete have been returned.
    Gone,
}

/// A consumer of a stream. It cannot write to the stream's memory.
#[derive(Debug)]
pub struct FrameReceiver {
    pub(crate) words: ViewedWords,
    reader: SlotReader,
    seat: Option<Seat>,
    connection: UnixStream,
    is_gone: bool,
    row: CounterRow,
}

impl FrameReceiver {
    /// Attaches to the stream `name` of this host and user.
    pub fn attach(name: &str, choice: FrameChoice) -> Result<Self, Error> {
        let connection = connect(name)?;
        let (doorway, door) = Doorway::listen()?;
        let wants_seat = u64::from(choice == FrameChoice::Every);
        let request = [&MAGIC.to_ne_bytes()[..], &wants_seat.to_ne_bytes(), &door.to_bytes()].concat();
        // A producer that refuses has answered and closed already: what it has said can still be read.
        let _ = (&connection).write_all(&request);
        let mut answer = [0];
        (&connection).read_exact(&mut answer).map_err(unanswered)?;
        match answer {
            [ACCEPTED] => {}
            [FULL] => return Err(Error::Full),
            _ => return Err(Error::Protocol("its answer makes no sense")),
        }
        connection.set_nonblocking(true).map_err(system("ioctl(FIONBIO)"))?;
        let delivery = doorway.accept()?;
        let payload: [u8; HANDOVER_BYTES] =
            delivery.payload.try_into().map_err(|_| Error::Protocol("it has sent less than its memory"))?;
        let number = |at: usize| u64::from_ne_bytes(payload[at..at + 8].try_into().unwrap_or_default());
        let mut descriptors = delivery.descriptors.into_iter();
        let memory = descriptors.next().ok_or(Error::Protocol("it has sent no memory"))?;
        let seat = descriptors.next().map(Seat::attach).transpose()?;
        if number(0) < HEADER_BYTES {
            return Err(Error::Protocol("its memory is too small"));
        }
        let memory = SegmentView::attach(memory, number(0))?;
        let layout = StreamLayout::read(|at| memory.load(at))?;
        // pairs with the Release in FrameSender::create
        fence(Ordering::Acquire);
        if layout.memory_bytes() != memory.bytes() {
            return Err(Error::Protocol("its memory has another size than its frames need"));
        }
        // The first touch of each page costs a fault: not while the first frames are read.
        for at in (0..memory.bytes() as usize).step_by(PAGE_BYTES) {
            memory.load(at);
        }
        let last = match seat {
            Some(_) => number(8),
            // The newest frame is there for who comes late.
            None => (memory.load(layout::HEAD_AT) >> 1).saturating_sub(1),
        };
        let (looking, delivery) = match (choice, &seat) {
            (FrameChoice::Newest, _) => (Looking::Newest, "newest"),
            (FrameChoice::Every, None) => (Looking::Every, "every"),
            (FrameChoice::Every, Some(_)) => (Looking::Held, "lossless"),
        };
        let row = counters::row(name, "recv", layout.picture, delivery)?;
        let words = ViewedWords { memory, layout };
        Ok(Self { words, reader: SlotReader::new(last, looking), seat, connection, is_gone: false, row })
    }

    /// Attaches to a stream as soon as somebody sends it, within the limit.
    pub fn attach_within(name: &str, choice: FrameChoice, limit: Duration) -> Result<Self, Error> {
        let deadline = Instant::now() + limit;
        loop {
            match Self::attach(name, choice) {
                Err(Error::NoSender(_)) if Instant::now() < deadline => std::thread::sleep(LOOK / 5),
                other => return other,
            }
        }
    }

    /// Returns the form of the frames.
    pub fn picture(&self) -> Picture {
        self.words.layout.picture
    }

    /// True if the producer waits for this consumer.
    pub fn is_lossless(&self) -> bool {
        self.seat.is_some()
    }

    /// Waits for a frame, at most for the limit.
    pub fn receive(&mut self, limit: Duration) -> Result<Received<'_>, Error> {
        let deadline = Instant::now() + limit;
        let mut lost = 0;
        let (sequence, words) = loop {
            match self.reader.find(&self.words) {
                Found::Frame { sequence, dropped } => {
                    lost += dropped;
                    self.check_seat(lost)?;
                    if let Some(words) = FrameWords::read(&self.words, sequence) {
                        break (sequence, words);
                    }
                    lost += 1;
                }
                Found::End => return Ok(Received::End),
                Found::Corrupt => {
                    self.check_seat(1)?;
                    return Err(Error::Protocol("what its memory says makes no sense"));
                }
                // The frames that it had completed before it died have been found.
                Found::Nothing(_) if self.is_gone => return Ok(Received::Gone),
                Found::Nothing(head) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(Received::Nothing);
                    }
                    self.words.memory.sleep_while(layout::HEAD_HALF_AT, head, left.min(LOOK));
                    if self.words.memory.load(layout::HEAD_AT) as u32 == head {
                        self.listen()?;
                    }
                }
            }
        };
        self.row.add(counters::FRAMES, 1);
        self.row.add(counters::DROPPED, lost);
        self.row.set(counters::LATENCY_NS, monotonic_ns().saturating_sub(words.captured_ns));
        Ok(Received::Frame(FrameView::new(self, sequence, lost, words)))
    }

    /// A frame is lost to a consumer with a seat only if the producer has given it up.
    fn check_seat(&self, dropped: u64) -> Result<(), Error> {
        if self.seat.is_some() && dropped > 0 { Err(Error::CutOff) } else { Ok(()) }
    }

    /// Looks whether the producer has ended, or has said that it gives this consumer up.
    fn listen(&mut self) -> Result<(), Error> {
        let mut said = [0];
        match (&self.connection).read(&mut said) {
            Ok(1) if said == [CUT_OFF] => Err(Error::CutOff),
            Ok(0) => {
                self.is_gone = true;
                Ok(())
            }
            Ok(_) => Err(Error::Protocol("it says what makes no sense")),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(_) => {
                self.is_gone = true;
                Ok(())
            }
        }
    }

    pub(crate) fn count_overwritten(&self) {
        self.row.add(counters::OVERWRITTEN, 1);
    }

    pub(crate) fn release(&self, sequence: u64) {
        if let Some(seat) = &self.seat {
            seat.release(sequence);
        }
    }
}

fn connect(name: &str) -> Result<UnixStream, Error> {
    let connection =
        UnixStream::connect_addr(&service::address(name)?).map_err(|source| match source.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => Error::NoSender(name.to_owned()),
            _ => system("connect")(source),
        })?;
    service::check_user(&connection, name)?;
    connection.set_read_timeout(Some(ATTACH_LIMIT)).map_err(system("setsockopt(SO_RCVTIMEO)"))?;
    connection.set_write_timeout(Some(ATTACH_LIMIT)).map_err(system("setsockopt(SO_SNDTIMEO)"))?;
    Ok(connection)
}

/// The producer ended, or hangs, while it was asked.
fn unanswered(source: std::io::Error) -> Error {
    match source.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::NoAnswer,
        _ => Error::Protocol("it has ended, or is of another version of Caravan"),
    }
}
