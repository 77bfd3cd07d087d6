//! Placement: the next configuration, as a function of this one and of what happened. It has no clock and no state.

mod balance;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::configuration::{
    Configuration, FillingCopy, FormerHolder, FormerMember, LostPart, Member, MemberId, MemberIdentity,
    MemberState, NewMember, PartId,
};

use crate::faults::{LeaseFault, is_planted};

/// What somebody asks the manager to change. A change that does not fit the configuration any more changes nothing, so it
/// may be proposed again until the configuration shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A server wants to be a member.
    Join(NewMember),
    /// A member shall leave: it hands its parts over, one by one, and is removed when it has none.
    Leave(MemberIdentity),
    /// The primary has made the memory of a new part.
    Made {
        /// The part.
        part: PartId,
        /// The epoch since which the primary is it.
        primary_since: u64,
    },
    /// The primary has filled a copy: it is complete, and gets every further record.
    Filled {
        /// The part.
        part: PartId,
        /// Who has the copy.
        member: MemberId,
        /// The epoch in which this filling began.
        since: u64,
    },
    /// The primary cannot go on with a backup's copy, which is to be filled anew. A primary that is new proposes this for
    /// each backup that it cannot bring to the end of its own stream, before it acknowledges its first commit.
    Refill {
        /// The part.
        part: PartId,
        /// Who has the copy.
        member: MemberId,
        /// The epoch since which the primary is it.
        primary_since: u64,
    },
}

/// What happened since a configuration was made.
#[derive(Clone, Debug, Default)]
pub struct Occasion<'a> {
    /// Whether the current epoch is known to be unblocked. While it is not, only expulsions change anything.
    pub is_unblocked: bool,
    /// Who is expelled, and whether its keeper has testified to its end.
    pub expelled: BTreeMap<MemberId, bool>,
    /// Who is the manager after an expulsion: whoever does all this.
    pub successor: Option<MemberId>,
    /// How long the stream of each copy is, as far as known: of the backups of a primary that is expelled, the one with the
    /// longest becomes primary.
    pub positions: BTreeMap<(PartId, MemberId), u64>,
    /// What is asked for.
    pub changes: &'a [Change],
}

/// Returns the next configuration, or none if there is nothing to do.
///
/// - A part whose primary is expelled gets one of its backups as primary; without any it is lost, and says who had it.
/// - A part with fewer copies than wanted gets new ones on the members with the fewest. Those of leaving members are copied
///   one by one, and so are those by which a new member gets its share; the old copy goes when the new one is complete.
/// - Only a complete copy becomes a backup or a primary, and a part never has more complete copies than wanted.
/// - Applied again and again, with every copy filled, it ends: each part has its copies, the numbers of copies of two
///   members differ by at most one, and so do those of primaries.
pub fn next_configuration(current: &Configuration, occasion: &Occasion<'_>) -> Option<Configuration> {
    let mut draft = Draft { next: current.clone() };
    draft.next.epoch += 1;
    if !occasion.expelled.is_empty() {
        draft.expel(occasion)?;
    } else if occasion.is_unblocked {
        for change in occasion.changes {
            draft.change(change);
        }
        draft.improve();
    }
    let mut next = draft.next;
    if (&next.members, &next.parts, next.manager) == (&current.members, &current.parts, current.manager) {
        return None;
    }
    if occasion.is_unblocked || is_planted(LeaseFault::FormerForgotten) {
        next.unblocked = current.epoch;
        next.former.clear();
    }
    let gone = current.members.iter().filter(|member| next.member(member.id).is_none());
    let former = gone.map(|member| FormerMember {
        identity: member.identity(),
        testified: occasion.expelled.get(&member.id).copied().unwrap_or(false),
        was_manager: member.id == current.manager,
    });
    let former: Vec<_> = former.collect();
    next.former.extend(former);
    Some(next)
}

/// The next configuration while it is made.
struct Draft {
    next: Configuration,
}

impl Draft {
    fn expel(&mut self, occasion: &Occasion<'_>) -> Option<()> {
        let before = self.next.members.clone();
        let is_expelled = |id: &MemberId| occasion.expelled.contains_key(id);
        let stays = |id: &MemberId| !is_expelled(id) && before.iter().any(|member| member.id == *id);
        let mut successors =
            occasion.successor.into_iter().chain([self.next.manager]).chain(self.next.successors());
        self.next.manager = successors.find(stays)?;
        self.next.members.retain(|member| !is_expelled(&member.id));
        for index in 0..self.next.parts.len() {
            let part = &mut self.next.parts[index];
            let complete: Vec<MemberId> = part.complete().collect();
            part.backups.retain(|backup| !is_expelled(backup));
            part.filling.retain(|copy| !is_expelled(&copy.member));
            if !part.primary.is_some_and(|primary| is_expelled(&primary)) {
                continue;
            }
            let (id, was_made) = (part.id, part.made);
            let position = |member| occasion.positions.get(&(id, member)).copied().unwrap_or(0);
            let heir = self.best_primary(index, position);
            // A memory that was never made can be made by anybody.
            let anybody = || self.least_loaded(&[]).unwrap_or(self.next.manager);
            let heir = heir.or_else(|| (!was_made).then(anybody));
            match heir {
                Some(heir) => self.set_primary(index, heir),
                None => {
                    let holder = |member: &Member| {
                        let is_holder = complete.contains(&member.id);
                        is_holder
                            .then(|| FormerHolder { name: member.name.clone(), identity: member.identity() })
                    };
                    let lost = LostPart {
                        since: self.next.epoch,
                        holders: before.iter().filter_map(holder).collect(),
                    };
                    let part = &mut self.next.parts[index];
                    part.filling.clear();
                    (part.primary, part.lost) = (None, Some(lost));
                }
            }
        }
        Some(())
    }

