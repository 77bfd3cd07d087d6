//! The examples of the documentation, as they are written there.

use std::os::unix::fs::symlink;

use crate::pipe::live::Live;
use crate::pipe::rig::Rig;

#[test]
fn upper_and_reverse() {
    let rig = Rig::new(&["a", "b"]);
    // The program runs under the name that its users know.
    let rdpipe = rig.file("rdpipe");
    symlink(env!("CARGO_BIN_EXE_caravan"), &rdpipe).expect("linked");
    let mut live = Live::start(rig.command_as(&rdpipe, &["a:tr [:lower:] [:upper:]", "b:rev"]));
    live.feed(b"hello\n".to_vec());
    let done = live.finish();
    assert_eq!((done.status, done.text().as_str(), done.errors.as_str()), (Some(0), "OLLEH\n", ""));
    rig.census.check("the example");
}

/// A stream from one host, named with a user, goes into a command at another.
#[test]
fn from_a_user_at_a_host() {
    let rig = Rig::new(&["a", "b"]);
    let user = rustix::process::geteuid().as_raw();
    let name = std::fs::read_to_string("/etc/passwd").expect("users");
    let name = name.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(2)?.parse() == Ok(user)).then(|| fields[0].to_owned())
    });
    let from = format!("{}@a:seq 1000", name.expect("this user has a name"));
    rig.yields(&[&from, "b:tail -1"], b"", b"1000\n");
}

/// A host is connected once, however often it appears and whatever the stages are.
#[test]
fn a_host_is_asked_in_once() {
    let rig = Rig::new(&["a", "b"]);
    let words = ["a:cat", "b:cat", "a:rev", "a:cat", ":cat", "b:rev", "a:cat"];
    rig.yields(&words, b"to and fro\n", b"to and fro\n");
    assert_eq!((rig.hosts.sessions("a"), rig.hosts.sessions("b")), (1, 1));
}
