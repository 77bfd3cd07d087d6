//! The processes of the other members of this host. Their ends are known at once, from the kernel: who connects over a UNIX
//! socket is a server, and who listens there is its keeper.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};

use caravan_cluster::{Configuration, MemberIdentity, ProcessNumber};
use caravan_segment::process::Process;
use rustix::net::{AddressFamily, sockopt};

/// The members of this host, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Neighbours(BTreeMap<MemberIdentity, Neighbour>);

#[derive(Debug, Default)]
struct Neighbour {
    /// The process that serves, until it has ended.
    server: Option<(ProcessNumber, Process)>,
    /// The last one that has ended.
    ended: Option<ProcessNumber>,
    keeper: Option<Process>,
    has_keeper_ended: bool,
}

/// The end of a server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NeighbourEnd {
    pub(super) member: MemberIdentity,
    pub(super) process: ProcessNumber,
    /// Whether its keeper has ended, too.
    pub(super) is_last: bool,
}

/// Returns the process at the other end of a UNIX socket: who has connected, or who listens.
pub(super) fn peer(socket: impl AsFd) -> Option<Process> {
    // Of another family, or from elsewhere, it has no number.
    if sockopt::socket_domain(&socket) != Ok(AddressFamily::UNIX) {
        return None;
    }
    let credentials = sockopt::socket_peercred(&socket).ok()?;
    // If the number is another process's by now, this one has ended, and the other one is watched in its place: late news.
    Process::open(credentials.pid.as_raw_nonzero().get()).ok()
}

impl Neighbours {
    /// Notes who serves as a member; returns whether its keeper is not known yet.
    pub(super) fn know_server(
        &mut self,
        member: MemberIdentity,
        number: ProcessNumber,
        process: Process,
    ) -> bool {
        let known = self.0.entry(member).or_default();
        let is_later = |before: ProcessNumber| number > before;
        if known.server.as_ref().is_none_or(|(before, _)| is_later(*before))
            && known.ended.is_none_or(is_later)
        {
            known.server = Some((number, process));
        }
        known.keeper.is_none() && !known.has_keeper_ended
    }

    /// Notes who keeps the servers of a member.
    pub(super) fn know_keeper(&mut self, member: MemberIdentity, process: Process) {
        let known = self.0.entry(member).or_default();
        if !known.has_keeper_ended {
            known.keeper = Some(process);
        }
    }

    pub(super) fn knows_keeper(&self, member: MemberIdentity) -> bool {
        self.0.get(&member).is_some_and(|known| known.keeper.is_some() || known.has_keeper_ended)
    }

    /// Forgets who is no member.
    pub(super) fn keep(&mut self, configuration: &Configuration) {
        self.0.retain(|member, _| configuration.has(*member));
    }

    /// Returns what becomes readable when a process ends.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let servers = self.0.values().filter_map(|known| known.server.as_ref().map(|(_, server)| server));
        servers.chain(self.0.values().filter_map(|known| known.keeper.as_ref())).map(AsFd::as_fd)
    }

    /// Returns what has ended since the last call: a server, or the keeper of one that has ended before.
    pub(super) fn ends(&mut self) -> Vec<NeighbourEnd> {
        let mut ends = Vec::new();
        for (member, known) in &mut self.0 {
            let server = known.server.take_if(|(_, server)| !server.is_alive());
            let keeper = known.keeper.take_if(|keeper| !keeper.is_alive());
            known.has_keeper_ended |= keeper.is_some();
            let has_news = server.is_some() || keeper.is_some();
            known.ended = server.map(|(number, _)| number).or(known.ended);
            if let Some(process) = known.ended.filter(|_| has_news && known.server.is_none()) {
                ends.push(NeighbourEnd { member: *member, process, is_last: known.has_keeper_ended });
            }
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::{Child, Command};

    use caravan_cluster::MemberId;

    use super::*;

    fn child() -> (Child, Process) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::open(child.id() as i32).unwrap();
        (child, process)
    }

    fn end(child: &mut Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_ends_of_servers_and_keepers_are_told_once() {
        let member = MemberIdentity { id: MemberId(3), since: 7 };
        let (first, second) = (ProcessNumber(10), ProcessNumber(20));
        let mut neighbours = Neighbours::default();
        let ((mut server, process), (mut keeper, keeper_process)) = (child(), child());
        assert!(neighbours.know_server(member, first, process), "the keeper is unknown");
        neighbours.know_keeper(member, keeper_process);
        assert!(neighbours.knows_keeper(member));
        assert_eq!((neighbours.ends(), neighbours.descriptors().count()), (vec![], 2));
        end(&mut server);
        assert_eq!(neighbours.ends(), [NeighbourEnd { member, process: first, is_last: false }]);
        assert_eq!((neighbours.ends(), neighbours.descriptors().count()), (vec![], 1));
        // The next one, whose keeper ends before it.
        let (mut server, process) = child();
        assert!(!neighbours.know_server(member, second, process));
        end(&mut keeper);
        assert_eq!(neighbours.ends(), []);
        end(&mut server);
        assert_eq!(neighbours.ends(), [NeighbourEnd { member, process: second, is_last: true }]);
        // A late word of the first one counts for nothing.
        let (mut server, process) = child();
        neighbours.know_server(member, first, process);
        assert_eq!((neighbours.ends(), neighbours.descriptors().count()), (vec![], 0));
        end(&mut server);
    }

    #[test]
    fn only_a_unix_socket_names_the_process_at_its_other_end() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(peer(&one).unwrap().is_alive());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(peer(&tcp).is_none());
    }
}
