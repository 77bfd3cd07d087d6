//! The primary's side of a part: the copies that it feeds, and when it serves.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use caravan_cluster::{Change, Member, MemberId, MemberIdentity};
use caravan_fabric::contract::Provider;
use caravan_store::{CopyId, Store, StoreError};

use super::{PartOrder, PartState, PartThread};
use crate::error::ServeError;
use crate::limits::FEED_PAUSE;
use crate::member::feed::{self, CopyCall, CopyTarget, FeedBell};
use crate::member::status::FeedReport;
use crate::member::{MemberEvent, address, spawn};

/// The memory of which this member is the primary.
pub(super) struct PrimaryPart {
    pub(super) store: Arc<Store>,
    pub(super) image: OwnedFd,
    pub(super) since: u64,
    pub(super) is_served: bool,
    pub(super) copies: BTreeMap<MemberId, FedCopy>,
    /// A thread fills copies.
    pub(super) is_filling: bool,
    /// Where the stream was when the copies were last told.
    pub(super) told: u64,
    /// What was last reported of the copies is so still, if nothing is written.
    pub(super) is_reported: bool,
    /// The memory was a copy before.
    pub(super) is_promoted: bool,
}

/// A copy that this primary feeds.
pub(super) struct FedCopy {
    pub(super) member: Member,
    /// The epoch in which its filling began; none if it is complete.
    pub(super) filling_since: Option<u64>,
    pub(super) id: Option<CopyId>,
    /// It is complete, and cannot go on with this primary's stream: it is to be filled anew.
    pub(super) is_stale: bool,
    pub(super) way: FeedWay,
}

pub(super) enum FeedWay {
    /// Nobody tries to reach it before this moment.
    Idle(Instant),
    Dialing,
    Open(FeedBell, Provider),
}

impl PartThread {
    /// Serves the part once every complete copy gets what is written.
    pub(super) fn serve_if_fed(&mut self) -> Result<(), ServeError> {
        let PartState::Primary(primary) = &mut self.state else { return Ok(()) };
        let mut is_fed = true;
        let had_copies = primary.store.had_copies();
        for (id, copy) in &primary.copies {
            if copy.filling_since.is_some() {
                // A server before that had the same memory may have said that it was complete.
                is_fed &= copy.id.is_some() || copy.is_stale || !had_copies || primary.is_promoted;
                continue;
            }
            is_fed &= copy.id.is_some();
            if copy.id.is_none() && (copy.is_stale || !had_copies) {
                let primary_since = primary.since;
                let change = Change::Refill { part: self.part, member: *id, primary_since };
                self.shared.inbox.push(MemberEvent::Propose(change));
            }
        }
        if is_fed && !primary.is_served {
            primary.is_served = true;
            primary.store.end_resuming();
            self.shared.served.add(self.part, Arc::clone(&primary.store)).map_err(ServeError::Store)?;
            let change = Change::Made { part: self.part, primary_since: primary.since };
            self.shared.inbox.push(MemberEvent::Propose(change));
        }
        Ok(())
    }

    pub(super) fn take_target(&mut self, member: MemberIdentity, target: Result<CopyTarget, String>) {
        let PartState::Primary(primary) = &mut self.state else { return };
        let Some(copy) = primary.copies.get_mut(&member.id) else { return };
        if copy.member.identity() != member || !matches!(copy.way, FeedWay::Dialing) {
            return;
        }
        copy.way = FeedWay::Idle(Instant::now() + FEED_PAUSE);
        primary.is_reported = false;
        let Ok(CopyTarget { writer, bell, carrier }) = target else { return };
        let added = match (copy.id, copy.filling_since) {
            (Some(id), _) => primary.store.mend_copy(id, writer),
            (None, Some(_)) if copy.is_stale || !primary.store.had_copies() || primary.is_promoted => {
                primary.store.add_copy(writer).map(|id| copy.id = Some(id))
            }
            (None, _) => primary.store.resume_copy(writer).map(|id| copy.id = Some(id)),
        };
        match added {
            Ok(()) => copy.way = FeedWay::Open(bell, carrier),
            Err(StoreError::OtherStream) => (copy.is_stale, copy.way) = (true, FeedWay::Idle(Instant::now())),
            Err(error) => (self.shared.tell)(&format!(
                "part {}: the copy of {} cannot be fed: {error}",
                self.part, copy.member.name
            )),
        }
    }

