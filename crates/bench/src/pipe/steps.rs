//! `caravan bench pipe --steps`: a pipe over a fabric, built step by step. One program between two processes,
//! of which each step changes one setting; all steps take turns in every round.

mod ends;
mod fabric_wire;
mod plan;
mod program;
mod report;
mod stream;
mod tcp_wire;
mod wire;

use serde::{Deserialize, Serialize};

use self::ends::{Carrier, End};
use self::plan::{MESSAGE_BYTES_MAX, Program, Step, steps};
use self::program::{Task, expected_digest};
use self::report::{Results, Sample};
use self::wire::failed;
use super::input::Input;
use crate::args::PipeBench;
use crate::control::Control;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::usage::Usage;

/// Bytes of a sample, unless others are wanted: more than the last cache of most machines has.
const BYTES: u64 = 256 << 20;
/// Bytes of the file at most: a multiple of every message's.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Bytes of which the digest is taken: each buffer is used several times.
const CHECKED_BYTES: u64 = 5 * MESSAGE_BYTES_MAX as u64;

/// What the sending side asks of the other.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    Connect(Carrier),
    Receive(Task),
}

/// Measures, prints the table, and writes the files.
pub fn run(args: &PipeBench) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let carrier = carrier(args)?;
    let bytes = args.bytes.unwrap_or(BYTES).next_multiple_of(MESSAGE_BYTES_MAX as u64).max(CHECKED_BYTES);
    let input = Input::create(bytes.min(FILE_BYTES_MAX))?;
    let mut pair = Pair::connect(carrier, input)?;
    let steps = steps();
    let mut progress = Progress::new(steps.len() * (args.rounds + 1));
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
    let results = Results::of(&steps, &samples, carrier, pair.what, bytes);
    super::write(args, "pipe-steps", &results.text(), &results, &results.chart())
}

/// The receiving process.
pub fn peer() -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let mut control = Control::inherited()?;
    let mut end = None;
    while let Some(asked) = control.hear()? {
        interrupt.check()?;
        let done = answer(&mut control, &mut end, asked);
        if let Err(error) = done {
            control.say(&Err::<(), _>(error.to_string()))?;
            // The measuring side has been told, and reports it.
            return Ok(());
        }
    }
    Ok(())
}

fn answer(control: &mut Control, end: &mut Option<End>, asked: Ask) -> Result<(), Error> {
    match asked {
        Ask::Connect(carrier) => {
            *end = Some(End::accept(control, carrier)?);
            Ok(())
        }
        Ask::Receive(task) => {
            let end = end.as_mut().ok_or_else(|| failed(&"it is not connected"))?;
            control.say(&Ok::<_, String>(()))?;
            let digest = end.receive(&task)?;
            control.say(&Ok::<_, String>(digest))
        }
    }
}

/// What was asked for, or what there is.
fn carrier(args: &PipeBench) -> Result<Carrier, Error> {
    let has_device = caravan_fabric::verbs::offer();
    match args.transport {
        // Without a device, the reason is told before anything else happens.
        Some(transport) if Carrier::from(transport) == Carrier::Rdma => {
            has_device.map(|_| Carrier::Rdma).map_err(Error::from)
        }
        Some(transport) => Ok(transport.into()),
        None if has_device.is_ok() => Ok(Carrier::Rdma),
        None => Ok(Carrier::Shm),
    }
}

/// The sending side of both processes.
struct Pair {
    control: Control,
    end: End,
    what: String,
    input: Input,
}

impl Pair {
    fn connect(carrier: Carrier, input: Input) -> Result<Self, Error> {
        let mut control = Control::start("pipe-peer")?;
        control.say(&Ask::Connect(carrier))?;
        let (end, what) = End::connect(&mut control, carrier)?;
        Ok(Self { control, end, what, input })
    }

    /// Nanoseconds, and the digest of what came if the task takes it.
    fn run(&mut self, task: &Task) -> Result<(f64, Option<Vec<u8>>), Error> {
        self.control.say(&Ask::Receive(*task))?;
        self.control.answer::<()>()?;
        let sent = self.end.send(task, &self.input);
        let answered = self.control.answer();
        // Where the other side has failed it knows better why.
        match (sent, answered) {
            (_, Err(theirs)) => Err(theirs),
            (Err(ours), Ok(_)) => Err(ours),
            (Ok(took), Ok(digest)) => Ok((took, digest)),
        }
    }

    fn check(&mut self, step: &Step) -> Result<(), Error> {
        let bytes = CHECKED_BYTES / step.part;
        let task = Task { program: step.program, bytes, file_bytes: self.input.bytes, is_check: true };
        let (_, came) = self.run(&task)?;
        let sent = expected_digest(&task, step.bytes(bytes), &self.input)?;
        match came == Some(sent) {
            true => Ok(()),
            false => Err(failed(&format!("with {}, other bytes came than were sent", step.key))),
        }
    }

    fn measure(&mut self, step: &Step, bytes: u64) -> Result<Sample, Error> {
        let pids = [std::process::id() as i32, self.control.peer_pid().unwrap_or_default()];
        let usage = || pids.map(|pid| Usage::of(pid).ok());
        let task = Task { program: step.program, bytes, file_bytes: self.input.bytes, is_check: false };
        let before = usage();
        let (took_ns, _) = self.run(&task)?;
        let spent =
            before.iter().zip(usage()).filter_map(|(before, after)| Some(after?.spent_s(before.as_ref()?)));
        let gigabytes = step.bytes(bytes) as f64 / 1e9;
        Ok(Sample { gb_per_s: gigabytes / (took_ns / 1e9), cpu_s_per_gb: spent.sum::<f64>() / gigabytes })
    }
}

impl Step {
    /// What is moved where `bytes` are wanted.
    fn bytes(&self, bytes: u64) -> u64 {
        match self.program {
            Program::Messages(messages) => messages.count(bytes) * messages.message_bytes as u64,
            Program::Stream => bytes,
        }
    }
}
