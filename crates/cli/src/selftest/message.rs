//! The messages of the two sides over ssh: a question, then one answer, or two if something takes long. Each is JSON
//! in a frame (`caravan_pipe::framing`).

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use caravan_bench::interrupt::Interrupt;
use caravan_fabric::Exposure;
use caravan_pipe::place::Place;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::fabric::survey::Survey;

/// The version of the protocol, which changes with any message.
pub const PROTOCOL: u32 = 1;
/// The longest message: a survey of a host with very many addresses.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// A question from the side that the user started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum SelftestAsk {
    /// Who are you? Answered by [`SelftestAnswer::Hello`].
    Hello,
    /// Open a doorway to shared memory. [`SelftestAnswer::Bytes`].
    Listen { arena_bytes: u64 },
    /// The other side has come through it. [`SelftestAnswer::Done`].
    Enter,
    /// Make your half of a connection. [`SelftestAnswer::Bytes`], then [`SelftestAnswer::Done`] once it is up.
    Accept { request: Vec<u8>, arena: Arena },
    /// Fill your arena with the pattern. [`SelftestAnswer::Done`].
    Fill { from: u64, bytes: u64 },
    /// Take so many writes with immediates, and check them. [`SelftestAnswer::Done`].
    Immediates { from: u64, count: u32, bytes: u32 },
    /// Is your arena still zero up to there? [`SelftestAnswer::Done`].
    Untouched { bytes: u64 },
    /// Make a link of the connection. [`SelftestAnswer::Done`].
    Link { ring_bytes: u64 },
    /// Send so many bytes of the pattern while you take as many. [`SelftestAnswer::Done`].
    Content { bytes: u64, wait: Wait },
    /// Return messages of so many bytes, for so long. [`SelftestAnswer::Done`].
    Echo { bytes: usize, wait: Wait, time: Duration },
    /// Take a stream of such messages. [`SelftestAnswer::Done`].
    Take { bytes: usize, wait: Wait, time: Duration },
    /// Send such messages for so long. [`SelftestAnswer::Figure`], in bytes a second.
    Send { bytes: usize, wait: Wait, time: Duration },
    /// End the connection. [`SelftestAnswer::Done`].
    End,
}

/// An answer from the other side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum SelftestAnswer {
    Hello(Box<SelftestHello>),
    Bytes(Vec<u8>),
    Figure(f64),
    Done,
    /// The step failed; the sentence.
    Failed(String),
}

/// The other side's host and ports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SelftestHello {
    pub survey: Survey,
    /// The usable ports of the other side.
    pub offer: Vec<u8>,
    pub place: Place,
}

/// An [`Exposure`] as a message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Arena {
    pub bytes: u64,
    pub exposed: (u64, u64),
    pub reads: bool,
    pub swaps: bool,
}

impl From<&Exposure> for Arena {
    fn from(exposure: &Exposure) -> Self {
        let exposed = (exposure.exposed.start, exposure.exposed.end);
        Self { bytes: exposure.arena_bytes, exposed, reads: exposure.peer_reads, swaps: exposure.peer_swaps }
    }
}

impl Arena {
    /// Returns the exposure, or `None` if it is impossible.
    pub fn exposure(&self) -> Option<Exposure> {
        let (start, end) = self.exposed;
        (start <= end && end <= self.bytes && self.bytes <= ARENA_BYTES_MAX).then_some(Exposure {
            arena_bytes: self.bytes,
            exposed: start..end,
            peer_reads: self.reads,
            peer_swaps: self.swaps,
        })
    }
}

/// The largest arena: more than two of the largest rings.
const ARENA_BYTES_MAX: u64 = 3 << 30;

/// How a side waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    /// The side polls without a pause.
    Spin,
    /// The side sleeps until its descriptor is readable.
    Sleep,
}

impl Wait {
    /// All ways to wait.
    pub const ALL: [Self; 2] = [Self::Spin, Self::Sleep];

