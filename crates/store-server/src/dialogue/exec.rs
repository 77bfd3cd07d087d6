//! EXEC: the commands since MULTI as one transaction.

use std::sync::Arc;
use std::time::Duration;

use caravan_store::{ClusterStore, StoreError, Transaction};

use crate::command::{CommandCall, CommandSpec, KeyCommand};
use crate::commands::table;
use crate::dialogue::apart::{apart_error, is_unknown};
use crate::dialogue::{CommandQueue, Dialogue, WatchedKeys};
use crate::error::CommandError;
use crate::key_transaction::KeyTransaction;
use crate::parts::ServedPart;
use crate::resp::reply::ReplyMark;
use crate::resp::words::CommandWords;
use crate::slots::NotServed;

impl Dialogue {
    /// Runs the commands since MULTI as one transaction.
    pub(crate) fn exec(&mut self) -> Result<(), CommandError> {
        if let Some(store) = self.apart.clone() {
            return self.exec_apart(&store);
        }
        let (queue, watched) = self.take_queue()?;
        let part = self.part_of(&queue, &watched)?;
        let begin = self.reply.mark();
        let parts = Arc::clone(&self.parts);
        let Some(served) = parts.served.get(part) else { return self.run_each(&queue, part, begin) };
        // The errors of the last attempt.
        let mut errors = Vec::new();
        let outcome: Result<(), StoreError> = served.store.transaction(|tx| {
            require_unchanged(tx, served, &watched)?;
            errors = self.steps(KeyTransaction::Here(tx), &queue, begin)?;
            Ok(())
        });
        if matches!(outcome, Err(StoreError::Undecided)) && !self.is_last_try {
            // It is tried again, as an errand.
            (self.queue, self.watched) = (Some(queue), watched);
            return Err(StoreError::Undecided.into());
        }
        self.finish(&queue, &errors, outcome, begin)
    }

    /// The same over several parts.
    fn exec_apart(&mut self, store: &ClusterStore) -> Result<(), CommandError> {
        let (queue, watched) = self.take_queue()?;
        let (begin, state) = (self.reply.mark(), Arc::clone(&self.state));
        let mut errors = Vec::new();
        let outcome: Result<(), StoreError> = store.transaction(|tx| {
            state.own_client.check()?;
            for watched in &watched {
                if watched.tenure.is_some_and(|tenure| !state.parts.table().has_tenure(tenure)) {
                    return Err(StoreError::VersionChanged);
                }
                tx.require_unchanged(&watched.key, &watched.watch)?;
            }
            let reads = queue.commands.iter().filter(|(spec, _)| spec.only_reads());
            tx.read_ahead(reads.flat_map(|(spec, kept)| spec.keys(kept.words())))?;
            errors = self.steps(KeyTransaction::Apart(tx), &queue, begin)?;
            Ok(())
        });
        match outcome {
            Err(error) if is_unknown(&error) => Err(apart_error(error)),
            Err(error) if !matches!(error, StoreError::VersionChanged) => Err(abort(&apart_error(error))),
            outcome => self.finish(&queue, &errors, outcome, begin),
        }
    }

    /// Runs the commands in a transaction, and returns the error of each.
    fn steps(
        &mut self,
        mut tx: KeyTransaction<'_, '_>,
        queue: &CommandQueue,
        begin: ReplyMark,
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.reply.go_back(begin);
        self.pause = Duration::ZERO;
        self.reply.array(queue.commands.len());
        queue.commands.iter().map(|(spec, kept)| self.step(tx.again(), spec, kept.words())).collect()
    }

    /// Counts the commands of a transaction, and replies.
    fn finish(
        &mut self,
        queue: &CommandQueue,
        errors: &[Option<Vec<u8>>],
        outcome: Result<(), StoreError>,
        begin: ReplyMark,
    ) -> Result<(), CommandError> {
        match outcome {
            Ok(()) => {
                for ((spec, _), error) in queue.commands.iter().zip(errors) {
                    self.has_failed = error.as_ref().inspect(|words| self.count_error(words)).is_some();
                    self.count_call(spec, None);
                }
                Ok(())
            }
            Err(StoreError::VersionChanged) => {
                self.reply.go_back(begin);
                self.reply.null_array();
                Ok(())
            }
            Err(error @ StoreError::NotPrimary) => Err(error.into()),
            Err(error) => Err(abort(&error.into())),
        }
    }

