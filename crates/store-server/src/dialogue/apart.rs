//! Requests whose keys are apart, in several parts or in one that another server has, and those that meet an undecided transaction of
//! several parts. They are errands (`errands.rs`).

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use caravan_store::limits::UNDECIDED_PAUSE;
use caravan_store::{ClusterStore, StoreError};

use crate::command::{CommandCall, CommandSpec, KeyCommand};
use crate::commands::table;
use crate::dialogue::exec::abort;
use crate::dialogue::{CommandTurn, Dialogue, KeyPlace};
use crate::error::CommandError;
use crate::key_transaction::KeyTransaction;
use crate::limits;
use crate::resp::words::CommandWords;
use crate::slots::NotServed;
use crate::state::count;

impl Dialogue {
    /// Returns whether the next request is to be done by [`run_errand`](Self::run_errand).
    pub(crate) fn needs_errand(&self) -> bool {
        self.needs_errand
    }

    /// Says where these keys are, which no part here has together: whether the request is an errand, or refused.
    #[cold]
    pub(super) fn place_apart<'k>(
        &'k self,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        is_transaction: bool,
        why: NotServed,
    ) -> Result<KeyPlace, NotServed> {
        let Some(cluster) = &self.parts.cluster else { return Err(why) };
        if cluster.has_lost(keys.clone()) {
            return Err(NotServed::Lost);
        }
        let is_apart = match why {
            NotServed::Apart => true,
            NotServed::Moved { .. } | NotServed::OnTheWay if self.state.facts.forwards => true,
            // Together with the other keys of the transaction.
            NotServed::Moved { .. } | NotServed::OnTheWay if is_transaction => {
                cluster.part_of(keys.chain(self.transaction_keys())) == Err(NotServed::Apart)
            }
            _ => false,
        };
        if is_apart { Ok(KeyPlace::Apart) } else { Err(why) }
    }

    /// Returns the keys that were named since MULTI, and those that are watched.
    pub(super) fn transaction_keys(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let queued = self.queue.iter().flat_map(|queue| &queue.commands);
        let queued = queued.flat_map(|(spec, kept)| spec.keys(kept.words()));
        queued.chain(self.watched.iter().map(|watched| &watched.key[..]))
    }

    /// Returns where the keys of the transaction are that EXEC would run.
    pub(super) fn exec_place(&self) -> Result<KeyPlace, NotServed> {
        match self.parts.index_of(self.transaction_keys()) {
            Ok(part) => Ok(KeyPlace::Here(part)),
            Err(why) => self.place_apart(self.transaction_keys(), true, why),
        }
    }

    /// Tells whether this is an EXEC that is an errand. One with a command on the whole store is none, and is refused.
    pub(super) fn is_exec_apart(&self, spec: &CommandSpec) -> bool {
        let Some(queue) = self.queue.as_ref().filter(|_| spec.name == "exec") else { return false };
        !queue.is_spoilt && !queue.has_whole() && matches!(self.exec_place(), Ok(KeyPlace::Apart))
    }

    /// Does the errand that `input` begins with, and returns the number of its bytes. Blocks.
    pub(crate) fn run_errand(&mut self, input: &[u8], now_ms: u64) -> usize {
        self.now_ms = now_ms;
        let mut parser = std::mem::take(&mut self.parser);
        let taken = match parser.parse(input, self.is_authenticated) {
            Ok(Some(bytes)) if self.do_errand(parser.words(input)) => bytes,
            // It is put aside; it was complete before.
            _ => 0,
        };
        self.parser = parser;
        self.parts = self.state.parts.idle();
        self.batch.finish(&self.state.tallies);
        count(&self.state.counters.commands, u64::from(taken > 0));
        taken
    }

    /// Returns whether it is done.
    fn do_errand(&mut self, words: CommandWords<'_>) -> bool {
        let state = Arc::clone(&self.state);
        let begun = Instant::now();
        loop {
            self.parts = state.parts.table();
            self.needs_errand = false;
            self.is_last_try = begun.elapsed() >= limits::ERRAND_WAIT;
            let turn = state.turn.read().unwrap_or_else(PoisonError::into_inner);
            self.dispatch(words, &CommandTurn::Shared);
            drop(turn);
            if !std::mem::take(&mut self.needs_errand) {
                self.is_last_try = false;
                return !self.is_put_aside;
            }
            match self.admit(words) {
                Ok((spec, place)) if matches!(place, KeyPlace::Apart) || self.is_exec_apart(spec) => {
                    self.do_apart(spec, words);
                    return true;
                }
                // It met a transaction over several parts that is not decided yet.
                _ => {
                    self.parts = state.parts.idle();
                    std::thread::sleep(UNDECIDED_PAUSE);
                }
            }
        }
    }

    fn do_apart(&mut self, spec: &'static CommandSpec, words: CommandWords<'_>) {
        self.parts = Arc::new(self.parts.without_parts());
        self.note(spec);
        let begun = self.batch.begin(&self.state.tallies);
        let mark = self.reply.mark();
        let outcome = self.run_apart(spec, words);
        if let Err(error) = outcome.and_then(|()| self.reply.check(mark)) {
            if matches!(error, CommandError::Store(StoreError::Replaced)) {
                // A part of this name has another memory: the next errand connects anew.
                self.state.own_client.forget();
            }
            self.fail_from(mark, &error);
        }
        self.count_call(spec, begun);
    }

    fn run_apart(&mut self, spec: &'static CommandSpec, words: CommandWords<'_>) -> Result<(), CommandError> {
        let state = Arc::clone(&self.state);
        let store = match state.own_client.store(&state) {
            Ok(store) => store,
            Err(error) if spec.name == "exec" => {
                self.queue = None;
                self.forget_watched();
                return Err(abort(&apart_error(error)));
            }
            Err(error) => return Err(apart_error(error)),
        };
        match spec.call {
            CommandCall::Keys(call) | CommandCall::Lone(_, call) => {
                let mark = self.reply.mark();
                let (reply, now_ms) = (&mut self.reply, self.now_ms);
                let outcome = store.transaction(|tx| {
                    state.own_client.check()?;
                    reply.go_back(mark);
                    if spec.only_reads() {
                        tx.read_ahead(spec.keys(words))?;
                    }
                    let tx = KeyTransaction::Apart(tx);
                    call(&mut KeyCommand { tx, words, reply, now_ms, mark, name: spec.name })
                });
                outcome.map_err(|error| match error {
                    CommandError::Store(error) => apart_error(error),
                    error => error,
                })
            }
            // WATCH and EXEC.
            CommandCall::Dialogue(call) => self.with_store(store, |dialogue| call(dialogue, words)),
            CommandCall::Container(_) => table::all(self, words),
        }
    }

    fn with_store<T>(&mut self, store: Arc<ClusterStore>, run: impl FnOnce(&mut Self) -> T) -> T {
        self.apart = Some(store);
        let outcome = run(self);
        self.apart = None;
        outcome
    }
}

/// Tells whether, after this error of a transaction over several parts, nobody knows whether it has happened.
pub(super) fn is_unknown(error: &StoreError) -> bool {
    match error {
        StoreError::NoAnswer { is_started, .. } => *is_started,
        error => {
            matches!(error, StoreError::Disconnected | StoreError::Replaced | StoreError::NotPrimary)
        }
    }
}

/// Returns the error of a request that took other servers, as its client gets it.
pub(crate) fn apart_error(error: StoreError) -> CommandError {
    match error {
        // Nothing was done, and another server takes the part over.
        error @ (StoreError::NoAnswer { is_started: false, .. }
        | StoreError::Unreachable { .. }
        | StoreError::Refused(_)) => CommandError::Told(format!("TRYAGAIN {error}")),
        // It may have been done: no client repeats it by itself.
        StoreError::NotPrimary => CommandError::Store(StoreError::Disconnected),
        error => CommandError::Store(error),
    }
}
