//! Tests of exit statuses, and of the errors of a pipeline that failed: the cause first, with stage, host and command,
//! and nothing that only followed from it.

use std::io::Read;
use std::process::Stdio;

use crate::pipe::bytes::pattern;
use crate::pipe::live::{Done, Live};
use crate::pipe::rig::Rig;

/// True if the errors contain what a user must not see: ends that follow from a failure elsewhere.
fn has_derived(errors: &str) -> bool {
    ["Broken pipe", "broken pipe", "SIGPIPE", "signal 13", "status 141"]
        .iter()
        .any(|word| errors.contains(word))
}

fn first_line(done: &Done) -> &str {
    done.errors.lines().find(|line| line.starts_with("caravan")).unwrap_or_default()
}

#[test]
fn the_rightmost_failing_stage_decides() {
    let rig = Rig::new(&["a", "b"]);
    for (words, status) in [
        (&["a:exit 3", "b:cat"][..], 3),
        (&["a:exit 3", "b:cat; exit 4"], 4),
        (&["a:exit 3", "b:cat >/dev/null; exit 4", ":cat"], 4),
        (&["a:cat; exit 1", "a:cat", "b:cat"], 1),
        (&[":exit 7", "a:cat"], 7),
        (&["a:cat", ":exit 9"], 9),
        (&["a:exit 200"], 200),
        (&["a:cat", "b:kill -KILL $$"], 137),
        (&["a:kill -TERM $$", "b:cat"], 143),
        (&["a:kill -SEGV $$"], 139),
        (&["a:cat", "b:no-such-command-anywhere"], 127),
        (&["a:true", "b:true"], 0),
    ] {
        // Statuses take another way over a hop than through a pipe; this many of each will do.
        let options = if words.len() + status as usize & 1 == 0 { &[][..] } else { &["-t", "tcp"] };
        let words = [options, words].concat();
        let done = rig.run_clean(&words, b"");
        assert_eq!(done.status, Some(status), "{words:?}: {}", done.errors);
        assert!(!has_derived(&done.errors), "{words:?}: {}", done.errors);
        assert_eq!(first_line(&done).is_empty(), status == 0, "{words:?}: {}", done.errors);
    }
}

#[test]
fn the_cause_is_named_with_stage_host_and_command() {
    let rig = Rig::new(&["a", "b"]);
    for (words, parts) in [
        (&["a:cat", "b:sh -c 'exit 3'"][..], &["2", "b", "sh -c 'exit 3'", "3"][..]),
        (&["a:kill -TERM $$", "b:cat"], &["1", "a", "kill -TERM", "15"]),
        (&["a:cat", "b:no-such-command-anywhere"], &["2", "b", "no-such-command-anywhere", "127"]),
        (&["a:cat", ":exit 9"], &["2", "exit 9", "9"]),
    ] {
        let done = rig.run_clean(words, b"");
        let line = first_line(&done);
        for part in parts {
            assert!(line.contains(part), "{words:?}: {part} is not in: {}", done.errors);
        }
    }
}

/// A stage that fails while data flow ends all others, and the error names it.
#[test]
fn a_failure_amid_endless_data_ends_everything() {
    let rig = Rig::new(&["a", "b"]);
    for options in [&["-t", "tcp"][..], &["-t", "ssh"], &[]] {
        for (stages, status) in [
            (&["a:head -c 100000; kill -KILL $$", "b:cat"][..], 137),
            (&["a:cat", "b:cat", "a:head -c 100000 >/dev/null; exit 5"], 5),
        ] {
            let words = [options, stages].concat();
            let mut live = rig.start(&words);
            live.feed_for_ever();
            let done = live.finish();
            assert_eq!(done.status, Some(status), "{words:?}: {}", done.errors);
            assert!(!has_derived(&done.errors), "{words:?}: {}", done.errors);
            rig.census.check(&format!("{words:?}"));
        }
    }
}

/// A reader that has seen enough is no failure.
#[test]
fn yes_into_head_ends_at_once() {
    let rig = Rig::new(&["a", "b"]);
    for options in
        [&[][..], &["-t", "tcp"], &["-t", "ssh"], &["-t", "tcp", "-m", "64M"], &["-t", "tcp", "-P", "4"]]
    {
        let mut live = rig.start(&[options, &["a:cat", "b:head -1"]].concat());
        live.feed_for_ever();
        let done = live.finish();
        assert_eq!((done.status, done.errors.as_str()), (Some(0), ""), "{options:?}");
        assert!(pattern(0, 64 << 10).starts_with(&done.output) && done.output.ends_with(b"\n"));
        rig.census.check("head");
    }
    let done = rig.run_clean(&["a:yes", "b:head -1"], b"");
    assert_eq!((done.status, done.text().as_str(), done.errors.as_str()), (Some(0), "y\n", ""));
    let done = rig.run_clean(&[":yes", "a:cat", "b:cat", ":head -2"], b"");
    assert_eq!((done.status, done.text().as_str(), done.errors.as_str()), (Some(0), "y\ny\n", ""));
}

/// The reader of our own standard output goes away: that ends the pipeline, as with any other writer.
#[test]
fn a_closed_standard_output_ends_it() {
    let rig = Rig::new(&["a"]);
    for options in [&[][..], &["-t", "tcp"], &["-t", "ssh"]] {
        let mut command = rig.command(&[options, &["a:yes"]].concat());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut output = child.stdout.take().expect("a pipe");
        output.read_exact(&mut [0; 100_000]).expect("data");
        drop(output);
        Live::of(child, &command).finish();
        rig.census.check(&format!("{options:?}"));
    }
}

/// If a host cannot be reached, no command starts, and the status is 255.
#[test]
fn nothing_runs_unless_all_hosts_are_there() {
    let rig = Rig::new(&["a", "refused"]);
    for host in ["no-such-host.invalid", "refused"] {
        let done = rig.run_clean(&["a:touch @/ran", &format!("{host}:cat")], b"some input");
        assert_eq!(done.status, Some(255), "{host}: {}", done.errors);
        assert!(done.errors.contains(host) && !has_derived(&done.errors), "{}", done.errors);
        assert!(done.errors.lines().count() <= 3, "{host}: {}", done.errors);
        assert!(!rig.file("ran").exists(), "{host}");
    }
}

/// A file that cannot be opened is its stage's failure, as in a shell.
#[test]
fn files_that_cannot_be_had_are_named() {
    let rig = Rig::new(&["a", "b"]);
    for (words, parts) in [
        (&["a:<@/nope", "b:cat"][..], &["stage 1 (a)", "/nope", "No such file"][..]),
        (&["a:cat", "b:>@/no/such/folder"], &["stage 2 (b)", "/no/such/folder", "No such file"]),
        (&["a:</", "b:cat"], &["stage 1 (a)", "directory"]),
        (&[":<@/nope", "b:cat"], &["stage 1", "/nope", "No such file"]),
    ] {
        let done = rig.run_clean(words, b"some input");
        assert_eq!(done.status, Some(1), "{words:?}: {}", done.errors);
        for part in parts {
            assert!(done.errors.contains(part), "{words:?}: {part} is not in: {}", done.errors);
        }
        assert!(!has_derived(&done.errors) && done.errors.lines().count() == 1, "{words:?}: {}", done.errors);
    }
}