    /// Returns the name that reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spin => "spinning",
            Self::Sleep => "sleeping",
        }
    }
}

/// Returns the byte of a stream at a position: splitmix64 of its word.
fn byte(stream: u64, position: u64) -> u8 {
    let mut word = (stream << 56 ^ position / 8).wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((word ^ word >> 31) >> (8 * (position % 8))) as u8
}

/// Fills `bytes`, which begin at `position` of the stream.
pub fn fill(stream: u64, position: u64, bytes: &mut [u8]) {
    for (at, to) in (position..).zip(bytes) {
        *to = byte(stream, at);
    }
}

/// Compares bytes with the stream; the failure names the first wrong byte.
pub fn check(stream: u64, position: u64, bytes: &[u8]) -> Result<(), StepFailure> {
    let wrong = (position..).zip(bytes).find(|(at, found)| **found != byte(stream, *at));
    match wrong {
        None => Ok(()),
        Some((at, found)) => Err(StepFailure::failed(format!(
            "byte {at} came as {found:#04x} instead of {:#04x}",
            byte(stream, at)
        ))),
    }
}

/// Why a step did not succeed.
#[derive(Debug)]
pub enum StepFailure {
    /// The tested step failed; the sentence goes into the report, and the test goes on.
    Failed(String),
    /// The whole test must end: the other side is gone, or the user pressed Ctrl-C.
    Fatal(Error),
}

impl From<caravan_fabric::Error> for StepFailure {
    fn from(error: caravan_fabric::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Error> for StepFailure {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

impl StepFailure {
    /// Returns a failure of the tested step.
    pub fn failed(what: impl Into<String>) -> Self {
        Self::Failed(what.into())
    }
}

/// How long a step may take, and what may interrupt it.
#[derive(Clone, Debug)]
pub struct StepBounds {
    deadline: Instant,
    limit: Duration,
    /// Set by Ctrl-C on this side, and by the end of the standard input on the other one.
    interrupt: Option<Interrupt>,
}

impl StepBounds {
    pub fn new(limit: Duration, interrupt: Option<&Interrupt>) -> Self {
        Self { deadline: Instant::now() + limit, limit, interrupt: interrupt.cloned() }
    }

    /// Fails if the step must end. To be called wherever something may wait for ever.
    pub fn check(&self) -> Result<(), StepFailure> {
        if let Some(interrupt) = &self.interrupt {
            interrupt.check().map_err(crate::error::Error::from)?;
        }
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(StepFailure::failed(format!(
                "nothing came any more within {} s: a wake-up or data got lost",
                self.limit.as_secs()
            ))),
        }
    }
}

/// How long a sleep may last before the bounds are checked again.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Waits a moment for a link's or an endpoint's bell. Returns true if it rings.
pub fn rings(bell: impl AsFd) -> bool {
    matches!(poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&NAP)), Ok(1..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_arenas_are_refused() {
        let arena = Arena { bytes: 4096, exposed: (0, 4096), reads: false, swaps: false };
        assert!(arena.exposure().is_some());
        for bad in [
            Arena { exposed: (8, 0), ..arena.clone() },
            Arena { exposed: (0, 8192), ..arena.clone() },
            Arena { bytes: 1 << 40, ..arena.clone() },
        ] {
            assert!(bad.exposure().is_none(), "{bad:?}");
        }
    }

    #[test]
    fn a_wrong_byte_is_named() {
        let mut bytes = [0; 100];
        fill(1, 5, &mut bytes);
        assert!(check(1, 5, &bytes).is_ok());
        assert!(check(2, 5, &bytes).is_err() && check(1, 6, &bytes).is_err());
        bytes[40] ^= 1;
        let Err(StepFailure::Failed(why)) = check(1, 5, &bytes) else { panic!("not found") };
        assert!(why.starts_with("byte 45 came as"), "{why}");
    }
}
