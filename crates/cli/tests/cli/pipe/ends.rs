//! Unexpected ends: signals, deaths of each process that takes part, and commands that do not want to end. Afterwards
//! nothing may be left on any host.

use std::fs::{Permissions, set_permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::census::{GONE_WITHIN, MARK, Process};
use crate::common::wait_for;
use crate::pipe::bytes::Random;
use crate::pipe::live::{Done, Live};
use crate::pipe::rig::{Rig, is_holder, is_program};

/// Returns how often the caller is killed by each signal: enough to hit its start, its middle and the time between;
/// `CARAVAN_PIPE_ROUNDS` sets another number.
fn rounds() -> u64 {
    std::env::var("CARAVAN_PIPE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

/// Checks that the pipeline ends in time, with everything that it has started.
fn ends(rig: &Rig, live: Live, why: &str) -> Done {
    let deadline = Instant::now() + GONE_WITHIN;
    let done = live.finish_after(why, GONE_WITHIN);
    rig.census.check_by(deadline, why);
    done
}

/// Ends pipelines by a signal; `expected` is the exit status, or the signal that ended the command.
fn a_signal_at_any_moment(signal: Signal, seed: u64, expected: (Option<i32>, Option<i32>)) {
    let rig = Rig::new(&["a", "b"]);
    let mut random = Random::new(seed);
    for round in 0..rounds() {
        let options =
            random.pick(&[&[][..], &["-t", "tcp"], &["-t", "ssh"], &["-t", "tcp", "-P", "4", "-m", "4M"]]);
        let mut live =
            rig.start(&[options, &["a:cat; sleep 1000 & sleep 1000", ":cat", "b:cat >/dev/null"]].concat());
        live.feed_for_ever();
        // Until it catches the signal it has started nothing, and ends like any program.
        wait_for("the command to catch the signal", || signal == Signal::KILL || live.catches(signal));
        // The moments range from before ssh runs to amid the data.
        let wait = Duration::from_millis(random.below(900));
        std::thread::sleep(wait);
        assert!(!live.has_ended(), "round {round}: {}", live.finish().errors);
        live.kill(signal);
        let done = ends(&rig, live, &format!("{signal:?} after {wait:?}, {options:?}, round {round}"));
        assert_eq!((done.status, done.signal), expected, "{wait:?}: {}", done.errors);
    }
}

#[test]
fn an_interrupt_at_any_moment() {
    a_signal_at_any_moment(Signal::INT, 1, (Some(130), None));
}

#[test]
fn a_termination_at_any_moment() {
    a_signal_at_any_moment(Signal::TERM, 2, (Some(130), None));
}

#[test]
fn a_kill_at_any_moment() {
    a_signal_at_any_moment(Signal::KILL, 3, (None, Some(9)));
}

/// The terminal is gone, and `nohup` runs the command: neither the command nor anything that it has started here ends.
#[test]
fn a_hangup_that_is_to_be_ignored_ends_nothing() {
    let rig = Rig::new(&["a"]);
    let given = rig.command(&["-t", "tcp", ":cat", "a:cat"]);
    let mut command = Command::new("nohup");
    command.arg(given.get_program()).args(given.get_args()).env(MARK, rig.hosts.folder());
    let mut live = Live::start(command);
    wait_for("both to run", || rig.commands("cat").len() == 2);
    let there: Vec<i32> = rig.below("a").iter().map(|process| process.pid).collect();
    let is_here = |process: &Process| !there.contains(&process.pid) && !rig.hosts.is_daemon(process.pid);
    rig.census.processes().into_iter().filter(is_here).for_each(|process| process.kill(Signal::HUP));
    live.feed(b"gone on\n".to_vec());
    let done = live.finish();
    assert_eq!((done.status, done.text().as_str()), (Some(0), "gone on\n"), "{}", done.errors);
    rig.census.check("an ignored hangup");
}

/// Stages that write the data to one file, and to another one at the end of the stream.
const FLOWS: [&str; 3] = ["a:cat", "b:tee @/flows", "a:cat >/dev/null; echo over >@/flag"];

/// Starts a pipeline, and waits until data flow.
fn amid(rig: &Rig, options: &[&str]) -> Live {
    rig.write("flows", b"");
    let mut live = rig.start(&[options, &FLOWS].concat());
    live.feed_for_ever();
    wait_for("data", || rig.length("flows") > 1 << 20);
    live
}

/// The test kills either of the two processes of an agent.
#[test]
fn an_agent_is_killed() {
    let rig = Rig::new(&["a", "b"]);
    for (host, options, which) in [
        ("a", &["-t", "tcp"][..], 0),
        ("a", &["-t", "tcp"], 1),
        ("b", &["-t", "tcp"], 0),
        ("b", &["-t", "tcp"], 1),
        ("b", &["-t", "ssh"], 1),
        ("a", &[], 0),
        ("b", &[], 1),
    ] {
        let live = amid(&rig, options);
        let agents = rig.agents(host);
        assert_eq!(agents.len(), 2, "{agents:?}");
        agents[which].kill(Signal::KILL);
        let why = format!("the death of process {which} of the agent of {host}, {options:?}");
        let done = ends(&rig, live, &why);
        assert_eq!(done.status, Some(255), "{why}: {}", done.errors);
        assert!(done.errors.contains(&format!("{host}: ")), "{why}: {}", done.errors);
        // With nothing asked for, a plain pipe joins the commands, and the end of one is the end of its stream.
        let is_plain = options.is_empty();
        assert!(is_plain || !rig.file("flag").exists(), "{why}: what was cut off looked like an end");
        let _ = std::fs::remove_file(rig.file("flag"));
    }
}

#[test]
fn ssh_is_killed() {
    let rig = Rig::new(&["a", "b"]);
    for options in [&["-t", "tcp"][..], &["-t", "ssh"], &[]] {
        let live = amid(&rig, options);
        let ssh = rig.ssh();
        assert_eq!(ssh.len(), 2, "{ssh:?}");
        ssh[ssh.len() - 1].kill(Signal::KILL);
        let done = ends(&rig, live, "the death of ssh");
        assert_eq!(done.status, Some(255), "{options:?}: {}", done.errors);
        assert!(done.errors.contains("ssh"), "{options:?}: {}", done.errors);
        assert!(options.is_empty() || !rig.file("flag").exists(), "what was cut off looked like an end");
        let _ = std::fs::remove_file(rig.file("flag"));
    }
}

#[test]
fn a_command_is_killed() {
    let rig = Rig::new(&["a", "b"]);
    let live = amid(&rig, &["-t", "tcp"]);
    rig.await_command("tee ").kill(Signal::KILL);
    let done = ends(&rig, live, "the death of a command");
    assert_eq!(done.status, Some(137), "{}", done.errors);
    assert!(done.errors.contains("stage 2 (b)") && done.errors.contains("signal 9"), "{}", done.errors);
}

/// Some commands do not end by themselves, or leave others running: none of them outlives a pipeline that is ended.
#[test]
fn commands_that_do_not_want_to_end() {
    let stages = [
        "a:trap '' TERM HUP INT PIPE; while :; do sleep 0.1; done",
        "b:sleep 1000 & sleep 1000 & sleep 1000",
        "a:(sleep 1000 &) ; cat; sleep 1000",
        "b:setsid sleep 1000 & setsid sh -c 'sleep 1000 & sleep 1000' & wait",
        ":setsid -f sh -c 'trap \"\" TERM HUP; exec env -i sleep 1000'; sleep 1000",
        "a:nohup sleep 1000 >/dev/null 2>&1 & sleep 1000",
    ];
    let rig = Rig::new(&["a", "b"]);
    for signal in [Signal::INT, Signal::KILL] {
        let live = rig.start(&stages);
        wait_for("all of them", || rig.commands("sleep 1000").len() == 11);
        live.kill(signal);
        ends(&rig, live, &format!("{signal:?}"));
    }
}

/// A command runs as another user (`sudo zfs recv`): the error names it, the agent ends without it, and the cut does
/// not look like the end of its input, whichever process has written to it.
#[test]
fn what_cannot_be_ended_is_told_and_sees_no_end() {
    const NOBODY: u32 = 65534;
    let rig = Rig::new(&[]);
    let (own, become_root) = (rig.file("rdpipe"), rig.file("become-root"));
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: another user's commands take root");
        return;
    }
    // The user is not root, and has a copy of the program and one that makes it root, as sudo does.
    let change = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).expect("changed");
    std::fs::copy(env!("CARGO_BIN_EXE_caravan"), &own).expect("copied");
    std::fs::copy("/usr/bin/setpriv", &become_root).expect("setpriv (package util-linux)");
    change(&become_root, 0o4755);
    change(rig.hosts.folder(), 0o755);
    change(&rig.file(""), 0o777);
    let sudo = ["--reuid", "0", "--regid", "0", "--clear-groups"];
    let check = Command::new(&become_root).args(sudo).arg("true").uid(NOBODY).status().expect("it starts");
    if !check.success() {
        eprintln!("skipped: programs in {} cannot make their callers root", rig.file("").display());
        return;
    }
    for options in [&[][..], &["-L", "1G"]] {
        for file in ["flows", "flag"] {
            let _ = std::fs::remove_file(rig.file(file));
        }
        let reader =
            format!(":@/become-root {} sh -c 'cat >@/flows; echo over >@/flag' >/dev/null", sudo.join(" "));
        let mut command = rig.command_as(&own, &[options, &[":yes", &reader]].concat());
        command.uid(NOBODY);
        let live = Live::start(command);
        wait_for("data", || rig.length("flows") > 0);
        live.kill(Signal::INT);
        let done = live.finish_within(GONE_WITHIN);
        assert_eq!(done.status, Some(130), "{}", done.errors);
        let told =
            |what: &str| done.errors.lines().any(|line| line.contains("cannot end") && line.contains(what));
        assert!(told("become-root") || told("sh -c"), "{options:?}: {}", done.errors);
        assert!(told("which runs as root: end it there"), "{options:?}: {}", done.errors);
        wait_for("all but root's to end", || {
            let left = rig.census.processes();
            left.iter().all(|process| !is_program(process) || is_holder(process))
        });
        let reader = rig.await_command("cat");
        assert!(!rig.file("flag").exists(), "{options:?}: the cut looked like an end");
        // The shell is killed first, because it would go on.
        let shells = rig.census.processes().into_iter().filter(|process| process.command.contains("flag"));
        shells.for_each(|shell| shell.kill(Signal::KILL));
        reader.kill(Signal::KILL);
        rig.census.check("what could not be ended");
    }
}

/// A command's deliberate background process does not hold up the end, and lives on, as after a shell's pipe.
#[test]
fn what_commands_leave_behind() {
    let rig = Rig::new(&["a", "b"]);
    let mut live = rig.start(&["a:setsid -f sleep 1000 >/dev/null 2>&1; echo x", "b:cat"]);
    live.feed(Vec::new());
    let done = live.finish_within(GONE_WITHIN);
    assert_eq!((done.status, done.text().as_str(), done.errors.as_str()), (Some(0), "x\n", ""));
    let left = rig.commands("sleep 1000");
    assert_eq!(left.len(), 1);
    left[0].kill(Signal::KILL);
    rig.census.check("a pipeline with a daemon");
}

/// After Ctrl-Z and fg, the job goes on: the terminal stops the caller and all that it has started, for longer than a
/// host may be silent. This includes the processes that carry data: the agent of this host, and the caller itself (`-t
/// ssh`).
#[test]
fn a_stopped_job_goes_on() {
    let rig = Rig::new(&["a"]);
    let ways =
        [&["-t", "tcp", "a:tee @/1"][..], &["-t", "ssh", "a:tee @/2"], &["-t", "tcp", "a:tee @/3", ":cat"]];
    let mut jobs: Vec<_> = ways
        .into_iter()
        .map(|words| {
            let mut command = rig.command(words);
            // A shell starts a job like this.
            command.process_group(0);
            let mut live = Live::start(command);
            live.child().stdin.as_mut().expect("a pipe").write_all(b"begun ").expect("written");
            (words, live)
        })
        .collect();
    for file in ["1", "2", "3"] {
        wait_for("something to come through", || rig.length(file) > 0);
    }
    let signal =
        |live: &mut Live, signal| kill_process_group(Pid::from_child(live.child()), signal).expect("sent");
    jobs.iter_mut().for_each(|(_, live)| signal(live, Signal::TSTP));
    std::thread::sleep(Duration::from_secs(6));
    for (words, mut live) in jobs {
        assert!(!live.has_ended(), "{words:?} ended while it was stopped");
        signal(&mut live, Signal::CONT);
        live.feed(b"gone on\n".to_vec());
        let done = live.finish();
        let expected = (Some(0), "begun gone on\n", "");
        assert_eq!((done.status, done.text().as_str(), done.errors.as_str()), expected, "{words:?}");
    }
    rig.census.check("a stop");
}
