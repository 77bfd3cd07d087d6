//! `caravan bench pipe --steps`: a pipe over a fabric, built step by step. One program runs between two processes, and
//! each step changes one of its settings; all steps take turns in every round.

mod program;
mod wire;

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::args::PipeBench;
use crate::chart::{Bar, BarChart, BarGroup};
use crate::control::BenchChannel;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::number::{binary, number};
use crate::output::BenchProgress;
use crate::pipe::PipeInput;
use crate::stats::SampleSummary;
use crate::steps::program::{StepTask, StepsCarrier, StepsEnd, expected_digest};
use crate::steps::wire::failed;
use crate::usage::Usage;

/// The default number of bytes of a sample: more than the last cache of most machines has.
const BYTES: u64 = 256 << 20;
/// The most bytes of the file: a multiple of every message's.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// The number of bytes of which the digest is taken: each buffer is used several times.
const CHECKED_BYTES: u64 = 5 * MESSAGE_BYTES_MAX as u64;

/// A request of the sending side to the other.
#[derive(Debug, Serialize, Deserialize)]
enum StepsAsk {
    Connect(StepsCarrier),
    Receive(StepTask),
}

/// Measures, prints the table, and writes the files.
pub fn run(args: &PipeBench) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let carrier = carrier(args)?;
    let bytes = args.bytes.unwrap_or(BYTES).next_multiple_of(MESSAGE_BYTES_MAX as u64).max(CHECKED_BYTES);
    let input = PipeInput::create(bytes.min(FILE_BYTES_MAX))?;
    let mut pair = StepsPair::connect(carrier, input)?;
    let steps = steps();
    let mut progress = BenchProgress::new(steps.len() * (args.rounds + 1));
    let mut samples = vec![Vec::new(); steps.len()];
    progress.round("bytes are compared".to_owned());
    for step in &steps {
        progress.step(step.key);
        interrupt.check()?;
        pair.check(step)?;
    }
    for round in 0..args.rounds {
        progress.round(format!("round {} of {}", round + 1, args.rounds));
        for (step, samples) in steps.iter().zip(&mut samples) {
            progress.step(step.key);
            interrupt.check()?;
            samples.push(pair.measure(step, bytes / step.part)?);
        }
    }
    drop(progress);
    let results = StepsResults::of(&steps, &samples, carrier, pair.what, bytes);
    crate::pipe::write(args, "pipe-steps", &results.text(), &results, &results.chart())
}

/// Runs the receiving process.
pub fn peer() -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let mut control = BenchChannel::inherited()?;
    let mut end = None;
    while let Some(asked) = control.hear()? {
        interrupt.check()?;
        let done = answer(&mut control, &mut end, asked);
        if let Err(error) = done {
            control.say(&Err::<(), _>(error.to_string()))?;
            // The measuring side has the error, and reports it.
            return Ok(());
        }
    }
    Ok(())
}

fn answer(control: &mut BenchChannel, end: &mut Option<StepsEnd>, asked: StepsAsk) -> Result<(), Error> {
    match asked {
        StepsAsk::Connect(carrier) => {
            *end = Some(StepsEnd::accept(control, carrier)?);
            Ok(())
        }
        StepsAsk::Receive(task) => {
            let end = end.as_mut().ok_or_else(|| failed(&"it is not connected"))?;
            control.say(&Ok::<_, String>(()))?;
            let digest = end.receive(&task)?;
            control.say(&Ok::<_, String>(digest))
        }
    }
}

