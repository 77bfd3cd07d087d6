//! The clients: processes that send random transactions over the Redis protocol and read by the mapped memory, write
//! down what they do, and never end by themselves.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use caravan_store::faults::{self, FaultMoment};
use caravan_store::{ClusterStore, ConnectOptions, Reader, StoreError};
use caravan_store_server::{ClientError, StoreAnswer, StoreClient};
use serde::{Deserialize, Serialize};

use super::history::{ClientAct, Outcome, Random, Step, StepKind, now_ns};
use super::steps::{answers, reply, step_in, text, text_of, words};

/// What a client process is told when it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientOrder {
    pub client: u32,
    pub seed: u64,
    /// The sockets of all servers of the store, each of which takes all keys.
    pub servers: Vec<PathBuf>,
    /// Whether the memory of the store is its standard input.
    pub is_mapped: bool,
    pub workload: Workload,
    pub fault: Option<ClientFault>,
    /// Whether it stops itself in each transaction over several parts, before it commits; only those with an even number do.
    pub stops: bool,
}

/// Which transactions clients send, for which judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Workload {
    /// Each write is unique, and replies tell the order of the versions (`cycles.rs`).
    Chains,
    /// All commands on single values, for a judge that searches; the keys change every now and then, so that each has a
    /// short history.
    Registers,
}

/// A fault between client and server, as a server with it would appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientFault {
    /// The reply comes before the write is done.
    EarlyReply,
    /// The request is done twice.
    Repeat,
}

/// How many times a wide value repeats its token: enough for a reader to meet a writer in the middle.
const WIDTH: usize = 120;
/// For how long the keys of `Workload::Registers` stay the same.
const REGISTER_EPOCH_NS: u64 = 100_000_000;
/// The same with several servers: others have taken over meanwhile what a server had that was killed.
const SPREAD_EPOCH_NS: u64 = 3_000_000_000;
/// How often a client reads the same keys by the mapped memory: reading is much faster than writing it down.
const MAPPED_READS: usize = 20;
/// How long some clients wait for a server of several that says nothing.
const IMPATIENCE: Duration = Duration::from_millis(500);
/// How long an early reply is ahead of its write.
const EARLY: Duration = Duration::from_millis(2);

/// Runs a client until it is killed.
pub fn run(descriptor: OwnedFd, order: &ClientOrder) -> Result<(), String> {
    let reader = order.is_mapped.then(|| Reader::open(descriptor)).transpose();
    let reader = reader.map_err(|error| error.to_string())?;
    let random = Random::new(order.seed ^ u64::from(order.client) << 32);
    let mut client = Client { order, random, reader, store: None, talk: None, is_refused: false, tokens: 0 };
    loop {
        if order.stops && order.client % 2 == 0 {
            faults::stop_at(FaultMoment::HomeCommit, 1);
        }
        client.transaction()?;
    }
}

struct Client<'o> {
    order: &'o ClientOrder,
    random: Random,
    reader: Option<Reader>,
    /// Of a store of several servers.
    store: Option<ClusterStore>,
    talk: Option<StoreClient>,
    /// The server has said that it has done nothing, instead of the last answer.
    is_refused: bool,
    tokens: u32,
}

