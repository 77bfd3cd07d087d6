//! `caravan selftest HOST`: tests whether shared memory and RDMA work between this host and another one, with a
//! process at both ends, over ssh.

mod message;
mod peer;
mod promises;
mod report;
mod session;
mod traffic;

use std::io;
use std::process::ChildStdin;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use caravan_bench::Error as Shared;
use caravan_bench::interrupt::{GLANCE, Interrupt};
use caravan_bench::output;
use caravan_bench::output::BenchProgress;
use caravan_fabric::verbs;
use caravan_fabric::verbs::device::Fabric;
use caravan_pipe::framing;
use caravan_pipe::place::Place;

use crate::args::SelfTest;
use crate::error::Error;
use crate::fabric::survey::{Findings, Survey};
use crate::remote::{Copies, RemoteOutput, RemoteStart, SshOptions, SshProcess, StartFailure, start};
use crate::selftest::message::{MESSAGE_BYTES_MAX, SelftestAnswer, SelftestAsk, SelftestHello};
use crate::selftest::peer::{MARK, identity};
use crate::selftest::report::{SelftestReport, TestedPath};
use crate::selftest::session::{STEPS, SelftestSession, TestedWay};
use crate::{pretty_json, print};

pub use crate::selftest::peer::run as peer;

/// How long a connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a step may take beyond the time that a figure is measured for; a device notices a lost peer within 5 s,
/// some in 20 s.
const STEP_LIMIT: Duration = Duration::from_secs(30);
/// How long the survey of the other host may take.
const HELLO_LIMIT: Duration = Duration::from_secs(60);
/// The number of ways that are tested, the best first.
const WAYS_MAX: usize = 32;
/// The stream of the pattern that this side sends.
const OURS: u64 = 1;
/// The stream of the pattern that the other side sends.
const THEIRS: u64 = 2;

/// Returns how long a step may take that measures for `time`.
fn limit(time: Duration) -> Duration {
    STEP_LIMIT.saturating_add(time)
}

/// Tests, and prints the report. Returns an error if anything failed.
pub fn run(args: &SelfTest) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let found = Findings::of_this_host()?;
    let mut remote = SelftestRemote::start(args, &interrupt)?;
    let hello = ask_hello(&mut remote, args)?;
    let (ways, mut notes) = ways(&found, &hello)?;
    let mut progress = BenchProgress::new(ways.len() * STEPS);
    let is_same_host = Place::here().is_same_host(&hello.place);
    let mut paths = Vec::new();
    for way in &ways {
        progress.round(way.name());
        let session = SelftestSession {
            remote: &mut remote,
            interrupt: &interrupt,
            ring_bytes: args.ring_bytes,
            time: args.seconds,
            way,
            progress: &progress,
            path: TestedPath::new(way.name()),
        };
        let path = session.test()?;
        match path.unconnected() {
            Some(why) if is_same_host && way.is_between_ports() => notes.push(format!(
                "{}: {why}. From one port of a host to another that hangs on its routes, and says nothing of other hosts",
                path.name
            )),
            _ => paths.push(path),
        }
    }
    drop((progress, remote));
    let report = conclude(args.host.clone(), is_same_host, (found.survey, hello.survey), paths, notes);
    tell(args, &report)?;
    if report.failures.is_empty() { Ok(()) } else { Err(Error::SelfTestFailed) }
}

fn ask_hello(remote: &mut SelftestRemote, args: &SelfTest) -> Result<Box<SelftestHello>, Error> {
    remote.ask(&SelftestAsk::Hello)?;
    match remote.answer(HELLO_LIMIT)? {
        SelftestAnswer::Hello(hello) => Ok(hello),
        SelftestAnswer::Failed(what) => Err(Error::SelfTestHost { host: args.host.clone(), what }),
        _ => Err(Error::SelfTestHost { host: args.host.clone(), what: "it is out of turn".to_owned() }),
    }
}

/// Returns the ways to test, and notes about those that cannot be tested.
fn ways(found: &Findings, hello: &SelftestHello) -> Result<(Vec<TestedWay>, Vec<String>), Error> {
    let (mut ways, mut notes) = (Vec::new(), Vec::new());
    let here = Place::here();
    match (here.is_same_host(&hello.place), here.apart(&hello.place)) {
        (true, None) => ways.push(TestedWay::Memory),
        (true, Some(why)) => notes.push(format!("shared memory: {why}")),
        (false, _) => notes.push("shared memory: the two are different hosts".to_owned()),
    }
    let theirs = verbs::parse_offer(&hello.offer)?;
    let pairs = of_ports(verbs::pairs(&found.ports, &theirs));
    if pairs.is_empty() {
        notes.extend(without_pairs(found, &theirs, &hello.survey));
    }
    if pairs.len() > WAYS_MAX {
        notes.push(format!("{} more pairs of ports: the {WAYS_MAX} best are tested", pairs.len() - WAYS_MAX));
    }
    ways.extend(pairs.into_iter().take(WAYS_MAX).map(|(our, their)| TestedWay::Ports(our, their)));
    Ok((ways, notes))
}

