//! Checks from outside, by the packet headers and the rings, that every packet has exactly one owner.
//!
//! A packet header names one owner at any instant, so the check is whether the
//! rings agree with it. The audit reads, in this order: each ring; each packet header; each ring
//! again. A number that was in a ring both times was there when its packet's header was read.
//!
//! | allowed, and how much of it | because |
//! |---|---|
//! | a number in a ring whose packet names the consumer's worker: the oldest, at most a batch | the packet has been taken, and its slot not released yet |
//! | a packet that names a link and is not in its ring: at most a batch | it has been given, and not published yet |
//! | the same with a parked packet: one at each end of a link | they are parked one by one |
//!
//! Everything else is a violation. While workers run ([`Engine::audit`]), a packet that names a link
//! may have passed through its ring between the two reads, so such packets are counted and not judged.
//! With every worker [stopped](Engine::audit_stopped), they are judged, and nothing may move.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::atomic::Ordering;

use caravan_ring::{Cursors, SharedWord, Slots};

use crate::engine::Engine;
use crate::error::Error;
use crate::handover::PacketHeaders;
use crate::layout::{self, LinkRing, SharedWords};
use crate::limits::{BATCH_PACKETS, LINKS_MAX, WORKERS_MAX};
use crate::owner::{LinkId, Owner, PacketHeader, WorkerId};

/// The result of an audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Audit {
    /// All packets.
    pub packets: u64,
    /// Packets of the pool.
    pub pool: u64,
    /// Packets of each worker, by its number.
    pub workers: BTreeMap<usize, u64>,
    /// Packets in each link, by its number, on the way to the consumer.
    pub full: BTreeMap<usize, u64>,
    /// Packets in each link, by its number, on the way back to the producer.
    pub empty: BTreeMap<usize, u64>,
    /// Parked packets in each link, by its number.
    pub parked: BTreeMap<usize, u64>,
    /// Packets that name a link and were not found in its ring.
    pub unpublished: u64,
    /// Numbers in rings whose packets were taken, and whose slots were not released.
    pub unreleased: u64,
    /// States that must not occur, each as a sentence.
    pub violations: Vec<String>,
}

impl Engine {
    /// Checks every packet and every ring without stopping anything. Everything that it reports is a real violation.
    pub fn audit(&self) -> Result<Audit, Error> {
        Ok(audit(&look(self.shared(), self.headers(), self.packets())?, false))
    }

    /// Does what [`audit`](Self::audit) does, and also checks what can be checked only when nothing moves. Every
    /// worker must be stopped (SIGSTOP) or have ended before the call.
    pub fn audit_stopped(&self) -> Result<Audit, Error> {
        Ok(audit(&look(self.shared(), self.headers(), self.packets())?, true))
    }
}

/// The positions of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Positions {
    head: u64,
    tail: u64,
}

/// A ring, read twice.
#[derive(Clone, Debug)]
struct Seen {
    link: LinkId,
    ring: LinkRing,
    /// The owner that its packets name, and the workers that may take them.
    owner: Owner,
    takers: [Option<WorkerId>; 2],
    capacity: u64,
    before: Positions,
    after: Positions,
    /// Numbers by position: from the first head up to the last tail.
    numbers: Vec<u32>,
}

/// Everything that was read.
#[derive(Clone, Debug)]
struct Sight {
    rings: Vec<Seen>,
    headers: Vec<PacketHeader>,
    workers: Vec<bool>,
    links: Vec<bool>,
}

fn look(shared: &SharedWords, headers: &impl PacketHeaders, packets: u32) -> Result<Sight, Error> {
    let worker = |place| WorkerId::new(place).map(|id| shared.worker(id, layout::worker::STATE));
    let link = |place| LinkId::new(place).map(|id| shared.link(id, layout::link::STATE));
    let there = |word: Option<&std::sync::atomic::AtomicU64>| {
        word.is_some_and(|word| word.load(Ordering::Acquire) != 0)
    };
    let workers = (0..WORKERS_MAX).map(|place| there(worker(place))).collect();
    let links: Vec<bool> = (0..LINKS_MAX).map(|place| there(link(place))).collect();
    let mut rings = Vec::new();
    for id in (0..LINKS_MAX).filter(|place| links[*place]).filter_map(LinkId::new) {
        let end = |offset| {
            let place = shared.link(id, offset).load(Ordering::Acquire) as usize;
            place.checked_sub(1).and_then(WorkerId::new)
        };
        let (producer, consumer) = (end(layout::link::PRODUCER), end(layout::link::CONSUMER));
        for ring in LinkRing::ALL {
            let (owner, takers) = match ring {
                LinkRing::Full => (Owner::Full(id), [consumer, None]),
                LinkRing::Empty => (Owner::Empty(id), [producer, None]),
                LinkRing::Head | LinkRing::Tail => (Owner::Parked(id), [producer, consumer]),
            };
            let (cursors, slots) = shared.ring(id, ring)?;
            let before = positions(&cursors);
            let numbers = numbers(&slots, before.head..before.tail, before);
            rings.push(Seen {
                link: id,
                ring,
                owner,
                takers,
                capacity: slots.capacity(),
                before,
                after: before,
                numbers,
            });
        }
    }
    let headers = (0..packets).map(|index| headers.load(index)).collect();
    for seen in &mut rings {
        let (cursors, slots) = shared.ring(seen.link, seen.ring)?;
        seen.after = positions(&cursors);
        let more = numbers(&slots, seen.before.tail..seen.after.tail, seen.before);
        seen.numbers.extend(more);
    }
    Ok(Sight { rings, headers, workers, links })
}

