//! Tests of one stream to many hosts.

use std::io::Read;
use std::process::Stdio;

use rustix::process::Signal;

use crate::common::wait_for;
use crate::pipe::bytes::{difference, pattern};
use crate::pipe::live::Live;
use crate::pipe::rig::Rig;

/// A stage with which each host writes its input to its own home folder.
const KEEP: &str = "a,b,c:cat >\"$HOME/got\"";

fn got(rig: &Rig, host: &str) -> Vec<u8> {
    std::fs::read(rig.hosts.home(host).join("got")).unwrap_or_default()
}

/// Checks that each of these hosts has got all bytes.
fn all_got(rig: &Rig, hosts: &[&str], bytes: &[u8]) {
    for host in hosts {
        let got = got(rig, host);
        assert!(got == bytes, "{host}: {}", difference(&got, bytes));
    }
}

fn wait_until_all_get_some(rig: &Rig) {
    wait_for("all to get some", || ["a", "b", "c"].iter().all(|host| !got(rig, host).is_empty()));
}

#[test]
fn all_hosts_get_the_whole_stream() {
    let rig = Rig::new(&["a", "b", "c"]);
    for (options, length) in [
        (&["-t", "tcp"][..], 5_000_001),
        (&["-t", "tcp", "--star", "-P", "2"], 3_000_001),
        (&["-t", "ssh"], 1_000_001),
        (&[], 2_000_001),
        (&["--star", "-m", "4M"], 0),
    ] {
        let bytes = pattern(length, length as usize);
        rig.yields(&[options, &[":cat", KEEP]].concat(), &bytes, b"");
        all_got(&rig, &["a", "b", "c"], &bytes);
    }
}

#[test]
fn a_stream_from_one_of_them_and_into_files() {
    let rig = Rig::new(&["a", "b", "c"]);
    let bytes = pattern(9, 1_000_000);
    let file = rig.write("in", &bytes);
    rig.yields(&["-t", "tcp", "a:<@/in", "b,c:cat >\"$HOME/got\""], b"", b"");
    assert!(got(&rig, "b") == bytes && got(&rig, "c") == bytes);
    // The file has the same name on each host; here it is one and the same file, so only its end can be checked.
    rig.yields(&["-t", "tcp", &format!(":<{}", file.display()), "a,b:>@/out"], b"", b"");
    assert!(rig.read("out") == bytes);
}

#[test]
fn outputs_of_several_hosts_come_line_by_line() {
    let rig = Rig::new(&["a", "b", "c"]);
    for options in [&["-t", "tcp"][..], &["--star"]] {
        let done = rig.run_clean(&[options, &["a,b,c:sed s/^/got/; printf last"]].concat(), b"1\n2\n");
        assert_eq!((done.status, done.errors.as_str()), (Some(0), ""), "{options:?}");
        let output = done.text();
        for host in ["a", "b", "c"] {
            let prefix = format!("[{host}] ");
            let lines: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
            assert_eq!(lines, ["got1", "got2", "last"], "{options:?}: {output}");
        }
        assert_eq!(output.lines().count(), 9, "{output}");
    }
}

/// Starts a pipeline with many data under way, and waits until each host has received some.
fn amid(rig: &Rig, options: &[&str]) -> Live {
    let mut live = rig.start(&[options, &["-t", "tcp", "a,b,c:tee \"$HOME/got\" >/dev/null"]].concat());
    live.feed_for_ever();
    wait_until_all_get_some(rig);
    live
}

fn kill_command(rig: &Rig, host: &str) {
    let home = rig.hosts.home(host);
    let commands = rig.commands(&format!("tee {}", home.display()));
    assert_eq!(commands.len(), 1);
    commands[0].kill(Signal::KILL);
}

#[test]
fn one_that_dies_ends_all() {
    for options in [&["--chain"][..], &["--star"]] {
        let rig = Rig::new(&["a", "b", "c"]);
        let live = amid(&rig, options);
        kill_command(&rig, "b");
        let done = live.finish();
        assert_eq!(done.status, Some(137), "{options:?}: {}", done.errors);
        assert!(done.errors.contains("(b)"), "{options:?}: {}", done.errors);
        rig.census.check("a death");
    }
}

/// The other hosts get the whole stream, and the status reports the dead one: its command, or its agent, with which
/// the whole host is gone.
#[test]
fn others_go_on_without_one_that_dies() {
    let kill_agent: fn(&Rig, &str) = |rig, host| rig.agents(host)[0].kill(Signal::KILL);
    for (star, kill, status, told) in [
        (&[][..], kill_command as fn(&Rig, &str), 137, "(b)"),
        (&["--star"], kill_command, 137, "(b)"),
        (&[], kill_agent, 255, "b: "),
    ] {
        let rig = Rig::new(&["a", "b", "c"]);
        let bytes = pattern(10, 20_000_000);
        let words = ["--on-dead", "continue", "-t", "tcp", "-L", "10M", "a,b,c:tee \"$HOME/got\" >/dev/null"];
        let mut live = rig.start(&[star, &words].concat());
        live.feed(bytes.clone());
        wait_until_all_get_some(&rig);
        kill(&rig, "b");
        let done = live.finish();
        assert_eq!(done.status, Some(status), "{star:?}: {}", done.errors);
        assert!(done.errors.contains(told), "{star:?}: {}", done.errors);
        all_got(&rig, &["a", "c"], &bytes);
        assert!(bytes.starts_with(&got(&rig, "b")));
        rig.census.check("a death");
    }
}

/// A host that does not read is dropped, and does not hold up the others.
#[test]
fn a_slow_one_is_dropped() {
    let rig = Rig::new(&["a", "b", "c"]);
    let bytes = pattern(12, 30_000_000);
    let slow = "a,b,c:case $HOME in */b*) sleep 1000;; esac; cat >\"$HOME/got\"";
    let mut live = rig.start(&["--on-slow", "drop", "--on-dead", "continue", "-m", "1M", "-t", "tcp", slow]);
    live.feed(bytes.clone());
    let done = live.finish();
    assert_ne!(done.status, Some(0), "{}", done.errors);
    assert!(done.errors.contains("here -> b: "), "{}", done.errors);
    assert!(!done.errors.contains("-> a") && !done.errors.contains("-> c"), "{}", done.errors);
    all_got(&rig, &["a", "c"], &bytes);
    rig.census.check("a slow one");
}

/// A slow host is waited for by default.
#[test]
fn a_slow_one_is_waited_for() {
    let rig = Rig::new(&["a", "b", "c"]);
    let bytes = pattern(13, 10_000_000);
    let slow = "a,b,c:case $HOME in */b*) sleep 2;; esac; cat >\"$HOME/got\"";
    rig.yields(&["-t", "tcp", "--star", slow], &bytes, b"");
    all_got(&rig, &["a", "b", "c"], &bytes);
}

/// Two hosts write to our standard output, whose reader leaves.
#[test]
fn readers_of_several_outputs_may_leave() {
    let rig = Rig::new(&["a", "b"]);
    let mut command = rig.command(&["a,b:yes"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut output = child.stdout.take().expect("a pipe");
    output.read_exact(&mut [0; 10_000]).expect("data");
    drop(output);
    Live::of(child, &command).finish();
    rig.census.check("a closed output");
}