/// Keeps the best pair of addresses for each pair of ports and each address family. Link-local ones are dropped,
/// except over InfiniBand, if there are others: most ports have one, and often it leads nowhere.
fn of_ports(pairs: Vec<(verbs::Port, verbs::Port)>) -> Vec<(verbs::Port, verbs::Port)> {
    let ports = |(our, their): &(verbs::Port, verbs::Port)| {
        (our.device.clone(), our.number, their.device.clone(), their.number)
    };
    let mut kept: Vec<(verbs::Port, verbs::Port)> = Vec::new();
    for pair in pairs {
        let same = |other: &&(verbs::Port, verbs::Port)| ports(other) == ports(&pair);
        let is_new = match pair.0.is_link_local() && pair.0.fabric != Fabric::InfiniBand {
            true => !kept.iter().any(|other| same(&other)),
            false => !kept.iter().filter(same).any(|other| other.0.ip().is_ipv4() == pair.0.ip().is_ipv4()),
        };
        if is_new {
            kept.push(pair);
        }
    }
    kept
}

/// Returns why no port of one side reaches a port of the other.
fn without_pairs(found: &Findings, theirs: &[verbs::Port], survey: &Survey) -> Vec<String> {
    let mut notes = Vec::new();
    for (ports, host, obstacles) in [
        (found.ports.len(), &found.survey.host, &found.survey.obstacles),
        (theirs.len(), &survey.host, &survey.obstacles),
    ] {
        if ports == 0 {
            notes.extend(obstacles.iter().map(|obstacle| format!("RDMA: {host}: {obstacle}")));
        }
    }
    if notes.is_empty() {
        let (ours, theirs) = (found.survey.usable.join(", "), survey.usable.join(", "));
        notes.push(format!("RDMA: {}", verbs::Obstacle::NoPath { ours, theirs }));
    }
    notes
}

/// Builds the report: the failures, and the verdict that follows from everything.
fn conclude(
    target: String,
    is_same_host: bool,
    (ours, theirs): (Survey, Survey),
    paths: Vec<TestedPath>,
    notes: Vec<String>,
) -> SelftestReport {
    let failed = |path: &TestedPath| path.failure.as_ref().map(|why| format!("{}: {why}", path.name));
    let mut failures: Vec<_> = paths.iter().filter_map(failed).collect();
    if paths.is_empty() {
        failures.push(format!("nothing but TCP leads to {target}: {}", notes.join("; ")));
    }
    let passed: Vec<_> = paths.iter().filter(|path| path.failure.is_none()).collect();
    let verdict = match (passed.first(), failures.is_empty()) {
        (Some(best), true) => format!(
            "Passed, in {} of {} ways. Towards {target} links go over {}{}.",
            passed.len(),
            paths.len(),
            best.name,
            if is_same_host {
                "; TCP is what is left between users, containers and network namespaces"
            } else {
                ""
            }
        ),
        (_, false) if paths.is_empty() => format!(
            "Failed: towards {target} there is only TCP. Remove what is in the way, as said above, and run this again."
        ),
        _ => format!(
            "Failed in {} of {} ways: {}. What that means is in the lines above; if it is not clear, attach this report to an issue.",
            failures.len(),
            paths.len(),
            failures.first().map_or("", String::as_str)
        ),
    };
    let caravan = env!("CARGO_PKG_VERSION").to_owned();
    SelftestReport { caravan, target, is_same_host, ours, theirs, paths, notes, failures, verdict }
}

fn tell(args: &SelfTest, report: &SelftestReport) -> Result<(), Error> {
    let text = if args.json { pretty_json(report)? } else { report.text() };
    let Some(file) = &args.output else { return print(&text) };
    output::file(file, text.as_bytes())?;
    print(&format!("{}\n", report.verdict))
}

/// The hidden command of this program that runs the other side.
const WORD: &str = "selftest-peer";
/// How long ssh may take to end by itself.
const END_LIMIT: Duration = Duration::from_secs(3);
/// How long the other host may be silent: it may be busy with a test.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);

/// The other side of a self-test. Dropping it ends that process, which reads the end of its input.
#[derive(Debug)]
pub struct SelftestRemote {
    host: String,
    ssh: SshProcess,
    input: Option<ChildStdin>,
    heard: Receiver<io::Result<SelftestAnswer>>,
    interrupt: Interrupt,
}

