//! `caravan frames send`: a producer whose frames come from the test pattern, a file or a pipe.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, stdin};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use caravan_bench::interrupt::{GLANCE, Interrupt};
use caravan_frames::clock::monotonic_ns;
use caravan_frames::pattern::Pattern;
use caravan_frames::{FrameDelivery, FrameSender, Picture, PixelFormat, Rate, StreamOptions, y4m};
use serde::Serialize;

use super::{Course, Figures, file_error};
use crate::args::FramesSend;
use crate::error::Error;
use crate::print_json;

const SIZE: (u32, u32) = (1920, 1080);
const RATE: Rate = Rate { frames: 60, seconds: 1 };

/// Where frames come from.
enum FrameSource {
    Pattern(Pattern),
    Y4m(FrameInput),
    Raw(FrameInput),
}

struct FrameInput {
    reader: Box<dyn BufRead>,
    path: PathBuf,
}

/// What the command tells at the end.
#[derive(Debug, Serialize)]
struct SendFigures {
    #[serde(flatten)]
    figures: Figures,
    /// Frames that were sent more than a frame's time late, as the source or this host was too slow.
    late: u64,
}

pub fn run(args: &FramesSend) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let (mut source, picture) = FrameSource::open(args)?;
    let delivery = if args.lossless { FrameDelivery::Lossless } else { FrameDelivery::Newest };
    let options = StreamOptions::new(picture)
        .delivery(delivery)
        .slots(args.slots)
        .digest(args.digest)
        .patience(args.patience);
    let mut sender = FrameSender::create(&args.name, &options)?;
    let wanted = args.consumers.map_or(usize::from(args.lossless), usize::from);
    while !sender.wait_for_consumers(wanted, GLANCE) {
        interrupt.check()?;
    }
    let mut course = Course::begin(&args.end, &args.name, picture);
    let mut pace = FramePace::begin(picture.rate);
    'frames: while !course.is_over() && interrupt.check().is_ok() {
        if !args.unpaced && !args.lossless {
            pace.wait();
        }
        let mut slot = loop {
            if course.is_over() || interrupt.check().is_err() {
                break 'frames;
            }
            match sender.next(GLANCE)? {
                Some(slot) => break slot,
                None => continue,
            }
        };
        if !source.fill(slot.sequence(), slot.bytes_mut())? {
            break;
        }
        slot.publish();
        let consumers = sender.consumers();
        course.frame(|| format!(", {consumers} consumers"));
    }
    let figures = SendFigures { figures: course.figures(), late: pace.late };
    drop(course);
    match (args.end.json, args.end.quiet) {
        (true, _) => print_json(&figures),
        (false, true) => Ok(()),
        (false, false) => {
            eprintln!("caravan: {}, {} of them late", figures.figures.text("sent"), figures.late);
            Ok(())
        }
    }
}

impl FrameSource {
    fn open(args: &FramesSend) -> Result<(Self, Picture), Error> {
        let rate = args.rate.unwrap_or(RATE);
        let Some(path) = &args.input else {
            let (width, height) = args.size.unwrap_or(SIZE);
            let picture = Picture::new(width, height, args.format, rate)?;
            return Ok((Self::Pattern(Pattern::new(picture)?), picture));
        };
        let mut input = FrameInput::open(path)?;
        if let Some((width, height)) = args.size {
            return Ok((Self::Raw(input), Picture::new(width, height, args.format, rate)?));
        }
        let picture = y4m::read_header(&mut input.reader)?;
        let rate = args.rate.unwrap_or(picture.rate);
        Ok((Self::Y4m(input), Picture::new(picture.width, picture.height, PixelFormat::Yuv420p, rate)?))
    }

    /// Writes the next frame into a slot; false at the end of the input.
    fn fill(&mut self, sequence: u64, bytes: &mut [u8]) -> Result<bool, Error> {
        match self {
            Self::Pattern(pattern) => {
                pattern.fill(sequence, monotonic_ns(), bytes);
                Ok(true)
            }
            Self::Raw(input) => input.fill(bytes, true),
            Self::Y4m(input) => Ok(y4m::read_frame_line(&mut input.reader)? && input.fill(bytes, false)?),
        }
    }
}

impl FrameInput {
    fn open(path: &Path) -> Result<Self, Error> {
        let reader: Box<dyn BufRead> = if path.as_os_str() == "-" {
            Box::new(stdin().lock())
        } else {
            let file = File::open(path).map_err(|source| file_error("read", path, source))?;
            Box::new(BufReader::new(file))
        };
        Ok(Self { reader, path: path.to_owned() })
    }

    /// Reads a frame directly into its slot; false at the end, which is allowed in front of the frame alone.
    fn fill(&mut self, bytes: &mut [u8], may_end: bool) -> Result<bool, Error> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.reader.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 && may_end => return Ok(false),
                Ok(0) => {
                    return Err(Error::Sentence(format!(
                        "{}: the input ends within a frame, after {filled} of {} bytes: is it complete, and are its \
                         size and format right?",
                        self.path.display(),
                        bytes.len()
                    )));
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(file_error("read", &self.path, source)),
            }
        }
        Ok(true)
    }
}

/// Begins frames at their times.
struct FramePace {
    rate: Rate,
    begun: Instant,
    next: u64,
    late: u64,
}

impl FramePace {
    fn begin(rate: Rate) -> Self {
        Self { rate, begun: Instant::now(), next: 0, late: 0 }
    }

    /// Waits for the time of the next frame. Frames whose time has passed are not caught up: the times begin anew.
    fn wait(&mut self) {
        let at = Duration::from_nanos(self.rate.offset_ns(self.next));
        let passed = self.begun.elapsed();
        self.next += 1;
        if passed > at + Duration::from_nanos(self.rate.offset_ns(1)) {
            self.late += 1;
            (self.begun, self.next) = (Instant::now(), 1);
        } else {
            std::thread::sleep(at.saturating_sub(passed));
        }
    }
}
