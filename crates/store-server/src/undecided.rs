//! The thread `store-branches` of a server of several parts: it ends what clients have left of transactions over several parts.
//!
//! A branch that its client has not decided is decided as its home says, and a decision that nobody has ended is told to all parts
//! (`caravan_store`'s `ledger.rs` says why that is right). The home, and the other parts, may be at other servers: this thread asks
//! there as a client does, and may wait for them, which nobody else does.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use caravan_cluster::PartId;
use caravan_store::limits::{BRANCH_PATIENCE, BRANCH_WAIT, DECISION_PATIENCE};
use caravan_store::{ConnectOptions, ConnectedStore, Outcome, Store, StoreError, TransactionId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::ServeError;
use crate::limits::{BRANCH_HOME_WAIT, BRANCHES_LOOK};
use crate::parts::{PartTable, ServedPart};
use crate::state::ServerState;

/// What the thread works with.
struct BranchThread {
    state: Arc<ServerState>,
    /// Readable when the server ends.
    bell: Arc<OwnedFd>,
    /// Parts at other servers.
    others: BTreeMap<u16, ConnectedStore>,
    /// Those that were out of reach in this round.
    silent: BTreeSet<u16>,
}

/// Starts the thread.
pub(crate) fn spawn(state: &Arc<ServerState>, bell: &Arc<OwnedFd>) -> Result<JoinHandle<()>, ServeError> {
    let (state, bell) = (Arc::clone(state), Arc::clone(bell));
    let thread = BranchThread { state, bell, others: BTreeMap::new(), silent: BTreeSet::new() };
    let spawned = std::thread::Builder::new().name("store-branches".to_owned()).spawn(|| thread.run());
    spawned.map_err(ServeError::system("start a thread"))
}

impl BranchThread {
    fn run(mut self) {
        let look = Timespec::try_from(BRANCHES_LOOK).ok();
        loop {
            let mut ready = [PollFd::new(&*self.bell, PollFlags::IN)];
            if poll(&mut ready, look.as_ref()).is_ok_and(|ready| ready > 0) {
                return;
            }
            self.silent.clear();
            self.decide_branches();
            self.end_decisions();
        }
    }

    /// Returns something of each store that is served here. It holds none of them afterwards, so that parts may go meanwhile.
    fn gather<T>(&self, of: impl Fn(&Store) -> Vec<T>) -> Vec<(PartId, T)> {
        let table = self.state.parts.table();
        let found =
            |part: &Arc<ServedPart>| of(&part.store).into_iter().map(|it| (part.id, it)).collect::<Vec<_>>();
        table.served.iter().flat_map(found).collect()
    }

    fn decide_branches(&mut self) {
        let late: BTreeSet<_> = self.gather(|store| store.undecided(BRANCH_WAIT)).into_iter().collect();
        for (part, id) in self.gather(|store| store.undecided(BRANCH_PATIENCE)) {
            let outcome = self.at(id.home, |home| match home {
                PartAt::Here(store) => Ok(store.outcome(id, late.contains(&(part, id)))),
                PartAt::Elsewhere(store) => store.outcome(id, late.contains(&(part, id))),
            });
            if let Some(outcome @ (Outcome::Committed | Outcome::Aborted)) = outcome {
                self.decide(part.0, id, outcome == Outcome::Committed);
            }
        }
    }

    fn end_decisions(&mut self) {
        for (home, (id, parts)) in self.gather(|store| store.decisions(DECISION_PATIENCE)) {
            let are_told = parts.into_iter().all(|part| self.decide(part, id, true));
            if are_told {
                self.at(home.0, |home| match home {
                    PartAt::Here(store) => {
                        store.end_transaction(id);
                        Ok(())
                    }
                    // It has moved, with the decision.
                    PartAt::Elsewhere(_) => Ok(()),
                });
            }
        }
    }

    /// Tells a part what became of a transaction; returns whether that part has heard it.
    fn decide(&mut self, part: u16, id: TransactionId, is_committed: bool) -> bool {
        let told = self.at(part, |part| match part {
            PartAt::Here(store) => store.decide(id, is_committed),
            PartAt::Elsewhere(store) => store.decide(id, is_committed),
        });
        told.is_some()
    }

    /// Asks a part something; `None` if it gives no answer now.
    fn at<T>(&mut self, part: u16, ask: impl FnOnce(PartAt<'_>) -> Result<T, StoreError>) -> Option<T> {
        let table = self.state.parts.table();
        if let Some(index) = table.index(PartId(part)) {
            let store = &table.served[index].store;
            if store.commits_wait() {
                // Other parts are not to wait with it.
                return None;
            }
            let answer = ask(PartAt::Here(store)).ok();
            // What it says counts only while this server has the part.
            return answer.filter(|_| self.state.parts.may_answer());
        }
        if self.silent.contains(&part) {
            return None;
        }
        let answer = self.elsewhere(&table, part).and_then(|options| {
            drop(table);
            let store = match self.others.remove(&part) {
                Some(store) => store,
                None => Store::connect(options).ok()?,
            };
            // After an error it goes on with a new connection.
            let answer = ask(PartAt::Elsewhere(&store)).ok()?;
            self.others.insert(part, store);
            Some(answer)
        });
        if answer.is_none() {
            self.silent.insert(part);
        }
        answer
    }

    /// Returns how a part at another server is reached.
    fn elsewhere(&self, table: &PartTable, part: u16) -> Option<ConnectOptions> {
        let configuration = &table.cluster.as_ref()?.configuration;
        let primary = configuration.part(PartId(part))?.primary?;
        let address = &configuration.member(primary)?.client_address;
        Some(self.state.connect_options(address, BRANCH_HOME_WAIT).part(part))
    }
}

/// Where a part is.
enum PartAt<'p> {
    Here(&'p Store),
    Elsewhere(&'p ConnectedStore),
}