impl SelftestRemote {
    /// Starts the other side, and copies this program there if necessary.
    pub fn start(args: &SelfTest, interrupt: &Interrupt) -> Result<Self, Error> {
        let started = start(&RemoteStart {
            host: &args.host,
            ssh: &SshOptions { args: args.ssh.clone(), port: args.port, silence: SILENCE_LIMIT },
            word: WORD,
            identity: &identity(),
            mark: MARK,
            copies: Copies::Temporary,
            may_ask: true,
            interrupted: interrupt.flag(),
        });
        let channel = started.map_err(|failure| match failure {
            StartFailure::NoSsh(why) => Error::Sentence(why),
            StartFailure::Host(what) | StartFailure::Shut(what) => {
                Error::SelfTestHost { host: args.host.clone(), what }
            }
            StartFailure::Interrupted => Shared::Interrupted.into(),
        })?;
        let (sender, heard) = mpsc::channel();
        let from = channel.from;
        std::thread::spawn(move || listen(from, &sender));
        let (host, input, interrupt) = (args.host.clone(), Some(channel.to), interrupt.clone());
        Ok(Self { host, ssh: channel.ssh, input, heard, interrupt })
    }

    /// Asks a question; its answers must be [taken](Self::answer).
    pub fn ask(&mut self, ask: &SelftestAsk) -> Result<(), Error> {
        let input = self.input.as_mut().ok_or(Shared::Interrupted)?;
        match framing::write_json(input, ask, MESSAGE_BYTES_MAX) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.ended(Some(error))),
        }
    }

    /// Waits for the next answer.
    pub fn answer(&mut self, limit: Duration) -> Result<SelftestAnswer, Error> {
        let deadline = Instant::now() + limit;
        loop {
            self.interrupt.check()?;
            match self.heard.recv_timeout(GLANCE) {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(self.ended(None));
                }
                Ok(Err(error)) => return Err(self.ended(Some(error))),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(None)),
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    let what = format!("nothing came from it within {} s", limit.as_secs());
                    return Err(self.error(&what));
                }
            }
        }
    }

    fn ended(&mut self, why: Option<io::Error>) -> Error {
        self.input = None;
        let said = self.ssh.why_ended(END_LIMIT, why);
        match self.interrupt.check() {
            Err(interrupted) => interrupted.into(),
            Ok(()) => self.error(&said),
        }
    }

    fn error(&self, what: &str) -> Error {
        Error::SelfTestHost { host: self.host.clone(), what: what.to_owned() }
    }
}

impl Drop for SelftestRemote {
    fn drop(&mut self) {
        self.input = None;
        self.ssh.end(END_LIMIT);
    }
}

/// Sends each message to `to`, up to the first error.
fn listen(mut from: RemoteOutput, to: &mpsc::Sender<io::Result<SelftestAnswer>>) {
    loop {
        let heard = framing::read_json(&mut from, MESSAGE_BYTES_MAX);
        let is_end = heard.is_err();
        if to.send(heard).is_err() || is_end {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::survey::Firewall;
    use crate::fabric::survey::tests::{findings, port};

    fn report(paths: Vec<TestedPath>) -> SelftestReport {
        let survey = || findings(Vec::new(), None, Firewall::Open).survey;
        conclude("beta".to_owned(), false, (survey(), survey()), paths, vec!["RDMA: no device".to_owned()])
    }

    #[test]
    fn each_pair_of_ports_is_tested_once_for_each_family() {
        let at = |device: &str, gid: [u8; 2], last: u8| {
            let mut port = port(Fabric::Roce, device, last);
            if gid != [0; 2] {
                port.gid = [0; 16];
                port.gid[..2].copy_from_slice(&gid);
                port.gid[15] = last;
            }
            port
        };
        let (v4, v6, link) = ([0; 2], [0xfd, 0], [0xfe, 0x80]);
        let pair = |gid, ours: u8, theirs: u8| (at("a", gid, ours), at("b", gid, theirs));
        let all = vec![pair(v4, 1, 2), pair(v4, 1, 3), pair(v6, 1, 2), pair(v6, 2, 2), pair(link, 1, 2)];
        assert_eq!(of_ports(all), [pair(v4, 1, 2), pair(v6, 1, 2)]);
        assert_eq!(of_ports(vec![pair(link, 1, 2), pair(link, 1, 3)]), [pair(link, 1, 2)]);
    }

    #[test]
    fn the_last_line_says_what_to_do() {
        let good = TestedPath::new("RDMA from a to b".to_owned());
        let bad = TestedPath {
            failure: Some("no wake-up".to_owned()),
            ..TestedPath::new("RDMA from c to d".to_owned())
        };
        let passed = report(vec![good.clone()]);
        assert_eq!(passed.failures, Vec::<String>::new());
        assert!(
            passed.text().ends_with("Towards beta links go over RDMA from a to b.\n"),
            "{}",
            passed.text()
        );
        let mixed = report(vec![good, bad]);
        assert_eq!(mixed.failures, ["RDMA from c to d: no wake-up"]);
        assert!(mixed.verdict.starts_with("Failed in 1 of 2 ways"), "{}", mixed.verdict);
        let nothing = report(Vec::new());
        assert!(nothing.failures[0].contains("RDMA: no device") && nothing.verdict.contains("only TCP"));
    }
}
