//! The judge of transactions: is there one order of all of them that explains every reply, and in which no
//! transaction comes before one that had ended when it began (strict serializability)?
//!
//! Every write leaves a token that no other write leaves: a value is a list of tokens, each followed by `;`, of which
//! the last one names the **version**. APPEND adds a token, SET and GETSET replace all of them by one, INCR makes the
//! number the version. The order of versions comes from what clients were told: the list that a read returns, the value
//! that GETSET returns, the number that INCR returns, and the value that a transaction reads before it writes the
//! key. Keys are never deleted. Nothing here knows the store's own versions.
//!
//! Where nobody was told what follows a version, `runs.rs` says which versions come later.
//!
//! The edges between transactions (`graph.rs`) hold in every order, so there is none if there is a cycle.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::graph::{Edge, Graph};
use super::history::{ClientAct, Outcome, Step, StepKind};

/// Why a history has no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// The transactions that show it, in words.
    pub text: String,
}

/// The names of Adya's thesis and of Elle, where they have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A value was read that nobody wrote, such as one torn from two.
    Garbage,
    /// A write of a transaction that did not happen was read (G1a).
    AbortedRead,
    /// A write was read that its own transaction replaced (G1b).
    IntermediateRead,
    /// Two writes follow the same version: one of them was lost.
    LostUpdate,
    /// A write happened more than once.
    Repeated,
    /// Reads tell of two orders of the same writes.
    Order,
    /// A transaction does not see its own write.
    Internal,
    /// Transactions precede each other in a cycle; the edges of it are in the text (G0, G1c, G-single, G2).
    Cycle,
}

/// A version of a key: the number of the key, and the token.
pub(super) type Version<'h> = (usize, &'h str);

/// The version of a key that nobody has written.
pub(super) const UNWRITTEN: &str = "";

pub(super) struct Judge<'h> {
    pub(super) acts: &'h [ClientAct],
    pub(super) keys: HashMap<&'h str, usize>,
    /// Who wrote a version, and whether the same transaction replaced it.
    pub(super) writers: HashMap<Version<'h>, (usize, bool)>,
    /// The versions of counters by their numbers.
    numbers: HashMap<(usize, u64), &'h str>,
    /// The version after a version.
    pub(super) next: HashMap<Version<'h>, Version<'h>>,
    pub(super) before: HashMap<Version<'h>, Version<'h>>,
    /// For each transaction the versions that it read of others.
    pub(super) reads: Vec<Vec<Version<'h>>>,
    /// Whether somebody was told of a transaction's writes.
    pub(super) is_seen: Vec<bool>,
    /// INCRs whose clients got no reply: how many of each key.
    unknown_increments: HashMap<usize, usize>,
    pub(super) graph: Graph,
}

/// Judges a history.
pub fn judge(acts: &[ClientAct]) -> Result<(), Violation> {
    let mut judge = Judge {
        acts,
        keys: HashMap::new(),
        writers: HashMap::new(),
        numbers: HashMap::new(),
        next: HashMap::new(),
        before: HashMap::new(),
        reads: vec![Vec::new(); acts.len()],
        is_seen: acts.iter().map(|act| act.outcome == Outcome::Done).collect(),
        unknown_increments: HashMap::new(),
        graph: Graph::new(acts.len()),
    };
    judge.find_writers()?;
    judge.find_seen()?;
    judge.find_order()?;
    judge.count_increments()?;
    judge.connect()?;
    judge.connect_runs();
    judge.connect_times();
    judge.find_cycle().map_or(Ok(()), Err)
}

/// Returns the tokens of a value, `None` if it is no list of whole tokens. A wide token is written several times.
fn tokens(value: &str) -> Option<Vec<&str>> {
    if !value.ends_with(';') {
        // A number is one token.
        return value.parse::<u64>().is_ok().then(|| vec![value]);
    }
    value[..value.len() - 1]
        .split(';')
        .map(|token| {
            let mut copies = token.split(',');
            let first = copies.next()?;
            (!first.is_empty() && copies.all(|copy| copy == first)).then_some(first)
        })
        .collect()
}

/// Returns the token that a step writes, if it is not INCR's.
fn token(step: &Step) -> Option<&str> {
    let value = step.value.as_deref().filter(|_| step.kind != StepKind::Get)?;
    tokens(value)?.pop()
}

impl<'h> Judge<'h> {
    fn key(&mut self, step: &'h Step) -> usize {
        let count = self.keys.len();
        *self.keys.entry(&step.key).or_insert(count)
    }

    fn violation<T>(&self, rule: Rule, transactions: &[usize], why: &str) -> Result<T, Violation> {
        let mut text = why.to_owned();
        for index in transactions {
            let _ = write!(text, "\n    {}", self.told(*index));
        }
        Err(Violation { rule, text })
    }

    fn told(&self, index: usize) -> String {
        let mut act = self.acts[index].clone();
        for step in &mut act.steps {
            for value in [&mut step.value, &mut step.reply].into_iter().flatten() {
                // Wide tokens fill the screen.
                if let Some(tokens) = tokens(value).filter(|_| value.contains(',')) {
                    *value = format!("{} (wide)", tokens.join(";"));
                }
            }
        }
        serde_json::to_string(&act).unwrap_or_default()
    }

