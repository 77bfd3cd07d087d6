//! The peer's operations on this side's memory. No clock, no socket.
//!
//! Every operation is checked against what this side exposes and lends at the moment of each of its pieces. One that
//! names a region which was revoked is answered so, and nothing that the peer asks after it is done. One that names
//! anything else ends the connection: a peer that keeps to the contract never asks for it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use caravan_segment::SharedSlice;

use super::fault::TcpFault;
use super::frame::{TcpFrame, bytes_head, fitting};
use super::limits::ANSWERS_MAX;
use crate::contract::{Error, Exposure};
use crate::region::{self, Region, RegionAccess, RegionNumber, RegionTable, RegionToken};

/// This side's memory, and the answers that it owes the peer.
#[derive(Debug)]
pub struct TcpTarget {
    arena: SharedSlice,
    exposure: Exposure,
    lent: RegionTable<(Region, RegionAccess)>,
    /// The number of regions lent so far.
    lent_count: usize,
    answers: VecDeque<OwedAnswer>,
    /// The peer was told that its region is revoked: its endpoint has ended.
    stopped: bool,
}

/// An answer, in the order of the operations.
#[derive(Clone, Copy, Debug)]
enum OwedAnswer {
    Written(u32),
    Bytes { place: u64, bytes: u32 },
    Found(u64),
    Revoked(u64),
}

/// Why an operation is not done.
enum Unreached {
    Revoked,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetUse {
    Read,
    Write,
    Swap,
}

impl TcpTarget {
    /// Returns the target of operations on an arena.
    pub fn new(arena: SharedSlice, exposure: &Exposure) -> Self {
        Self {
            arena,
            exposure: exposure.clone(),
            lent: RegionTable::default(),
            lent_count: 0,
            answers: VecDeque::new(),
            stopped: false,
        }
    }

    /// Returns the arena.
    pub fn arena(&self) -> &SharedSlice {
        &self.arena
    }

    /// Lends a region.
    pub fn lend(&mut self, region: &Region, access: RegionAccess) -> Result<RegionToken, Error> {
        let number = self.lent.next()?;
        self.lent.insert(number, (region.clone(), access));
        self.lent_count += 1;
        Ok(RegionToken { number, access, bytes: region.bytes(), address: 0, key: 0 })
    }

    /// Takes a region back.
    pub fn revoke(&mut self, number: RegionNumber) -> Result<(), Error> {
        self.lent.revoke(number).map(drop)
    }

    fn reach(&self, place: u64, bytes: u64, wanted: TargetUse) -> Result<(&SharedSlice, usize), Unreached> {
        if !region::is_far(place) {
            let exposed = &self.exposure.exposed;
            let allowed = match wanted {
                TargetUse::Write => true,
                TargetUse::Read => self.exposure.peer_reads,
                TargetUse::Swap => self.exposure.peer_swaps,
            };
            let end = place.checked_add(bytes).ok_or(Unreached::Never)?;
            return match allowed && place >= exposed.start && end <= exposed.end {
                true => Ok((&self.arena, place as usize)),
                false => Err(Unreached::Never),
            };
        }
        let (number, offset) = region::split(place).ok_or(Unreached::Never)?;
        let Some((region, access)) = self.lent.row(number) else {
            return Err(if number.index() < self.lent_count { Unreached::Revoked } else { Unreached::Never });
        };
        let allowed = wanted == TargetUse::Read || *access == RegionAccess::Write;
        match allowed && offset.checked_add(bytes).is_some_and(|end| end <= region.bytes()) {
            true => Ok((region.memory(), offset as usize)),
            false => Err(Unreached::Never),
        }
    }

    /// Does a piece of a write. True if it was the last one and the bytes are there.
    pub fn write(&mut self, place: u64, bytes: &[u8], ends: bool) -> Result<bool, TcpFault> {
        if self.stopped {
            return Ok(false);
        }
        if !bytes.is_empty() {
            match self.reach(place, bytes.len() as u64, TargetUse::Write) {
                Ok((memory, at)) => memory.copy_in(at, bytes),
                Err(why) => return self.refuse(place, why).map(|()| false),
            }
        }
        if ends {
            match self.answers.back_mut() {
                Some(OwedAnswer::Written(count)) => *count += 1,
                _ => self.owe(OwedAnswer::Written(1))?,
            }
        }
        Ok(ends)
    }

    /// Takes a read, which is done when its answer is sent.
    pub fn read(&mut self, place: u64, bytes: u32) -> Result<(), TcpFault> {
        if self.stopped {
            return Ok(());
        }
        match self.reach(place, bytes.into(), TargetUse::Read) {
            Err(why) if bytes > 0 => self.refuse(place, why),
            _ => self.owe(OwedAnswer::Bytes { place, bytes }),
        }
    }

    /// Does a compare-and-swap, with this processor's own instruction.
    pub fn swap(&mut self, place: u64, expected: u64, desired: u64) -> Result<(), TcpFault> {
        if self.stopped {
            return Ok(());
        }
        if place % 8 != 0 {
            return self.refuse(place, Unreached::Never);
        }
        let found = match self.reach(place, 8, TargetUse::Swap) {
            Ok((memory, at)) => {
                let word = memory.word(at);
                word.compare_exchange(expected, desired, Ordering::AcqRel, Ordering::Acquire)
                    .unwrap_or_else(|other| other)
            }
            Err(why) => return self.refuse(place, why),
        };
        self.owe(OwedAnswer::Found(found))
    }

    fn refuse(&mut self, place: u64, why: Unreached) -> Result<(), TcpFault> {
        match why {
            Unreached::Revoked => {
                self.stopped = true;
                self.owe(OwedAnswer::Revoked(place))
            }
            Unreached::Never => {
                Err(TcpFault::Protocol("it tried to reach memory that is not exposed to it, and was stopped"))
            }
        }
    }

    fn owe(&mut self, answer: OwedAnswer) -> Result<(), TcpFault> {
        if self.answers.len() >= ANSWERS_MAX {
            return Err(TcpFault::Protocol("it has more operations under way than it may"));
        }
        self.answers.push_back(answer);
        Ok(())
    }

    /// Appends what fits of the owed answers to a body of at most `limit` bytes.
    pub fn fill(&mut self, body: &mut Vec<u8>, limit: usize) {
        while let Some(&answer) = self.answers.front() {
            let (place, left) = match answer {
                OwedAnswer::Bytes { place, bytes } => (place, bytes),
                _ => (0, 0),
            };
            let Some(length) = fitting(body, limit, left) else { return };
            match answer {
                OwedAnswer::Written(count) => TcpFrame::Written(count).append_to(body),
                OwedAnswer::Found(word) => TcpFrame::Found(word).append_to(body),
                OwedAnswer::Revoked(place) => TcpFrame::Revoked(place).append_to(body),
                OwedAnswer::Bytes { .. } => {
                    if length > 0 {
                        // The region may have been revoked since the read came.
                        let Ok((memory, at)) = self.reach(place, length.into(), TargetUse::Read) else {
                            self.stopped = true;
                            self.answers.clear();
                            self.answers.push_back(OwedAnswer::Revoked(place));
                            continue;
                        };
                        bytes_head(body, length, length == left);
                        let end = body.len();
                        body.resize(end + length as usize, 0);
                        memory.copy_words_out(at, &mut body[end..]);
                    } else {
                        bytes_head(body, 0, true);
                    }
                    if length < left {
                        let rest =
                            OwedAnswer::Bytes { place: place + u64::from(length), bytes: left - length };
                        self.answers[0] = rest;
                        return;
                    }
                }
            }
            self.answers.pop_front();
        }
    }
}
