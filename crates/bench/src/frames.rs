//! `caravan frames bench`: frames from one process to another at a fixed rate, through frame slots in shared memory, a pipe, TCP
//! over loopback, and as a bare copy of memory.

mod ways;

use std::path::Path;
use std::time::Duration;

use caravan_frames::Picture;
use caravan_frames::clock::monotonic_ns;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::{FramesBench, FramesCase};
use crate::chart::{CARAVAN, PEER};
use crate::control::BenchChannel;
use crate::error::Error;
use crate::frames::ways::{Consumer, Producer};
use crate::interrupt::Interrupt;
use crate::process::{PeerTask, failed};
use crate::report::{self, BenchCase, BenchReport, Bound, Contender, Figure, Goal, Sample, Shown};
use crate::store::sampling::percentile;
use crate::usage::Usage;

/// A word of this distance carries the number of the frame.
const STAMP_EVERY: usize = 4096;

const FIGURES: [Figure; 8] = [
    Figure::new("fps", "frames/s", Shown::Spread),
    Figure::new("p50_ms", "p50 ms", Shown::Chart),
    Figure::new("p99_ms", "p99 ms", Shown::Median),
    Figure::new("max_ms", "max ms", Shown::Median),
    Figure::new("late_percent", "late %", Shown::Median),
    Figure::new("dropped_percent", "dropped %", Shown::Median),
    Figure::new("torn", "torn", Shown::Median),
    Figure::new("cpu_ms", "CPU ms/frame", Shown::Spread),
];

/// How frames get from one process to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FrameWay {
    Pipe,
    Tcp,
    Caravan,
    /// Within one process: the least that any copy takes.
    Copy,
}

const WAYS: [FrameWay; 4] = [FrameWay::Pipe, FrameWay::Tcp, FrameWay::Copy, FrameWay::Caravan];

/// What a consumer does.
#[derive(Debug, Serialize, Deserialize)]
struct ConsumerTask {
    way: FrameWay,
    /// The path of the pipe, the address of the producer, or the name of the stream.
    place: String,
    frame_bytes: usize,
}

/// What a consumer has seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct ConsumerOutcome {
    /// The nanoseconds from the capture of each good frame until the consumer could read all of it.
    took_ns: Vec<u64>,
    torn: u64,
}

/// Measures and reports.
pub fn run(args: &FramesBench) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let pictures: Vec<(FramesCase, Picture)> =
        args.cases.iter().map(|case| (*case, case.picture())).collect();
    let mut cases: Vec<_> = pictures.iter().map(|(case, picture)| bench_case(*case, *picture)).collect();
    let mut control = BenchChannel::start(&PeerTask::Frames)?;
    let facts = json!({ "seconds": args.seconds.as_secs_f64(), "stamp_every_bytes": STAMP_EVERY });
    let mut report =
        BenchReport::begin("frames", args.rounds, "Frames from one process to another".to_owned(), facts);
    report.notes.push(
        "A frame's time begins once the source has it, and ends once the consumer can read all of it. The source writes one \
         word of\neach page, and the consumer checks it. CPU: both processes together. late: older than a frame's time.\n\
         Not measured: GStreamer's shmsink (package gstreamer1.0-plugins-bad)."
            .to_owned(),
    );
    let mut torn = 0;
    report::measure(&mut cases, args.rounds, &interrupt, |turn| {
        let (way, picture) = (WAYS[turn.contender], pictures[turn.case].1);
        let (samples, found) = sample(&mut control, way, picture, args.seconds)?;
        torn += found;
        Ok(samples)
    })?;
    report.add(&cases);
    report.write(&args.files, Path::new(""))?;
    match torn {
        0 => Ok(()),
        _ => Err(Error::Sentence(format!("{torn} frames were torn"))),
    }
}

fn bench_case(case: FramesCase, picture: Picture) -> BenchCase {
    let contenders = vec![
        Contender::new("pipe", "a pipe", PEER),
        Contender::new("tcp", "TCP over loopback", PEER),
        Contender::new("copy", "a copy in one process", PEER),
        Contender::new("caravan", "caravan", CARAVAN),
    ];
    let gigabytes = picture.frame_bytes() as f64 * picture.rate.per_second() / 1e9;
    let title = format!("{picture}, {gigabytes:.1} GB/s");
    let mut bench = BenchCase::new(case.name(), title, &FIGURES, contenders);
    if case == FramesCase::Rgba4k60 {
        let goal = |text: &str, figure, ratio_to: Option<&str>, bound| Goal {
            text: text.to_owned(),
            contender: "caravan".to_owned(),
            figure,
            ratio_to: ratio_to.map(str::to_owned),
            bound,
            placement: None,
        };
        bench.goals = vec![
            goal("a frame is there within 3 ms", "p50_ms", None, Bound::Below(3.0)),
            goal("less than 1 % late", "late_percent", None, Bound::Below(1.0)),
            goal("none torn", "torn", None, Bound::Below(1.0)),
            goal("less than a third of the pipe's CPU", "cpu_ms", Some("pipe"), Bound::Below(1.0 / 3.0)),
        ];
    }
    bench
}

