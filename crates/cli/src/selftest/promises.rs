//! Tests the promises of the transport contract on an endpoint, from either side.

use std::time::Duration;

use caravan_fabric::contract::{Armed, Completion, Endpoint, Event, Local, Operation};
use caravan_fabric::{Error, Exposure};

use crate::selftest::message;
use crate::selftest::message::{StepBounds, StepFailure};

/// The bytes of the arena in these tests.
pub const ARENA_BYTES: u64 = 256 << 10;
/// The part of the arena that the other side may reach.
pub const EXPOSED: (u64, u64) = (64 << 10, 192 << 10);
/// The number of writes with immediates; together they fill the exposed part.
pub const WRITES: u32 = 256;
/// The bytes of each of these writes.
pub const WRITE_BYTES: u32 = 512;
/// The streams of the pattern for writes and for reads.
const WRITTEN: u64 = 3;
const READ: u64 = 4;
/// A prime, so that nothing is aligned.
const READ_BYTES: u32 = 30_011;
/// The number of events taken at once.
const EVENTS_MAX: usize = 32;

/// Returns the exposure of these tests.
pub fn exposure() -> Exposure {
    let (start, end) = EXPOSED;
    Exposure { arena_bytes: ARENA_BYTES, exposed: start..end, peer_reads: true, peer_swaps: true }
}

/// An endpoint and the events that it has reported.
#[derive(Debug)]
pub struct Promises<'a> {
    endpoint: &'a mut dyn Endpoint,
    bounds: StepBounds,
    done: Vec<Completion>,
    immediates: Vec<u32>,
}

impl<'a> Promises<'a> {
    pub fn new(endpoint: &'a mut dyn Endpoint, bounds: StepBounds) -> Self {
        Self { endpoint, bounds, done: Vec::new(), immediates: Vec::new() }
    }

    /// Writes each part of the exposed memory with its number as the immediate.
    pub fn write_immediates(&mut self) -> Result<(), StepFailure> {
        let mut bytes = vec![0; WRITES as usize * WRITE_BYTES as usize];
        message::fill(WRITTEN, 0, &mut bytes);
        self.endpoint.arena().copy_in(0, &bytes);
        for number in 0..WRITES {
            let offset = u64::from(number) * u64::from(WRITE_BYTES);
            let from = Local { offset, bytes: WRITE_BYTES };
            let context = u64::from(number);
            self.start(Operation::Write { from, to: EXPOSED.0 + offset, immediate: Some(number), context })?;
        }
        self.until(|seen| seen.done.len() == WRITES as usize)
    }

    /// Takes the immediates: each once, after its bytes, and in order if that is promised.
    pub fn take_immediates(&mut self, from: u64, count: u32, bytes: u32) -> Result<(), StepFailure> {
        self.inside(from, u64::from(count) * u64::from(bytes))?;
        let mut part = vec![0; bytes as usize];
        let mut checked = 0;
        while checked < count as usize {
            self.until(|seen| seen.immediates.len() > checked)?;
            for at in checked..self.immediates.len() {
                let number = self.immediates[at];
                let offset = u64::from(number) * u64::from(bytes);
                if number >= count || self.immediates[..at].contains(&number) {
                    return Err(StepFailure::failed(format!(
                        "the immediate {number} came twice or was never sent"
                    )));
                }
                if self.endpoint.capabilities().immediates_ordered && number as usize != at {
                    return Err(StepFailure::failed(format!(
                        "immediate {at} came as {number}: they are out of order"
                    )));
                }
                self.endpoint.arena().copy_out((from + offset) as usize, &mut part);
                message::check(WRITTEN, offset, &part)?;
            }
            checked = self.immediates.len();
        }
        Ok(())
    }

    /// Fills this side's arena with bytes for the other side to read.
    pub fn fill(&mut self, from: u64, bytes: u64) -> Result<(), StepFailure> {
        self.inside(from, bytes)?;
        let mut part = vec![0; bytes as usize];
        message::fill(READ, 0, &mut part);
        self.endpoint.arena().copy_in(from as usize, &part);
        Ok(())
    }

    /// Reads the bytes that the other side has [filled](Self::fill) in.
    pub fn read(&mut self) -> Result<(), StepFailure> {
        let into = Local { offset: 1, bytes: READ_BYTES };
        self.start(Operation::Read { from: EXPOSED.0 + 1, into, context: 0 })?;
        self.until(|seen| !seen.done.is_empty())?;
        let mut bytes = vec![0; READ_BYTES as usize];
        self.endpoint.arena().copy_out(1, &mut bytes);
        message::check(READ, 1, &bytes)
    }

    /// Swaps a word that the other side has filled in; a second swap must be refused.
    pub fn swap(&mut self) -> Result<(), StepFailure> {
        let mut word = [0; 8];
        message::fill(READ, 0, &mut word);
        let (expected, desired) = (u64::from_ne_bytes(word), !u64::from_ne_bytes(word));
        for found in [expected, desired] {
            let before = self.done.len();
            self.start(Operation::CompareAndSwap { at: EXPOSED.0, expected, desired, context: 1 })?;
            self.until(|seen| seen.done.len() > before)?;
            let told = self.done.last().and_then(|completion| completion.found);
            if told != Some(found) {
                return Err(StepFailure::failed(format!("it found {told:x?} instead of {found:#x}")));
            }
        }
        Ok(())
    }

