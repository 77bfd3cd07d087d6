//! What the servers of a world do beside their watches: they commit, fill copies, and come back.

use super::*;

impl World {
    /// The work of a server: commits, fillings, and to become a member.
    pub(super) fn work(&mut self, index: usize) {
        let node = &self.nodes[index];
        if let Some(was) = node.was {
            return self.come_back(index, was);
        }
        if self.now < node.work_at {
            return;
        }
        let watch = node.watch();
        let clock = node.clock(self.now);
        let (configuration, me) = (watch.configuration().clone(), watch.me().id);
        let is_time_to_fill = self.now >= node.fill_at;
        for part in configuration.parts.iter().filter(|part| part.primary == Some(me)) {
            if !self.nodes[index].watch().serves(part.id, clock) {
                continue;
            }
            let commits = self.nodes[index].copies[&part.id].commits;
            if is_time_to_fill {
                for copy in &part.filling {
                    if let Some(to) = self.listener(&configuration, index, part.id, copy.member) {
                        // The whole memory has arrived, and all records from now on do.
                        self.nodes[to].copies.insert(part.id, Copy { commits, joined: Some(copy.since) });
                        let change = Change::Filled { part: part.id, member: copy.member, since: copy.since };
                        self.nodes[index].watch.as_mut().expect("alive").propose(change, clock);
                    }
                }
            }
            // A commit arrives at all copies, or not at all.
            let filling = part.filling.iter().filter(|copy| {
                let to = self.listener(&configuration, index, part.id, copy.member);
                to.is_some_and(|to| self.nodes[to].copies[&part.id].joined == Some(copy.since))
            });
            let targets: Vec<_> =
                part.backups.iter().copied().chain(filling.map(|copy| copy.member)).collect();
            let targets: Option<Vec<usize>> =
                targets.iter().map(|id| self.listener(&configuration, index, part.id, *id)).collect();
            // A copy that is whole stays so only if it gets every record.
            let joined_elsewhere = part.filling.iter().any(|copy| {
                let is_joined = |node: &Node| {
                    node.watch.as_ref().is_some_and(|it| it.me().id == copy.member)
                        && node.copies.get(&part.id).is_some_and(|it| it.joined == Some(copy.since))
                };
                self.nodes.iter().any(is_joined)
                    && self.listener(&configuration, index, part.id, copy.member).is_none()
            });
            if let Some(targets) = targets.filter(|_| !joined_elsewhere) {
                for to in targets.into_iter().chain([index]) {
                    if let Some(copy) = self.nodes[to].copies.get_mut(&part.id) {
                        copy.commits = commits + 1;
                    }
                }
                self.acknowledged.insert(part.id, commits + 1);
                self.commits += 1;
            }
        }
        self.nodes[index].work_at = self.now + MS;
        if is_time_to_fill {
            let pause = 20 * MS + self.below(40 * MS);
            self.nodes[index].fill_at = self.now + pause;
        }
    }

    /// Returns the node at which records of this primary arrive: it has this member's memory, its ring of this primary is
    /// open, and the line is. A stopped process does not matter, as records are written one-sidedly.
    pub(super) fn listener(
        &self,
        configuration: &Configuration,
        from: usize,
        part: PartId,
        member: MemberId,
    ) -> Option<usize> {
        let identity = configuration.member(member)?.identity();
        let wanted = configuration.part(part)?;
        let is_open = |node: &Node| {
            let watch = node
                .watch
                .as_ref()
                .filter(|watch| watch.me() == identity && node.is_alive && node.was.is_none());
            let theirs = watch.and_then(|watch| watch.configuration().part(part));
            theirs.is_some_and(|it| (it.primary, it.primary_since) == (wanted.primary, wanted.primary_since))
        };
        let to = self.nodes.iter().position(is_open)?;
        let is_cut = self.cuts.get(&(from, to)).is_some_and(|until| self.now < *until);
        (!is_cut).then_some(to)
    }

    /// A server that was expelled, or has lost its memory, becomes another member.
    pub(super) fn come_back(&mut self, index: usize, was: MemberIdentity) {
        let configuration = &self.register.configuration;
        let name = self.nodes[index].name.clone();
        let member = configuration.member_by_name(&name).map(|member| member.identity());
        match member {
            Some(identity) if identity != was && identity.since > was.since => {
                self.nodes[index].was = None;
                let node = &mut self.nodes[index];
                node.copies.values_mut().for_each(|copy| *copy = Copy::default());
                node.tick_at = 0;
                self.start(index, identity);
            }
            // It asks a few times each second.
            _ if self.now >= self.nodes[index].fill_at => {
                self.nodes[index].fill_at = self.now + 100 * MS;
                let new = NewMember {
                    client_address: format!("{name}:1"),
                    member_address: format!("{name}:2"),
                    name,
                    kept: Vec::new(),
                };
                let manager = configuration.member(configuration.manager).map(|member| member.identity());
                let message = MemberMessage::Propose(Change::Join(new));
                self.send(index, was, manager.expect("a member"), message);
            }
            _ => {}
        }
    }
}
