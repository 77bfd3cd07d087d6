//! Tests of stages that are files, stages of this host, and mixtures of both.

use crate::pipe::bytes::pattern;
use crate::pipe::rig::Rig;

#[test]
fn files_are_read_written_and_appended_to() {
    let rig = Rig::new(&["a", "b"]);
    let bytes = pattern(1, 700_001);
    rig.write("in", &bytes);
    rig.yields(&["a:<@/in", "b:>@/out"], b"", b"");
    assert!(rig.read("out") == bytes);
    // The second content is shorter: nothing of the old one stays.
    rig.write("in", &bytes[..1000]);
    rig.yields(&["a:<@/in", "b:>@/out"], b"", b"");
    assert!(rig.read("out") == bytes[..1000]);
    rig.yields(&["a:<@/in", "b:>>@/out"], b"", b"");
    assert!(rig.read("out") == [&bytes[..1000], &bytes[..1000]].concat());
    rig.yields(&["a:cat", "b:>>@/new"], b"made", b"");
    assert_eq!(rig.read("new"), b"made");
}

#[test]
fn files_of_this_host_and_of_one_host_alone() {
    let rig = Rig::new(&["a"]);
    let bytes = pattern(2, 300_000);
    rig.write("in", &bytes);
    rig.yields(&[":<@/in", "a:>@/there"], b"", b"");
    assert!(rig.read("there") == bytes);
    rig.yields(&["a:<@/in", ":>@/here"], b"", b"");
    assert!(rig.read("here") == bytes);
    rig.yields(&["a:<@/in", "a:>@/same"], b"", b"");
    assert!(rig.read("same") == bytes);
    rig.yields(&["a:<@/in"], b"", &bytes);
    rig.yields(&["a:>@/input"], &bytes, b"");
    assert!(rig.read("input") == bytes);
    rig.yields(&[":<@/in", ":>@/local"], b"", b"");
    assert!(rig.read("local") == bytes);
}

#[test]
fn stages_of_this_host() {
    let rig = Rig::new(&["a", "b"]);
    rig.yields(&[":tr a-z A-Z"], b"alone\n", b"ALONE\n");
    rig.yields(&[":tr a-z A-Z", ":rev"], b"two\n", b"OWT\n");
    rig.yields(&["a:cat", ":rev", "b:cat"], b"between\n", b"neewteb\n");
    rig.yields(&[":rev", "a:cat", ":rev"], b"around\n", b"around\n");
    assert_eq!((rig.hosts.sessions("a"), rig.hosts.sessions("b")), (2, 1));
}

/// Input that the first stage does not read is dropped; a stage that reads nothing ends the pipeline.
#[test]
fn input_that_nobody_reads() {
    let rig = Rig::new(&["a", "b"]);
    rig.write("in", b"the file");
    let mut live = rig.start(&["a:cat <@/in", "b:cat"]);
    live.feed_for_ever();
    let done = live.finish();
    assert_eq!((done.status, done.text().as_str(), done.errors.as_str()), (Some(0), "the file", ""));
    rig.census.check("unread input");
}

/// Spaces, quotes, newlines, dollars and bytes that are not UTF-8 reach the shell unchanged.
#[test]
fn commands_arrive_as_they_were_written() {
    let rig = Rig::new(&["a"]);
    rig.yields(&["a:printf '%s|' \"a  b\" '$HOME' \"it's\" 'c\nd' '\\'"], b"", b"a  b|$HOME|it's|c\nd|\\|");
    rig.yields(&["a:x=5; (echo $((x * 2)); echo 1 2) | cat"], b"", b"10\n1 2\n");
    // Everything after the first colon is the command.
    rig.yields(&["a:echo b:c:d"], b"", b"b:c:d\n");
}

/// The commands are as long as possible, and more than one message holds for a host.
#[test]
fn long_commands() {
    let rig = Rig::new(&["a"]);
    let stage = |host: &str| format!("{host}:cat #{}", "\"".repeat(100_000));
    let stages: Vec<String> = (0..12).map(|number| stage(if number < 8 { "a" } else { "" })).collect();
    let stages: Vec<&str> = stages.iter().map(String::as_str).collect();
    rig.yields(&stages, b"through all\n", b"through all\n");
}
