//! The clients: processes that send random transactions over the Redis protocol and read by the mapped memory, write
//! down what they do, and never end by themselves.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use caravan_store::{Reader, StoreError};
use caravan_store_server::{ClientError, StoreAnswer, StoreClient};
use serde::{Deserialize, Serialize};

use super::history::{ClientAct, Outcome, Random, Step, StepKind, now_ns};

/// What a client process is told when it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientOrder {
    pub client: u32,
    pub seed: u64,
    pub socket: PathBuf,
    pub workload: Workload,
    pub fault: Option<ClientFault>,
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
/// How often a client reads the same keys by the mapped memory: reading is much faster than writing it down.
const MAPPED_READS: usize = 20;
/// How long an early reply is ahead of its write.
const EARLY: Duration = Duration::from_millis(2);

/// Runs a client until it is killed.
pub fn run(descriptor: OwnedFd, order: &ClientOrder) -> Result<(), String> {
    let reader = Reader::open(descriptor).map_err(|error| error.to_string())?;
    let random = Random::new(order.seed ^ u64::from(order.client) << 32);
    let mut client = Client { order, random, reader, talk: None, tokens: 0 };
    loop {
        client.transaction()?;
    }
}

struct Client<'o> {
    order: &'o ClientOrder,
    random: Random,
    reader: Reader,
    talk: Option<StoreClient>,
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
            8..=11 => self.mapped(reads),
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
                format!("{kind}{}.{}", self.random.below(2), now_ns() / REGISTER_EPOCH_NS)
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
            if let Some(answer) = answer {
                step.reply = reply(answer)?;
                self.end(begin_ns, Outcome::Done, vec![step])?;
            }
        }
        Ok(())
    }

    /// Reads by the mapped memory again and again, several keys as one transaction, and writes down what changes. A read
    /// that is never written down tells nothing, so no line says that it begins.
    fn mapped(&mut self, mut steps: Vec<Step>) -> Result<(), String> {
        let mut before = None;
        for _ in 0..MAPPED_READS {
            let begin_ns = now_ns();
            let read = if let [step] = &mut steps[..] {
                self.reader.get(step.key.as_bytes()).map(|value| step.reply = value.map(text))
            } else {
                self.reader.transaction(|tx| {
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
        let Some(answers) = answers(self.call(&words)?, steps.len())? else { return Ok(()) };
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
        let Some(answers) = answers(answer, all.len() - known)? else { return Ok(()) };
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
        if self.random.below(20) == 0 {
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
            None => Ok(()),
        }
    }

    /// Sends a command, over a new connection if there is none. Returns nothing if the connection ended.
    fn call(&mut self, words: &[Vec<u8>]) -> Result<Option<StoreAnswer>, String> {
        while self.talk.is_none() {
            match StoreClient::connect(&self.order.socket) {
                Ok(talk) => self.talk = Some(talk),
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
            Ok(StoreAnswer::Error(text)) => Err(format!("the server said {}", text_of(&text))),
            Ok(answer) => Ok(Some(answer)),
            Err(ClientError::Io(_) | ClientError::Closed) => {
                self.talk = None;
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn begin(&self, steps: &[Step]) -> Result<u64, String> {
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

fn words(step: &Step) -> Vec<Vec<u8>> {
    let name = match step.kind {
        StepKind::Get => "GET",
        StepKind::Set => "SET",
        StepKind::GetSet => "GETSET",
        StepKind::Append => "APPEND",
        StepKind::Incr => "INCR",
        StepKind::Del => "DEL",
        StepKind::Flush => return vec![b"FLUSHALL".to_vec()],
    };
    let value = step.value.iter().map(|value| value.clone().into_bytes());
    [name.as_bytes().to_vec(), step.key.clone().into_bytes()].into_iter().chain(value).collect()
}

fn text(bytes: Vec<u8>) -> String {
    text_of(&bytes)
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn reply(answer: StoreAnswer) -> Result<Option<String>, String> {
    match answer {
        StoreAnswer::Null => Ok(None),
        StoreAnswer::Bulk(bytes) | StoreAnswer::Simple(bytes) => Ok(Some(text(bytes))),
        StoreAnswer::Integer(number) => Ok(Some(number.to_string())),
        other => Err(format!("the server answered {other:?}")),
    }
}

/// Returns the answers of several commands, nothing if there is no answer.
fn answers(answer: Option<StoreAnswer>, count: usize) -> Result<Option<Vec<StoreAnswer>>, String> {
    match answer {
        None => Ok(None),
        Some(StoreAnswer::Array(answers)) if answers.len() == count => Ok(Some(answers)),
        other => Err(format!("the server answered {other:?} to {count} commands")),
    }
}