/// Returns the carrier that was asked for, or the best that there is.
fn carrier(args: &PipeBench) -> Result<StepsCarrier, Error> {
    let has_device = caravan_fabric::verbs::offer();
    match args.transport {
        // Without a device, the reason is reported before anything else happens.
        Some(transport) if StepsCarrier::from(transport) == StepsCarrier::Rdma => {
            has_device.map(|_| StepsCarrier::Rdma).map_err(Error::from)
        }
        Some(transport) => Ok(transport.into()),
        None if has_device.is_ok() => Ok(StepsCarrier::Rdma),
        None => Ok(StepsCarrier::Shm),
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
    fn connect(carrier: StepsCarrier, input: PipeInput) -> Result<Self, Error> {
        let mut control = BenchChannel::start("pipe-peer")?;
        control.say(&StepsAsk::Connect(carrier))?;
        let (end, what) = StepsEnd::connect(&mut control, carrier)?;
        Ok(Self { control, end, what, input })
    }

    /// Runs a task. Returns the nanoseconds, and the digest of the received bytes if the task takes one.
    fn run(&mut self, task: &StepTask) -> Result<(f64, Option<Vec<u8>>), Error> {
        self.control.say(&StepsAsk::Receive(*task))?;
        self.control.answer::<()>()?;
        let sent = self.end.send(task, &self.input);
        let answered = self.control.answer();
        // If the other side has failed, its reason is the better one.
        match (sent, answered) {
            (_, Err(theirs)) => Err(theirs),
            (Err(ours), Ok(_)) => Err(ours),
            (Ok(took), Ok(digest)) => Ok((took, digest)),
        }
    }

    fn check(&mut self, step: &PipeStep) -> Result<(), Error> {
        let bytes = CHECKED_BYTES / step.part;
        let task = StepTask { program: step.program, bytes, file_bytes: self.input.bytes, is_check: true };
        let (_, came) = self.run(&task)?;
        let sent = expected_digest(&task, step.bytes(bytes), &self.input)?;
        match came == Some(sent) {
            true => Ok(()),
            false => Err(failed(&format!("with {}, other bytes came than were sent", step.key))),
        }
    }

    fn measure(&mut self, step: &PipeStep, bytes: u64) -> Result<StepSample, Error> {
        let pids = [std::process::id() as i32, self.control.peer_pid().unwrap_or_default()];
        let usage = || pids.map(|pid| Usage::of(pid).ok());
        let task = StepTask { program: step.program, bytes, file_bytes: self.input.bytes, is_check: false };
        let before = usage();
        let (took_ns, _) = self.run(&task)?;
        let spent =
            before.iter().zip(usage()).filter_map(|(before, after)| Some(after?.spent_s(before.as_ref()?)));
        let gigabytes = step.bytes(bytes) as f64 / 1e9;
        Ok(StepSample { gb_per_s: gigabytes / (took_ns / 1e9), cpu_s_per_gb: spent.sum::<f64>() / gigabytes })
    }
}

impl PipeStep {
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

/// The version of the format, which changes when a reader of the file has to.
const SCHEMA: &str = "caravan-bench-pipe-steps/1";

/// One sample of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepSample {
    pub gb_per_s: f64,
    pub cpu_s_per_gb: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct StepsResults {
    pub schema: &'static str,
    pub caravan: &'static str,
    pub machine: Machine,
    pub transport: StepsCarrier,
    /// The device, port and addresses, or what there is instead.
    pub link: String,
    /// The bytes of a sample; those of the first steps move a part of them.
    pub bytes: u64,
    pub steps: Vec<StepRow>,
}

#[derive(Clone, Debug, Serialize)]
pub struct StepRow {
    pub key: &'static str,
    pub title: String,
    pub program: StepProgram,
    pub gb_per_s: SampleSummary,
    /// The ratio to the step before, in the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain: Option<SampleSummary>,
    /// Processor seconds of both processes.
    pub cpu_s_per_gb: SampleSummary,
    /// The result in the post.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_gb_per_s: Option<f64>,
}

impl StepsResults {
    pub fn of(
        steps: &[PipeStep],
        samples: &[Vec<StepSample>],
        carrier: StepsCarrier,
        link: String,
        bytes: u64,
    ) -> Self {
        let mut rows: Vec<StepRow> = Vec::new();
        for (step, samples) in steps.iter().zip(samples) {
            let summary = |of: fn(&StepSample) -> f64| SampleSummary::of(samples.iter().map(of).collect());
            let Some(gb_per_s) = summary(|sample| sample.gb_per_s) else { continue };
            let Some(cpu_s_per_gb) = summary(|sample| sample.cpu_s_per_gb) else { continue };
            let title = match (step.program, carrier) {
                (StepProgram::Messages(_), _) => step.title,
                (StepProgram::Stream, StepsCarrier::Tcp) => "no messages: TCP as a stream",
                (StepProgram::Stream, _) => "no messages: Caravan's ring",
            };
            rows.push(StepRow {
                key: step.key,
                title: title.to_owned(),
                program: step.program,
                gain: rows.last().and_then(|last| gb_per_s.ratio(&last.gb_per_s)),
                gb_per_s,
                cpu_s_per_gb,
                post_gb_per_s: step.post_mb_per_s.map(|mb| f64::from(mb) / 1e3),
            });
        }
        Self {
            schema: SCHEMA,
            caravan: env!("CARGO_PKG_VERSION"),
            machine: Machine::here(),
            transport: carrier,
            link,
            bytes,
            steps: rows,
        }
    }

    pub fn text(&self) -> String {
        let rounds = self.steps.first().map_or(0, |row| row.gb_per_s.samples.len());
        let mut text = format!(
            "A pipe between two processes, step by step, over {}\n{}\n\
             Medians of {rounds} rounds of {} (least..most), all steps in turn; the gain is over the line above, in the \
             same round.\nEvery step's bytes were compared before. The post: RDMA cat, 2018, InfiniBand between two \
             hosts.\n\n",
            self.link,
            self.machine.sentence(),
            binary(self.bytes),
        );
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{:<46}{:>24}{:>8}{:>12}{:>12}", "", "GB/s", "gain", "CPU s/GB", "post GB/s");
        for row in &self.steps {
            let spread = row.gb_per_s.spread();
            let gain = row.gain.as_ref().map_or_else(String::new, |gain| format!("x{}", number(gain.median)));
            let post = row.post_gb_per_s.map_or_else(String::new, number);
            let cpu = number(row.cpu_s_per_gb.median);
            let _ = writeln!(
                text,
                "{}",
                format!("{:<46}{spread:>24}{gain:>8}{cpu:>12}{post:>12}", row.title).trim_end()
            );
        }
        text
    }

    /// Returns the chart, with a bar for each step.
    pub fn chart(&self) -> BarChart {
        let bar = |row: &StepRow| Bar {
            name: row.title.clone(),
            value: row.gb_per_s.clone(),
            colour: 0,
            note: String::new(),
        };
        BarChart {
            title: "A pipe over a fabric, step by step: GB/s".to_owned(),
            subtitle: format!("{}; medians, lines from least to most", self.link),
            groups: vec![BarGroup { name: String::new(), bars: self.steps.iter().map(bar).collect() }],
            footer: self.machine.sentence(),
        }
    }
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

    fn example() -> StepsResults {
        let sample = |gb_per_s: f64| StepSample { gb_per_s, cpu_s_per_gb: 2.0 / gb_per_s };
        let steps = steps();
        let samples: Vec<_> =
            (0..steps.len()).map(|n| [1.0, 2.0, 4.0].map(|x| sample(x * (n + 1) as f64)).to_vec()).collect();
        StepsResults::of(&steps, &samples, StepsCarrier::Shm, "shared memory".to_owned(), 256 << 20)
    }

    #[test]
    fn each_line_has_its_gain_over_the_one_above_and_the_posts_figure() {
        let text = example().text();
        let line = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
            line[46..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(line("4 KiB messages"), ["2.00", "(1.00..4.00)", "1.00", "0.10"]);
        assert_eq!(line("one-byte"), ["4.00", "(2.00..8.00)", "x2.00", "0.50"]);
        assert_eq!(line("one for 16"), ["6.00", "(3.00..12.0)", "x1.50", "0.33", "0.14"]);
        assert!(text.contains("no messages: Caravan's ring"), "{text}");
    }

    #[test]
    fn the_json_has_the_shape_that_readers_rely_on() {
        let json = serde_json::to_value(example()).expect("JSON");
        assert_eq!(json["schema"], "caravan-bench-pipe-steps/1");
        assert_eq!(json["transport"], "shm");
        assert_eq!(json["steps"][0]["program"]["messages"]["message_bytes"], 4096);
        assert_eq!(json["steps"][1]["gain"]["median"], 2.0);
        assert_eq!(json["steps"][10]["program"], "stream");
        assert!(json["steps"][0].get("gain").is_none());
    }
}