    /// Writes where nothing is exposed, on a connection that was told otherwise. The connection must end in an error,
    /// which is returned.
    pub fn write_outside(&mut self) -> Result<Error, StepFailure> {
        self.endpoint.arena().copy_in(0, &[0xff; 64]);
        let bytes = Local { offset: 0, bytes: 64 };
        let write = Operation::Write { from: bytes, to: 0, immediate: None, context: 2 };
        // A write completes on iWARP once TCP has it; the result of this read comes after it.
        let read = Operation::Read { from: EXPOSED.0, into: bytes, context: 3 };
        let started = self.endpoint.post(write).and_then(|()| self.endpoint.post(read));
        if let Err(error) = started.and_then(|()| self.endpoint.doorbell()) {
            return Ok(error);
        }
        loop {
            match self.poll() {
                Err(error) => return Ok(error),
                Ok(_) if self.done.iter().any(|completion| completion.context == 3) => {
                    return Err(StepFailure::failed(
                        "the device of the other side carried out a write outside of what is exposed",
                    ));
                }
                Ok(_) => self.nap()?,
            }
        }
    }

    /// Checks that the first `bytes` bytes are still zero.
    pub fn untouched(&self, bytes: u64) -> Result<(), StepFailure> {
        self.inside(0, bytes)?;
        let mut found = vec![0; bytes as usize];
        self.endpoint.arena().copy_out(0, &mut found);
        match found.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err(StepFailure::failed("memory outside of what is exposed has changed")),
        }
    }

    /// Checks that the part that the other side asks about is in this side's arena.
    fn inside(&self, from: u64, bytes: u64) -> Result<(), StepFailure> {
        match from.checked_add(bytes).is_some_and(|end| end <= self.endpoint.arena().bytes()) {
            true => Ok(()),
            false => Err(StepFailure::failed("a question is about memory that is not there")),
        }
    }

    fn start(&mut self, operation: Operation) -> Result<(), StepFailure> {
        loop {
            match self.endpoint.post(operation) {
                Ok(()) => return Ok(self.endpoint.doorbell()?),
                Err(Error::Full(_)) => {
                    if self.poll()? == 0 {
                        self.nap()?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn until(&mut self, enough: impl Fn(&Self) -> bool) -> Result<(), StepFailure> {
        while !enough(self) {
            if self.poll()? == 0 {
                self.nap()?;
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<usize, Error> {
        let mut events = Vec::new();
        let count = self.endpoint.poll(&mut events, EVENTS_MAX)?;
        for event in events {
            match event {
                Event::Done(completion) => self.done.push(completion),
                Event::Immediate(immediate) => self.immediates.push(immediate),
                _ => {}
            }
        }
        Ok(count)
    }

    /// Waits for the next event, because none has come.
    fn nap(&mut self) -> Result<(), StepFailure> {
        self.bounds.check()?;
        // An ended connection reports that when it is polled.
        if self.endpoint.flush().is_err() || !matches!(self.endpoint.arm(), Ok(Armed::Wait)) {
            return Ok(());
        }
        match self.endpoint.wait_fd() {
            Some(bell) if message::rings(bell) => self.endpoint.acknowledge()?,
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use caravan_fabric::shm;

    fn ends() -> [Box<dyn Endpoint>; 2] {
        let (listener, descriptor) = shm::Listener::listen(ARENA_BYTES).expect("a doorway");
        let near = shm::connect(&descriptor).expect("connected");
        [Box::new(near), Box::new(listener.accept().expect("accepted"))]
    }

    fn bounds() -> StepBounds {
        StepBounds::new(Duration::from_secs(20), None)
    }

    #[test]
    fn what_is_promised_is_found_kept() {
        let [mut near, mut far] = ends();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut far = Promises::new(&mut *far, bounds());
                far.take_immediates(EXPOSED.0, WRITES, WRITE_BYTES).expect("in order");
            });
            Promises::new(&mut *near, bounds()).write_immediates().expect("written");
            other.join().expect("no panic");
        });
        let mut far = Promises::new(&mut *far, bounds());
        far.untouched(EXPOSED.0).expect("untouched");
        far.fill(EXPOSED.0, EXPOSED.1 - EXPOSED.0).expect("filled");
        assert!(far.fill(EXPOSED.0, ARENA_BYTES).is_err());
        Promises::new(&mut *near, bounds()).read().expect("read");
        Promises::new(&mut *near, bounds()).swap().expect("swapped");
    }

    /// Mapped memory has no device that could refuse, so the tests must find the failure.
    #[test]
    fn what_is_not_kept_is_found() {
        let [mut near, mut far] = ends();
        let Err(StepFailure::Failed(why)) = Promises::new(&mut *near, bounds()).write_outside() else {
            panic!("refused");
        };
        assert!(why.contains("outside of what is exposed"), "{why}");
        assert!(Promises::new(&mut *far, bounds()).untouched(EXPOSED.0).is_err());
        assert!(Promises::new(&mut *near, bounds()).read().is_err(), "nothing was filled in");
        let from = Local { offset: 0, bytes: 0 };
        for number in [1, 0] {
            near.post(Operation::Write { from, to: 0, immediate: Some(number), context: 0 }).expect("posted");
        }
        let taken = Promises::new(&mut *far, bounds()).take_immediates(EXPOSED.0, 2, 0);
        assert!(matches!(taken, Err(StepFailure::Failed(why)) if why.contains("out of order")));
    }
}
