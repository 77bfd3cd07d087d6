//! The threads that ask the register: calls of it take long where it is etcd, and a member has leases to renew meanwhile.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Instant;

use caravan_cluster::{Configuration, ConfigurationRegister, Revision};

use super::inbox::Inbox;
use super::{MemberEvent, spawn};
use crate::error::ServeError;
use crate::limits::{REGISTER_CALL_MAX, REGISTER_PAUSE, REGISTER_WATCH};
use crate::worker::Tell;

/// What a member asks the register.
pub(super) enum RegisterCall {
    Read,
    Swap { expected: Revision, next: Box<Configuration> },
}

/// The way to the threads.
#[derive(Debug)]
pub(super) struct RegisterThreads {
    calls: SyncSender<RegisterCall>,
}

impl RegisterThreads {
    pub(super) fn start(
        register: &Arc<dyn ConfigurationRegister>,
        inbox: &Arc<Inbox<MemberEvent>>,
        since: Revision,
        tell: &Tell,
    ) -> Result<Self, ServeError> {
        // One call at a time: `MemberWatch` waits for the outcome of each.
        let (calls, asked) = sync_channel(4);
        let (called, watched) = (Arc::clone(register), Arc::clone(register));
        let (to, heard) = (Arc::downgrade(inbox), Arc::downgrade(inbox));
        let (tell, told) = (Arc::clone(tell), Arc::clone(tell));
        spawn("member-register", move || serve(&*called, &asked, &to, &tell))?;
        spawn("member-watch", move || watch(&*watched, since, &heard, &told))?;
        Ok(Self { calls })
    }

    /// Asks; what comes of it is a [`MemberEvent`].
    pub(super) fn ask(&self, call: RegisterCall) -> bool {
        self.calls.try_send(call).is_ok()
    }
}

fn serve(
    register: &dyn ConfigurationRegister,
    asked: &Receiver<RegisterCall>,
    inbox: &Weak<Inbox<MemberEvent>>,
    tell: &Tell,
) {
    while let Ok(call) = asked.recv() {
        let deadline = Instant::now() + REGISTER_CALL_MAX;
        let event = match call {
            RegisterCall::Read => match register.read(deadline) {
                Ok(Some(stored)) => MemberEvent::Learned(Box::new(stored)),
                Ok(None) => MemberEvent::NotRead,
                Err(error) => {
                    tell(&error.to_string());
                    MemberEvent::NotRead
                }
            },
            RegisterCall::Swap { expected, next } => {
                let outcome = register.compare_and_swap(expected, &next, deadline);
                MemberEvent::Swapped(outcome.map_err(|error| tell(&error.to_string())).ok())
            }
        };
        let Some(inbox) = inbox.upgrade() else { return };
        inbox.push(event);
    }
}

fn watch(
    register: &dyn ConfigurationRegister,
    mut since: Revision,
    inbox: &Weak<Inbox<MemberEvent>>,
    tell: &Tell,
) {
    let mut is_lost = false;
    while inbox.strong_count() > 0 {
        match register.watch(since, Instant::now() + REGISTER_WATCH) {
            Ok(news) => {
                is_lost = false;
                let Some((stored, inbox)) = news.zip(inbox.upgrade()) else { continue };
                since = stored.revision;
                inbox.push(MemberEvent::Learned(Box::new(stored)));
            }
            Err(error) => {
                if !std::mem::replace(&mut is_lost, true) {
                    tell(&format!("{error}. The store goes on, but its members cannot change"));
                }
                std::thread::sleep(REGISTER_PAUSE);
            }
        }
    }
}
