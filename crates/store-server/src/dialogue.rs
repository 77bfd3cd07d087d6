//! One connection's dialogue: requests in, replies out. It owns no socket, and looks at a clock only to count how long
//! commands take.

pub(crate) mod apart;
mod aside;
mod exec;

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use caravan_store::{ClusterStore, KeyWatch, StoreError};

use crate::command::{CommandCall, CommandSpec, KeyCommand, find, named};
use crate::commands::table;
use crate::dialogue::exec::abort;
use crate::error::CommandError;
use crate::key_transaction::KeyTransaction;
use crate::limits;
use crate::links::AttachRequest;
use crate::parts::PartTable;
use crate::resp::reply::{ReplyMark, ReplyWriter, RespVersion};
use crate::resp::request::{ProtocolError, RequestParser};
use crate::resp::words::{CommandWords, KeptWords};
use crate::state::{ClientEntry, ServerState, count};
use crate::tally::BatchTally;

/// The keys of WATCH, as they were at that moment.
pub(crate) type WatchedKeys = Vec<WatchedKey>;

/// A key of WATCH.
#[derive(Debug)]
pub(crate) struct WatchedKey {
    pub(crate) key: Vec<u8>,
    pub(crate) watch: KeyWatch,
    /// The service of the part that the key was watched in; `None` if that was not here.
    pub(crate) tenure: Option<u64>,
}

/// A dialogue with one client.
///
/// Invariants: `queue` is set from MULTI to EXEC or DISCARD; `watched` is empty after each EXEC, DISCARD and UNWATCH.
#[derive(Debug)]
pub struct Dialogue {
    pub(crate) state: Arc<ServerState>,
    /// The parts of the store, as they were when the batch of requests began. Between two batches nothing is held that
    /// could be removed.
    pub(crate) parts: Arc<PartTable>,
    pub(crate) entry: ClientEntry,
    pub(crate) reply: ReplyWriter,
    pub(crate) is_authenticated: bool,
    pub(crate) queue: Option<CommandQueue>,
    pub(crate) watched: WatchedKeys,
    pub(crate) now_ms: u64,
    /// How long the next request waits (DEBUG SLEEP).
    pub(crate) pause: Duration,
    /// What the client says to attach with (CARAVAN.ATTACH); the dialogue is over then.
    pub(crate) attach: Option<AttachRequest>,
    /// What reads and writes keys of several parts, within an errand.
    pub(crate) apart: Option<Arc<ClusterStore>>,
    /// Whether the connection speaks TLS.
    pub(crate) is_sealed: bool,
    /// The command that the list of clients names.
    noted: &'static str,
    is_closing: bool,
    /// Whether the next request takes other servers, for which this thread does not wait.
    needs_errand: bool,
    /// Whether the next request is tried again after the pause, because commits of its part wait for copies.
    is_put_aside: bool,
    /// Whether a request fails that meets an undecided transaction, instead of becoming an errand.
    is_last_try: bool,
    parser: RequestParser,
    batch: BatchTally,
    /// Whether the command that runs has replied with an error.
    has_failed: bool,
    /// The output has, or had, more than answers to AUTH. A server without a lease gives these: members that elect a new manager have
    /// none, and connect to each other.
    pub(crate) tells_of_parts: bool,
}

/// The commands between MULTI and EXEC.
#[derive(Debug, Default)]
pub(crate) struct CommandQueue {
    commands: Vec<(&'static CommandSpec, KeptWords)>,
    bytes: usize,
    /// A command was refused, so EXEC refuses all.
    is_spoilt: bool,
}

impl CommandQueue {
    /// Tells whether one of the commands is on the whole store.
    fn has_whole(&self) -> bool {
        self.commands.iter().any(|(spec, _)| spec.is_whole())
    }
}

/// Where the keys of a request are.
#[derive(Clone, Copy, Debug)]
enum KeyPlace {
    /// In this one of the parts that are served. Without a key that is any one, if there is one.
    Here(usize),
    /// In several parts, or elsewhere: the request is an errand.
    Apart,
}

/// What runs commands: the batch of one read holds its turn, and gives it up for a transaction that runs alone.
enum CommandTurn {
    Shared,
    Alone,
}

impl Dialogue {
    /// Begins a dialogue. `address` is the client's, as CLIENT LIST shows it.
    pub fn new(state: Arc<ServerState>, address: String, now_ms: u64) -> Self {
        Self {
            entry: state.enter(address, now_ms),
            is_authenticated: !state.has_password(),
            parts: state.parts.idle(),
            state,
            reply: ReplyWriter::default(),
            queue: None,
            watched: Vec::new(),
            now_ms,
            pause: Duration::ZERO,
            attach: None,
            apart: None,
            is_sealed: false,
            noted: "",
            is_closing: false,
            needs_errand: false,
            is_put_aside: false,
            is_last_try: false,
            parser: RequestParser::default(),
            batch: BatchTally::default(),
            tells_of_parts: false,
            has_failed: false,
        }
    }

