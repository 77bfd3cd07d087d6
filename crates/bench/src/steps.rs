//! `caravan bench pipe --steps`: a pipe over a fabric, built step by step. One program runs between two processes, and
//! each step changes one of its settings; all steps take turns in every round.

mod program;
mod wire;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::{PipeBench, StepsTransport};
use crate::chart::CARAVAN;
use crate::control::BenchChannel;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::number::binary;
use crate::output::BenchProgress;
use crate::pipe::PipeInput;
use crate::process::PeerTask;
use crate::report::{self, BenchCase, BenchReport, Contender, Figure, RatioTo, Sample, Shown};
use crate::steps::program::{StepTask, StepsEnd};
use crate::steps::wire::failed;
use crate::usage::Usage;

/// The default number of bytes of a sample: more than the last cache of most machines has.
const BYTES: u64 = 256 << 20;
/// The most bytes of the file: a multiple of every message's.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// The number of bytes that are compared: each buffer is used several times.
const CHECKED_BYTES: u64 = 5 * MESSAGE_BYTES_MAX as u64;

/// A request of the sending side to the other.
#[derive(Debug, Serialize, Deserialize)]
enum StepsAsk {
    Connect(StepsTransport),
    Receive(StepTask),
}

const FIGURES: [Figure; 3] = [
    Figure::new("gb_per_s", "GB/s", Shown::Chart),
    Figure::new("cpu_s_per_gb", "CPU s/GB", Shown::Median),
    Figure::new("post_gb_per_s", "post GB/s", Shown::Median),
];

/// Measures and reports.
pub fn run(args: &PipeBench) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let carrier = carrier(args)?;
    let bytes = args.bytes.unwrap_or(BYTES).next_multiple_of(MESSAGE_BYTES_MAX as u64).max(CHECKED_BYTES);
    let input = PipeInput::create(bytes.min(FILE_BYTES_MAX))?;
    let mut pair = StepsPair::connect(carrier, input)?;
    let steps = steps();
    let mut progress = BenchProgress::new(steps.len());
    progress.round("bytes are compared".to_owned());
    for step in &steps {
        progress.step(step.key);
        interrupt.check()?;
        pair.check(step)?;
    }
    drop(progress);
    let title = format!("A pipe between two processes, step by step, over {}", pair.what);
    let facts = json!({ "transport": carrier, "link": pair.what, "bytes": bytes });
    let mut report = BenchReport::begin("pipe-steps", args.rounds, title, facts);
    report.notes.push(format!(
        "{} a round; the gain is over the line above. Every step's bytes were compared before. The post: RDMA cat, \
         2018, InfiniBand between two hosts.",
        binary(bytes)
    ));
    let contenders = steps.iter().map(|step| Contender::new(step.key, step.title(carrier), CARAVAN));
    let case = BenchCase::new("steps", "step", &FIGURES, contenders.collect());
    let mut cases = [BenchCase { ratio_to: RatioTo::Previous, ..case }];
    report::measure(&mut cases, args.rounds, &interrupt, |turn| {
        let step = &steps[turn.contender];
        pair.measure(step, bytes / step.part)
    })?;
    report.add(&cases);
    report.write(&args.files, Path::new(""))
}

/// Runs the receiving process.
pub fn peer() -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let mut end: Option<StepsEnd> = None;
    let done = BenchChannel::inherited()?.answer_all(&interrupt, |control, asked| match asked {
        StepsAsk::Connect(carrier) => {
            end = Some(StepsEnd::accept(control, carrier)?);
            Ok(())
        }
        StepsAsk::Receive(task) => {
            let end = end.as_mut().ok_or_else(|| failed(&"it is not connected"))?;
            control.reply(&())?;
            end.receive(&task)?;
            control.reply(&())
        }
    });
    // The measuring side has the error, and reports it.
    done.or(Ok(()))
}

