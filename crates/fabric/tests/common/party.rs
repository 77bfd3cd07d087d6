//! One end of a link that sends one stream and checks another, by one random action at a time.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use caravan_fabric::contract::Armed;
use caravan_fabric::sim::{Random, World};
use caravan_fabric::{Error, Link};

use super::pattern::Pattern;
use super::{PATIENCE, any_size, readable, readable_any};

/// One end of a link.
#[derive(Debug)]
pub struct Party {
    pub link: Link,
    random: Random,
    outgoing: Pattern,
    committed: u64,
    to_send: u64,
    incoming: Pattern,
    pub received: u64,
    to_receive: u64,
    asleep: bool,
    /// The party polls again and again and never sleeps, as a spinning face does.
    pub never_sleeps: bool,
    /// The party ends at once when it has nothing more to do.
    pub finished: bool,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The party did something, or may do something next time.
    Active,
    /// The party sleeps until its descriptor is readable.
    Asleep,
}

impl Party {
    /// Makes a party that sends `to_send` bytes of the stream of `seed` and its number, and takes `to_receive`
    /// bytes of the other's.
    pub fn new(link: Link, seed: u64, number: u64, to_send: u64, to_receive: u64) -> Self {
        Self {
            link,
            random: Random::new(seed.wrapping_mul(3) + number),
            outgoing: Pattern::new(seed.wrapping_mul(2) + number),
            committed: 0,
            to_send,
            incoming: Pattern::new(seed.wrapping_mul(2) + 1 - number),
            received: 0,
            to_receive,
            asleep: false,
            never_sleeps: false,
            finished: false,
        }
    }

    pub fn is_asleep(&self) -> bool {
        let bell = self.link.wait_fd().unwrap();
        self.asleep && !readable(bell.as_fd(), Duration::ZERO)
    }

    /// Takes one random action. Sleeps only if there is nothing to do.
    pub fn turn(&mut self) -> Result<Turn, Error> {
        if self.asleep {
            if self.is_asleep() {
                return Ok(Turn::Asleep);
            }
            self.link.acknowledge()?;
            self.link.awake();
            self.asleep = false;
        }
        let sent = self.send()?;
        if self.random.once_in(3) {
            self.link.publish()?;
        }
        let received = self.receive()?;
        if self.random.once_in(2) {
            self.link.release()?;
        }
        if sent + received > 0 || self.link.unread() > 0 {
            return Ok(Turn::Active);
        }
        self.rest()
    }

    fn send(&mut self) -> Result<usize, Error> {
        let left = self.to_send - self.committed;
        if left == 0 || self.random.once_in(4) {
            return Ok(0);
        }
        let length = any_size(&mut self.random, left.min(self.link.ring_bytes() + 999)) as usize;
        let mut bytes = vec![0; length];
        self.outgoing.fill(self.committed, &mut bytes);
        let sent = if self.random.once_in(2) { self.link.append(&bytes)? } else { self.fill_claim(&bytes)? };
        self.committed += sent as u64;
        Ok(sent)
    }

    /// Fills a claim in place, and commits a part of the claim.
    fn fill_claim(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let spans = self.link.claim(bytes.len())?;
        let (first, rest) = bytes.split_at(spans.first.length);
        self.link.outbound_slice().copy_in(spans.first.offset, first);
        self.link.outbound_slice().copy_in(spans.second.offset, &rest[..spans.second.length]);
        let kept = self.random.below(spans.length() as u64 + 1) as usize;
        self.link.commit(kept);
        Ok(kept)
    }

    fn receive(&mut self) -> Result<usize, Error> {
        if self.link.unread() == 0 || self.random.once_in(3) {
            self.link.refresh()?;
        }
        if self.link.unread() == 0 {
            return Ok(0);
        }
        let wanted = any_size(&mut self.random, self.link.ring_bytes()) as usize;
        let mut bytes = vec![0; wanted];
        let got = if self.random.once_in(2) {
            self.link.read(&mut bytes)
        } else {
            let spans = self.link.poll(wanted)?;
            assert!(spans.length() >= self.link.unread().min(wanted));
            let got = spans.length().min(wanted);
            let (first, second) = bytes[..got].split_at_mut(got.min(spans.first.length));
            self.link.inbound_slice().copy_out(spans.first.offset, first);
            self.link.inbound_slice().copy_out(spans.second.offset, second);
            self.link.skip(got);
            got
        };
        self.incoming.check(self.received, &bytes[..got]);
        self.received += got as u64;
        assert!(self.received <= self.to_receive, "more was received than was sent");
        Ok(got)
    }

