//! What the manager does of its own accord: copies that are missing, members that leave, and even shares.
//!
//! Each call makes one step. Steps end: the second rule lessens the sum of the squares of the members' numbers of copies,
//! the third one that of primaries and leaves the former as it is. When the numbers of copies are even, the third rule
//! always finds what to do: else the members from which no path leads to the poorest one would have more copies in all
//! than their even share.

use std::collections::{BTreeMap, VecDeque};

use super::Draft;
use crate::configuration::{FillingCopy, MemberId, MemberState};

impl Draft {
    /// Makes the next step.
    pub(super) fn improve(&mut self) {
        let leaving: Vec<MemberId> =
            self.next.members.iter().map(|it| it.id).filter(|id| self.is_leaving(*id)).collect();
        for part in &mut self.next.parts {
            part.filling.retain(|copy| !leaving.contains(&copy.member));
        }
        self.replace_what_is_missing();
        self.let_members_leave();
        let is_quiet = self.next.parts.iter().all(|part| part.filling.is_empty());
        if is_quiet && self.next.members.iter().all(|member| member.state == MemberState::Joined) {
            self.even_copies();
            self.even_primaries();
        }
    }

    /// Begins new copies of all parts that have too few.
    fn replace_what_is_missing(&mut self) {
        for index in 0..self.next.parts.len() {
            while self.next.parts[index].primary.is_some()
                && self.next.parts[index].made
                && self.next.parts[index].holders().count() < usize::from(self.next.copies)
            {
                let holders: Vec<MemberId> = self.next.parts[index].holders().collect();
                let Some(member) = self.least_loaded(&holders) else { break };
                self.begin(index, member);
            }
        }
    }

    /// Takes the copies of leaving members away where there are enough others, begins one where there are not, and removes
    /// a member that has none left.
    fn let_members_leave(&mut self) {
        let joined = self.joined().count();
        if joined == 0 {
            return;
        }
        if self.is_leaving(self.next.manager) {
            self.next.manager = self.next.successors()[0];
            return;
        }
        let wanted = joined.min(usize::from(self.next.copies));
        for index in 0..self.next.parts.len() {
            let part = &self.next.parts[index];
            let leaving: Vec<MemberId> = part.complete().filter(|holder| self.is_leaving(*holder)).collect();
            let staying = part.complete().filter(|holder| !self.is_leaving(*holder)).count();
            if !part.made && !leaving.is_empty() {
                // Nothing is in it yet.
                let Some(heir) = self.least_loaded(&[]) else { continue };
                self.next.parts[index].filling.clear();
                self.set_primary(index, heir);
            } else if staying >= wanted {
                leaving.iter().for_each(|holder| self.drop_copy(index, *holder));
            } else if !leaving.is_empty() && self.next.parts.iter().all(|part| part.filling.is_empty()) {
                let holders: Vec<MemberId> = part.holders().collect();
                if let Some(member) = self.least_loaded(&holders) {
                    self.begin(index, member);
                }
            }
        }
        // One after the other, so that at least half of the members of each epoch are members of the next one.
        let is_empty =
            |id: MemberId| self.next.parts.iter().all(|part| part.holders().all(|holder| holder != id));
        let gone = self.next.members.iter().find(|it| it.state == MemberState::Leaving && is_empty(it.id));
        if let Some(gone) = gone.map(|member| member.id) {
            self.next.members.retain(|member| member.id != gone);
        }
    }

    /// Begins a copy at the member with the fewest, of a part that the member with the most has.
    fn even_copies(&mut self) {
        let loads = self.counted(|part| part.holders().collect());
        let (Some((poor, least)), Some((rich, most))) = (
            loads.iter().min_by_key(|(id, load)| (**load, **id)),
            loads.iter().max_by_key(|(id, load)| (**load, **id)),
        ) else {
            return;
        };
        if *most < *least + 2 {
            return;
        }
        let fits = |index: &usize| {
            let part = &self.next.parts[*index];
            part.made && part.holders().any(|it| it == *rich) && part.holders().all(|it| it != *poor)
        };
        // A part of which the rich member is a backup keeps its primary.
        let parts = (0..self.next.parts.len()).filter(fits);
        if let Some(index) = parts.min_by_key(|index| self.next.parts[*index].primary == Some(*rich)) {
            self.begin(index, *poor);
        }
    }

