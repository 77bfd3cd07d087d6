//! Tests of hosts that fall silent, which are dead, and of readers that read nothing, which are not.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use caravan_pipe::control::{self, AgentOrder, ControlMessage};
use rustix::fs::OFlags;
use rustix::process::Signal;

use crate::census::{GONE_WITHIN, MARK, Process};
use crate::common::{caravan, wait_for};
use crate::pipe::live::Live;
use crate::pipe::rig::{Rig, is_program};
use crate::sshd::program;

/// Longer than a host may be silent.
const LONG: Duration = Duration::from_millis(6000);

/// Stopped processes, which go on when the value is dropped, however the test ends.
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

/// All processes of a host stop, as if its plug were pulled: everything elsewhere ends in time, and the processes
/// there end once they go on.
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
    // These are all processes except the stopped ones.
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

/// Only the sshd of a session stops: the agent beyond receives nothing more, and ends by itself.
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

/// Starts an agent as over ssh. Returns it once it is ready, with both ends of its channel.
fn agent(rig: &Rig) -> (Live, ChildStdin, BufReader<ChildStdout>) {
    let mut command: Command = caravan();
    command.arg("pipe-agent").env(MARK, rig.hosts.folder());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().expect("it starts");
    let to = child.stdin.take().expect("a pipe");
    let mut from = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.ends_with(" ready\n") {
        line.clear();
        assert_ne!(from.read_line(&mut line).expect("read"), 0, "it is not ready");
    }
    (Live::of(child, &command), to, from)
}

/// The cable was pulled before the coordinator's first message: the agent ends all the same.
#[test]
fn an_agent_that_was_never_spoken_to_ends() {
    let rig = Rig::new(&[]);
    let (live, _to, _from) = agent(&rig);
    assert_eq!(live.finish_within(GONE_WITHIN).status, Some(1));
    rig.census.check("a coordinator without a word");
}

/// An agent also ends if nobody takes its reports any more: sshd reads no more of them than it can send.
#[test]
fn an_agent_whose_words_nobody_takes_ends() {
    let rig = Rig::new(&[]);
    let (live, mut to, from) = agent(&rig);
    let hello = AgentOrder::Hello { silence: Duration::from_secs(2), fabric: false };
    control::write(&mut to, &ControlMessage::Word(hello)).expect("written");
    // This descriptor is our own, because the agent's must block.
    let pipe = format!("/proc/self/fd/{}", from.get_ref().as_raw_fd());
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a flag");
    let mut full = File::options().write(true).custom_flags(flags).open(pipe).expect("opened");
    let error = std::iter::repeat_with(|| full.write_all(&[0])).find_map(Result::err).expect("it is full");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert_eq!(live.finish_within(GONE_WITHIN).status, Some(1));
    rig.census.check("a coordinator that reads nothing");
}

/// The cables were pulled after the agents were ready, before their first reports. Hosts that died like this are ended
/// all at once: one after the other would take 0.8 s each.
#[test]
fn many_hosts_that_die_while_they_are_greeted_take_no_longer_than_one() {
    let rig = Rig::new(&[]);
    let ssh = rig.file("ssh");
    program(&ssh, "echo; echo caravan-agent ready; exec sleep 1000");
    let stages: Vec<String> = (0..25).map(|number| format!("h{number}:cat")).collect();
    let stages: Vec<&str> = stages.iter().map(String::as_str).collect();
    let live = rig.start(&[&["--ssh", ssh.to_str().expect("UTF-8")], &stages[..]].concat());
    let done = live.finish_within(3 * GONE_WITHIN);
    assert_eq!(done.status, Some(255), "{}", done.errors);
    // Whose silence is noticed first is chance; the others are then ended without a word.
    assert!(done.errors.contains(": it has been silent for 3"), "{}", done.errors);
    rig.census.check("hosts that died at once");
}

/// One host does not answer, and another one is refused at once: the pipeline fails at once, for that reason.
#[test]
fn a_host_that_does_not_answer_delays_no_other_reason() {
    let rig = Rig::new(&[]);
    let ssh = rig.file("ssh");
    let refusal = "echo 'ssh: Could not resolve hostname wrong' >&2; exit 255";
    program(&ssh, &format!("case \"$*\" in *' dead '*) exec sleep 1000;; esac; {refusal}"));
    let live = rig.start(&["--ssh", ssh.to_str().expect("UTF-8"), "dead:cat", "wrong:cat"]);
    let done = live.finish_within(3 * GONE_WITHIN);
    assert_eq!(done.status, Some(255), "{}", done.errors);
    assert!(done.errors.starts_with("caravan: wrong: "), "{}", done.errors);
    assert!(!done.errors.contains("dead") && !done.errors.contains("interrupted"), "{}", done.errors);
    rig.census.check("a host that does not answer");
}

/// A reader that does not read for long holds up the stream and ends nothing; once it goes on, all data arrive.
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

/// The same holds for a command that is stopped, and for a source that is silent for long.
#[test]
fn stopped_commands_and_silent_sources_are_not_dead() {
    let rig = Rig::new(&["a", "b"]);
    let silent = rig.start(&["-t", "tcp", "a:echo begin; sleep 6; echo end", "b:cat"]);
    let mut live = rig.start(&["-t", "tcp", "a:cat", "b:tee @/through"]);
    wait_for("it to run", || !rig.commands("/through").is_empty());
    let stopped = Stopped::new(rig.commands("/through"));
    let bytes = crate::pipe::bytes::pattern(8, 20 << 20);
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
