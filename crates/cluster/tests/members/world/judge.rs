//! What must hold in a world: at every moment, at each unblocking, and in the end.

use super::*;

impl World {
    /// Runs until every server is a member again and every part has its copies, and fails if that takes longer than this.
    pub fn run_until_whole(&mut self, most: Duration) {
        let end = self.now + most.as_nanos() as u64;
        let is_whole = |world: &Self| {
            let configuration = &world.register.configuration;
            let wanted = world.nodes.len().min(usize::from(configuration.copies));
            let has_copies = |part: &Part| part.lost.is_some() || part.complete().count() == wanted;
            configuration.members.len() == world.nodes.len() && configuration.parts.iter().all(has_copies)
        };
        while !is_whole(self) || self.unserved().is_some() {
            assert!(
                self.step(end),
                "the copies are not whole again: {}",
                self.register.configuration.to_json()
            );
        }
    }

    /// Runs until all that can be served is, and fails if that takes longer than this.
    pub fn run_until_served(&mut self, most: Duration) {
        let end = self.now + most.as_nanos() as u64;
        while self.unserved().is_some() {
            if !self.step(end) {
                self.assert_served();
            }
        }
    }

    /// Returns a part that could be served and is not, with the reason.
    pub(super) fn unserved(&self) -> Option<String> {
        let configuration = &self.register.configuration;
        if let Some(lost) = self.lost {
            let is_member = configuration.members.iter().any(|member| member.name == self.nodes[lost].name);
            if is_member
                && configuration.member_by_name(&self.nodes[lost].name).is_some_and(|it| it.since == 1)
            {
                return Some(format!("{} is a member still", self.nodes[lost].name));
            }
        }
        let lost = |index: usize| self.lost == Some(index);
        for part in configuration.parts.iter().filter(|part| part.lost.is_none()) {
            let serves = |(index, node): &(usize, &Node)| {
                !lost(*index) && node.runs(self.now) && node.watch().serves(part.id, node.clock(self.now))
            };
            if !self.nodes.iter().enumerate().any(|it| serves(&it)) {
                return Some(format!("part {} is not served in epoch {}", part.id, configuration.epoch));
            }
        }
        None
    }

    pub fn assert_served(&self) {
        let reason = self.unserved();
        assert!(reason.is_none(), "at {} ms: {}", self.now / MS, reason.unwrap_or_default());
    }

    /// At an unblocking, nothing of the old epoch is left anywhere.
    pub(super) fn unblocked(&self, index: usize, epoch: u64) {
        let watch = self.nodes[index].watch();
        self.tell(index, || format!("has {epoch} unblocked"));
        if watch.configuration().manager != watch.me().id || watch.configuration().epoch != epoch {
            return;
        }
        for node in self.nodes.iter().filter(|node| node.is_alive && node.was.is_none()) {
            let theirs = node.watch();
            if watch.configuration().has(theirs.me()) {
                assert!(
                    theirs.configuration().epoch >= epoch
                        && node.closing.is_none_or(|(closing, _)| closing > epoch),
                    "epoch {epoch} is unblocked before {} has closed the one before",
                    node.name
                );
            } else if theirs.me().since <= epoch {
                let clock = node.clock(self.now);
                assert!(
                    clock >= theirs.lease_until(),
                    "epoch {epoch} is unblocked while {} has a lease for {:?}",
                    node.name,
                    theirs.lease_until().since(clock)
                );
            }
        }
    }

    /// What holds at every moment: one primary at most, which has every commit that was acknowledged. By itself, time ends
    /// leases and begins none; so it is enough to look when something has happened to this node.
    pub(super) fn check(&self, index: usize) {
        if self.nodes[index].was.is_some() {
            return;
        }
        let (me, now) = (&self.nodes[index], self.nodes[index].clock(self.now));
        let is_mine = |part: &PartId| me.watch().serves(*part, now);
        let mine: BTreeSet<PartId> = me.copies.keys().copied().filter(is_mine).collect();
        if mine.is_empty() {
            return;
        }
        let mut primaries = BTreeSet::new();
        for node in self.nodes.iter().filter(|node| node.is_alive && node.was.is_none()) {
            let watch = node.watch();
            let clock = node.clock(self.now);
            if clock >= watch.lease_until() {
                continue;
            }
            for part in watch
                .configuration()
                .parts
                .iter()
                .filter(|part| mine.contains(&part.id) && watch.serves(part.id, clock))
            {
                assert!(
                    primaries.insert(part.id),
                    "two primaries serve part {} at {} us",
                    part.id,
                    self.now / 1000
                );
                let acknowledged = self.acknowledged.get(&part.id).copied().unwrap_or(0);
                let commits = node.copies[&part.id].commits;
                assert!(
                    commits >= acknowledged,
                    "{} serves part {} with {commits} of {acknowledged} commits",
                    node.name,
                    part.id
                );
            }
        }
    }
}
