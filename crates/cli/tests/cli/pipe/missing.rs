//! Tests of missing things: ssh, room for a copy, devices. Each error is a sentence, with what to do.

use std::process::Stdio;

use crate::pipe::live::Live;
use crate::pipe::rig::Rig;

/// Stages of this host alone need no ssh.
#[test]
fn stages_of_this_host_take_no_ssh() {
    let rig = Rig::new(&["a"]);
    let done = rig.run_clean(&["--ssh", "/none/ssh", ":tr a-z A-Z", ":cat"], b"local\n");
    assert_eq!((done.status, done.text().as_str(), done.errors.as_str()), (Some(0), "LOCAL\n", ""));
}

/// A disk is full at the end of the stream: the error names the stage that could not write, and the reason.
#[test]
fn a_full_disk_at_the_end_is_named() {
    let rig = Rig::new(&["a", "b"]);
    for options in [&["-t", "tcp"][..], &[]] {
        let done = rig.run_clean(&[options, &["a:head -c 10000000 /dev/zero", "b:>/dev/full"]].concat(), b"");
        assert_eq!(done.status, Some(1), "{options:?}: {}", done.errors);
        assert!(
            done.errors.contains("/dev/full") && done.errors.contains("No space left"),
            "{}",
            done.errors
        );
    }
}

/// The same holds for our own standard output.
#[test]
fn a_full_standard_output_is_named() {
    let rig = Rig::new(&["a"]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let mut command = rig.command(&["-t", "tcp", "a:head -c 10000000 /dev/zero"]);
    let child = command.stdin(Stdio::null()).stdout(full).stderr(Stdio::piped()).spawn().expect("it starts");
    let done = Live::of(child, &command).finish();
    assert!(!matches!(done.status, Some(0) | None), "{done:?}");
    assert!(done.errors.contains("No space left"), "{}", done.errors);
    rig.census.check("a full standard output");
}

/// If only RDMA may carry data and there is no device, the error says so, and why.
#[test]
fn a_demanded_device_that_is_not_there_is_an_error() {
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        // With a device the pipe works: tests over RDMA have their own machine.
        return;
    }
    let rig = Rig::new(&["a", "b"]);
    let done = rig.run_clean(&["-t", "rdma", "a:touch @/ran", "b:cat"], b"");
    assert_eq!(done.status, Some(255), "{}", done.errors);
    assert!(done.errors.contains("RDMA"), "{}", done.errors);
    assert!(!rig.file("ran").exists());
}
