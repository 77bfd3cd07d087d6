//! What clients did and saw, as one line of JSON for each transaction. The judges read nothing else.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// A transaction of one client: a command alone is one of one step. All of its steps happen at one moment, or none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientAct {
    pub client: u32,
    /// When the client sent it, in nanoseconds of CLOCK_MONOTONIC, which all processes of the host share.
    pub begin_ns: u64,
    /// When the client had the reply; nothing if it got none.
    pub end_ns: Option<u64>,
    pub outcome: Outcome,
    pub steps: Vec<Step>,
}

/// What a client knows of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It happened, and the steps have their replies.
    Done,
    /// It did not happen, and never will.
    Refused,
    /// The client or its connection ended before the reply: it has happened, will happen, or never does.
    Unknown,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    pub kind: StepKind,
    pub key: String,
    /// What a step writes.
    pub value: Option<String>,
    /// The value that was there, of Get and GetSet; the number, of Append (bytes), Incr (the new one) and Del (keys).
    pub reply: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    Get,
    Set,
    GetSet,
    Append,
    Incr,
    Del,
    /// FLUSHALL, which has no key.
    Flush,
}

impl Step {
    pub fn new(kind: StepKind, key: &str, value: Option<String>) -> Self {
        Self { kind, key: key.to_owned(), value, reply: None }
    }
}

/// Returns the time on the clock of all acts.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Reads the lines of one client. A client writes an act when it begins, and again when it ends: the later line
/// counts. A line that the client's death cut off is none.
pub fn parse(lines: &[u8]) -> Vec<ClientAct> {
    let mut acts: Vec<ClientAct> = Vec::new();
    let mut of_begin: HashMap<(u32, u64), usize> = HashMap::new();
    // The test harness says something, too.
    for line in lines.split_inclusive(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{")) {
        let Ok(act) = serde_json::from_slice::<ClientAct>(line) else {
            assert!(!line.ends_with(b"\n"), "not an act: {}", String::from_utf8_lossy(line));
            continue;
        };
        match of_begin.get(&(act.client, act.begin_ns)) {
            Some(index) => acts[*index] = act,
            None => {
                of_begin.insert((act.client, act.begin_ns), acts.len());
                acts.push(act);
            }
        }
    }
    acts
}

/// Random numbers from a seed (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        // Seeds are near each other, and zero is none.
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| _ = random.below(2));
        random
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}