impl Client<'_> {
    fn transaction(&mut self) -> Result<(), String> {
        let kind = self.random.below(20);
        let count = if kind < 10 { 1 } else { 2 + self.random.below(3) };
        let steps: Vec<Step> = (0..count).map(|_| self.step()).collect();
        let reads = self.reads(count);
        match kind {
            0..=7 => self.commands(steps),
            8..=11 if self.reader.is_some() => self.mapped(reads),
            8..=11 => self.spread(steps),
            12 => self.mget(reads),
            13..=15 => self.exec(steps, Vec::new()),
            16 => self.discard(steps),
            17 if self.order.workload == Workload::Registers => self.registers(count),
            _ => self.watch(),
        }
    }

    /// Returns a key of a random kind: `l` for lists, `w` for wide values, `n` for numbers.
    fn key(&mut self, kinds: &str) -> String {
        let kind = kinds.as_bytes()[self.random.below(kinds.len())] as char;
        match self.order.workload {
            Workload::Chains => format!("{kind}{}", self.random.below(if kind == 'w' { 2 } else { 3 })),
            // So few that faults show on a single key.
            Workload::Registers => {
                let epoch_ns = if self.order.servers.len() > 1 { SPREAD_EPOCH_NS } else { REGISTER_EPOCH_NS };
                format!("{kind}{}.{}", self.random.below(2), now_ns() / epoch_ns)
            }
        }
    }

    /// Returns a value that nobody has written before.
    fn token(&mut self, key: &str) -> String {
        self.tokens += 1;
        // All are as long, so that values have the same sizes however long a soak lasts.
        let token = format!("{:05}.{:06}", self.order.client, self.tokens);
        match key.as_bytes()[0] {
            b'n' => (u64::from(self.order.client) << 20 | u64::from(self.tokens)).to_string(),
            b'w' => format!("{};", vec![token; WIDTH].join(",")),
            _ => format!("{token};"),
        }
    }

    fn write(&mut self, kind: StepKind, key: &str) -> Step {
        let value = self.token(key);
        Step::new(kind, key, Some(value))
    }

    fn step(&mut self) -> Step {
        let key = self.key("llwn");
        let is_chains = self.order.workload == Workload::Chains;
        match (self.random.below(8), key.as_bytes()[0]) {
            (0..=2, _) => Step::new(StepKind::Get, &key, None),
            (3..=5, b'n') => Step::new(StepKind::Incr, &key, None),
            // The numbers of chains go up by one each time.
            (_, b'n') if is_chains => Step::new(StepKind::Get, &key, None),
            (3..=4, b'l') => self.write(StepKind::Append, &key),
            (5, _) if !is_chains => self.write(StepKind::Set, &key),
            (6, _) if !is_chains => Step::new(StepKind::Del, &key, None),
            _ => self.write(StepKind::GetSet, &key),
        }
    }

    fn reads(&mut self, count: usize) -> Vec<Step> {
        (0..count).map(|_| Step::new(StepKind::Get, &self.key("llwwn"), None)).collect()
    }

    /// Runs one after the other, each as a transaction.
    fn commands(&mut self, steps: Vec<Step>) -> Result<(), String> {
        for mut step in steps {
            let begin_ns = self.begin(std::slice::from_ref(&step))?;
            if self.order.fault == Some(ClientFault::EarlyReply) && step.kind == StepKind::Append {
                self.end(begin_ns, Outcome::Done, vec![step.clone()])?;
                std::thread::sleep(EARLY);
                self.call(&words(&step))?;
                continue;
            }
            let repeats = self.order.fault == Some(ClientFault::Repeat) && step.kind == StepKind::Incr;
            let mut answer = self.call(&words(&step))?;
            if repeats {
                answer = self.call(&words(&step))?;
            }
            match answer {
                Some(answer) => {
                    step.reply = reply(answer)?;
                    self.end(begin_ns, Outcome::Done, vec![step])?;
                }
                None => self.unanswered(begin_ns, vec![step])?,
            }
        }
        Ok(())
    }

    /// Reads by the mapped memory again and again, several keys as one transaction, and writes down what changes. A read
    /// that is never written down tells nothing, so no line says that it begins.
    fn mapped(&mut self, mut steps: Vec<Step>) -> Result<(), String> {
        let Some(reader) = &self.reader else { return Ok(()) };
        let mut before = None;
        for _ in 0..MAPPED_READS {
            let begin_ns = now_ns();
            let read = if let [step] = &mut steps[..] {
                reader.get(step.key.as_bytes()).map(|value| step.reply = value.map(text))
            } else {
                reader.transaction(|tx| {
                    for step in &mut steps {
                        step.reply = tx.get(step.key.as_bytes())?.map(text);
                    }
                    Ok::<_, StoreError>(())
                })
            };
            match read {
                Ok(()) => {}
                // A server that is stopped or killed in the middle of a write holds up those who read just that key.
                Err(StoreError::Contended) => return Ok(()),
                Err(error) => return Err(format!("a mapped read failed: {error}")),
            }
            let replies: Vec<Option<String>> = steps.iter().map(|step| step.reply.clone()).collect();
            if before.as_ref() != Some(&replies) {
                self.end(begin_ns, Outcome::Done, steps.clone())?;
                before = Some(replies);
            }
        }
        Ok(())
    }

    fn mget(&mut self, mut steps: Vec<Step>) -> Result<(), String> {
        let begin_ns = self.begin(&steps)?;
        let keys = steps.iter().map(|step| step.key.clone().into_bytes());
        let words: Vec<Vec<u8>> = std::iter::once(b"MGET".to_vec()).chain(keys).collect();
        let Some(answers) = answers(self.call(&words)?, steps.len())? else {
            return self.unanswered(begin_ns, steps);
        };
        for (step, answer) in steps.iter_mut().zip(answers) {
            step.reply = reply(answer)?;
        }
        self.end(begin_ns, Outcome::Done, steps)
    }

    /// Runs the steps as one transaction; what it has read before is a condition of it.
    fn exec(&mut self, steps: Vec<Step>, conditions: Vec<Step>) -> Result<(), String> {
        let known = conditions.len();
        let mut all = [conditions, steps].concat();
        let begin_ns = self.begin(&all)?;
        // The connection of a condition is the one that watches.
        let mut answer =
            if known == 0 { self.call(&[b"MULTI".to_vec()])? } else { self.call_on(&[b"MULTI".to_vec()])? };
        for step in &all[known..] {
            answer = answer.and(self.call_on(&words(step))?);
        }
        answer = answer.and(self.call_on(&[b"EXEC".to_vec()])?);
        if answer == Some(StoreAnswer::Null) {
            return self.end(begin_ns, Outcome::Refused, all);
        }
        let Some(answers) = answers(answer, all.len() - known)? else {
            return self.unanswered(begin_ns, all);
        };
        for (step, answer) in all[known..].iter_mut().zip(answers) {
            step.reply = reply(answer)?;
        }
        self.end(begin_ns, Outcome::Done, all)
    }

    fn discard(&mut self, steps: Vec<Step>) -> Result<(), String> {
        let begin_ns = self.begin(&steps)?;
        let mut answer = self.call(&[b"MULTI".to_vec()])?;
        for step in &steps {
            answer = answer.and(self.call_on(&words(step))?);
        }
        match answer.and(self.call_on(&[b"DISCARD".to_vec()])?) {
            Some(_) => self.end(begin_ns, Outcome::Refused, steps),
            None => Ok(()),
        }
    }

    /// WATCH, GET, and a transaction that writes what was read, and another key.
    fn watch(&mut self) -> Result<(), String> {
        let key = self.key("lw");
        let (kind, other) = (StepKind::Set, self.key("l"));
        if self.call(&[b"WATCH".to_vec(), key.clone().into_bytes()])?.is_none() {
            return Ok(());
        }
        let mut get = Step::new(StepKind::Get, &key, None);
        let begin_ns = self.begin(std::slice::from_ref(&get))?;
        let Some(answer) = self.call_on(&words(&get))? else { return Ok(()) };
        get.reply = reply(answer)?;
        self.end(begin_ns, Outcome::Done, vec![get.clone()])?;
        let mut steps = vec![self.write(kind, &key)];
        if other != key {
            steps.push(self.write(StepKind::Append, &other));
        }
        self.exec(steps, vec![get])
    }

    /// What the chains cannot follow: values set without a look at the old ones, and all keys deleted.
    fn registers(&mut self, count: usize) -> Result<(), String> {
        // A server of several has only its own parts.
        if self.random.below(20) == 0 && self.order.servers.len() == 1 {
            return self.commands(vec![Step::new(StepKind::Flush, "", None)]);
        }
        let keys: Vec<String> = (0..count).map(|_| self.key("lw")).collect();
        let steps: Vec<Step> = keys.iter().map(|key| self.write(StepKind::Set, key)).collect();
        let begin_ns = self.begin(&steps)?;
        let mut words = vec![b"MSET".to_vec()];
        for step in &steps {
            words
                .extend([step.key.clone().into_bytes(), step.value.clone().unwrap_or_default().into_bytes()]);
        }
        match self.call(&words)? {
            Some(_) => self.end(begin_ns, Outcome::Done, steps),
            None => self.unanswered(begin_ns, steps),
        }
    }

    /// Runs the steps as one transaction of `ClusterStore`, which goes to the server of each key.
    fn spread(&mut self, mut steps: Vec<Step>) -> Result<(), String> {
        if self.store.is_none() {
            let mut addresses: Vec<String> =
                self.order.servers.iter().map(|socket| format!("unix:{}", socket.display())).collect();
            let first = addresses.swap_remove(self.random.below(addresses.len()));
            let mut options = ConnectOptions::new(first).others(addresses);
            if let Some(most) = self.patience() {
                (options.connect_wait, options.answer_wait) = (most, most);
            }
            match ClusterStore::connect(options) {
                Ok(store) => self.store = Some(store),
                Err(_) => {
                    std::thread::sleep(Duration::from_millis(1));
                    return Ok(());
                }
            }
        }
        let begin_ns = self.begin(&steps)?;
        let Some(store) = &self.store else { return Ok(()) };
        let done = store.transaction(|tx| steps.iter_mut().try_for_each(|step| step_in(tx, step)));
        match done {
            Ok(()) => self.end(begin_ns, Outcome::Done, steps),
            Err(
                StoreError::Disconnected
                | StoreError::Replaced
                | StoreError::NotPrimary
                | StoreError::NoSession
                | StoreError::NoAnswer { is_started: true, .. },
            ) => {
                self.store = None;
                Ok(())
            }
            Err(
                StoreError::Conflict
                | StoreError::Undecided
                | StoreError::Unreachable { .. }
                | StoreError::Refused(_)
                | StoreError::NoAnswer { .. },
            ) => {
                self.store = None;
                // What an attempt has read is no reply of a transaction that did not happen.
                steps.iter_mut().for_each(|step| step.reply = None);
                self.end(begin_ns, Outcome::Refused, steps)
            }
            Err(error) => Err(format!("a transaction failed: {error}")),
        }
    }

    /// Sends a command, over a new connection if there is none. Returns nothing if the connection ended, or if the server
    /// has refused.
    fn call(&mut self, words: &[Vec<u8>]) -> Result<Option<StoreAnswer>, String> {
        while self.talk.is_none() {
            let server = self.random.below(self.order.servers.len());
            match StoreClient::connect(&self.order.servers[server]) {
                Ok(mut talk) => {
                    if let Some(most) = self.patience() {
                        talk.limit_silence(most).map_err(|error| error.to_string())?;
                    }
                    self.talk = Some(talk);
                }
                // The server has been killed, and another one comes.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        self.call_on(words)
    }

    /// Sends a command over the connection of the one before.
    fn call_on(&mut self, words: &[Vec<u8>]) -> Result<Option<StoreAnswer>, String> {
        let Some(talk) = &mut self.talk else { return Ok(None) };
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        match talk.call(&words) {
            Ok(StoreAnswer::Error(text)) if self.order.servers.len() > 1 => {
                self.talk = None;
                // What docs/store.md says of these errors.
                let begins = |all: &[&str]| all.iter().any(|words| text.starts_with(words.as_bytes()));
                self.is_refused = begins(&["TRYAGAIN ", "EXECABORT ", "CLUSTERDOWN "]);
                match self.is_refused || begins(&["ERR the connection", "ERR the store has said nothing"]) {
                    true => Ok(None),
                    false => Err(format!("the server said {}", text_of(&text))),
                }
            }
            Ok(StoreAnswer::Error(text)) => Err(format!("the server said {}", text_of(&text))),
            Ok(answer) => Ok(Some(answer)),
            Err(ClientError::Io(_) | ClientError::Closed | ClientError::Silent(_)) => {
                self.talk = None;
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns how long this client waits for a server that says nothing. Some go elsewhere, and some still wait when a server that
    /// was stopped answers at last.
    fn patience(&self) -> Option<Duration> {
        (self.order.servers.len() > 1 && self.order.client % 2 == 1).then_some(IMPATIENCE)
    }

    /// Writes down how a transaction without an answer ended, if that is known.
    fn unanswered(&mut self, begin_ns: u64, steps: Vec<Step>) -> Result<(), String> {
        if std::mem::take(&mut self.is_refused) {
            return self.end(begin_ns, Outcome::Refused, steps);
        }
        Ok(())
    }

    fn begin(&mut self, steps: &[Step]) -> Result<u64, String> {
        self.is_refused = false;
        let begin_ns = now_ns();
        let (client, steps) = (self.order.client, steps.to_vec());
        write_down(&ClientAct { client, begin_ns, end_ns: None, outcome: Outcome::Unknown, steps })?;
        Ok(begin_ns)
    }

    fn end(&self, begin_ns: u64, outcome: Outcome, steps: Vec<Step>) -> Result<(), String> {
        let end_ns = Some(now_ns());
        write_down(&ClientAct { client: self.order.client, begin_ns, end_ns, outcome, steps })
    }
}

/// Writes a line. It is in the pipe before the next call of the system, so the death of this process cannot undo it.
fn write_down(act: &ClientAct) -> Result<(), String> {
    let mut line = serde_json::to_vec(act).map_err(|error| error.to_string())?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).map_err(|error| error.to_string())
}
