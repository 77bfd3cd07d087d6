//! Tests that keys of data connections go over ssh alone: no other process of the host can read them.

use std::collections::BTreeSet;

use crate::common::wait_for;
use crate::pipe::rig::Rig;
use crate::sshd::program;

/// Returns the forms in which a key could be written down: its bytes, its digits, and a list of numbers.
fn forms(key: &[u8]) -> Vec<Vec<u8>> {
    let hexadecimal = |letter: fn(u8) -> String| key.iter().map(|byte| letter(*byte)).collect::<String>();
    let numbers: Vec<String> = key.iter().map(u8::to_string).collect();
    vec![
        key.to_vec(),
        hexadecimal(|byte| format!("{byte:02x}")).into_bytes(),
        hexadecimal(|byte| format!("{byte:02X}")).into_bytes(),
        numbers.join(",").into_bytes(),
        numbers.join(", ").into_bytes(),
    ]
}

/// Returns the keys in the messages to agents, which the tests record before ssh encrypts them.
fn keys(said: &[u8]) -> BTreeSet<Vec<u8>> {
    let said = String::from_utf8_lossy(said);
    let lists = said.split("\"key\":[").skip(1).filter_map(|rest| rest.split_once(']'));
    let key = |(list, _): (&str, &str)| list.split(',').map(|number| number.trim().parse().ok()).collect();
    lists.filter_map(key).collect()
}

#[test]
fn keys_are_in_no_arguments_and_no_environment() {
    let rig = Rig::new(&["a", "b"]);
    let ssh = rig.file("ssh");
    let files = ssh.parent().expect("a folder").display().to_string();
    // In the end bash replaces itself by ssh; tee writes on beside it.
    program(&ssh, &format!("exec ssh \"$@\" < <(tee {files}/said.$$)"));
    std::fs::write(&ssh, std::fs::read_to_string(&ssh).expect("text").replace("#!/bin/sh", "#!/bin/bash"))
        .expect("written");
    let wrapper = ssh.to_str().expect("UTF-8");
    let mut live = rig.start(&["--ssh", wrapper, "-t", "tcp", "a:cat", "b:tee @/flows"]);
    live.feed_for_ever();
    wait_for("data", || rig.length("flows") > 1 << 20);
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(&files).expect("a folder").flatten() {
        if entry.file_name().to_string_lossy().starts_with("said.") {
            found.append(&mut keys(&std::fs::read(entry.path()).expect("read")));
        }
    }
    // There is one key for each of the three hops, of 128 bits.
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().all(|key| key.len() == 16), "{found:?}");
    for process in rig.census.processes() {
        for form in found.iter().flat_map(|key| forms(key)) {
            let shows = |bytes: &[u8]| bytes.windows(form.len()).any(|part| part == form);
            assert!(!shows(&process.arguments), "in the arguments of {}", process.command);
            assert!(!shows(&process.environment), "in the environment of {}", process.command);
        }
    }
    live.kill(rustix::process::Signal::TERM);
    live.finish();
    rig.census.check("a look at all processes");
}
