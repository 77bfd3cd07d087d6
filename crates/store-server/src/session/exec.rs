//! EXEC: the commands since MULTI as one transaction.

use std::sync::Arc;
use std::time::Duration;

use caravan_store::{StoreError, Transaction};

use crate::command::{CommandCall, CommandSpec, KeyCommand};
use crate::commands::table;
use crate::error::CommandError;
use crate::resp::reply::ReplyMark;
use crate::resp::words::CommandWords;
use crate::session::{CommandQueue, Session, WatchedKeys};

impl Session {
    /// Runs the commands since MULTI as one transaction.
    pub(crate) fn exec(&mut self) -> Result<(), CommandError> {
        let (queue, watched) = self.take_queue()?;
        let store = Arc::clone(&self.state.store);
        let begin = self.reply.mark();
        // The errors of the last attempt.
        let mut errors = Vec::new();
        let outcome: Result<(), StoreError> = store.transaction(|tx| {
            self.reply.go_back(begin);
            errors.clear();
            self.pause = Duration::ZERO;
            for (key, watch) in &watched {
                tx.require_unchanged(key, watch)?;
            }
            self.reply.array(queue.commands.len());
            for (spec, kept) in &queue.commands {
                errors.push(self.step(tx, spec, kept.words())?);
            }
            Ok(())
        });
        match outcome {
            Ok(()) => {
                for ((spec, _), error) in queue.commands.iter().zip(&errors) {
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
            Err(error) => Err(abort(&error.into())),
        }
    }

    /// Runs one command of a transaction. An error of the command is its reply, and the others go on, as in Redis. Returns that
    /// error.
    fn step(
        &mut self,
        tx: &mut Transaction<'_>,
        spec: &'static CommandSpec,
        words: CommandWords<'_>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let mark = self.reply.mark();
        let outcome = match spec.call {
            CommandCall::Session(call) => call(self, words),
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
            self.reply.go_back(begin);
            self.fail(&error);
            self.has_failed = true;
        }
    }

    fn try_exec_alone(&mut self, begin: ReplyMark) -> Result<(), CommandError> {
        let (queue, watched) = self.take_queue()?;
        let unchanged: Result<(), StoreError> = self
            .state
            .store
            .transaction(|tx| watched.iter().try_for_each(|(key, watch)| tx.require_unchanged(key, watch)));
        match unchanged {
            Err(StoreError::VersionChanged) => {
                self.reply.null_array();
                return Ok(());
            }
            other => other?,
        }
        self.reply.array(queue.commands.len());
        for (spec, kept) in &queue.commands {
            self.run(spec, kept.words());
            self.count_call(spec, None);
        }
        self.reply.check(begin)
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
