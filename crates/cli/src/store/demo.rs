//! `caravan store demo`: servers of one store on this machine, clients that move money, and servers that are killed meanwhile.

mod bank;
mod elsewhere;
mod judge;
mod pauses;
mod servers;
mod times;

use std::time::{Duration, Instant};

use caravan_bench::interrupt::Interrupt;
use caravan_bench::number::number;
use caravan_cluster::{Configuration, Part, PartId};
use serde_json::json;

use self::bank::{Bank, BankCounts, BankThreads};
use self::servers::DemoServers;
use self::times::{PartTimes, WellTimes};
use crate::args::StoreDemo;
use crate::error::Error;

pub use self::servers::NODES_MAX;

/// Parts for each server.
const PARTS_A_NODE: usize = 2;
/// The memory of each part, beside that of what the store is filled with: its bytes, and a quarter more for headers, classes of sizes and
/// the table.
const PART_BYTES: u64 = 16 << 20;
const FILL_QUARTERS: u64 = 5;
/// How long the times of operations are taken after a kill, and before one.
const TIMES_WINDOW: Duration = Duration::from_secs(1);
/// How long the servers have to share out the parts, and to fill their copies.
const WHOLE_MAX: Duration = Duration::from_secs(30);
/// The time before the first kill, and at least between two.
const KILL_PAUSE: Duration = Duration::from_secs(3);
/// How long a server stays away that was killed together with its keeper.
const AWAY: Duration = Duration::from_secs(1);
/// How long clients may take to end.
const CLIENTS_END_MAX: Duration = Duration::from_secs(15);
/// The time between two lines.
const LINE: Duration = Duration::from_secs(1);
/// The time between two looks.
const GLANCE: Duration = Duration::from_millis(50);

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopKind {
    /// The process that serves. Its keeper starts another one over the same memory.
    Server,
    /// Keeper and server, as when their host dies. The memory is gone.
    Host,
}

/// Runs the demonstration.
pub fn run(args: &StoreDemo) -> Result<(), Error> {
    if let Some(address) = &args.at {
        return elsewhere::run(args, address);
    }
    let interrupt = Interrupt::watch()?;
    let parts = PARTS_A_NODE * args.nodes;
    let filled_bytes = args.fill.unwrap_or(0);
    let part_bytes = (PART_BYTES + filled_bytes * FILL_QUARTERS / 4 / parts as u64).next_multiple_of(1 << 20);
    let servers = DemoServers::start(args.nodes, parts, part_bytes, &interrupt)?;
    let mut demo = Demo::new(args, interrupt, servers);
    demo.until_whole()?.map_or(Ok(()), |why| Err(Error::Sentence(why)))?;
    let configuration = demo.servers.configuration()?;
    let bank = Bank::open(&configuration, args.clients, args.rate, None)?;
    print_begin(args, &configuration)?;
    bank.fill(filled_bytes)?;
    let threads = bank.start()?;
    demo.watch(&bank)?;
    let mut mistakes: Vec<String> = demo.until_whole()?.into_iter().collect();
    mistakes.extend(end(&bank, &threads, &demo.interrupt)?);
    mistakes.extend(bank.audit());
    demo.verdict(&bank.counts(), &mistakes)
}

/// Says what there is.
fn print_begin(args: &StoreDemo, configuration: &Configuration) -> Result<(), Error> {
    let (servers, parts) = (configuration.members.len(), configuration.parts.len());
    let copies = usize::from(configuration.copies).min(servers);
    if args.json {
        return crate::print_json(&json!({
            "event": "begin", "servers": servers, "parts": parts, "copies": copies,
        }));
    }
    let head = match args.at {
        Some(_) => "   s   commits/s  sums   parts without a commit",
        None => "   s   commits/s   pause p50      max  sums   killed",
    };
    let copies = if copies == 1 { "1 copy".to_owned() } else { format!("{copies} copies") };
    crate::print(&format!(
        "{servers} servers of one store; {parts} parts, {copies} of each. Clients move money between accounts.\n{head}\n"
    ))
}

