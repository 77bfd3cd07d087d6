//! The traffic over a link in a self-test, from either side.

use std::time::{Duration, Instant};

use caravan_fabric::Link;
use caravan_fabric::contract::Armed;

use crate::selftest::message;
use crate::selftest::message::{StepBounds, StepFailure, Wait};

/// Polls in a row before a side that spins yields the core.
const LOOKS: u32 = 256;
/// Yields before a side checks its bounds.
const YIELDS: u32 = 16;
/// Bytes taken from a link at once.
const BUFFER_BYTES: usize = 64 << 10;
/// The header of a message: its number, and in the lowest bit whether it is the last.
const HEADER_BYTES: usize = 8;
/// Round trips before the counted ones.
const WARM_UP: usize = 8;
/// The most and the fewest round trips.
const ROUND_TRIPS: (usize, usize) = (100_000, 10);
/// The fewest messages of a stream.
const MESSAGES_MIN: u64 = 3;

/// A link, and how this side waits on it.
#[derive(Debug)]
pub struct Traffic<'a> {
    link: &'a mut Link,
    wait: Wait,
    bounds: StepBounds,
    empty_looks: u32,
}

impl<'a> Traffic<'a> {
    pub fn new(link: &'a mut Link, wait: Wait, bounds: StepBounds) -> Self {
        Self { link, wait, bounds, empty_looks: 0 }
    }

    /// Sends `total` bytes of stream `ours` while it takes as many of stream `theirs`.
    pub fn content(&mut self, (ours, theirs): (u64, u64), total: u64) -> Result<(), StepFailure> {
        let (mut sent, mut received) = (0, 0);
        let mut buffer = vec![0; BUFFER_BYTES];
        while sent < total || received < total {
            let (sent_before, received_before) = (sent, received);
            if sent < total {
                // The sizes vary, and none divides the ring.
                let size = (sent * 7 + 13) % (BUFFER_BYTES as u64 - 1) + 1;
                let part = &mut buffer[..size.min(total - sent) as usize];
                message::fill(ours, sent, part);
                sent += self.link.append(part)? as u64;
                self.link.publish()?;
            }
            self.link.refresh()?;
            let wanted = (total - received).min(BUFFER_BYTES as u64) as usize;
            let taken = self.link.read(&mut buffer[..wanted]);
            message::check(theirs, received, &buffer[..taken])?;
            received += taken as u64;
            self.link.release()?;
            if (sent, received) == (sent_before, received_before) {
                self.pause(usize::from(sent < total))?;
            }
        }
        self.settle()
    }

    /// Returns the nanoseconds of each round trip of `bytes`, for `time`, in order of time.
    pub fn round_trips(&mut self, bytes: usize, time: Duration) -> Result<Vec<u64>, StepFailure> {
        let mut message = vec![0; bytes];
        let mut took = Vec::new();
        let begin = Instant::now();
        let mut number = 0;
        loop {
            let enough = took.len() >= ROUND_TRIPS.1 && begin.elapsed() >= time;
            let is_last = enough || took.len() >= ROUND_TRIPS.0;
            message[..HEADER_BYTES].copy_from_slice(&header(number, is_last));
            let start = Instant::now();
            self.send(&message)?;
            self.take(&mut message)?;
            let elapsed = start.elapsed().as_nanos() as u64;
            expect(&message, number)?;
            if number as usize >= WARM_UP {
                took.push(elapsed);
            }
            if is_last {
                self.settle()?;
                return Ok(took);
            }
            number += 1;
        }
    }

    /// Returns messages of `bytes` to the sender, up to the last.
    pub fn echo(&mut self, bytes: usize) -> Result<(), StepFailure> {
        let mut message = vec![0; bytes];
        for number in 0.. {
            self.take(&mut message)?;
            self.send(&message)?;
            if expect(&message, number)? {
                break;
            }
        }
        self.settle()
    }

    /// Sends messages of `bytes` for `time`. Returns bytes per second, up to the arrival of the last message.
    pub fn stream(&mut self, bytes: usize, time: Duration) -> Result<f64, StepFailure> {
        let mut message = vec![0; bytes];
        let begin = Instant::now();
        for number in 0.. {
            let is_last = number + 1 >= MESSAGES_MIN && begin.elapsed() >= time;
            message[..HEADER_BYTES].copy_from_slice(&header(number, is_last));
            self.send(&message)?;
            if is_last {
                let mut arrived = [0; HEADER_BYTES];
                self.take(&mut arrived)?;
                let rate = (number + 1) as f64 * bytes as f64 / begin.elapsed().as_secs_f64();
                expect(&arrived, number)?;
                self.settle()?;
                return Ok(rate);
            }
        }
        Err(StepFailure::failed("the stream has no end"))
    }

    /// Takes messages of `bytes` up to the last, and acknowledges that one.
    pub fn drain(&mut self, bytes: usize) -> Result<(), StepFailure> {
        let mut buffer = vec![0; BUFFER_BYTES.min(bytes)];
        for number in 0.. {
            let mut head = [0; HEADER_BYTES];
            self.take(&mut head)?;
            let is_last = expect(&head, number)?;
            let mut left = bytes - HEADER_BYTES;
            while left > 0 {
                let part = left.min(buffer.len());
                self.take(&mut buffer[..part])?;
                left -= part;
            }
            if is_last {
                self.send(&head)?;
                break;
            }
        }
        self.settle()
    }