    fn find_writers(&mut self) -> Result<(), Violation> {
        for (index, act) in self.acts.iter().enumerate() {
            let mut last: HashMap<usize, Version<'h>> = HashMap::new();
            for step in &act.steps {
                let key = self.key(step);
                let token = match step.kind {
                    StepKind::Incr if act.outcome == Outcome::Unknown => {
                        *self.unknown_increments.entry(key).or_default() += 1;
                        continue;
                    }
                    StepKind::Incr => step.reply.as_deref(),
                    _ => token(step),
                };
                let Some(token) = token else { continue };
                if let Ok(number) = token.parse() {
                    self.numbers.insert((key, number), token);
                }
                if let Some((other, _)) = self.writers.insert((key, token), (index, false)) {
                    return self.violation(
                        Rule::LostUpdate,
                        &[other, index],
                        "two INCRs returned the same number",
                    );
                }
                if let Some(replaced) = last.insert(key, (key, token)) {
                    self.writers.insert(replaced, (index, true));
                }
            }
        }
        Ok(())
    }

    /// Parses what a step was told, and checks that each token was written by somebody.
    fn seen_tokens(&self, index: usize, key: usize, reply: &'h str) -> Result<Vec<&'h str>, Violation> {
        let garbage = |what: &str| self.violation(Rule::Garbage, &[index], what);
        let Some(tokens) = tokens(reply) else { return garbage("a value is no list of tokens, or torn") };
        for (at, token) in tokens.iter().enumerate() {
            match self.writers.get(&(key, *token)) {
                Some((writer, _)) if self.acts[*writer].outcome == Outcome::Refused => {
                    return self.violation(
                        Rule::AbortedRead,
                        &[*writer, index],
                        "a write was read whose transaction did not happen",
                    );
                }
                // Of an INCR without a reply, perhaps; `count_increments` counts these.
                None if token.parse::<u64>().is_ok() => {}
                None => return garbage("a value was read that nobody wrote"),
                Some(_) if tokens[..at].contains(token) => {
                    return self.violation(Rule::Repeated, &[index], "a write is twice in one value");
                }
                Some(_) => {}
            }
        }
        Ok(tokens)
    }

    /// Finds out which transactions without a reply have happened.
    fn find_seen(&mut self) -> Result<(), Violation> {
        for (index, act) in self.acts.iter().enumerate() {
            for step in act.steps.iter().filter(|step| is_read(step)) {
                let key = self.keys[&*step.key];
                let Some(reply) = &step.reply else { continue };
                for token in self.seen_tokens(index, key, reply)? {
                    if let Some((writer, _)) = self.writers.get(&(key, token)) {
                        self.is_seen[*writer] = true;
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes that one version follows another immediately; `index` knows it.
    fn follow(&mut self, index: usize, first: Version<'h>, second: Version<'h>) -> Result<(), Violation> {
        let writer = |version| self.writers.get(&version).map_or(index, |(writer, _)| *writer);
        match self.next.insert(first, second) {
            Some(other) if other != second => {
                let both = [writer(other), writer(second), index];
                return self.violation(
                    Rule::LostUpdate,
                    &both,
                    &format!("two writes follow version {:?}", first.1),
                );
            }
            _ => {}
        }
        match self.before.insert(second, first) {
            Some(other) if other != first => {
                let all = [writer(second), writer(other), writer(first), index];
                self.violation(Rule::Order, &all, &format!("version {:?} follows two others", second.1))
            }
            _ => Ok(()),
        }
    }

    /// Finds what each transaction read, and which version follows which.
    fn find_order(&mut self) -> Result<(), Violation> {
        for (index, act) in self.acts.iter().enumerate() {
            if !self.is_seen[index] {
                continue;
            }
            // What the transaction knows of a key: the current version, and whether it is its own.
            let mut known: HashMap<usize, (Version<'h>, bool)> = HashMap::new();
            for step in &act.steps {
                let key = self.keys[&*step.key];
                // Of a transaction without a reply, what it read is known only if that is a condition of it (WATCH).
                if is_read(step) && (act.outcome == Outcome::Done || step.reply.is_some()) {
                    let version = self.read(index, key, step)?;
                    match known.get(&key) {
                        Some((own, _)) if *own != version => {
                            return self.violation(
                                Rule::Internal,
                                &[index],
                                "two reads of one transaction differ",
                            );
                        }
                        Some(_) => {}
                        None => {
                            self.reads[index].push(version);
                            known.insert(key, (version, false));
                        }
                    }
                }
                let written = match step.kind {
                    StepKind::Incr if act.outcome == Outcome::Done => {
                        let number = step.reply.as_deref().unwrap_or_default();
                        let version = (key, number);
                        self.before_number(index, version)?;
                        Some(version)
                    }
                    _ => token(step).map(|token| (key, token)),
                };
                if let Some(version) = written {
                    if let Some((before, _)) = known.insert(key, (version, true)) {
                        self.follow(index, before, version)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes that a number follows the one before, if it is known who made that one.
    fn before_number(&mut self, index: usize, version: Version<'h>) -> Result<(), Violation> {
        let (key, number) = (version.0, version.1.parse::<u64>());
        match number {
            Ok(1) => self.follow(index, (key, UNWRITTEN), version),
            Ok(number) => match self.numbers.get(&(key, number.saturating_sub(1))) {
                Some(before) => self.follow(index, (key, before), version),
                None => Ok(()),
            },
            Err(_) => self.violation(Rule::Garbage, &[index], "INCR returned no number"),
        }
    }

    /// Returns the version that a step read, and learns from the list in which order its versions came.
    fn read(&mut self, index: usize, key: usize, step: &'h Step) -> Result<Version<'h>, Violation> {
        let Some(reply) = &step.reply else { return Ok((key, UNWRITTEN)) };
        let tokens = self.seen_tokens(index, key, reply)?;
        for pair in tokens.windows(2) {
            self.follow(index, (key, pair[0]), (key, pair[1]))?;
        }
        if let Some((first, rest)) = tokens.split_first() {
            if self.is_appended((key, first)) {
                self.follow(index, (key, UNWRITTEN), (key, first))?;
            }
            // Only the first token of a list can have been set.
            if rest.iter().any(|token| !self.is_appended((key, token))) {
                return self.violation(Rule::Order, &[index], "a value that replaces the others follows one");
            }
        }
        Ok((key, tokens.last().copied().unwrap_or(UNWRITTEN)))
    }

    fn is_appended(&self, version: Version<'h>) -> bool {
        let of_append = |step: &Step| step.kind == StepKind::Append && token(step) == Some(version.1);
        let writer = self.writers.get(&version).map(|(writer, _)| &self.acts[*writer]);
        writer.is_some_and(|act| act.steps.iter().any(of_append))
    }

    /// Checks that no number of a counter is missing, but for INCRs without a reply.
    fn count_increments(&mut self) -> Result<(), Violation> {
        let mut counters: HashMap<usize, (u64, usize)> = HashMap::new();
        let versions = self.writers.keys().chain(self.reads.iter().flatten());
        for (key, token) in versions {
            if let Ok(number) = token.parse::<u64>() {
                let (most, _) = counters.entry(*key).or_default();
                *most = number.max(*most);
            }
        }
        for (key, token) in self.writers.keys() {
            if let (true, Some((_, known))) = (token.parse::<u64>().is_ok(), counters.get_mut(key)) {
                *known += 1;
            }
        }
        for (key, (most, known)) in counters {
            let unknown = self.unknown_increments.get(&key).copied().unwrap_or(0);
            if most as usize > known + unknown {
                let name = self.keys.iter().find(|(_, number)| **number == key).map_or("", |(name, _)| name);
                let why = format!("{name} is {most} after {known} INCRs, and {unknown} without a reply");
                return self.violation(Rule::Repeated, &[], &why);
            }
        }
        Ok(())
    }

    pub(super) fn writer(&self, version: Version<'h>) -> Option<usize> {
        self.writers.get(&version).map(|(writer, _)| *writer)
    }

    fn connect(&mut self) -> Result<(), Violation> {
        let follows: Vec<_> = self.next.iter().map(|(first, second)| (*first, *second)).collect();
        for (first, second) in follows {
            self.graph.add(self.writer(first), self.writer(second), Edge::WriteWrite);
        }
        for reader in 0..self.acts.len() {
            for version in self.reads[reader].clone() {
                if let Some((writer, true)) =
                    self.writers.get(&version).filter(|(writer, _)| *writer != reader)
                {
                    let both = [*writer, reader];
                    return self.violation(
                        Rule::IntermediateRead,
                        &both,
                        "a write was read that its own transaction replaced",
                    );
                }
                self.graph.add(self.writer(version), Some(reader), Edge::WriteRead);
                let next = self.next.get(&version).and_then(|next| self.writer(*next));
                self.graph.add(Some(reader), next, Edge::ReadWrite);
            }
        }
        Ok(())
    }

    /// Adds the edges of time between all transactions that have happened.
    fn connect_times(&mut self) {
        let happened = (0..self.acts.len()).filter(|index| self.is_seen[*index]);
        let spans = happened.map(|index| (index, self.acts[index].begin_ns, self.acts[index].end_ns));
        self.graph.add_times(spans.collect());
    }

    fn find_cycle(&self) -> Option<Violation> {
        let (cycle, edges): (Vec<_>, Vec<_>) = self.graph.shortest_cycle()?.into_iter().unzip();
        let why = "each precedes the next one, and the last the first";
        let names: Vec<_> = edges.into_iter().map(Edge::name).collect();
        self.violation::<()>(Rule::Cycle, &cycle, &format!("{why} ({})", names.join(", "))).err()
    }
}

/// Whether a step returns the value that was there.
fn is_read(step: &Step) -> bool {
    matches!(step.kind, StepKind::Get | StepKind::GetSet)
}
