//! What goes wrong in a world.

use super::*;

impl World {
    /// What becomes of a server.
    pub(super) fn trouble(&mut self) {
        if self.is_peace {
            return;
        }
        let next = 10 * MS + self.below(400 * MS);
        self.schedule(next, Event::Trouble);
        let servers = self.nodes.len() as u64;
        let (one, other) = (self.below(servers) as usize, self.below(servers) as usize);
        let time = self.below(400 * MS);
        let until = self.now + time;
        let way = self.below(9);
        self.tell(one, || format!("trouble {way} with {other} until {until}"));
        match way {
            0 => self.end(one),
            1 | 2 => self.nodes[one].stopped_until = until,
            3 => drop(self.cuts.insert((one, other), until)),
            4 => (0..servers as usize).for_each(|peer| {
                self.cuts.insert((one, peer), until);
            }),
            5 => (0..servers as usize).for_each(|peer| {
                self.cuts.insert((peer, one), until);
            }),
            6 => (0..servers as usize).for_each(|peer| {
                self.cuts.insert((one, peer), until);
                self.cuts.insert((peer, one), until);
            }),
            7 => drop(self.no_register.insert(one, until)),
            // The servers are divided in two.
            _ => {
                let side: Vec<bool> = (0..servers).map(|_| self.below(2) == 0).collect();
                for (from, to) in (0..side.len()).flat_map(|from| (0..side.len()).map(move |to| (from, to))) {
                    if side[from] != side[to] {
                        self.cuts.insert((from, to), until);
                    }
                }
            }
        }
    }

    /// A server ends. Its keeper starts it again over its memory, as the same member, or testifies; or the host ends, which
    /// comes back with an empty memory.
    pub(super) fn end(&mut self, index: usize) {
        if !self.nodes[index].is_alive {
            return;
        }
        let me = self.nodes[index].watch().me();
        let was_out = self.nodes[index].was;
        let way = self.below(3);
        if way == 0 && was_out.is_none() && self.register.configuration.has(me) {
            self.nodes[index].stopped_until = 0;
            self.nodes[index].tick_at = 0;
            // Who sees the end of a process may not know of the next one yet, or believe that there is none.
            let is_last = self.below(4) == 0;
            self.see_end(index, is_last);
            return self.start(index, me);
        }
        // More than half of the members live on, those counted that were expelled a moment ago: else nothing can go on.
        let lives = |identity: &MemberIdentity| {
            self.nodes
                .iter()
                .any(|node| node.is_alive && node.was.is_none() && node.watch().me() == *identity)
        };
        let configuration = &self.register.configuration;
        let members: Vec<_> = configuration.members.iter().map(|member| member.identity()).collect();
        let former = configuration.former.iter().map(|former| former.identity);
        let electors: Vec<_> = members.iter().copied().chain(former).collect();
        // Those of the last unblocked epoch are counted by themselves as well.
        let since = configuration.unblocked;
        let early: Vec<_> = electors.iter().copied().filter(|elector| elector.since <= since).collect();
        let is_minority = |electors: &[MemberIdentity]| {
            2 * electors.iter().filter(|it| lives(it) && **it != me).count() <= electors.len()
        };
        if is_minority(&members) || is_minority(&electors) || is_minority(&early) {
            return;
        }
        let is_seen = way == 2 && was_out.is_none() && self.below(2) == 0;
        if is_seen {
            self.see_end(index, true);
        }
        // In its place another process asks to be a member, so it is out in any case.
        self.nodes[index].process += 1;
        self.nodes[index].was = Some(was_out.unwrap_or(me));
        self.nodes[index].stopped_until = 0;
        self.nodes[index].is_alive = false;
        self.nodes[index].copies.values_mut().for_each(|copy| *copy = Copy::default());
        if way == 1 && was_out.is_none() {
            self.testify(index, me);
        }
    }