/// Reads the head first: the tail is never behind it.
fn positions(cursors: &impl Cursors) -> Positions {
    // pair with the Release in ConsumerCursor::release and in ProducerCursor::publish
    let head = cursors.head_position().load(Ordering::Acquire);
    Positions { head, tail: cursors.tail_position().load(Ordering::Acquire) }
}

/// Returns the numbers at these positions, except those whose slots belong to positions read before.
fn numbers(slots: &impl Slots, at: Range<u64>, before: Positions) -> Vec<u32> {
    let capacity = slots.capacity();
    let end = at.end.min(before.head.saturating_add(capacity));
    (at.start..end).map(|position| slots.take((position & (capacity - 1)) as usize)).collect()
}

/// Finds the violations, without side effects.
fn audit(sight: &Sight, stopped: bool) -> Audit {
    let mut audit = Audit { packets: sight.headers.len() as u64, ..Audit::default() };
    // The owner in whose ring each number was seen while the packet may have been on its way.
    let mut passed: Vec<Option<Owner>> = vec![None; sight.headers.len()];
    let mut places = HashSet::new();
    for seen in &sight.rings {
        judge_ring(&mut audit, sight, seen, stopped, &mut places);
        for &number in &seen.numbers {
            if let Some(place) = passed.get_mut(number as usize) {
                *place = Some(seen.owner);
            }
        }
    }
    let mut unpublished: BTreeMap<u16, u64> = BTreeMap::new();
    for (index, header) in sight.headers.iter().enumerate() {
        let code = header.owner_code();
        let nobody = || format!("packet {index} names {code:#06x}, which is nobody");
        let Some(owner) = header.owner() else {
            audit.violations.push(nobody());
            continue;
        };
        let (counts, place) = match owner {
            Owner::Pool => {
                audit.pool += 1;
                continue;
            }
            Owner::Worker(worker) => (&mut audit.workers, worker.place()),
            Owner::Full(link) => (&mut audit.full, link.place()),
            Owner::Empty(link) => (&mut audit.empty, link.place()),
            Owner::Parked(link) => (&mut audit.parked, link.place()),
        };
        *counts.entry(place).or_default() += 1;
        if matches!(owner, Owner::Worker(_)) {
            if !sight.workers[place] {
                audit.violations.push(nobody());
            }
        } else if !sight.links[place] {
            audit.violations.push(nobody());
        } else if passed[index] != Some(owner) {
            audit.unpublished += 1;
            *unpublished.entry(code).or_default() += 1;
        }
    }
    if stopped {
        audit.violations.extend(unpublished.into_iter().filter_map(leaked));
    }
    audit
}

/// Returns a violation if more packets name an owner than can be on their way into a ring.
fn leaked((code, count): (u16, u64)) -> Option<String> {
    let owner = Owner::of_code(code)?;
    let most = if matches!(owner, Owner::Parked(_)) { 2 } else { BATCH_PACKETS };
    (count > most as u64).then(|| format!("{count} packets name {owner:?} and are not in its rings"))
}

fn judge_ring(audit: &mut Audit, sight: &Sight, seen: &Seen, stopped: bool, places: &mut HashSet<u32>) {
    let (before, after) = (seen.before, seen.after);
    let ring = format!("link {}, {:?}", seen.link.place(), seen.ring);
    let moved = before != after;
    if stopped && moved {
        audit.violations.push(format!("{ring}: moved"));
    }
    // A tail that is read after the head may be farther from it than the length of the ring.
    let length = after.tail.checked_sub(after.head);
    let possible = before.head <= after.head && before.tail <= after.tail && length.is_some();
    if !possible || (!moved && length.is_some_and(|length| length > seen.capacity)) {
        return audit.violations.push(format!("{ring}: head {}, tail {}", after.head, after.tail));
    }
    // In the ring both times, and so in between: older numbers have gone, younger ones have come.
    let there = (before.tail.saturating_sub(before.head) as usize).min(seen.numbers.len());
    let gone = ((after.head - before.head) as usize).min(there);
    let mut may_be_taken = true;
    for (place, &packet) in seen.numbers[gone..there].iter().enumerate() {
        let Some(header) = sight.headers.get(packet as usize) else {
            audit.violations.push(format!("{ring}: there is no packet {packet}"));
            continue;
        };
        if !places.insert(packet) {
            audit.violations.push(format!("packet {packet} is in {ring}, and in another place, too"));
        }
        let owner = header.owner();
        if owner == Some(seen.owner) {
            may_be_taken = false;
            continue;
        }
        let taker = seen.takers.iter().flatten().any(|taker| owner == Some(Owner::Worker(*taker)));
        // While packets are being taken, a header may be read before the one in front of it is written.
        if taker && place < BATCH_PACKETS && (may_be_taken || !stopped) {
            audit.unreleased += 1;
            continue;
        }
        audit
            .violations
            .push(format!("packet {packet} in {ring}, at {place} from the head, names {owner:?}"));
    }
}

impl std::fmt::Display for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = |counts: &BTreeMap<usize, u64>| counts.values().sum::<u64>();
        write!(
            f,
            "{} packets: {} in the pool, {} with workers, {} in links ({} unpublished, {} unreleased), {} empty, {} parked",
            self.packets,
            self.pool,
            sum(&self.workers),
            sum(&self.full),
            self.unpublished,
            self.unreleased,
            sum(&self.empty),
            sum(&self.parked),
        )?;
        self.violations.iter().try_for_each(|violation| write!(f, "\n{violation}"))
    }
}

#[cfg(test)]
mod tests;