    /// Makes backups primaries until no member has two more parts than another one. A part that comes back to its primary on
    /// the way stays as it is: its primary goes on, and nobody else ever was it.
    fn even_primaries(&mut self) {
        let before: Vec<Option<MemberId>> = self.next.parts.iter().map(|part| part.primary).collect();
        while let Some(path) = self.path_to_a_poorer_member() {
            for (index, heir) in path {
                let part = &mut self.next.parts[index];
                part.backups.retain(|backup| *backup != heir);
                part.backups.extend(part.primary.replace(heir));
            }
        }
        for (index, before) in before.into_iter().enumerate() {
            match self.next.parts[index].primary {
                Some(heir) if before != Some(heir) => self.set_primary(index, heir),
                _ => {}
            }
        }
    }

    /// Returns parts, and who becomes the primary of each, such that a member has one part less, one that had at least two
    /// less has one more, and those between have as many as before.
    fn path_to_a_poorer_member(&self) -> Option<Vec<(usize, MemberId)>> {
        let counts = self.counted(|part| part.primary.into_iter().collect());
        let mut rich: Vec<_> = counts.iter().map(|(id, count)| (*count, *id)).collect();
        rich.sort_by(|a, b| b.cmp(a));
        let least = rich.last()?.0;
        rich.into_iter().take_while(|(count, _)| *count >= least + 2).find_map(|(count, from)| {
            let mut ways: BTreeMap<MemberId, (usize, MemberId)> = BTreeMap::new();
            let mut queue = VecDeque::from([from]);
            while let Some(at) = queue.pop_front() {
                if counts[&at] + 2 <= count {
                    let mut path = Vec::new();
                    let mut at = at;
                    while at != from {
                        let (index, before) = ways[&at];
                        path.push((index, at));
                        at = before;
                    }
                    return Some(path);
                }
                let owned = self.next.parts.iter().enumerate().filter(|(_, part)| part.primary == Some(at));
                for (index, heir) in
                    owned.flat_map(|(index, part)| part.backups.iter().map(move |it| (index, *it)))
                {
                    if heir != from && counts.contains_key(&heir) && !ways.contains_key(&heir) {
                        ways.insert(heir, (index, at));
                        queue.push_back(heir);
                    }
                }
            }
            None
        })
    }

    fn begin(&mut self, index: usize, member: MemberId) {
        let since = self.next.epoch;
        self.next.parts[index].filling.push(FillingCopy { member, since });
    }

    /// Counts, for each member that stays, how often it is named.
    fn counted(
        &self,
        named: impl Fn(&crate::configuration::Part) -> Vec<MemberId>,
    ) -> BTreeMap<MemberId, usize> {
        let mut counts: BTreeMap<MemberId, usize> = self.joined().map(|id| (id, 0)).collect();
        for id in self.next.parts.iter().flat_map(named) {
            if let Some(count) = counts.get_mut(&id) {
                *count += 1;
            }
        }
        counts
    }

    /// Returns the members that stay.
    pub(super) fn joined(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.next.members.iter().filter(|it| it.state == MemberState::Joined).map(|it| it.id)
    }

    pub(super) fn is_leaving(&self, id: MemberId) -> bool {
        self.next.member(id).is_some_and(|member| member.state == MemberState::Leaving)
    }

    /// Returns how many copies a member has, complete or not.
    pub(super) fn load(&self, id: MemberId) -> usize {
        self.next.parts.iter().filter(|part| part.holders().any(|holder| holder == id)).count()
    }

    /// Returns how many parts a member is the primary of.
    pub(super) fn primaries(&self, id: MemberId) -> usize {
        self.next.parts.iter().filter(|part| part.primary == Some(id)).count()
    }

    /// Returns the member with the fewest copies of those that stay and are not among `without`.
    pub(super) fn least_loaded(&self, without: &[MemberId]) -> Option<MemberId> {
        let loads = self.counted(|part| part.holders().collect());
        let primaries = self.counted(|part| part.primary.into_iter().collect());
        let others = self.joined().filter(|id| !without.contains(id));
        others.min_by_key(|id| (loads[id], primaries[id], *id))
    }
}
