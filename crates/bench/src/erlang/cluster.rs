//! Nodes started together and connected with each other.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::answer::{Answer, Line};
use super::home::Home;
use super::node::{Event, Node, Recipe};
use crate::error::Error;
use crate::interrupt::{GLANCE, Interrupt};
use crate::scratch::random_word;
use crate::usage::{Cores, Usage};

/// How long a node may take beyond what its command measures.
const PATIENCE: Duration = Duration::from_secs(120);

/// One command to one node.
#[derive(Clone, Debug)]
pub struct Command {
    pub node: usize,
    pub line: String,
    /// The nodes whose use of the processors counts for this command.
    pub watch: Vec<usize>,
}

/// What a node answered.
#[derive(Clone, Debug)]
pub struct Reply {
    pub node: String,
    pub command: String,
    pub answer: Answer,
    /// Processors that the watched nodes used between the first mark and the last.
    pub cores: Cores,
}

impl Reply {
    /// A number of the answer.
    pub fn number(&self, key: &str) -> Result<f64, Error> {
        self.answer.read(key).ok_or_else(|| self.unclear(key))
    }

    /// The answer lacks what this version of the program expects of it.
    pub fn unclear(&self, key: &str) -> Error {
        Error::NodeUnclear {
            node: self.node.clone(),
            command: self.command.clone(),
            key: key.to_owned(),
            answer: self.answer.to_string(),
        }
    }
}

/// Connected nodes. Dropping it ends them all.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    events: Receiver<Event>,
    interrupt: Interrupt,
    /// The Erlang/OTP version that the nodes run.
    pub otp: String,
}

impl Cluster {
    /// Starts the nodes and connects each with each.
    pub fn start(recipe: &Recipe, count: usize, interrupt: &Interrupt) -> Result<Self, Error> {
        let home = Home::create()?;
        let word = random_word()?;
        let (sender, events) = channel();
        let mut nodes = Vec::with_capacity(count);
        for index in 0..count {
            let name = format!("bench{}_{}@127.0.0.1", index + 1, &word[..12]);
            nodes.push(Node::start(recipe, name, home.path(), index, &sender)?);
        }
        let mut cluster = Self { nodes, events, interrupt: interrupt.clone(), otp: String::new() };
        let all: Vec<_> = (0..count).collect();
        let hello = cluster.collect(&all.iter().map(|&n| boot(n)).collect::<Vec<_>>(), PATIENCE)?;
        cluster.otp = hello[0].answer.read("otp").ok_or_else(|| hello[0].unclear("otp"))?;
        let mut peers = String::from("peers");
        for reply in &hello {
            let port: u16 = reply.answer.read("port").ok_or_else(|| reply.unclear("port"))?;
            peers.push_str(&format!(" {}={port}", reply.node));
        }
        cluster.ask(&all.iter().map(|&n| plain(n, peers.clone())).collect::<Vec<_>>(), PATIENCE)?;
        let connect = |&n: &usize| plain(n, format!("connect {}", cluster.others(n, count)));
        let connects: Vec<_> = all.iter().map(connect).collect();
        cluster.ask(&connects, PATIENCE)?;
        Ok(cluster)
    }

    pub fn pid(&self, node: usize) -> i32 {
        self.nodes[node].pid()
    }

    pub fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    /// The names of the first `count` nodes but this one.
    pub fn others(&self, node: usize, count: usize) -> String {
        let others = (0..count).filter(|&other| other != node);
        others.map(|other| self.name(other)).collect::<Vec<_>>().join(" ")
    }

    /// Sends each command and waits for each answer, in the order of the commands. `measured` is
    /// how long they take when all is well.
    pub fn ask(&mut self, commands: &[Command], measured: Duration) -> Result<Vec<Reply>, Error> {
        for command in commands {
            self.nodes[command.node].send(&command.line);
        }
        self.collect(commands, measured + PATIENCE)
    }

    fn collect(&mut self, commands: &[Command], limit: Duration) -> Result<Vec<Reply>, Error> {
        let deadline = Instant::now() + limit;
        let mut marks: Vec<Vec<Vec<Usage>>> = vec![Vec::new(); commands.len()];
        let mut replies: Vec<Option<Reply>> = vec![None; commands.len()];
        while let Some(waiting) = replies.iter().position(Option::is_none) {
            let Some((index, event)) = self.next(deadline)? else {
                return Err(self.silent(&commands[waiting], limit));
            };
            let place = commands.iter().position(|command| command.node == index);
            match (event, place) {
                (Some(Line::Mark), Some(place)) => {
                    marks[place].push(self.usage(&commands[place].watch));
                }
                (Some(Line::Answer(answer)), Some(place)) => {
                    replies[place] = Some(Reply {
                        node: self.name(index).to_owned(),
                        command: commands[place].line.clone(),
                        answer,
                        cores: used(&marks[place]),
                    });
                }
                (Some(Line::Failed(reason)), place) => {
                    let command = place.map_or("", |place| &commands[place].line);
                    return Err(self.failed(index, command, reason));
                }
                (Some(Line::Log(line)), _) => self.nodes[index].note(line),
                (Some(Line::Mark | Line::Answer(_)), None) => {}
                (None, _) => return Err(self.ended(index)),
            }
        }
        Ok(replies.into_iter().flatten().collect())
    }

    /// The next event; `None` past the deadline.
    fn next(&self, deadline: Instant) -> Result<Option<Event>, Error> {
        loop {
            self.interrupt.check()?;
            match self.events.recv_timeout(GLANCE) {
                Ok(event) => return Ok(Some(event)),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                // All threads that read nodes have ended; each said so before it did.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    /// Readings of the watched nodes. One that has gone reads as nothing: its end is an event.
    fn usage(&self, watch: &[usize]) -> Vec<Usage> {
        watch.iter().filter_map(|&node| Usage::of(self.pid(node)).ok()).collect()
    }

    fn silent(&self, command: &Command, limit: Duration) -> Error {
        let node = &self.nodes[command.node];
        Error::NodeSilent {
            node: node.name.clone(),
            command: command.line.clone(),
            seconds: limit.as_secs(),
            log: node.last_words(),
        }
    }

    fn failed(&self, index: usize, command: &str, reason: String) -> Error {
        Error::NodeFailed { node: self.name(index).to_owned(), command: command.to_owned(), reason }
    }

    fn ended(&mut self, index: usize) -> Error {
        // What it wrote to standard error may still be on its way from the other thread.
        while let Ok((index, Some(Line::Log(line)))) = self.events.recv_timeout(GLANCE) {
            self.nodes[index].note(line);
        }
        let node = &mut self.nodes[index];
        Error::NodeEnded { when: node.ended(), log: node.last_words(), node: node.name.clone() }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.iter_mut().for_each(Node::dismiss);
    }
}

/// A command during which no use of the processors is read.
pub fn plain(node: usize, line: String) -> Command {
    Command { node, line, watch: Vec::new() }
}

/// Not sent: every node answers it when it is up.
fn boot(node: usize) -> Command {
    plain(node, "start".into())
}

fn used(marks: &[Vec<Usage>]) -> Cores {
    let mut sum = Cores { user: 0.0, system: 0.0 };
    if let (Some(first), Some(last)) = (marks.first(), marks.last()) {
        for (first, last) in first.iter().zip(last) {
            let cores = last.since(first);
            sum.user += cores.user;
            sum.system += cores.system;
        }
    }
    sum
}