    /// Runs one command of a transaction. An error of the command is its reply, and the others go on, as in Redis. Returns that
    /// error.
    fn step(
        &mut self,
        tx: KeyTransaction<'_, '_>,
        spec: &'static CommandSpec,
        words: CommandWords<'_>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let mark = self.reply.mark();
        let outcome = match spec.call {
            CommandCall::Dialogue(call) => call(self, words),
            CommandCall::Keys(call) | CommandCall::Lone(_, call) => {
                let (reply, now_ms) = (&mut self.reply, self.now_ms);
                call(&mut KeyCommand { tx, words, reply, now_ms, mark, name: spec.name })
            }
            CommandCall::Container(_) => table::all(self, words),
        };
        match outcome.and_then(|()| self.reply.check(mark)) {
            Ok(()) => Ok(None),
            Err(CommandError::Store(error)) if !is_of_command(&error) => Err(error),
            Err(error) => {
                let words = error.words();
                self.reply.go_back(mark);
                self.reply.error(&words);
                Ok(Some(words))
            }
        }
    }

    /// Runs the commands since MULTI one after the other. The caller keeps all other connections out, so that nobody
    /// sees a state between two of them.
    pub(super) fn exec_alone(&mut self) {
        let begin = self.reply.mark();
        if let Err(error) = self.try_exec_alone(begin) {
            self.fail_from(begin, &error);
        }
    }

    fn try_exec_alone(&mut self, begin: ReplyMark) -> Result<(), CommandError> {
        let (queue, watched) = self.take_queue()?;
        let part = self.part_of(&queue, &watched)?;
        if let Some(served) = self.parts.served.get(part) {
            match served.store.transaction(|tx| require_unchanged(tx, served, &watched)) {
                Err(StoreError::VersionChanged) => {
                    self.reply.null_array();
                    return Ok(());
                }
                other => other?,
            }
        }
        self.run_each(&queue, part, begin)
    }

    /// Runs commands one after the other.
    fn run_each(&mut self, queue: &CommandQueue, part: usize, begin: ReplyMark) -> Result<(), CommandError> {
        self.reply.array(queue.commands.len());
        for (spec, kept) in &queue.commands {
            let mark = self.reply.mark();
            if let Err(error) = self.try_run(spec, kept.words(), part) {
                self.fail_from(mark, &error);
            }
            self.count_call(spec, None);
        }
        self.reply.check(begin)
    }

    /// Returns which of the served parts has all keys of a transaction. Without a key that is any one, if there is one.
    fn part_of(&self, queue: &CommandQueue, watched: &WatchedKeys) -> Result<usize, CommandError> {
        let queued = queue.commands.iter().flat_map(|(spec, kept)| spec.keys(kept.words()));
        let part = self.parts.index_of(queued.chain(watched.iter().map(|watched| &watched.key[..])));
        if part == Err(NotServed::Apart) && queue.has_whole() {
            return Err(CommandError::Said(
                "CROSSSLOT a transaction with keys of several parts takes no command on the whole store",
            ));
        }
        Ok(part?)
    }

    fn take_queue(&mut self) -> Result<(CommandQueue, WatchedKeys), CommandError> {
        let queue = self.queue.take().ok_or(CommandError::Said("ERR EXEC without MULTI"))?;
        let watched = self.forget_watched();
        match queue.is_spoilt {
            true => Err(CommandError::Said("EXECABORT Transaction discarded because of previous errors.")),
            false => Ok((queue, watched)),
        }
    }
}

/// Fails if a watched key has been written since, or if its part was served anew.
fn require_unchanged(
    tx: &mut Transaction<'_>,
    part: &ServedPart,
    watched: &WatchedKeys,
) -> Result<(), StoreError> {
    watched.iter().try_for_each(|watched| match watched.tenure == Some(part.tenure) {
        true => tx.require_unchanged(&watched.key, &watched.watch),
        false => Err(StoreError::VersionChanged),
    })
}

/// Returns whether the error is of one command, and not of the whole transaction.
fn is_of_command(error: &StoreError) -> bool {
    matches!(error, StoreError::KeyTooLong { .. } | StoreError::ValueTooLong { .. })
}

/// Returns the error of EXEC for this reason, as Redis words it.
pub(super) fn abort(reason: &CommandError) -> CommandError {
    let words = reason.words();
    let reason = words.strip_prefix(b"ERR ").unwrap_or(&words);
    CommandError::Quoted([b"EXECABORT Transaction discarded because of: ", reason].concat())
}
