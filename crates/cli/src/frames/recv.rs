//! `caravan frames recv`: a consumer that writes, checks or counts frames.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write, stdout};
use std::path::{Path, PathBuf};
use std::time::Instant;

use caravan_bench::interrupt::{GLANCE, Interrupt};
use caravan_frames::clock::monotonic_ns;
use caravan_frames::pattern::{Pattern, PatternFault};
use caravan_frames::{
    FrameChoice, FrameReceiver, FrameView, Overwritten, Picture, PixelFormat, Received, y4m,
};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::{Course, Figures, file_error};
use crate::args::FramesRecv;
use crate::error::Error;
use crate::print_json;

/// The most faults that are told one by one.
const FAULTS_TOLD: u64 = 10;

/// What the command tells at the end.
#[derive(Debug, Serialize)]
struct RecvFigures {
    #[serde(flatten)]
    figures: Figures,
    /// Frames that this consumer did not come to.
    dropped: u64,
    /// Frames that were overwritten while they were read, and thrown away.
    overtaken: u64,
    /// Frames that were put together from two, of which there must be none.
    torn: u64,
    /// Frames with wrong bytes, or with another digest than their producer computed.
    wrong: u64,
    /// Frames that were found more than a frame's time after they were captured.
    late: u64,
    latency_p50_ms: f64,
    latency_p99_ms: f64,
    latency_max_ms: f64,
    /// How the stream ended, if it did: `end`, or `killed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<&'static str>,
}

pub fn run(args: &FramesRecv) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let mut receiver = attach(args, &interrupt)?;
    let picture = receiver.picture();
    let mut taker = FrameTaker::new(args, picture)?;
    let mut course = Course::begin(&args.end, &args.name, picture);
    let mut ended = None;
    while !course.is_over() && interrupt.check().is_ok() {
        ended = match receiver.receive(GLANCE)? {
            Received::Nothing => continue,
            Received::Frame(view) => {
                if !taker.take(&view)? {
                    break;
                }
                let (dropped, p50) = (taker.dropped, taker.ages.value_at_quantile(0.5) as f64 / 1e6);
                course.frame(|| format!(", {dropped} dropped, {p50:.2} ms old"));
                continue;
            }
            Received::End => Some("end"),
            Received::Gone => Some("killed"),
        };
        let is_over = || course.is_over() || interrupt.check().is_err();
        match if args.follow { next_receiver(args, picture, is_over)? } else { None } {
            Some(next) => (receiver, ended) = (next, None),
            None => break,
        }
    }
    let figures = taker.figures(course.figures(), ended);
    drop(course);
    taker.finish()?;
    report(args, &figures)?;
    match figures.torn + figures.wrong > 0 || (ended == Some("killed") && !args.follow) {
        true => Err(Error::Said),
        false => Ok(()),
    }
}

fn choice(args: &FramesRecv) -> FrameChoice {
    if args.every { FrameChoice::Every } else { FrameChoice::Newest }
}

/// Waits for the stream as long as the user likes.
fn attach(args: &FramesRecv, interrupt: &Interrupt) -> Result<FrameReceiver, Error> {
    let deadline = Instant::now() + args.wait;
    loop {
        interrupt.check()?;
        let left = deadline.saturating_duration_since(Instant::now());
        match FrameReceiver::attach_within(&args.name, choice(args), left.min(GLANCE)) {
            Err(caravan_frames::Error::NoSender(_)) if !left.is_zero() => {}
            other => return Ok(other?),
        }
    }
}