/// Returns the carrier that was asked for, or the best that there is.
fn carrier(args: &PipeBench) -> Result<StepsTransport, Error> {
    let has_device = caravan_fabric::verbs::offer();
    match args.transport {
        // Without a device, the reason is reported before anything else happens.
        Some(StepsTransport::Rdma) => Ok(has_device.map(|_| StepsTransport::Rdma)?),
        Some(transport) => Ok(transport),
        None if has_device.is_ok() => Ok(StepsTransport::Rdma),
        None => Ok(StepsTransport::Shm),
    }
}

/// The sending side's view of both processes.
struct StepsPair {
    control: BenchChannel,
    end: StepsEnd,
    what: String,
    input: PipeInput,
}

impl StepsPair {
    fn connect(carrier: StepsTransport, input: PipeInput) -> Result<Self, Error> {
        let mut control = BenchChannel::start(&PeerTask::Steps)?;
        control.say(&StepsAsk::Connect(carrier))?;
        let (end, what) = StepsEnd::connect(&mut control, carrier)?;
        Ok(Self { control, end, what, input })
    }

    /// Runs a task. Returns the nanoseconds.
    fn run(&mut self, task: &StepTask) -> Result<f64, Error> {
        self.control.ask::<()>(&StepsAsk::Receive(*task))?;
        let sent = self.end.send(task, &self.input);
        // If the other side has failed, its reason is the better one.
        self.control.answer::<()>()?;
        sent
    }

    fn check(&mut self, step: &PipeStep) -> Result<(), Error> {
        let bytes = CHECKED_BYTES / step.part;
        let task = StepTask { program: step.program, bytes, file_bytes: self.input.bytes, is_check: true };
        self.run(&task).map(drop)
    }

    fn measure(&mut self, step: &PipeStep, bytes: u64) -> Result<Vec<Sample>, Error> {
        let pids = [std::process::id() as i32, self.control.peer_pid().unwrap_or_default()];
        let usage = || pids.map(|pid| Usage::of(pid).ok());
        let task = StepTask { program: step.program, bytes, file_bytes: self.input.bytes, is_check: false };
        let before = usage();
        let took_ns = self.run(&task)?;
        let spent =
            before.iter().zip(usage()).filter_map(|(before, after)| Some(after?.spent_s(before.as_ref()?)));
        let gigabytes = step.bytes(bytes) as f64 / 1e9;
        let mut samples = vec![
            Sample::new("gb_per_s", gigabytes / (took_ns / 1e9)),
            Sample::new("cpu_s_per_gb", spent.sum::<f64>() / gigabytes),
        ];
        samples.extend(step.post_mb_per_s.map(|mb| Sample::new("post_gb_per_s", f64::from(mb) / 1e3)));
        Ok(samples)
    }
}

impl PipeStep {
    fn title(&self, carrier: StepsTransport) -> &'static str {
        match (self.program, carrier) {
            (StepProgram::Messages(_), _) => self.title,
            (StepProgram::Stream, StepsTransport::Tcp) => "no messages: TCP as a stream",
            (StepProgram::Stream, _) => "no messages: Caravan's ring",
        }
    }

    /// Returns the number of bytes that are moved if `bytes` are wanted.
    fn bytes(&self, bytes: u64) -> u64 {
        match self.program {
            StepProgram::Messages(messages) => messages.count(bytes) * messages.message_bytes as u64,
            StepProgram::Stream => bytes,
        }
    }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 8 * MIB;
/// The longest acknowledgement.
pub const ACK_BYTES_MAX: usize = 4 * KIB;
/// Buffers for messages at each side, each for the longest message.
pub const BUFFERS_MAX: usize = 2;
/// The number of messages per acknowledgement, if they are batched.
const BATCH: usize = 16;

/// The source of the sending side's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepSource {
    /// The buffer is sent again and again as it is.
    Buffer,
    /// A file in the page cache, read once the buffer is free.
    File,
    /// The same file, read into the other buffer while a message is on its way.
    FileAhead,
}

/// What the receiving side does with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepSink {
    /// It does nothing.
    Nothing,
    /// It copies them out of the buffer.
    Copy,
}

