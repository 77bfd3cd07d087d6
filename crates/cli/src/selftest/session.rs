//! Tests one way between the two sides, from this one: connects, checks and measures.

use std::time::{Duration, Instant};

use caravan_bench::interrupt::Interrupt;
use caravan_bench::output::BenchProgress;
use caravan_fabric::contract::{Capabilities, Endpoint};
use caravan_fabric::verbs::{self, Port};
use caravan_fabric::{Exposure, Link, shm};

use crate::selftest::message::{Arena, SelftestAnswer, SelftestAsk, StepBounds, StepFailure, Wait};
use crate::selftest::promises::{EXPOSED, Promises, WRITE_BYTES, WRITES};
use crate::selftest::report::{CheckOutcome, PathCheck, RoundTrip, TestedPath, Throughput};
use crate::selftest::traffic::Traffic;
use crate::selftest::{CONNECT_LIMIT, OURS, STEP_LIMIT, SelftestRemote, THEIRS, limit, promises};

/// Bytes of the messages whose round trips are measured.
const ROUND_TRIP_BYTES: [usize; 5] = [8, 64, 512, 4 << 10, 64 << 10];
/// Bytes of the messages of streams.
const STREAM_BYTES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 4 << 20];
/// The number of steps of a way, as a progress bar counts them.
pub const STEPS: usize = 3 + 2 * (ROUND_TRIP_BYTES.len() + 2 * STREAM_BYTES.len());
/// Bytes per direction whose content is checked, for each way of waiting.
const CONTENT_BYTES: u64 = 2 << 20;
/// How long this side waits beyond the other side's own limit.
const GRACE: Duration = Duration::from_secs(10);

/// A way to connect the two processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestedWay {
    Memory,
    /// RDMA from a port of this host to a port of the other.
    Ports(Port, Port),
}

impl TestedWay {
    /// True if two different ports are used, when both sides are on one host.
    pub fn is_between_ports(&self) -> bool {
        match self {
            Self::Memory => false,
            Self::Ports(our, their) => (&our.device, our.number) != (&their.device, their.number),
        }
    }

    /// Returns the name that users see.
    pub fn name(&self) -> String {
        match self {
            Self::Memory => "shared memory".to_owned(),
            Self::Ports(our, their) => {
                let name = crate::fabric::survey::name;
                format!("RDMA from {} to {}", name(our), name(their))
            }
        }
    }
}

/// Both sides of a self-test, with one way between them.
#[derive(Debug)]
pub struct SelftestSession<'a> {
    pub remote: &'a mut SelftestRemote,
    pub interrupt: &'a Interrupt,
    pub ring_bytes: u64,
    pub time: Duration,
    pub way: &'a TestedWay,
    pub progress: &'a BenchProgress,
    pub path: TestedPath,
}