/// Waits for the next producer of the stream; `None` once it is time to end.
fn next_receiver(
    args: &FramesRecv,
    picture: Picture,
    is_over: impl Fn() -> bool,
) -> Result<Option<FrameReceiver>, Error> {
    while !is_over() {
        match FrameReceiver::attach_within(&args.name, choice(args), GLANCE) {
            Ok(next) if next.picture() == picture => return Ok(Some(next)),
            Ok(next) => {
                return Err(Error::Sentence(format!(
                    "the next producer of {} sends {}, and not {picture}: start this command again",
                    args.name,
                    next.picture()
                )));
            }
            // The last one is about to end, or the next one has not begun.
            Err(caravan_frames::Error::NoSender(_) | caravan_frames::Error::Protocol(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn report(args: &FramesRecv, figures: &RecvFigures) -> Result<(), Error> {
    if args.end.json {
        // Standard output may be full of frames.
        return match args.output.as_deref() == Some(Path::new("-")) {
            true => {
                eprintln!("{}", serde_json::to_string(figures).unwrap_or_default());
                Ok(())
            }
            false => print_json(figures),
        };
    }
    if !args.end.quiet {
        let RecvFigures { dropped, overtaken, late, .. } = figures;
        eprintln!("caravan: {}", figures.figures.text("received"));
        eprintln!(
            "caravan: {dropped} dropped, {overtaken} overtaken, {late} late; age p50 {:.2} ms, p99 {:.2} ms, most {:.2} ms",
            figures.latency_p50_ms, figures.latency_p99_ms, figures.latency_max_ms
        );
        if args.check {
            eprintln!("caravan: checked every byte: {} torn, {} wrong", figures.torn, figures.wrong);
        }
        if figures.stream == Some("killed") {
            eprintln!("caravan: the producer of {} was killed", args.name);
        }
    }
    Ok(())
}

/// The decimal digits to which the age of a frame is kept.
const AGE_DIGITS: u8 = 2;

/// What is done with each frame.
struct FrameTaker {
    picture: Picture,
    pattern: Option<Pattern>,
    sink: Option<FrameSink>,
    ages: Histogram<u64>,
    dropped: u64,
    overtaken: u64,
    torn: u64,
    wrong: u64,
    late: u64,
}

impl FrameTaker {
    fn new(args: &FramesRecv, picture: Picture) -> Result<Self, Error> {
        let pattern = args.check.then(|| Pattern::new(picture)).transpose()?;
        let sink = args.output.as_ref().map(|path| FrameSink::open(path, picture, args.raw)).transpose()?;
        Ok(Self {
            picture,
            pattern,
            sink,
            ages: Histogram::new(AGE_DIGITS).map_err(|error| Error::Sentence(error.to_string()))?,
            dropped: 0,
            overtaken: 0,
            torn: 0,
            wrong: 0,
            late: 0,
        })
    }

    /// Takes a frame; false if nobody reads the output any more.
    fn take(&mut self, view: &FrameView<'_>) -> Result<bool, Error> {
        let age_ns = monotonic_ns().saturating_sub(view.captured_ns());
        self.ages.saturating_record(age_ns);
        self.late += u64::from(age_ns > self.picture.rate.offset_ns(1));
        self.dropped += view.dropped();
        if self.check(view).is_err() {
            self.overtaken += 1;
            return Ok(true);
        }
        let Some(sink) = &mut self.sink else { return Ok(true) };
        match sink.write(view)? {
            Written::Yes => Ok(true),
            Written::Overtaken => {
                self.overtaken += 1;
                Ok(true)
            }
            Written::NobodyReads => Ok(false),
        }
    }

    fn check(&mut self, view: &FrameView<'_>) -> Result<(), Overwritten> {
        let Some(pattern) = &self.pattern else { return Ok(()) };
        let sequence = view.sequence();
        let checked = view.read(|pixels| pattern.check(Some(sequence), |at, to| pixels.copy_out(at, to)))?;
        let fault = match checked {
            Ok(_) => view.check_digest()?.err().map(|error| error.to_string()),
            Err(fault) => Some(format!("frame {sequence}: {fault}")),
        };
        let Some(fault) = fault else { return Ok(()) };
        match checked {
            Err(PatternFault::Torn { .. }) => self.torn += 1,
            _ => self.wrong += 1,
        }
        if self.torn + self.wrong <= FAULTS_TOLD {
            eprintln!("caravan: {fault}");
        }
        Ok(())
    }

    fn figures(&self, figures: Figures, stream: Option<&'static str>) -> RecvFigures {
        let ms = |ns: u64| ns as f64 / 1e6;
        RecvFigures {
            figures,
            dropped: self.dropped,
            overtaken: self.overtaken,
            torn: self.torn,
            wrong: self.wrong,
            late: self.late,
            latency_p50_ms: ms(self.ages.value_at_quantile(0.5)),
            latency_p99_ms: ms(self.ages.value_at_quantile(0.99)),
            latency_max_ms: ms(self.ages.max()),
            stream,
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.sink.as_mut().map_or(Ok(()), FrameSink::finish)
    }
}

/// What came of writing a frame.
enum Written {
    Yes,
    Overtaken,
    NobodyReads,
}

/// Where frames are written, and a frame that was copied from its slot whole: only then may a byte of it be written.
struct FrameSink {
    output: BufWriter<File>,
    path: PathBuf,
    is_y4m: bool,
    frame: Vec<u8>,
}

impl FrameSink {
    fn open(path: &Path, picture: Picture, is_raw: bool) -> Result<Self, Error> {
        let failed = |source| file_error("write", path, source);
        let file = if path.as_os_str() == "-" {
            use std::os::fd::AsFd;
            File::from(stdout().as_fd().try_clone_to_owned().map_err(failed)?)
        } else {
            File::create(path).map_err(failed)?
        };
        let is_y4m = picture.format == PixelFormat::Yuv420p && !is_raw;
        let mut output = BufWriter::new(file);
        if is_y4m {
            y4m::write_header(&picture, &mut output).map_err(failed)?;
        }
        Ok(Self { output, path: path.to_owned(), is_y4m, frame: vec![0; picture.frame_bytes() as usize] })
    }

    fn write(&mut self, view: &FrameView<'_>) -> Result<Written, Error> {
        if view.copy_out(&mut self.frame).is_err() {
            return Ok(Written::Overtaken);
        }
        let head = if self.is_y4m { y4m::write_frame_line(&mut self.output) } else { Ok(()) };
        match head.and_then(|()| self.output.write_all(&self.frame)).and_then(|()| self.output.flush()) {
            Ok(()) => Ok(Written::Yes),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Written::NobodyReads),
            Err(source) => Err(file_error("write", &self.path, source)),
        }
    }

    fn finish(&mut self) -> Result<(), Error> {
        match self.output.flush() {
            Err(source) if source.kind() != ErrorKind::BrokenPipe => {
                Err(file_error("write", &self.path, source))
            }
            _ => Ok(()),
        }
    }
}
