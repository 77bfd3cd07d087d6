//! The ends of processes. A server that is killed, or ends, has no lease from that moment on. Whoever knows of its end says
//! so: members of its host see it, and a server that ends in order says it before.
//!
//! The end of a process is not the end of its member: the keeper starts the next process over the same memory, which needs
//! no new epoch. So two things are kept apart:
//!
//! - **The lease** is that of one process. A granter that knows of the end of the process that has asked it last need not
//!   wait for that lease. If a later process of the member has asked, the end of the earlier one says nothing.
//! - **The membership** ends by a probe, as for anybody who is suspected: the next process has [`probe`] for an answer. If the
//!   keeper has ended, too, nobody is waited for.
//!
//! [`probe`]: crate::LeaseTimes::probe

use super::{MemberMessage, MemberProcesses, MemberWatch, Suspicion};
use crate::clock::BootTime;
use crate::configuration::MemberIdentity;
use crate::faults::{LeaseFault, is_planted};
use crate::lease::ProcessNumber;

impl MemberWatch {
    /// Says that a process of a member has ended; and whether its keeper has as well, so that no other one follows.
    pub fn process_ended(
        &mut self,
        member: MemberIdentity,
        process: ProcessNumber,
        is_last: bool,
        now: BootTime,
    ) {
        self.note_end(member, process, is_last, now);
        self.repeat_end(member);
    }

    /// Ends the membership of this process, which serves nothing any more, and tells the others. `is_last` says whether its
    /// keeper starts no other one.
    pub fn end(&mut self, is_last: bool) {
        if !self.is_expelled {
            let ended = MemberMessage::Ended { member: self.me, process: self.process, is_last };
            self.tell_all(&ended);
            // No lease, and no word any more.
            self.is_expelled = true;
        }
    }

    /// Takes note of the process of a sender; `false` if it has ended, so that what it has said is worth nothing.
    pub(super) fn hear_process(&mut self, member: MemberIdentity, process: ProcessNumber) -> bool {
        if !self.configuration().has(member) {
            return true;
        }
        let new = MemberProcesses { newest: process, has_ended: false, is_last: false };
        let known = self.processes.entry(member).or_insert(new);
        if process > known.newest {
            *known = new;
        }
        process == known.newest && !known.has_ended
    }

    pub(super) fn note_end(
        &mut self,
        member: MemberIdentity,
        process: ProcessNumber,
        is_last: bool,
        now: BootTime,
    ) {
        let configuration = self.configuration();
        let is_former = configuration.former.iter().any(|former| former.identity == member);
        let is_member = configuration.has(member);
        if member == self.me || !(is_member || is_former) {
            return;
        }
        let new = MemberProcesses { newest: process, has_ended: true, is_last };
        let known = self.processes.entry(member).or_insert(new);
        // A later one may have a lease, and answers.
        if process < known.newest && !is_planted(LeaseFault::EndOfAnotherProcess) {
            return;
        }
        let was_known = known.has_ended && process == known.newest;
        *known = MemberProcesses { is_last: is_last || was_known && known.is_last, ..new };
        let peer = self.peers.get_mut(&member.id).filter(|peer| peer.identity == member);
        let granters = peer.map(|peer| {
            peer.waiting.take_if(|(_, asked)| *asked == process);
            &mut peer.granter
        });
        let granters = granters.into_iter();
        let granters = granters.chain(self.granted_before.get_mut(&member));
        granters.chain(self.known_ends.get_mut(&member)).for_each(|granter| granter.ended(process));
        let is_mine = self.i_am_manager() || self.is_manager(member);
        if is_member && is_mine && !was_known {
            self.suspects.entry(member.id).or_insert(Suspicion { since: now, is_silent: false });
        }
    }

    /// Says again which processes have ended, until nobody believes that their members live, or the next ones are heard.
    pub(super) fn repeat_ends(&mut self) {
        let ended = self
            .processes
            .iter()
            .filter(|(member, known)| known.has_ended && self.configuration().has(**member));
        let ended: Vec<MemberIdentity> = ended.map(|(member, _)| *member).collect();
        ended.into_iter().for_each(|member| self.repeat_end(member));
    }

    fn repeat_end(&mut self, member: MemberIdentity) {
        let Some(known) = self.processes.get(&member).filter(|known| known.has_ended) else { return };
        let MemberProcesses { newest: process, is_last, .. } = *known;
        self.tell_all(&MemberMessage::Ended { member, process, is_last });
    }

    /// Says whether no process of the member follows: its keeper has ended, too, or another server has its place.
    pub(super) fn is_gone(&self, member: MemberIdentity) -> bool {
        self.testified.contains(&member)
            || self.processes.get(&member).is_some_and(|known| known.has_ended && known.is_last)
    }
}