    /// Waits until this side owes the link nothing, because it does something else next.
    fn settle(&mut self) -> Result<(), StepFailure> {
        while !self.link.is_settled()? {
            self.pause(0)?;
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), StepFailure> {
        while !bytes.is_empty() {
            let sent = self.link.append(bytes)?;
            bytes = &bytes[sent..];
            self.link.publish()?;
            if sent == 0 {
                // The peer's messages return room.
                self.link.refresh()?;
                self.pause(1)?;
            } else {
                self.empty_looks = 0;
            }
        }
        Ok(())
    }

    fn take(&mut self, to: &mut [u8]) -> Result<(), StepFailure> {
        let mut filled = 0;
        while filled < to.len() {
            self.link.refresh()?;
            let taken = self.link.read(&mut to[filled..]);
            filled += taken;
            if taken == 0 {
                self.pause(0)?;
            } else {
                self.link.release()?;
                self.empty_looks = 0;
            }
        }
        Ok(())
    }

    /// Polls again, or sleeps until something arrives or there is `room`.
    fn pause(&mut self, room: usize) -> Result<(), StepFailure> {
        if self.wait == Wait::Sleep {
            return self.sleep(room);
        }
        self.empty_looks = self.empty_looks.wrapping_add(1);
        if self.empty_looks % LOOKS != 0 {
            std::hint::spin_loop();
            return Ok(());
        }
        // The other side may need this core.
        std::thread::yield_now();
        if self.empty_looks % (LOOKS * YIELDS) == 0 {
            self.bounds.check()?;
            self.link.check_peer()?;
        }
        Ok(())
    }

    fn sleep(&mut self, room: usize) -> Result<(), StepFailure> {
        self.bounds.check()?;
        if self.link.arm(room)? == Armed::LookAgain {
            return Ok(());
        }
        if self.link.wait_fd().is_none_or(message::rings) {
            self.link.acknowledge()?;
        } else {
            self.link.check_peer()?;
        }
        self.link.awake();
        Ok(())
    }
}

fn header(number: u64, is_last: bool) -> [u8; HEADER_BYTES] {
    (number << 1 | u64::from(is_last)).to_le_bytes()
}

/// Checks the number of a message; true if it is the last.
fn expect(message: &[u8], number: u64) -> Result<bool, StepFailure> {
    let head = message.first_chunk().map(|head| u64::from_le_bytes(*head));
    match head {
        Some(head) if head >> 1 == number => Ok(head & 1 == 1),
        _ => Err(StepFailure::failed(format!("message {number} came with another number"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use caravan_fabric::shm;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Runs the two ends of a link, each in a thread of its own.
    fn between<A: Send, B: Send>(
        wait: Wait,
        ours: impl FnOnce(&mut Traffic) -> A + Send,
        theirs: impl FnOnce(&mut Traffic) -> B + Send,
    ) -> (A, B) {
        let ring_bytes = 16 << 10;
        let arena_bytes = Link::mapped_arena_bytes(ring_bytes).expect("a size");
        let (listener, descriptor) = shm::Listener::listen(arena_bytes).expect("a doorway");
        let near = shm::connect(&descriptor).expect("connected");
        let far = listener.accept().expect("accepted");
        let mut near = Link::new(Box::new(near), ring_bytes).expect("a link");
        let mut far = Link::new(Box::new(far), ring_bytes).expect("a link");
        std::thread::scope(|scope| {
            let other =
                scope.spawn(move || theirs(&mut Traffic::new(&mut far, wait, StepBounds::new(LIMIT, None))));
            let ours = ours(&mut Traffic::new(&mut near, wait, StepBounds::new(LIMIT, None)));
            (ours, other.join().expect("no panic"))
        })
    }

    #[test]
    fn everything_works_both_ways_of_waiting() {
        let time = Duration::from_millis(10);
        for wait in Wait::ALL {
            let total = 1 << 18;
            let (ours, theirs) =
                between(wait, |near| near.content((1, 2), total), |far| far.content((2, 1), total));
            ours.and(theirs).expect("the content is right");
            for bytes in [8, 4096, 1 << 16] {
                let (took, echoed) =
                    between(wait, |near| near.round_trips(bytes, time), |far| far.echo(bytes));
                echoed.expect("returned");
                assert!(took.expect("measured").len() >= ROUND_TRIPS.1);
                let (rate, drained) = between(wait, |near| near.stream(bytes, time), |far| far.drain(bytes));
                drained.expect("taken");
                assert!(rate.expect("measured") > 0.0);
            }
        }
    }

    #[test]
    fn wrong_content_and_silence_are_failures() {
        let (ours, _) = between(
            Wait::Sleep,
            |near| near.content((1, 2), 1000),
            |far| {
                far.bounds = StepBounds::new(Duration::from_millis(300), None);
                far.content((3, 1), 1000)
            },
        );
        assert!(matches!(ours, Err(StepFailure::Failed(why)) if why.contains("byte 0 came as")));
        let (ours, _) = between(
            Wait::Sleep,
            |near| {
                near.bounds = StepBounds::new(Duration::from_millis(300), None);
                near.echo(8)
            },
            |_| std::thread::sleep(Duration::from_millis(600)),
        );
        assert!(
            matches!(ours, Err(StepFailure::Failed(why)) if why.contains("nothing came any more within 0 s"))
        );
    }
}