/// Messages with acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    pub message_bytes: usize,
    pub ack_bytes: usize,
    /// The number of messages per acknowledgement.
    pub ack_every: usize,
    /// The number of messages that the receiving side has room for.
    pub buffers: usize,
    pub source: StepSource,
    pub sink: StepSink,
}

impl Messages {
    /// Returns the number of messages for at least `bytes`, in whole batches.
    pub fn count(&self, bytes: u64) -> u64 {
        let batch = (self.message_bytes * self.ack_every) as u64;
        bytes.div_ceil(batch).max(1) * self.ack_every as u64
    }
}

/// The program of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepProgram {
    Messages(Messages),
    /// A stream: Caravan's ring, or TCP as it is.
    Stream,
}

/// A setting of the program.
#[derive(Clone, Copy, Debug)]
pub struct PipeStep {
    pub key: &'static str,
    pub title: &'static str,
    pub program: StepProgram,
    /// The result in the post, in MB/s.
    pub post_mb_per_s: Option<u32>,
    /// A sample moves one in this many of the bytes: fewer if each message costs two wake-ups.
    pub part: u64,
}

/// Returns all steps in their order.
pub fn steps() -> Vec<PipeStep> {
    let first = Messages {
        message_bytes: 4 * KIB,
        ack_bytes: 4 * KIB,
        ack_every: 1,
        buffers: 1,
        source: StepSource::File,
        sink: StepSink::Copy,
    };
    let short = Messages { ack_bytes: 1, ..first };
    let batched = Messages { ack_every: BATCH, buffers: BATCH, ..short };
    let medium = Messages { message_bytes: 64 * KIB, ..short };
    let large = Messages { message_bytes: MIB, ..short };
    let huge = Messages { message_bytes: 8 * MIB, ..short };
    let bare = Messages { source: StepSource::Buffer, sink: StepSink::Nothing, ..huge };
    let copied = Messages { sink: StepSink::Copy, ..bare };
    let two = Messages { buffers: 2, ..copied };
    let ahead = Messages { source: StepSource::FileAhead, ..two };
    let step = |key, title, messages, post_mb_per_s, part| PipeStep {
        key,
        title,
        program: StepProgram::Messages(messages),
        post_mb_per_s,
        part,
    };
    vec![
        step("4k", "4 KiB messages, 4 KiB acknowledgements", first, Some(100), 8),
        step("1-byte-acks", "one-byte acknowledgements", short, None, 8),
        step("batched-acks", "one for 16 messages", batched, Some(140), 2),
        step("64k", "64 KiB messages", medium, Some(920), 1),
        step("1m", "1 MiB messages", large, Some(1400), 1),
        step("8m", "8 MiB messages", huge, Some(1780), 1),
        step("untouched", "baseline: nobody touches the data", bare, Some(2900), 1),
        step("copy", "the receiver copies them out", copied, Some(1300), 1),
        step("two-buffers", "two buffers: receive into one, copy the other", two, Some(3000), 1),
        step("read-ahead", "the file, read while a message is on its way", ahead, Some(2800), 1),
        PipeStep { key: "stream", title: "", program: StepProgram::Stream, post_mb_per_s: None, part: 1 },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_fits_into_the_buffers_and_each_differs_from_the_last() {
        let steps = steps();
        for step in &steps {
            let StepProgram::Messages(messages) = step.program else { continue };
            assert!(messages.message_bytes * messages.buffers <= MESSAGE_BYTES_MAX * BUFFERS_MAX, "{step:?}");
            assert!(
                messages.ack_bytes <= ACK_BYTES_MAX && messages.ack_every <= messages.buffers,
                "{step:?}"
            );
        }
        for pair in steps.windows(2) {
            assert!(pair[0].program != pair[1].program && pair[0].key != pair[1].key, "{pair:?}");
        }
    }

    #[test]
    fn a_sample_is_of_whole_batches() {
        let StepProgram::Messages(batched) = steps()[2].program else { panic!("messages") };
        assert_eq!(batched.count(1), 16);
        assert_eq!(batched.count(64 << 10), 16);
        assert_eq!(batched.count((64 << 10) + 1), 32);
    }
}