/// Takes one sample. Returns the number of torn frames, too.
fn sample(
    control: &mut BenchChannel,
    way: FrameWay,
    picture: Picture,
    length: Duration,
) -> Result<(Vec<Sample>, u64), Error> {
    let frame_bytes = picture.frame_bytes() as usize;
    let (mut producer, place) = Producer::new(way, picture)?;
    if way != FrameWay::Copy {
        control.ask::<()>(&ConsumerTask { way, place, frame_bytes })?;
        producer.connected()?;
    }
    let pids = [Some(std::process::id() as i32), control.peer_pid()];
    let usage = || pids.map(|pid| Usage::of(pid.unwrap_or(0)).map_err(|why| failed("consumer", &why)));
    let before = usage();
    let due = produce(&mut producer, picture, length)?;
    let here = producer.end();
    let outcome = if way == FrameWay::Copy { here } else { control.answer()? };
    let after = usage();
    let mut spent_s = 0.0;
    for (before, after) in before.into_iter().zip(after) {
        spent_s += after?.spent_s(&before?);
    }
    let mut took_ns = outcome.took_ns;
    took_ns.sort_unstable();
    if took_ns.is_empty() {
        return Err(failed("consumer", &"it has got no frame"));
    }
    let good = took_ns.len() as f64;
    let frame_ns = picture.rate.offset_ns(1);
    let late = took_ns.iter().filter(|took| **took > frame_ns).count() as f64;
    let ms = |ns: f64| ns / 1e6;
    let samples = vec![
        Sample::new("fps", good / length.as_secs_f64()),
        Sample::new("p50_ms", ms(percentile(&took_ns, 50))),
        Sample::new("p99_ms", ms(percentile(&took_ns, 99))),
        Sample::new("max_ms", ms(took_ns.last().copied().unwrap_or(0) as f64)),
        Sample::new("late_percent", 100.0 * late / good),
        Sample::new("dropped_percent", 100.0 * (1.0 - good / due as f64).max(0.0)),
        Sample::new("torn", outcome.torn as f64),
        Sample::new("cpu_ms", spent_s * 1e3 / good),
    ];
    Ok((samples, outcome.torn))
}

/// Sends a frame at each of its times, and leaves out those whose times have passed. Returns how many there should be.
fn produce(producer: &mut Producer, picture: Picture, length: Duration) -> Result<u64, Error> {
    let begun = monotonic_ns();
    let frame_ns = picture.rate.offset_ns(1);
    let due = length.as_nanos() as u64 / frame_ns;
    let mut number = 0;
    while number < due {
        let at = begun + picture.rate.offset_ns(number);
        std::thread::sleep(Duration::from_nanos(at.saturating_sub(monotonic_ns())));
        producer.frame(number + 1)?;
        number = (number + 1).max((monotonic_ns() - begun) / frame_ns);
    }
    Ok(due)
}

/// Runs the consumer.
pub fn peer() -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    BenchChannel::inherited()?.answer_all(&interrupt, |control, task: ConsumerTask| {
        let mut consumer = Consumer::new(&task)?;
        control.reply(&())?;
        let outcome = consumer.run()?;
        control.reply(&outcome)
    })
}

/// Writes the number of a frame into a word of each page.
fn stamp(frame: &mut [u8], number: u64) {
    for page in frame.chunks_mut(STAMP_EVERY) {
        if let Some(word) = page.first_chunk_mut() {
            *word = number.to_le_bytes();
        }
    }
}

/// Tells whether a frame has one number everywhere.
fn is_whole(number: u64, frame_bytes: usize, mut word_at: impl FnMut(usize) -> u64) -> bool {
    (0..frame_bytes).step_by(STAMP_EVERY).filter(|at| at + 8 <= frame_bytes).all(|at| word_at(at) == number)
}

fn word_of(frame: &[u8], at: usize) -> u64 {
    frame.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_of_two_numbers_is_not_whole() {
        let mut frame = vec![0; 3 * STAMP_EVERY + 20];
        stamp(&mut frame, 7);
        let check = |frame: &[u8], number| is_whole(number, frame.len(), |at| word_of(frame, at));
        assert!(check(&frame, 7) && !check(&frame, 8));
        stamp(&mut frame[2 * STAMP_EVERY..], 8);
        assert!(!check(&frame, 7) && !check(&frame, 8));
    }
}
