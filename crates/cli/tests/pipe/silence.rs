//! Hosts that say nothing more, and readers that read nothing: the first are dead, the second are not.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::census::{GONE_WITHIN, Process};
use crate::common::wait_for;
use crate::rig::{Rig, is_program};

/// Longer than a host may be silent.
const LONG: Duration = Duration::from_millis(6000);

/// Stopped processes, which go on however the test ends.
struct Stopped(Vec<Process>);

impl Stopped {
    fn new(processes: Vec<Process>) -> Self {
        assert!(!processes.is_empty(), "nothing to stop");
        processes.iter().for_each(|process| process.kill(Signal::STOP));
        Self(processes)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.iter().for_each(|process| process.kill(Signal::CONT));
    }
}

/// All of a host's processes stop, as if its plug were pulled: everything elsewhere ends within 5 s, and
/// what is there ends once it goes on.
#[test]
fn a_dead_host_ends_everything_elsewhere() {
    let rig = Rig::new(&["a", "b"]);
    let mut live = rig.start(&["-t", "tcp", "a:cat; sleep 1000", "b:cat; sleep 1000", "a:cat"]);
    live.feed_for_ever();
    wait_for("both to run", || rig.commands("cat").len() >= 3);
    let stopped = Stopped::new(rig.below("b"));
    let begin = Instant::now();
    let done = live.finish_within(GONE_WITHIN);
    assert_eq!(done.status, Some(255), "{}", done.errors);
    assert!(done.errors.contains("b: "), "{}", done.errors);
    // All but what cannot move.
    let others = || {
        let dead: Vec<i32> = stopped.0.iter().map(|process| process.pid).collect();
        let is_other = |process: &Process| !dead.contains(&process.pid) && !rig.hosts.is_daemon(process.pid);
        rig.census.processes().into_iter().filter(is_other).map(|process| process.command).collect::<Vec<_>>()
    };
    while !others().is_empty() {
        assert!(begin.elapsed() < GONE_WITHIN, "{:?}", others());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(stopped);
    rig.census.check("a dead host");
}

/// Only the sshd of a session stops: the agent beyond hears nothing more, and ends by itself.
#[test]
fn an_agent_that_hears_nothing_ends_by_itself() {
    let rig = Rig::new(&["a", "b"]);
    let mut live = rig.start(&["-t", "tcp", "a:cat; sleep 1000", "b:cat"]);
    live.feed_for_ever();
    wait_for("both to run", || rig.commands("cat").len() >= 2);
    let is_ssh = |process: &Process| process.command.starts_with("sshd");
    let sessions = rig.below("a").into_iter().filter(is_ssh).collect();
    let stopped = Stopped::new(sessions);
    let begin = Instant::now();
    let done = live.finish_within(GONE_WITHIN);
    assert_eq!(done.status, Some(255), "{}", done.errors);
    while rig.below("a").iter().any(|process| is_program(process) || process.command.contains("sleep")) {
        assert!(begin.elapsed() < GONE_WITHIN, "{:?}", rig.below("a"));
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(stopped);
    rig.census.check("a stopped sshd");
}

/// A reader that does not read for long holds the stream up and ends nothing; once it goes on, all of it
/// comes.
#[test]
fn a_stalled_reader_is_not_dead() {
    let rig = Rig::new(&["a", "b"]);
    let all: Vec<_> = [&["-t", "tcp"][..], &["-t", "ssh"], &["-t", "tcp", "-P", "4", "-m", "1M"], &[]]
        .map(|options| {
            let words = [options, &["a:yes | head -c 30000000", "b:sleep 6; cat"]].concat();
            (words.clone().into_iter().map(str::to_owned).collect::<Vec<_>>(), rig.start(&words))
        })
        .into_iter()
        .collect();
    let begin = Instant::now();
    for (words, mut live) in all {
        drop(live.child().stdin.take());
        let done = live.finish();
        assert_eq!((done.status, done.errors.as_str()), (Some(0), ""), "{words:?}");
        assert_eq!(done.output.len(), 30_000_000, "{words:?}");
    }
    assert!(begin.elapsed() > Duration::from_secs(5), "it did not wait");
    rig.census.check("a stall");
}

/// The same for a command that is stopped, and for a source that says nothing for long.
#[test]
fn stopped_commands_and_silent_sources_are_not_dead() {
    let rig = Rig::new(&["a", "b"]);
    let silent = rig.start(&["-t", "tcp", "a:echo begin; sleep 6; echo end", "b:cat"]);
    let mut live = rig.start(&["-t", "tcp", "a:cat", "b:tee @/through"]);
    wait_for("it to run", || !rig.commands("/through").is_empty());
    let stopped = Stopped::new(rig.commands("/through"));
    let bytes = crate::bytes::pattern(8, 20 << 20);
    live.feed(bytes.clone());
    std::thread::sleep(LONG);
    assert!(!live.has_ended());
    drop(stopped);
    let done = live.finish();
    assert_eq!((done.status, done.errors.as_str()), (Some(0), ""));
    assert!(done.output == bytes);
    let done = silent.finish();
    assert_eq!((done.status, done.text().as_str(), done.errors.as_str()), (Some(0), "begin\nend\n", ""));
    rig.census.check("a stopped command");
}