    /// Makes a change, if the configuration is right with it.
    fn change(&mut self, change: &Change) {
        let before = self.next.clone();
        let is_done = match change {
            Change::Join(new) => self.join(new),
            Change::Leave(identity) => self.leave(*identity),
            Change::Made { part, primary_since } => self.made(*part, *primary_since),
            Change::Filled { part, member, since } => self.filled(*part, *member, *since),
            Change::Refill { part, member, primary_since } => self.refill(*part, *member, *primary_since),
        };
        if is_done.is_none() || self.next.check().is_err() {
            self.next = before;
        }
    }

    fn join(&mut self, new: &NewMember) -> Option<()> {
        let is_used = |id: &MemberId| {
            self.next.member(*id).is_some() || self.next.former.iter().any(|former| former.identity.id == *id)
        };
        let id = (0..u16::MAX).map(MemberId).find(|id| !is_used(id))?;
        self.next.members.push(new.as_member(id, self.next.epoch));
        self.next.members.sort_by_key(|member| member.id);
        for (kept, identity) in &new.kept {
            let index = self.index(*kept)?;
            let lost = self.next.parts[index].lost.as_ref();
            let is_holder = |holder: &FormerHolder| holder.identity == *identity && holder.name == new.name;
            if lost.is_some_and(|lost| lost.holders.iter().any(is_holder)) {
                self.next.parts[index].lost = None;
                self.set_primary(index, id);
            }
        }
        Some(())
    }

    fn leave(&mut self, identity: MemberIdentity) -> Option<()> {
        let has_others = self.joined().any(|member| member != identity.id);
        let member = self.next.members.iter_mut().find(|member| member.identity() == identity)?;
        has_others.then(|| member.state = MemberState::Leaving)
    }

    fn made(&mut self, part: PartId, primary_since: u64) -> Option<()> {
        let index = self.index(part)?;
        let part = &mut self.next.parts[index];
        (part.primary_since == primary_since).then(|| part.made = true)
    }

    /// A copy is complete: it becomes a backup, and the copy that it replaces goes.
    fn filled(&mut self, part: PartId, member: MemberId, since: u64) -> Option<()> {
        let index = self.index(part)?;
        let part = &mut self.next.parts[index];
        let position = part.filling.iter().position(|copy| *copy == FillingCopy { member, since })?;
        part.filling.remove(position);
        part.backups.push(member);
        if part.complete().count() > usize::from(self.next.copies) {
            let part = &self.next.parts[index];
            let others = part.complete().filter(|holder| *holder != member);
            let surplus = others.max_by_key(|holder| {
                (self.is_leaving(*holder), self.load(*holder), part.primary != Some(*holder), *holder)
            })?;
            self.drop_copy(index, surplus);
        }
        Some(())
    }

    fn refill(&mut self, part: PartId, member: MemberId, primary_since: u64) -> Option<()> {
        let (index, epoch) = (self.index(part)?, self.next.epoch);
        let part = &mut self.next.parts[index];
        let position = part.backups.iter().position(|backup| *backup == member)?;
        (part.primary_since == primary_since).then(|| {
            part.backups.remove(position);
            part.filling.push(FillingCopy { member, since: epoch });
        })
    }

    fn index(&self, part: PartId) -> Option<usize> {
        self.next.parts.binary_search_by_key(&part, |part| part.id).ok()
    }

    /// Makes another member the primary, which goes on with the fillings from their beginning.
    fn set_primary(&mut self, index: usize, member: MemberId) {
        let epoch = self.next.epoch;
        let part = &mut self.next.parts[index];
        part.backups.retain(|backup| *backup != member);
        part.filling.iter_mut().for_each(|copy| copy.since = epoch);
        (part.primary, part.primary_since) = (Some(member), epoch);
    }

    /// Removes a complete copy. If it is the primary's, the best backup takes over.
    fn drop_copy(&mut self, index: usize, member: MemberId) {
        if self.next.parts[index].primary == Some(member) {
            let Some(heir) = self.best_primary(index, |_| 0) else { return };
            self.set_primary(index, heir);
        }
        self.next.parts[index].backups.retain(|backup| *backup != member);
    }

    /// Returns the backup that becomes primary: the one with the longest stream; of those, one that stays, with few parts.
    fn best_primary(&self, index: usize, position: impl Fn(MemberId) -> u64) -> Option<MemberId> {
        let backups = self.next.parts[index].backups.iter().copied();
        backups.max_by_key(|backup| {
            (position(*backup), !self.is_leaving(*backup), Reverse(self.primaries(*backup)), Reverse(*backup))
        })
    }
}