    /// One or two others see that the process of a server has ended, some of them late.
    fn see_end(&mut self, index: usize, is_last: bool) {
        let (member, process) = (self.nodes[index].watch().me(), self.nodes[index].watch().process());
        for _ in 0..1 + self.below(2) {
            let node = self.below(self.nodes.len() as u64) as usize;
            let late = if self.below(4) == 0 { self.below(200 * MS) } else { 0 };
            let delay = MS / 100 + self.below(2 * MS) + late;
            if node != index {
                self.schedule(delay, Event::Ended { node, member, process, is_last });
            }
        }
    }

    pub(super) fn testify(&mut self, index: usize, me: MemberIdentity) {
        let hearers = 1 + self.below(2);
        for _ in 0..hearers {
            let node = self.below(self.nodes.len() as u64) as usize;
            let delay = MS / 2 + self.below(3 * MS);
            if node != index {
                self.schedule(delay, Event::Testimony { node, member: me });
            }
        }
    }

    /// Nothing is wrong from now on, and all servers are there again.
    pub fn make_peace(&mut self) {
        self.is_peace = true;
        self.cuts.clear();
        self.no_register.clear();
        self.lost_of_1000 = 0;
        for index in 0..self.nodes.len() {
            self.nodes[index].stopped_until = self.nodes[index].stopped_until.min(self.now);
            if !self.nodes[index].is_alive {
                let identity = self.nodes[index].was.expect("it was a member");
                self.nodes[index].is_alive = true;
                // A process that only asks to join: it is nobody yet.
                let (nobody, stored) = (MemberIdentity { since: 0, ..identity }, self.register.clone());
                let node = &mut self.nodes[index];
                node.watch = Some(MemberWatch::new(nobody, stored, node.clock(self.now)));
                node.tick_at = self.now + 1;
                let process = node.process;
                self.schedule(1, Event::Tick { node: index, process, at: self.now + 1 });
            }
        }
    }

    /// Loses one server as the kind of this world says, and returns when.
    pub fn lose_one(&mut self) -> u64 {
        let one = self.below(self.nodes.len() as u64) as usize;
        // The manager is the first one.
        let one = if self.kind == Kind::Large { self.nodes.len() - 1 } else { one };
        self.lost = Some(one);
        let others = 0..self.nodes.len();
        match self.kind {
            Kind::Chaos | Kind::Unanswered | Kind::Drifting => {}
            Kind::Divided => {
                self.lost = Some(1);
                self.no_register.insert(0, u64::MAX);
                for other in others {
                    self.cuts.insert((other, 1), u64::MAX);
                    self.cuts.insert((1, other), u64::MAX);
                }
            }
            Kind::Crash | Kind::Large | Kind::Testified | Kind::Seen | Kind::NoRegister => {
                if self.kind == Kind::NoRegister {
                    let manager = if one == 0 { 1 } else { 0 };
                    // The first member is the manager; it may be the one that ends.
                    self.no_register.insert(manager, u64::MAX);
                }
                let (me, process) = (self.nodes[one].watch().me(), self.nodes[one].watch().process());
                self.nodes[one].is_alive = false;
                self.nodes[one].was = Some(me);
                let node = (one + 1) % self.nodes.len();
                if self.kind == Kind::Testified {
                    self.schedule(MS, Event::Testimony { node, member: me });
                }
                if self.kind == Kind::Seen {
                    self.schedule(MS, Event::Ended { node, member: me, process, is_last: true });
                }
            }
            Kind::Stopped => self.nodes[one].stopped_until = u64::MAX / 2,
            Kind::CutOff | Kind::Deaf | Kind::Mute => {
                for other in others {
                    if self.kind != Kind::Mute {
                        self.cuts.insert((other, one), u64::MAX);
                    }
                    if self.kind != Kind::Deaf {
                        self.cuts.insert((one, other), u64::MAX);
                    }
                }
            }
        }
        self.now
    }

    /// The manager's connection to a server breaks, so that it probes all.
    pub fn break_a_connection(&mut self) {
        let (suspect, clock) = (self.nodes[1].watch().me(), self.nodes[0].clock(self.now));
        self.nodes[0].watch.as_mut().expect("alive").suspect(suspect, clock);
        self.after(0);
    }
}