fn print_line(
    args: &StoreDemo,
    at: Duration,
    rate: f64,
    counts: &BankCounts,
    killed: &[String],
) -> Result<(), Error> {
    let pauses = counts.pauses.all();
    let (p50, max) = (pauses.map(|it| it.p50_ms), pauses.map(|it| it.max_ms));
    if args.json {
        return crate::print_json(&json!({
            "event": "second", "seconds": at.as_secs_f64(), "commits_per_s": rate, "killed": killed,
            "pause_p50_ms": p50, "pause_max_ms": max, "parts_waiting": counts.waiting,
            "sums_are_right": counts.is_right,
        }));
    }
    let pause = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0} ms"));
    let sums = if counts.is_right { "right" } else { "WRONG" };
    crate::print(&format!(
        "{:4.0}  {:>10}  {:>10}  {:>7}  {sums}  {}\n",
        at.as_secs_f64(),
        number(rate.round()).trim_end_matches(".00").trim_end_matches(".0"),
        pause(p50),
        pause(max),
        killed.join("; "),
    ))
}

/// Has the clients end; returns what is wrong with that.
fn end(bank: &Bank, threads: &BankThreads, interrupt: &Interrupt) -> Result<Option<String>, Error> {
    bank.end();
    let deadline = Instant::now() + CLIENTS_END_MAX;
    while !threads.have_ended() {
        interrupt.check()?;
        if Instant::now() > deadline {
            return Ok(Some("a client got no answer to its last request".to_owned()));
        }
        std::thread::sleep(GLANCE);
    }
    Ok(None)
}

/// A demonstration under way.
struct Demo<'d> {
    args: &'d StoreDemo,
    interrupt: Interrupt,
    servers: DemoServers,
    kills: usize,
    /// What was killed since the last line.
    killed: Vec<String>,
    last_kill: Option<Instant>,
    /// Since when the bank takes the times of operations.
    times_since: Instant,
    /// Those of the last second without a kill.
    times: PartTimes,
    /// The parts without a copy at the server that was just killed.
    well_parts: Vec<PartId>,
    well_times: WellTimes,
}

impl<'d> Demo<'d> {
    fn new(args: &'d StoreDemo, interrupt: Interrupt, servers: DemoServers) -> Self {
        Self {
            args,
            interrupt,
            servers,
            kills: 0,
            killed: Vec::new(),
            last_kill: None,
            times_since: Instant::now(),
            times: Vec::new(),
            well_parts: Vec::new(),
            well_times: WellTimes::default(),
        }
    }

    /// Takes the times of the last second.
    fn take_times(&mut self, bank: &Bank) {
        self.times_since = Instant::now();
        self.times = bank.take_times();
        let well = std::mem::take(&mut self.well_parts);
        if !well.is_empty() {
            self.well_times.note_after(&self.times, &well);
            self.times.clear();
        }
    }