impl SelftestSession<'_> {
    /// Tests the way. The result contains the failures; an error means that the whole test must end.
    pub fn test(mut self) -> Result<TestedPath, crate::error::Error> {
        let tested =
            self.check_promises().and_then(|()| self.check_refusal()).and_then(|()| self.check_link());
        match tested {
            Ok(()) => {}
            Err(StepFailure::Failed(why)) => self.path.failure = Some(why),
            Err(StepFailure::Fatal(error)) => return Err(error),
        }
        // The other side may still hold its half.
        match self.done(&SelftestAsk::End, STEP_LIMIT) {
            Err(StepFailure::Fatal(error)) => Err(error),
            _ => Ok(self.path),
        }
    }

    fn check_promises(&mut self) -> Result<(), StepFailure> {
        self.progress.step("promises");
        let begin = Instant::now();
        let mut endpoint = self.connect(&promises::exposure(), None)?;
        self.path.connected_ms = begin.elapsed().as_secs_f64() * 1e3;
        let capabilities = endpoint.capabilities();
        self.path.capabilities = words(&capabilities);
        let (from, bytes) = (EXPOSED.0, EXPOSED.1 - EXPOSED.0);
        let ask = SelftestAsk::Immediates { from, count: WRITES, bytes: WRITE_BYTES };
        let order = if capabilities.immediates_ordered { ", in order" } else { "" };
        let name = format!("{WRITES} writes with immediates: each once, behind its bytes{order}");
        let checked = self.both(&ask, |bounds| Promises::new(&mut *endpoint, bounds).write_immediates());
        self.path.check(name, checked.map(|()| CheckOutcome::Passed))?;
        let filled = self.done(&SelftestAsk::Fill { from, bytes }, STEP_LIMIT);
        let read = filled.and_then(|()| Promises::new(&mut *endpoint, self.bounds()).read());
        self.path.check("a read brings what is there".to_owned(), read.map(|()| CheckOutcome::Passed))?;
        let swapped = match capabilities.compare_and_swap {
            true => Promises::new(&mut *endpoint, self.bounds()).swap().map(|()| CheckOutcome::Passed),
            false => Ok(CheckOutcome::Not("the devices have none".to_owned())),
        };
        self.path.check("compare-and-swap swaps once".to_owned(), swapped)?;
        drop(endpoint);
        self.done(&SelftestAsk::End, STEP_LIMIT)
    }

    /// Checks that the other side's device refuses a write outside of its exposed memory.
    fn check_refusal(&mut self) -> Result<(), StepFailure> {
        self.progress.step("refusal");
        let name = "a write outside of what is exposed is refused by the other side's device".to_owned();
        if *self.way == TestedWay::Memory {
            let why = "memory is mapped, and no device is in between".to_owned();
            return self.path.check(name, Ok(CheckOutcome::Not(why)));
        }
        let exposure = promises::exposure();
        let mut endpoint = self.connect(&exposure, Some(exposure.arena_bytes))?;
        let refused = Promises::new(&mut *endpoint, self.bounds()).write_outside();
        // The other side's memory decides, whatever this side was told.
        let untouched = self.done(&SelftestAsk::Untouched { bytes: EXPOSED.0 }, STEP_LIMIT);
        let outcome = refused.and(untouched).map(|()| CheckOutcome::Passed);
        self.path.check(name, outcome)?;
        drop(endpoint);
        self.done(&SelftestAsk::End, STEP_LIMIT)
    }

    fn check_link(&mut self) -> Result<(), StepFailure> {
        self.progress.step("content");
        let exposure = match self.way {
            TestedWay::Memory => Exposure::all(Link::mapped_arena_bytes(self.ring_bytes)?),
            TestedWay::Ports(..) => Link::exposure(self.ring_bytes)?,
        };
        let endpoint = self.connect(&exposure, None)?;
        let mut link = Link::new(endpoint, self.ring_bytes)?;
        self.done(&SelftestAsk::Link { ring_bytes: self.ring_bytes }, STEP_LIMIT)?;
        let mebibytes = CONTENT_BYTES >> 20;
        for wait in Wait::ALL {
            let content = self.both(&SelftestAsk::Content { bytes: CONTENT_BYTES, wait }, |bounds| {
                Traffic::new(&mut link, wait, bounds).content((OURS, THEIRS), CONTENT_BYTES)
            });
            let name = format!("a link carries {mebibytes} MiB each way unchanged, {}", wait.name());
            self.path.check(name, content.map(|()| CheckOutcome::Passed))?;
        }
        for wait in Wait::ALL {
            self.measure_round_trips(&mut link, wait)?;
        }
        for wait in Wait::ALL {
            self.measure_streams(&mut link, wait)?;
        }
        Ok(())
    }

    fn measure_round_trips(&mut self, link: &mut Link, wait: Wait) -> Result<(), StepFailure> {
        let time = self.time;
        for bytes in ROUND_TRIP_BYTES {
            self.progress.step(&format!("round trips of {bytes} bytes, {}", wait.name()));
            let took = self.both(&SelftestAsk::Echo { bytes, wait, time }, |bounds| {
                Traffic::new(link, wait, bounds).round_trips(bytes, time)
            })?;
            self.path.round_trips.push(RoundTrip::of(bytes, wait.name(), took));
        }
        Ok(())
    }

    fn measure_streams(&mut self, link: &mut Link, wait: Wait) -> Result<(), StepFailure> {
        let time = self.time;
        for bytes in STREAM_BYTES {
            self.progress.step(&format!("a stream there of {bytes} bytes, {}", wait.name()));
            let there = self.both(&SelftestAsk::Take { bytes, wait, time }, |bounds| {
                Traffic::new(link, wait, bounds).stream(bytes, time)
            })?;
            self.progress.step(&format!("a stream back of {bytes} bytes, {}", wait.name()));
            self.remote.ask(&SelftestAsk::Send { bytes, wait, time })?;
            let ours = Traffic::new(link, wait, self.bounds()).drain(bytes);
            let back = match (ours, self.remote.answer(limit(time) + GRACE)?) {
                (Err(trouble @ StepFailure::Fatal(_)), _) => return Err(trouble),
                (Ok(()), SelftestAnswer::Figure(rate)) => rate,
                (ours, answer) => return Err(failure(ours.err(), answer)),
            };
            self.path.throughput.push(Throughput::of(bytes, wait.name(), there, back));
        }
        Ok(())
    }

    /// Connects an endpoint of each side. With `claim`, this side believes that so many bytes of the other's arena are
    /// exposed.
    fn connect(&mut self, exposure: &Exposure, claim: Option<u64>) -> Result<Box<dyn Endpoint>, StepFailure> {
        match self.way {
            TestedWay::Memory => {
                let descriptor = self.bytes(&SelftestAsk::Listen { arena_bytes: exposure.arena_bytes })?;
                let endpoint = shm::connect(&descriptor)?;
                self.done(&SelftestAsk::Enter, STEP_LIMIT)?;
                Ok(Box::new(endpoint))
            }
            TestedWay::Ports(our, their) => {
                let offer = verbs::offer_of(std::slice::from_ref(their));
                let (pending, request) = verbs::connect_from(std::slice::from_ref(our), &offer, exposure)?;
                let half = self.bytes(&SelftestAsk::Accept { request, arena: Arena::from(exposure) })?;
                let half = match claim {
                    Some(bytes) => verbs::overstate(&half, bytes)?,
                    None => half,
                };
                let finished = pending.finish(&half, CONNECT_LIMIT);
                let theirs = self.remote.answer(CONNECT_LIMIT + GRACE)?;
                match (finished, theirs) {
                    (Ok(endpoint), SelftestAnswer::Done) => Ok(endpoint),
                    (ours, answer) => Err(failure(ours.err().map(StepFailure::from), answer)),
                }
            }
        }
    }

    /// Runs a step that both sides do at once.
    fn both<T>(
        &mut self,
        ask: &SelftestAsk,
        ours: impl FnOnce(StepBounds) -> Result<T, StepFailure>,
    ) -> Result<T, StepFailure> {
        self.remote.ask(ask)?;
        let ours = ours(self.bounds());
        if let Err(trouble @ StepFailure::Fatal(_)) = ours {
            return Err(trouble);
        }
        match (ours, self.remote.answer(limit(self.time) + GRACE)?) {
            (Ok(ours), SelftestAnswer::Done) => Ok(ours),
            (ours, answer) => Err(failure(ours.err(), answer)),
        }
    }

    /// Runs a step that the other side does alone.
    fn done(&mut self, ask: &SelftestAsk, limit: Duration) -> Result<(), StepFailure> {
        self.remote.ask(ask)?;
        match self.remote.answer(limit + GRACE)? {
            SelftestAnswer::Done => Ok(()),
            answer => Err(failure(None, answer)),
        }
    }

    fn bytes(&mut self, ask: &SelftestAsk) -> Result<Vec<u8>, StepFailure> {
        self.remote.ask(ask)?;
        match self.remote.answer(STEP_LIMIT + GRACE)? {
            SelftestAnswer::Bytes(bytes) => Ok(bytes),
            answer => Err(failure(None, answer)),
        }
    }

    fn bounds(&self) -> StepBounds {
        StepBounds::new(limit(self.time), Some(self.interrupt))
    }
}