    /// Sleeps until something comes, or until there is room if the party wants room.
    fn rest(&mut self) -> Result<Turn, Error> {
        let left = self.to_send - self.committed;
        let room = if left == 0 { 0 } else { any_size(&mut self.random, left.min(self.link.ring_bytes())) };
        if left > 0 && self.link.room()? as u64 >= room && !self.random.once_in(4) {
            return Ok(Turn::Active);
        }
        // Half of the time, leaves it to `arm` to publish and release before the sleep.
        if self.random.once_in(2) {
            self.link.publish()?;
            self.link.release()?;
        }
        if left == 0 && self.received == self.to_receive {
            self.link.publish()?;
            self.link.release()?;
            self.finished |= self.link.is_settled()?;
        }
        if self.never_sleeps {
            self.link.publish()?;
            return Ok(Turn::Active);
        }
        match self.link.arm(room as usize)? {
            Armed::LookAgain => Ok(Turn::Active),
            Armed::Wait => {
                self.asleep = true;
                Ok(Turn::Asleep)
            }
        }
    }

    /// Takes turns until the party has finished, in a thread or process of its own.
    pub fn run(&mut self) -> Result<(), Error> {
        while !self.finished {
            if self.turn()? == Turn::Asleep && !self.finished {
                let rung = readable(self.link.wait_fd().unwrap(), PATIENCE);
                assert!(rung, "no wake-up came for {PATIENCE:?}: {}", self.state());
            }
        }
        Ok(())
    }

    fn state(&self) -> String {
        format!(
            "sent {} of {}, received {} of {}, {} used of {}, asleep {}, finished {}",
            self.committed,
            self.to_send,
            self.received,
            self.to_receive,
            self.link.outbound_used_bytes(),
            self.link.ring_bytes(),
            self.asleep,
            self.finished
        )
    }

    /// True if the peer's end loses nothing: no bytes are left to send or to receive.
    pub fn has_all(&self) -> bool {
        self.received == self.to_receive && self.committed == self.to_send
    }
}

/// Runs both ends in threads of their own, and the network in a third. An end that has finished
/// goes on polling until the other has finished, too: the other's device may need that.
pub fn in_threads(parties: [Party; 2], world: Option<&World>) {
    let finished = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        if let Some(world) = world {
            scope.spawn(|| world.carry());
        }
        for mut party in parties {
            let finished = &finished;
            scope.spawn(move || {
                party.run().unwrap();
                finished.fetch_add(1, Ordering::SeqCst);
                while finished.load(Ordering::SeqCst) < 2 {
                    match party.turn() {
                        Ok(Turn::Asleep) => {
                            let _ = readable(party.link.wait_fd().unwrap(), Duration::from_millis(1));
                        }
                        Ok(Turn::Active) => {}
                        // The other end polled for the last time before this one did.
                        Err(Error::PeerGone(..)) if finished.load(Ordering::SeqCst) == 2 => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
}

/// Takes turns between two ends and the network, in one thread, as `random` decides. Panics if
/// nothing can happen any more although an end has not finished.
pub fn alternate(parties: &mut [Party; 2], world: Option<&World>, random: &mut Random) -> u64 {
    let mut turns = 0u64;
    while !parties.iter().all(|party| party.finished) {
        turns += 1;
        assert!(turns < 2_000_000, "no end is in sight: {} / {}", parties[0].state(), parties[1].state());
        let choice = random.below(3) as usize;
        let moved = match (choice, world) {
            (2, Some(world)) => world.step(),
            (2, None) => true,
            (number, _) => parties[number].turn().unwrap() == Turn::Active,
        };
        let over = parties.iter().all(|party| party.finished);
        let stuck = |parties: &[Party; 2]| !over && parties.iter().all(Party::is_asleep);
        if !moved && stuck(parties) && !world.is_some_and(|world| world.step()) {
            // The last step may have rung a bell, and a device may be at work.
            let limit = if world.is_some() { Duration::ZERO } else { PATIENCE };
            let rung = readable_any(parties.each_ref().map(|party| party.link.wait_fd().unwrap()), limit);
            assert!(rung, "both ends sleep for ever: {} / {}", parties[0].state(), parties[1].state());
        }
    }
    turns
}