    /// Waits until all copies are complete; returns why not, if they do not become so.
    fn until_whole(&mut self) -> Result<Option<String>, Error> {
        let deadline = Instant::now() + WHOLE_MAX;
        self.servers.start_missing()?;
        loop {
            self.interrupt.check()?;
            if let Some(failure) = self.servers.failure() {
                return Ok(Some(failure));
            }
            if self.servers.is_whole()? {
                return Ok(None);
            }
            if Instant::now() > deadline {
                let (seconds, lost) = (WHOLE_MAX.as_secs(), self.servers.lost()?);
                return Ok(Some(match lost.is_empty() {
                    true => format!("the copies are not complete after {seconds} s"),
                    false => format!("no server has a complete copy of {} any more", named(&lost)),
                }));
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// Prints a line in each second, and kills servers if that is wanted.
    fn watch(&mut self, bank: &Bank) -> Result<(), Error> {
        let begin = Instant::now();
        let (mut lined, mut commits) = (begin, bank.counts().commits);
        while begin.elapsed() < self.args.seconds {
            std::thread::sleep(GLANCE.min(self.args.seconds.saturating_sub(begin.elapsed())));
            self.interrupt.check()?;
            if let Some(failure) = self.servers.failure() {
                return Err(Error::Sentence(failure));
            }
            if self.times_since.elapsed() >= TIMES_WINDOW {
                self.take_times(bank);
            }
            let since = self.last_kill.unwrap_or(begin).elapsed();
            if since >= AWAY {
                self.servers.start_missing()?;
            }
            let is_time = self.args.kill && since >= KILL_PAUSE;
            if is_time && begin.elapsed() + AWAY < self.args.seconds && self.servers.is_whole()? {
                self.kill_next(bank)?;
            }
            if lined.elapsed() >= LINE {
                let counts = bank.counts();
                let rate = (counts.commits - commits) as f64 / lined.elapsed().as_secs_f64();
                (lined, commits) = (Instant::now(), counts.commits);
                print_line(self.args, begin.elapsed(), rate, &counts, &std::mem::take(&mut self.killed))?;
            }
        }
        Ok(())
    }

    /// Kills the next server.
    fn kill_next(&mut self, bank: &Bank) -> Result<(), Error> {
        let (node, kind) = next_kill(self.kills, self.servers.count());
        self.kills += 1;
        let configuration = self.servers.configuration()?;
        let member = configuration.member_by_name(self.servers.name(node)).map(|member| member.id);
        let parts: Vec<PartId> =
            configuration.parts.iter().filter(|part| part.primary == member).map(|part| part.id).collect();
        let has_copy = |part: &&Part| part.holders().any(|holder| Some(holder) == member);
        self.well_parts =
            configuration.parts.iter().filter(|part| !has_copy(part)).map(|part| part.id).collect();
        self.well_times.note_before(&self.times, &self.well_parts);
        let _ = bank.take_times();
        self.times_since = Instant::now();
        self.servers.kill(node, kind);
        bank.note_kill(&parts, kind);
        self.last_kill = Some(Instant::now());
        let what = match kind {
            StopKind::Server => "its server",
            StopKind::Host => "its server and its keeper",
        };
        self.killed.push(format!("{}: {what}; it had {}", self.servers.name(node), named(&parts)));
        Ok(())
    }

    fn verdict(&self, counts: &BankCounts, mistakes: &[String]) -> Result<(), Error> {
        if !mistakes.is_empty() {
            for node in 0..self.servers.count() {
                eprintln!("{}: {}", self.servers.name(node), self.servers.last_words(node));
            }
        }
        let Self { args, kills, well_times, .. } = self;
        print_verdict(args, counts, mistakes, *kills, well_times, &self.servers.lost()?)
    }
}

fn print_verdict(
    args: &StoreDemo,
    counts: &BankCounts,
    mistakes: &[String],
    kills: usize,
    well: &WellTimes,
    lost: &[PartId],
) -> Result<(), Error> {
    let BankCounts { commits, refused, readings, .. } = counts;
    if !args.json {
        let lines = counts.pauses.lines().into_iter().chain(well.lines());
        lines.into_iter().try_for_each(|line| crate::print(&line))?;
    }
    if args.json {
        crate::print_json(&json!({
            "event": "verdict", "lost_parts": lost, "is_good": mistakes.is_empty(), "mistakes": mistakes, "commits": commits, "refused": refused,
            "readings": readings, "kills": kills, "pauses": counts.pauses.to_json(), "elsewhere": well.to_json(),
        }))?;
    } else if mistakes.is_empty() {
        let (commits, refused) = (number(*commits as f64), number(*refused as f64));
        let (after, complete) = match args.at {
            Some(_) => (String::new(), ""),
            None => (format!("after {kills} kills, "), "; all copies are complete"),
        };
        crate::print(&format!(
            "Good: {after}each of the {commits} acknowledged transfers is there exactly once and none of the {refused} refused ones; the sums were right in all of {readings} readings{complete}.\n"
        ))?;
    } else {
        mistakes.iter().try_for_each(|mistake| crate::print(&format!("{mistake}\n")))?;
        crate::print(&format!(
            "BAD: {} mistakes, after {kills} kills and {commits} transfers.\n",
            mistakes.len()
        ))?;
    }
    if mistakes.is_empty() { Ok(()) } else { Err(Error::Said) }
}

/// Returns what messages call these parts.
fn named(parts: &[PartId]) -> String {
    let numbers: Vec<String> = parts.iter().map(PartId::to_string).collect();
    format!("{} {}", if parts.len() == 1 { "part" } else { "parts" }, numbers.join(", "))
}

/// Returns which server is killed next, and how: each in turn, and each in both ways.
fn next_kill(kills: usize, nodes: usize) -> (usize, StopKind) {
    let is_host = nodes > 1 && (kills + if nodes % 2 == 0 { kills / nodes } else { 0 }) % 2 == 1;
    (kills % nodes, if is_host { StopKind::Host } else { StopKind::Server })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_is_killed_in_both_ways_unless_it_has_the_only_copy() {
        for nodes in 2..=NODES_MAX {
            for node in 0..nodes {
                for kind in [StopKind::Server, StopKind::Host] {
                    let is_killed = (0..2 * nodes).any(|kills| next_kill(kills, nodes) == (node, kind));
                    assert!(is_killed, "{node} of {nodes}: {kind:?}");
                }
            }
        }
        assert!((0..4).all(|kills| next_kill(kills, 1) == (0, StopKind::Server)));
    }
}