/// Joins the failures of both sides.
fn failure(ours: Option<StepFailure>, theirs: SelftestAnswer) -> StepFailure {
    let theirs = match theirs {
        SelftestAnswer::Failed(why) => Some(format!("the other side: {why}")),
        SelftestAnswer::Done | SelftestAnswer::Figure(_) => None,
        SelftestAnswer::Hello(_) | SelftestAnswer::Bytes(_) => {
            Some("the other side is out of turn".to_owned())
        }
    };
    match (ours, theirs) {
        (Some(StepFailure::Failed(ours)), Some(theirs)) => StepFailure::Failed(format!("{ours}; {theirs}")),
        (Some(trouble), _) => trouble,
        (None, theirs) => {
            StepFailure::failed(theirs.unwrap_or_else(|| "the other side is out of turn".to_owned()))
        }
    }
}

fn words(capabilities: &Capabilities) -> Vec<String> {
    let table = [
        (capabilities.mapped, "memory is mapped"),
        (capabilities.immediates_ordered, "immediates in order"),
        (capabilities.compare_and_swap, "compare-and-swap"),
        (capabilities.atomic_with_processor, "atomic with the processor"),
        (capabilities.memory_windows, "memory windows"),
        (capabilities.target_progress, "progress without the other side's threads"),
    ];
    table.iter().filter(|(has, _)| *has).map(|(_, word)| (*word).to_owned()).collect()
}

impl TestedPath {
    /// Records the result of a check; its failure ends the way.
    fn check(&mut self, name: String, outcome: Result<CheckOutcome, StepFailure>) -> Result<(), StepFailure> {
        let (outcome, trouble) = match outcome {
            Ok(outcome) => (outcome, None),
            Err(StepFailure::Failed(why)) => {
                (CheckOutcome::Failed(why.clone()), Some(StepFailure::Failed(format!("{name}: {why}"))))
            }
            Err(fatal) => return Err(fatal),
        };
        self.checks.push(PathCheck { name, outcome });
        trouble.map_or(Ok(()), Err)
    }
}