    /// Serves the requests that `input` begins with, and returns the number of bytes that they took; the caller removes
    /// these. It stops at an incomplete request, and before the next one when the output is long, after DEBUG SLEEP, and at the end.
    pub fn serve(&mut self, input: &[u8], now_ms: u64) -> usize {
        self.now_ms = now_ms;
        self.is_put_aside = false;
        self.entry.card.busy_ms.store(now_ms, std::sync::atomic::Ordering::Relaxed);
        let state = Arc::clone(&self.state);
        let mut taken = 0;
        let mut commands = 0;
        let mut parser = std::mem::take(&mut self.parser);
        let is_of_cluster = self.parts.cluster.is_some();
        if is_of_cluster {
            self.parts = state.parts.table();
        }
        let mut shared = Some(state.turn.read().unwrap_or_else(PoisonError::into_inner));
        while taken < input.len() && !self.is_waiting() {
            let rest = &input[taken..];
            match parser.parse(rest, self.is_authenticated) {
                Ok(Some(bytes)) => {
                    taken += bytes;
                    let words = parser.words(rest);
                    if words.is_empty() {
                        continue;
                    }
                    commands += 1;
                    let turn = self.turn_of(words);
                    if matches!(turn, CommandTurn::Alone) && self.has_waiting_part() {
                        // It would wait for the commits that wait, and all others for it.
                        self.put_aside();
                    } else if let CommandTurn::Alone = turn {
                        drop(shared.take());
                        let _alone = state.turn.write().unwrap_or_else(PoisonError::into_inner);
                        self.dispatch(words, &CommandTurn::Alone);
                    } else {
                        self.dispatch(words, &CommandTurn::Shared);
                    }
                    if self.needs_errand || self.is_put_aside {
                        // It is not done yet.
                        taken -= bytes;
                        commands -= 1;
                    }
                    shared.get_or_insert_with(|| state.turn.read().unwrap_or_else(PoisonError::into_inner));
                }
                Ok(None) => break,
                Err(error) => {
                    self.refuse(error);
                    taken = input.len();
                }
            }
        }
        self.parser = parser;
        if is_of_cluster {
            self.parts = state.parts.idle();
        }
        self.batch.finish(&state.tallies);
        count(&state.counters.commands, commands);
        taken
    }

    /// Returns the bytes for the client; the caller removes what it has sent.
    pub fn output(&mut self) -> &mut Vec<u8> {
        self.reply.bytes()
    }

    /// Returns whether the connection is to be closed once the output is sent.
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Returns how long the client asked the server to wait before the next request, and forgets it.
    pub fn take_pause(&mut self) -> Duration {
        std::mem::take(&mut self.pause)
    }

    fn is_waiting(&self) -> bool {
        self.is_closing
            || self.needs_errand
            || self.attach.is_some()
            || !self.pause.is_zero()
            || self.reply.len() >= limits::OUTPUT_PAUSE_BYTES
    }

    pub(crate) fn close(&mut self) {
        self.is_closing = true;
    }

    fn refuse(&mut self, error: ProtocolError) {
        let words = format!("ERR Protocol error: {error}");
        self.count_error(words.as_bytes());
        self.reply.error(words.as_bytes());
        self.close();
    }

    /// Returns whether a request has to run alone: EXEC with a command on the whole store in its queue.
    fn turn_of(&self, words: CommandWords<'_>) -> CommandTurn {
        let is_alone = self.queue.as_ref().is_some_and(|queue| words.is(0, "exec") && queue.has_whole());
        if is_alone { CommandTurn::Alone } else { CommandTurn::Shared }
    }

    fn dispatch(&mut self, words: CommandWords<'_>, turn: &CommandTurn) {
        let admitted = self.admit(words);
        self.tells_of_parts |= !matches!(admitted, Ok((spec, _)) if spec.name == "auth");
        if admitted.is_err() {
            let tally = named(words).and_then(|spec| self.state.tallies.of(spec));
            tally.into_iter().for_each(|tally| count(&tally.rejected, 1));
        }
        match admitted {
            Ok((spec, _)) if self.queue.is_some() && !spec.is_at_once() => self.keep(spec, words),
            Ok((spec, place)) if self.waits_for_copies(spec, words, place) => self.put_aside(),
            Ok((_, KeyPlace::Apart)) => self.needs_errand = true,
            Ok((spec, _)) if self.queue.is_some() && self.is_exec_apart(spec) => self.needs_errand = true,
            Ok((spec, KeyPlace::Here(part))) => {
                self.note(spec);
                let begun = self.batch.begin(&self.state.tallies);
                let mark = self.reply.mark();
                match turn {
                    CommandTurn::Alone if spec.name == "exec" => self.exec_alone(),
                    _ => match self.try_run(spec, words, part) {
                        Err(CommandError::Store(StoreError::Undecided)) if !self.is_last_try => {
                            self.reply.go_back(mark);
                            if self.has_waiting_part() {
                                self.put_aside();
                            } else {
                                self.needs_errand = true;
                            }
                            return;
                        }
                        Err(error) => self.fail_from(mark, &error),
                        Ok(()) => {}
                    },
                }
                self.count_call(spec, begun);
            }
            Err(error) if words.is(0, "exec") => {
                self.queue = None;
                self.forget_watched();
                self.fail(&abort(&error));
            }
            // Lines of HTTP: a web page can make a browser send them to a port of its own host. Redis ends such a dialogue, too.
            Err(_) if words.is(0, "post") || words.is(0, "host:") => self.close(),
            Err(error) => {
                if let Some(queue) = &mut self.queue {
                    queue.is_spoilt = true;
                }
                self.fail(&error);
            }
        }
    }

