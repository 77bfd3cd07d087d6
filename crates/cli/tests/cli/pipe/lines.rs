//! Tests of commands' standard error: it comes line by line, with its host in front, never in the stream.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::wait_for;
use crate::pipe::live::Live;
use crate::pipe::rig::Rig;

#[test]
fn lines_come_whole_with_their_host() {
    let rig = Rig::new(&["a", "b"]);
    let done = rig.run_clean(
        &["a:echo data; echo one >&2; echo two >&2", "b:cat; printf 'no end' >&2", ":cat; echo mine >&2"],
        b"",
    );
    assert_eq!((done.status, done.text().as_str()), (Some(0), "data\n"));
    let mut lines: Vec<&str> = done.errors.lines().collect();
    let of_a: Vec<&str> = lines.iter().copied().filter(|line| line.starts_with("[a] ")).collect();
    assert_eq!(of_a, ["[a] one", "[a] two"]);
    lines.sort_unstable();
    assert_eq!(lines.len(), 4, "{}", done.errors);
    assert!(lines.contains(&"[b] no end"), "{}", done.errors);
    assert!(lines.iter().any(|line| line.ends_with("mine")), "{}", done.errors);
    assert!(done.errors.ends_with('\n'));
}

/// Of many lines from several hosts at once, none is lost or mixed up.
#[test]
fn many_lines_at_once() {
    let rig = Rig::new(&["a", "b"]);
    let words = "i=0; while [ $i -lt 2000 ]; do echo \"line $i of many\"; i=$((i+1)); done >&2";
    let done = rig.run_clean(&[&format!("a:{words}"), &format!("b:{words}; cat")], b"");
    assert_eq!((done.status, done.text().as_str()), (Some(0), ""));
    for host in ["a", "b"] {
        let prefix = format!("[{host}] line ");
        let numbers: Vec<usize> = done
            .errors
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix)?.strip_suffix(" of many")?.parse().ok())
            .collect();
        assert!(numbers.iter().copied().eq(0..2000), "{host}: {} lines", numbers.len());
    }
    assert_eq!(done.errors.lines().count(), 4000);
}

/// A line without an end takes neither unlimited time nor memory; bytes that are not text, or that would move the
/// cursor of a terminal, are still shown.
#[test]
fn long_lines_and_what_is_no_text() {
    let rig = Rig::new(&["a"]);
    let done = rig.run_clean(&["a:head -c 100000 /dev/zero | tr '\\0' x >&2; echo >&2; echo after >&2"], b"");
    assert_eq!((done.status, done.text().as_str()), (Some(0), ""));
    assert_eq!(done.errors.matches('x').count(), 100_000);
    assert!(done.errors.lines().all(|line| line.starts_with("[a] ")), "{}", done.errors);
    assert_eq!(done.errors.lines().last(), Some("[a] after"));
    let done = rig.run_clean(&["a:printf 'a\\377\\000b\\nnext\\n' >&2; echo out"], b"");
    assert_eq!((done.status, done.text().as_str()), (Some(0), "out\n"));
    assert_eq!(done.errors.lines().count(), 2, "{:?}", done.errors);
    assert!(done.errors.starts_with("[a] a") && done.errors.ends_with("b\n[a] next\n"), "{:?}", done.errors);
}

/// Lines arrive as they are written, not at the end.
#[test]
fn lines_come_at_once() {
    let rig = Rig::new(&["a"]);
    let mut command = rig.command(&["a:echo first >&2; cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "[a] first");
    drop(child.stdin.take());
    assert_eq!(Live::of(child, &command).finish().status, Some(0));
    rig.census.check("a line");
}

/// Returns the size of the flood: small, or `CARAVAN_PIPE_FLOOD`.
fn flood_bytes() -> usize {
    std::env::var("CARAVAN_PIPE_FLOOD").ok().and_then(|text| text.parse().ok()).unwrap_or(4_000_000)
}

/// The lines are many, and read slowly: the commands wait, no process's memory grows, nothing is lost, and hosts are
/// not taken for dead meanwhile.
#[test]
fn a_flood_and_a_slow_reader() {
    let rig = Rig::new(&["a"]);
    let length = flood_bytes();
    let mut command = rig.command(&[&format!("a:yes 0123456789abcdef | head -c {length} >&2; echo data")]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut errors = child.stderr.take().expect("a pipe");
    // The test reads nothing for longer than a host may be silent.
    std::thread::sleep(Duration::from_millis(4500));
    let resident = |process: &crate::census::Process| process.resident_bytes();
    let ours = rig.census.processes().into_iter().filter(crate::pipe::rig::is_program);
    let most = ours.map(|process| resident(&process)).max().expect("it runs");
    assert!(most < 100 << 20, "{most} bytes of memory");
    let mut bytes = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match errors.read(&mut buffer).expect("it can be read") {
            0 => break,
            count => bytes += buffer[..count].iter().filter(|byte| **byte == b'f').count(),
        }
    }
    // Each line has 17 bytes, and the last may lack its end.
    assert_eq!(bytes, (length + 1) / 17);
    let mut output = child.stdout.take().expect("a pipe");
    assert_eq!(Live::of(child, &command).finish().status, Some(0));
    let mut text = String::new();
    output.read_to_string(&mut text).expect("text");
    assert_eq!(text, "data\n");
    rig.census.check("a flood");
}

/// Nobody reads standard error any more; the stream still arrives.
#[test]
fn a_closed_standard_error() {
    let rig = Rig::new(&["a"]);
    let mut command = rig.command(&["a:echo lost >&2; echo kept; echo lost >&2"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    drop(child.stderr.take());
    let mut text = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
    Live::of(child, &command).finish();
    assert_eq!(text, "kept\n");
    rig.census.check("a closed standard error");
}

/// Standard output and error are one file: the lines of each stay whole.
#[test]
fn both_in_one_file() {
    let rig = Rig::new(&["a"]);
    let file = File::create(rig.file("both")).expect("made");
    let mut command = rig.command(&["a:for i in 1 2 3; do echo out; echo err >&2; done"]);
    let both: OwnedFd = file.into();
    command.stdin(Stdio::null()).stdout(both.try_clone().expect("cloned")).stderr(both);
    let child = command.spawn().expect("it starts");
    assert_eq!(Live::of(child, &command).finish().status, Some(0));
    let text = String::from_utf8(rig.read("both")).expect("text");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[a] err", "[a] err", "[a] err", "out", "out", "out"]);
}

/// The last lines of a command that is killed still arrive.
#[test]
fn last_words_are_heard() {
    let rig = Rig::new(&["a"]);
    let mut live = rig.start(&["a:echo begun >&2; exec sleep 1000"]);
    let sleep = rig.await_command("sleep 1000");
    sleep.kill(Signal::KILL);
    wait_for("its end", || live.has_ended());
    let done = live.finish();
    assert_eq!(done.status, Some(137));
    assert!(done.errors.contains("[a] begun\n"), "{}", done.errors);
    rig.census.check("a kill");
}