    /// Tries to reach the copies that are out of reach.
    pub(super) fn feed(&mut self) {
        let PartState::Primary(primary) = &mut self.state else { return };
        for copy in primary.copies.values_mut() {
            if let FeedWay::Open(bell, _) = &copy.way {
                if !bell.hear() {
                    copy.way = FeedWay::Idle(Instant::now());
                    primary.is_reported = false;
                    self.shared.inbox.push(MemberEvent::Suspect(copy.member.identity()));
                }
            }
            let FeedWay::Idle(until) = copy.way else { continue };
            let is_complete = copy.id.is_none() && copy.filling_since.is_none();
            // One that cannot go on is to be filled again, which the configuration will say.
            let waits = is_complete && (copy.is_stale || !primary.store.had_copies());
            if until > Instant::now() || waits {
                continue;
            }
            let call = CopyCall {
                instance: self.shared.instance,
                part: self.part,
                primary: self.shared.me,
                primary_since: primary.since,
                filling_since: copy.filling_since,
            };
            let member = copy.member.identity();
            let addresses = address::reachable(&copy.member.member_address, &self.shared.host);
            let (shared, inbox) = (Arc::clone(&self.shared), Arc::clone(&self.inbox));
            let dial = move || {
                let target = feed::dial(&addresses, shared.password.as_deref(), &call);
                inbox.push(PartOrder::Dialed(member, target));
            };
            copy.way = match spawn("part-dial", dial) {
                Ok(()) => FeedWay::Dialing,
                Err(_) => FeedWay::Idle(Instant::now() + FEED_PAUSE),
            };
        }
        let is_unfilled =
            |copy: &FedCopy| copy.filling_since.is_some() && matches!(copy.way, FeedWay::Open(..));
        let has_unfilled = primary.store.is_filling() && primary.copies.values().any(is_unfilled);
        if has_unfilled && !primary.is_filling {
            let (store, inbox) = (Arc::clone(&primary.store), Arc::clone(&self.inbox));
            let pause = self.shared.fill_pause;
            let fill = move || {
                let filled = store.fill_copies(pause).map_err(|error| error.to_string());
                inbox.push(PartOrder::Filled(filled));
            };
            primary.is_filling = spawn("part-fill", fill).is_ok();
        }
    }

    /// Tells the copies what there is to apply, and the manager which of them are complete.
    pub(super) fn tick(&mut self) {
        let _ = self.serve_if_fed();
        let PartState::Primary(primary) = &mut self.state else { return };
        let position = primary.store.stream_position();
        let is_unfilled =
            primary.copies.values().any(|copy| copy.filling_since.is_some() && copy.id.is_some());
        if position == primary.told && !is_unfilled && primary.is_reported {
            return;
        }
        primary.told = position;
        let counts: HashMap<_, _> =
            primary.store.copies().into_iter().map(|counts| (counts.id, counts)).collect();
        for (id, copy) in &mut primary.copies {
            let Some(counts) = copy.id.and_then(|id| counts.get(&id)) else { continue };
            if let FeedWay::Open(bell, _) = &copy.way {
                bell.ring();
                if counts.broken.is_some() {
                    copy.way = FeedWay::Idle(Instant::now());
                }
            }
            if let Some(since) = copy.filling_since.filter(|_| counts.is_complete) {
                let change = Change::Filled { part: self.part, member: *id, since };
                self.shared.inbox.push(MemberEvent::Propose(change));
            }
        }
        let filled_percent = primary.store.filled_percent();
        let report = |copy: &FedCopy| {
            let counts = copy.id.and_then(|id| counts.get(&id));
            FeedReport {
                member: copy.member.name.clone(),
                carrier: if let FeedWay::Open(_, carrier) = &copy.way {
                    Some(carrier.name().to_owned())
                } else {
                    None
                },
                behind_bytes: counts.map(|counts| counts.behind_bytes),
                filled_percent: filled_percent.filter(|_| copy.filling_since.is_some()),
                broken: counts.and_then(|counts| counts.broken.clone()),
            }
        };
        let reports: Vec<FeedReport> = primary.copies.values().map(report).collect();
        primary.is_reported = reports.iter().all(|report| report.behind_bytes == Some(0));
        self.shared.reports().insert(self.part, reports);
    }
}

/// Makes the copies that a primary feeds those of the configuration.
pub(super) fn keep_copies(primary: &mut PrimaryPart, wanted: &[(Member, Option<u64>)]) {
    let is_wanted = |copy: &FedCopy| {
        wanted.iter().any(|(member, filling_since)| {
            member.identity() == copy.member.identity()
                // One that was filled is complete now; another filling of it is another copy.
                && (*filling_since == copy.filling_since || filling_since.is_none())
        })
    };
    let gone: Vec<MemberId> =
        primary.copies.iter().filter(|(_, copy)| !is_wanted(copy)).map(|(id, _)| *id).collect();
    primary.is_reported = false;
    for id in gone {
        let copy = primary.copies.remove(&id).and_then(|copy| copy.id);
        copy.into_iter().for_each(|id| _ = primary.store.remove_copy(id));
    }
    for (member, filling_since) in wanted {
        let way = FeedWay::Idle(Instant::now());
        let filling_since = *filling_since;
        let new = FedCopy { member: member.clone(), filling_since, id: None, is_stale: false, way };
        primary.copies.entry(member.id).or_insert(new).filling_since = filling_since;
    }
}