    /// Finds the command, and checks the number of words, the password and the keys' lengths. Returns also where the keys are.
    fn admit(&self, words: CommandWords<'_>) -> Result<(&'static CommandSpec, KeyPlace), CommandError> {
        let spec = find(words)?;
        if !self.is_authenticated && !spec.needs_no_password() {
            return Err(CommandError::Said("NOAUTH Authentication required."));
        }
        for key in spec.keys(words) {
            if key.len() > caravan_store::limits::KEY_BYTES_MAX {
                return Err(StoreError::KeyTooLong { bytes: key.len() }.into());
            }
        }
        let place = match self.parts.index_of(spec.keys(words)) {
            Ok(part) => KeyPlace::Here(part),
            Err(why) => {
                let is_transaction = self.queue.is_some() || spec.name == "watch";
                self.place_apart(spec.keys(words), is_transaction, why)?
            }
        };
        Ok((spec, place))
    }

    fn note(&mut self, spec: &'static CommandSpec) {
        // Most commands follow their like; those take no lock.
        if self.noted != spec.name {
            self.noted = spec.name;
            self.entry.card.notes().command = spec.name;
        }
    }

    fn fail(&mut self, error: &CommandError) {
        let words = error.words();
        self.count_error(&words);
        self.reply.error(&words);
    }

    fn count_error(&self, words: &[u8]) {
        count(&self.state.counters.errors, 1);
        self.state.tallies.count_error(words);
    }

    /// Counts a command that has run.
    fn count_call(&mut self, spec: &'static CommandSpec, begun: Option<Instant>) {
        self.batch.end(&self.state.tallies, spec, begun);
        if std::mem::take(&mut self.has_failed) {
            self.state.tallies.of(spec).into_iter().for_each(|tally| count(&tally.failed, 1));
        }
    }

    fn keep(&mut self, spec: &'static CommandSpec, words: CommandWords<'_>) {
        let Some(queue) = &mut self.queue else { return };
        let kept = KeptWords::of(words);
        queue.bytes += kept.memory_bytes();
        if queue.bytes > limits::QUEUE_BYTES_MAX || queue.commands.len() >= limits::QUEUE_COMMANDS_MAX {
            queue.is_spoilt = true;
            queue.commands = Vec::new();
            return self.fail(&CommandError::Said(
                "ERR the transaction is too long: it takes 131072 commands and 64 MiB",
            ));
        }
        queue.commands.push((spec, kept));
        self.entry.card.notes().queued = Some((queue.commands.len(), queue.bytes));
        self.reply.simple("QUEUED");
    }

    /// Replies with an error to the command whose reply begins at `mark`. Where the part has just gone to another server, nobody here
    /// knows whether a write has gone with it: the connection is closed, as an error would have the client repeat the write.
    fn fail_from(&mut self, mark: ReplyMark, error: &CommandError) {
        self.reply.go_back(mark);
        match error {
            CommandError::Store(StoreError::NotPrimary) => self.close(),
            error => self.fail(error),
        }
        self.has_failed = true;
    }

    /// Runs one command outside of MULTI, on keys of a part that is served.
    fn try_run(
        &mut self,
        spec: &'static CommandSpec,
        words: CommandWords<'_>,
        part: usize,
    ) -> Result<(), CommandError> {
        let mark = self.reply.mark();
        let outcome = match spec.call {
            CommandCall::Dialogue(call) => call(self, words),
            CommandCall::Lone(call, _) => call(&self.parts.served[part].store, words, &mut self.reply),
            CommandCall::Keys(call) => {
                let (reply, now_ms) = (&mut self.reply, self.now_ms);
                self.parts.served[part].store.transaction(|tx| {
                    reply.go_back(mark);
                    let tx = KeyTransaction::Here(tx);
                    call(&mut KeyCommand { tx, words, reply, now_ms, mark, name: spec.name })
                })
            }
            // Of the containers, only COMMAND takes no second word.
            CommandCall::Container(_) => table::all(self, words),
        };
        outcome.and_then(|()| self.reply.check(mark))
    }

    pub(crate) fn forget_watched(&mut self) -> WatchedKeys {
        self.entry.card.notes().queued = self.queue.as_ref().map(|queue| (queue.commands.len(), queue.bytes));
        std::mem::take(&mut self.watched)
    }

    /// Puts the dialogue back to its start (RESET).
    pub(crate) fn reset(&mut self) {
        self.queue = None;
        self.forget_watched();
        self.is_authenticated = !self.state.has_password();
        self.set_version(RespVersion::Two);
        self.entry.card.notes().name.clear();
    }

    pub(crate) fn set_version(&mut self, version: RespVersion) {
        self.reply.set_version(version);
        self.entry.card.notes().is_resp3 = version == RespVersion::Three;
    }
}
