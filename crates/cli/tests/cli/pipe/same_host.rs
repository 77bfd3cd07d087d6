//! Tests that two commands of one host share a pipe, with no process of ours in between.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::pipe::fcntl_getpipe_size;

use crate::common::wait_for;
use crate::pipe::rig::{Rig, is_program};

/// Returns the other processes that hold an end of the pipe that these two processes share.
fn others_at_the_pipe(rig: &Rig, writer: &str, reader: &str) -> Vec<String> {
    let (writer, reader) = (rig.await_command(writer), rig.await_command(reader));
    let end = |process: &crate::census::Process, number| {
        let ends = process.descriptors();
        ends.into_iter().find(|(at, _)| *at == number).map(|(_, target)| target).unwrap_or_default()
    };
    let (output, input) = (end(&writer, 1), end(&reader, 0));
    assert!(output.starts_with("pipe:["), "{output}");
    assert_eq!(output, input, "two different things");
    // A pipe of another size may be slower than a shell's own.
    if let Ok(end) = File::open(format!("/proc/{}/fd/0", reader.pid)) {
        let (own, _) = rustix::pipe::pipe().expect("a pipe");
        let sizes = [end.as_fd(), own.as_fd()].map(|end| fcntl_getpipe_size(end).expect("a size"));
        assert_eq!(sizes[0], sizes[1]);
    }
    let all = rig.census.processes().into_iter().filter(is_program);
    all.filter(|process| process.descriptors().iter().any(|(_, target)| *target == output))
        .map(|process| process.command)
        .collect()
}

fn check(words: &[&str]) {
    let rig = Rig::new(&["a", "b"]);
    let mut live = rig.start(words);
    drop(live.child().stdin.take());
    wait_for("the pipe to be the commands' alone", || {
        !live.has_ended() && others_at_the_pipe(&rig, "yes first", "grep -v first").is_empty()
    });
    live.kill(rustix::process::Signal::TERM);
    live.finish();
    rig.census.check("a shared pipe");
}

#[test]
fn of_one_agent() {
    check(&["a:yes first", "a:grep -v first", "b:cat"]);
}

#[test]
fn of_this_host() {
    check(&[":yes first", ":grep -v first", "b:cat"]);
}

/// Two names stand for one host and one user: one agent makes the pipe and hands an end to the other.
#[test]
fn of_two_agents() {
    check(&["a:yes first", "b:grep -v first", "a:cat"]);
}

/// A demanded transport is used even so. It is encrypted as between any two hosts: if both ends claim to be on one
/// host, that proves nothing, because machines that were restored from one snapshot claim the same.
#[test]
fn a_demanded_transport_is_taken_between_two_names() {
    let rig = Rig::new(&["a", "b"]);
    for (transport, expected) in [("tcp", ", encrypted"), ("ssh", ", encrypted by ssh")] {
        let done = rig.run_clean(&["-v", "-t", transport, "a:echo x", "b:cat"], b"");
        assert_eq!((done.status, done.text().as_str()), (Some(0), "x\n"), "{}", done.errors);
        assert!(done.errors.contains(expected), "{}", done.errors);
    }
}
