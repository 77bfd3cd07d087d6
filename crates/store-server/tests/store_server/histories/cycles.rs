//! The judge of transactions: is there one order of all of them that explains every reply, and in which no
//! transaction comes before one that had ended when it began (strict serializability)?
//!
//! Every write leaves a token that no other write leaves: a value is a list of tokens, each followed by `;`, of which
//! the last one names the **version**. APPEND adds a token, SET and GETSET replace all of them by one, INCR makes the
//! number the version. The order of versions comes from what clients were told: the list that a read returns, the value
//! that GETSET returns, the number that INCR returns, and the value that a transaction reads before it writes the
//! key. Keys are never deleted. Nothing here knows the store's own versions.
//!
//! The edges are exact. **ww**: wrote the version before; **wr**: wrote the version that was read; **rw**: read the
//! version before the one that was written; **time**: had ended before the other began. There is an order if and only if there
//! is no cycle. Edges of time go through one node for each end, so that their number is linear, too, as in Elle (Kingsbury
//! and Alvaro, VLDB 2020).

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;

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

/// How one transaction precedes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    WriteWrite,
    WriteRead,
    ReadWrite,
    Time,
}

impl Edge {
    fn name(self) -> &'static str {
        match self {
            Self::WriteWrite => "ww",
            Self::WriteRead => "wr",
            Self::ReadWrite => "rw",
            Self::Time => "time",
        }
    }
}

/// A version of a key: the number of the key, and the token.
type Version<'h> = (usize, &'h str);

/// The version of a key that nobody has written.
const UNWRITTEN: &str = "";

struct Judge<'h> {
    acts: &'h [ClientAct],
    keys: HashMap<&'h str, usize>,
    /// Who wrote a version, and whether the same transaction replaced it.
    writers: HashMap<Version<'h>, (usize, bool)>,
    /// The versions of counters by their numbers.
    numbers: HashMap<(usize, u64), &'h str>,
    /// The version after a version.
    next: HashMap<Version<'h>, Version<'h>>,
    before: HashMap<Version<'h>, Version<'h>>,
    /// For each transaction the versions that it read of others.
    reads: Vec<Vec<Version<'h>>>,
    /// Whether somebody was told of a transaction's writes.
    is_seen: Vec<bool>,
    /// INCRs whose clients got no reply: how many of each key.
    unknown_increments: HashMap<usize, usize>,
    edges: Vec<Vec<(usize, Edge)>>,
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
        edges: Vec::new(),
    };
    judge.find_writers()?;
    judge.find_seen()?;
    judge.find_order()?;
    judge.count_increments()?;
    judge.connect()?;
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

    fn edge(&mut self, from: Option<usize>, to: Option<usize>, edge: Edge) {
        if let (Some(from), Some(to)) = (from, to) {
            if from != to {
                self.edges[from].push((to, edge));
            }
        }
    }

    fn writer(&self, version: Version<'h>) -> Option<usize> {
        self.writers.get(&version).map(|(writer, _)| *writer)
    }

    fn connect(&mut self) -> Result<(), Violation> {
        self.edges = vec![Vec::new(); self.acts.len()];
        let follows: Vec<_> = self.next.iter().map(|(first, second)| (*first, *second)).collect();
        for (first, second) in follows {
            self.edge(self.writer(first), self.writer(second), Edge::WriteWrite);
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
                self.edge(self.writer(version), Some(reader), Edge::WriteRead);
                let next = self.next.get(&version).and_then(|next| self.writer(*next));
                self.edge(Some(reader), next, Edge::ReadWrite);
            }
        }
        Ok(())
    }

    /// Adds a node for each end of a transaction, in the order of time, and edges to what began afterwards.
    fn connect_times(&mut self) {
        let happened = |index: &usize| self.is_seen[*index];
        let mut ends: Vec<(u64, usize)> = (0..self.acts.len())
            .filter(happened)
            .filter_map(|index| self.acts[index].end_ns.map(|end| (end, index)))
            .collect();
        ends.sort_unstable();
        let mut begins: Vec<(u64, usize)> =
            (0..self.acts.len()).filter(happened).map(|index| (self.acts[index].begin_ns, index)).collect();
        begins.sort_unstable();
        let base = self.edges.len();
        self.edges.resize(base + ends.len(), Vec::new());
        let mut begins = begins.into_iter().peekable();
        for (place, (end, index)) in ends.iter().enumerate() {
            while let Some((_, begun)) = begins.next_if(|(begin, _)| begin <= end) {
                if place > 0 {
                    self.edges[base + place - 1].push((begun, Edge::Time));
                }
            }
            self.edges[*index].push((base + place, Edge::Time));
            if place > 0 {
                self.edges[base + place - 1].push((base + place, Edge::Time));
            }
        }
        for (_, begun) in begins {
            if let Some(last) = ends.len().checked_sub(1) {
                self.edges[base + last].push((begun, Edge::Time));
            }
        }
    }

    /// Takes away what nothing precedes, again and again. What remains is on a cycle, or after one.
    fn find_cycle(&self) -> Option<Violation> {
        let mut preceding = vec![0_u32; self.edges.len()];
        self.edges.iter().flatten().for_each(|(to, _)| preceding[*to] += 1);
        let mut free: Vec<usize> = (0..preceding.len()).filter(|node| preceding[*node] == 0).collect();
        while let Some(node) = free.pop() {
            for (to, _) in &self.edges[node] {
                preceding[*to] -= 1;
                if preceding[*to] == 0 {
                    free.push(*to);
                }
            }
        }
        let mut sources = vec![usize::MAX; self.edges.len()];
        for (node, edges) in self.edges.iter().enumerate().filter(|(node, _)| preceding[*node] > 0) {
            edges.iter().for_each(|(to, _)| sources[*to] = node);
        }
        // Backwards from any of them, one comes to a cycle.
        let mut node = (0..preceding.len()).find(|node| preceding[*node] > 0)?;
        let mut is_visited = vec![false; self.edges.len()];
        while !is_visited[node] {
            is_visited[node] = true;
            node = sources[node];
        }
        // Of all cycles through a transaction of it, the shortest is the clearest.
        while node >= self.acts.len() {
            node = sources[node];
        }
        Some(self.shortest_cycle(node, &preceding))
    }

    fn shortest_cycle(&self, start: usize, preceding: &[u32]) -> Violation {
        let mut from: HashMap<usize, (usize, Edge)> = HashMap::new();
        let mut waiting = VecDeque::from([start]);
        'search: while let Some(node) = waiting.pop_front() {
            for (to, edge) in self.edges[node].iter().filter(|(to, _)| preceding[*to] > 0) {
                if !from.contains_key(to) {
                    from.insert(*to, (node, *edge));
                    waiting.push_back(*to);
                }
                if *to == start {
                    break 'search;
                }
            }
        }
        let mut lines = Vec::new();
        let mut names = Vec::new();
        let mut node = start;
        loop {
            let (before, edge) = from[&node];
            // Nodes of time lie between two transactions.
            if before < self.acts.len() {
                names.push(edge.name());
                lines.push(format!("    {}", self.told(before)));
            }
            node = before;
            if node == start {
                break;
            }
        }
        lines.reverse();
        names.reverse();
        let text = format!(
            "each precedes the next one, and the last the first ({})\n{}",
            names.join(", "),
            lines.join("\n")
        );
        Violation { rule: Rule::Cycle, text }
    }
}

/// Whether a step returns the value that was there.
fn is_read(step: &Step) -> bool {
    matches!(step.kind, StepKind::Get | StepKind::GetSet)
}
