//! Tests of `caravan send` and `caravan recv` as users run them, both on this host.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Folder, caravan, signal, text, wait_for};
use rustix::process::Signal;

/// How long everything may take to end once one side is gone.
const END_LIMIT: Duration = Duration::from_secs(30);

/// A receiving side that has reported where it listens.
struct Receiver {
    child: Child,
    said: BufReader<ChildStderr>,
    stdout: Option<ChildStdout>,
    port: String,
    /// The key, as it is shown.
    key: String,
}

impl Receiver {
    /// Starts a receiver on any port, because tests run beside each other.
    fn start(words: &[&str]) -> Self {
        let mut command = caravan();
        let words = [&["recv", "-p", "20000:32000"], words].concat();
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.spawn().expect("it starts");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
        let stdout = child.stdout.take();
        let (mut port, mut key, mut is_invited) = (String::new(), String::new(), false);
        while !is_invited {
            let mut line = String::new();
            assert!(said.read_line(&mut line).expect("read") > 0, "it ended before it listened");
            if let Some((_, rest)) = line.split_once("listening on port ") {
                port = rest.chars().take_while(char::is_ascii_digit).collect();
            }
            if let Some((_, shown)) = line.split_once("asks for the key: ") {
                key = shown.trim().to_owned();
            }
            // The last line says what to type, or shows the key if it is not in a file.
            is_invited = !key.is_empty() || line.contains("caravan send --key-file");
        }
        Self { child, said, stdout, port, key }
    }

    /// Waits for the end. Returns the exit status and the rest of the output.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.said.read_to_string(&mut said).expect("read");
        (self.child.wait().expect("ends").code(), said)
    }
}

/// A folder with a key that both sides may use.
struct Place(Folder);

impl Place {
    fn new() -> Self {
        let place = Self(Folder::new());
        place.write_key("key", "00112233445566778899aabbccddeeff");
        place
    }

    fn write_key(&self, name: &str, key: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, format!("{key}\n")).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn word(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn recv(&self, words: &[&str]) -> Receiver {
        Receiver::start(&[&["--key-file", &self.word("key")], words].concat())
    }

    fn send(&self, port: &str, words: &[&str]) -> Command {
        let mut command = caravan();
        command.args(["send", "--key-file", &self.word("key")]).args(words);
        command.args(["127.0.0.1", port]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn run(mut command: Command) -> Output {
    command.output().expect("it starts")
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn files_of_any_size_arrive_as_they_were() {
    let place = Place::new();
    for bytes in [0, 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 5_000_003] {
        let (source, target) = (place.path("source"), place.path("target"));
        fs::write(&source, pattern(bytes)).expect("written");
        let receiver = place.recv(&[&place.word("target")]);
        let mut send = place.send(&receiver.port, &[]);
        send.arg(&source);
        let sent = run(send);
        assert_eq!((sent.status.code(), text(&sent.stderr)), (Some(0), String::new()), "{bytes}");
        assert_eq!(receiver.end(), (Some(0), String::new()), "{bytes}");
        assert!(fs::read(&target).expect("there") == pattern(bytes), "{bytes}");
        assert!(!place.path("target.part").exists());
        fs::remove_file(&target).expect("removed");
    }
}

#[test]
fn standard_input_comes_out_as_standard_output_whatever_the_options_are() {
    let place = Place::new();
    for (ours, theirs) in [
        (&["-P", "4", "-c", "zstd", "--digest", "sha256"][..], &["-m", "4M"][..]),
        (&["-c", "lz4", "--hash", "off", "-m", "1Mi", "-L", "200M"], &["-L", "300M"]),
        (&["--insecure", "-P", "2"], &["--insecure"]),
    ] {
        let mut receiver = place.recv(theirs);
        let mut send = place.send(&receiver.port, ours);
        let mut sender = send.stdin(Stdio::piped()).spawn().expect("it starts");
        let mut input = sender.stdin.take().expect("a pipe");
        let writer = std::thread::spawn(move || input.write_all(&pattern(3_000_001)).expect("taken"));
        let mut out = Vec::new();
        receiver.stdout.take().expect("a pipe").read_to_end(&mut out).expect("read");
        writer.join().expect("no panic");
        assert!(out == pattern(3_000_001), "{ours:?}: {} bytes", out.len());
        let said = sender.wait_with_output().expect("ends");
        assert_eq!(said.status.code(), Some(0), "{ours:?}: {}", text(&said.stderr));
        let is_insecure = ours.contains(&"--insecure");
        assert_eq!(text(&said.stderr).contains("the data are not encrypted"), is_insecure);
        let (status, said) = receiver.end();
        assert_eq!((status, said.contains("the data are not encrypted")), (Some(0), is_insecure), "{said}");
    }
}

#[test]
fn what_carried_it_and_how_fast_is_told_to_whoever_asks() {
    let place = Place::new();
    fs::write(place.path("source"), pattern(100_000)).expect("written");
    let receiver = place.recv(&["-v", "/dev/null"]);
    let mut send = place.send(&receiver.port, &["-v", "--json", "-P", "2", "--progress"]);
    send.arg(place.path("source"));
    let sent = run(send);
    let said = text(&sent.stderr);
    let carried = format!("TCP 127.0.0.1:{}, ", receiver.port);
    assert!(said.contains(&format!("here -> 127.0.0.1: {carried}")), "{said}");
    assert!(said.contains(", 2 streams, encrypted\n"), "{said}");
    assert!(said.lines().any(|line| line.starts_with("Bandwidth ") && line.ends_with(" GB/s")), "{said}");
    let json = said.lines().find(|line| line.starts_with('{')).expect("an object");
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    assert_eq!((&json["status"], &json["hops"][0]["bytes"]), (&0.into(), &100_000.into()));
    assert_eq!(json["hops"][0]["total_bytes"], 100_000);
    assert!(json["hops"][0]["cpu_seconds"].as_f64().expect("seconds") > 0.0);
    let (status, said) = receiver.end();
    assert_eq!(status, Some(0));
    assert!(said.contains(&format!("127.0.0.1 -> here: {carried}")) && said.contains("Bandwidth "), "{said}");
    let digest = json["hops"][0]["digest"]["value"].as_str().expect("a digest");
    assert!(said.contains(&format!("xxh3 {digest}")), "{said}");
}

#[test]
fn the_key_that_is_shown_is_typed_unseen() {
    let place = Place::new();
    fs::write(place.path("source"), pattern(1000)).expect("written");
    let receiver = Receiver::start(&[&place.word("target")]);
    assert_eq!(receiver.key.len(), 32);
    // script(1) gives the sender a terminal.
    let program = env!("CARGO_BIN_EXE_caravan");
    let line = format!("{program} send 127.0.0.1:{} {}", receiver.port, place.word("source"));
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("SHELL", "/bin/sh");
    let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let (mut keys, mut screen) =
        (script.stdin.take().expect("a pipe"), script.stdout.take().expect("a pipe"));
    let mut shown = Vec::new();
    let mut wait_for_question = |shown: &mut Vec<u8>, count: usize| {
        while text(shown).matches("shows: ").count() < count {
            let mut room = [0; 256];
            let count = screen.read(&mut room).expect("read");
            assert!(count > 0, "{}", text(shown));
            shown.extend(&room[..count]);
        }
    };
    wait_for_question(&mut shown, 1);
    keys.write_all(b"no key\n").expect("typed");
    wait_for_question(&mut shown, 2);
    assert!(text(&shown).contains("That is no key: it has 32 digits"), "{}", text(&shown));
    keys.write_all(format!("{}\n", receiver.key).as_bytes()).expect("typed");
    screen.read_to_end(&mut shown).expect("read");
    assert!(script.wait().expect("ends").success(), "{}", text(&shown));
    assert!(!text(&shown).contains(&receiver.key) && !text(&shown).contains("no key\r"), "{}", text(&shown));
    assert_eq!(receiver.end().0, Some(0));
    assert!(fs::read(place.path("target")).expect("there") == pattern(1000));
}

#[test]
fn without_a_terminal_nobody_is_asked() {
    let mut send = Command::new("setsid");
    send.args(["-w", env!("CARGO_BIN_EXE_caravan"), "send", "127.0.0.1:9"]).stdin(Stdio::null());
    let output = run(send);
    assert_eq!(output.status.code(), Some(255));
    assert!(text(&output.stderr).contains("there is no terminal on which to ask for the key"));
    assert!(text(&output.stderr).contains("--key-file FILE"), "{}", text(&output.stderr));
}

#[test]
fn a_key_file_that_others_may_read_is_refused_on_both_sides() {
    let place = Place::new();
    for mode in [0o644, 0o640, 0o604, 0o660] {
        fs::set_permissions(place.path("key"), Permissions::from_mode(mode)).expect("set");
        let mut recv = caravan();
        recv.args(["recv", "--key-file", &place.word("key"), &place.word("target")]);
        for output in [run(recv), run(place.send("9", &[]))] {
            assert_eq!(output.status.code(), Some(255));
            let said = text(&output.stderr);
            assert!(said.contains(&format!("chmod 600 {}", place.word("key"))), "{said}");
        }
    }
    place.write_key("key", "no key");
    let said = text(&run(place.send("9", &[])).stderr);
    assert!(said.contains("there is no key in") && said.contains("32 digits"), "{said}");
    assert!(!place.path("target").exists() && !place.path("target.part").exists());
}

#[test]
fn a_key_file_that_is_not_there_is_made_by_the_receiving_side() {
    let place = Place::new();
    fs::remove_file(place.path("key")).expect("removed");
    let receiver = place.recv(&["/dev/null"]);
    let mode = fs::metadata(place.path("key")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(run(place.send(&receiver.port, &[])).status.code(), Some(0));
    assert_eq!(receiver.end().0, Some(0));
}

#[test]
fn a_wrong_key_is_refused_at_once_and_keeps_nobody_out() {
    let place = Place::new();
    let wrong = place.write_key("wrong", &"5".repeat(32)).display().to_string();
    let receiver = place.recv(&[&place.word("target")]);
    let began = Instant::now();
    let mut send = caravan();
    send.args(["send", "--key-file", &wrong, "127.0.0.1", &receiver.port]);
    let output = run(send);
    assert_eq!(output.status.code(), Some(255));
    assert!(text(&output.stderr).contains("does not know the key"), "{}", text(&output.stderr));
    assert!(began.elapsed() < END_LIMIT, "{:?}", began.elapsed());
    assert_eq!(run(place.send(&receiver.port, &[])).status.code(), Some(0));
    assert_eq!(receiver.end().0, Some(0));
}

#[test]
fn the_sending_side_may_be_the_first() {
    let place = Place::new();
    // The port is free now, and for a moment longer.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
    let port = listener.local_addr().expect("bound").port().to_string();
    drop(listener);
    let mut send = place.send(&port, &[]);
    let sender = send.spawn().expect("it starts");
    // The sender has tried at least once.
    std::thread::sleep(Duration::from_millis(300));
    let mut recv = caravan();
    recv.args(["recv", "--key-file", &place.word("key"), &port, "/dev/null"]).stderr(Stdio::piped());
    let receiver = Receiver::of(recv);
    let sent = sender.wait_with_output().expect("ends");
    assert_eq!(sent.status.code(), Some(0), "{}", text(&sent.stderr));
    assert_eq!(receiver.end().0, Some(0));
}

#[test]
fn unencrypted_data_are_taken_only_if_both_sides_want_it() {
    let place = Place::new();
    let receiver = place.recv(&[&place.word("target")]);
    let sent = run(place.send(&receiver.port, &["--insecure"]));
    let (status, said) = receiver.end();
    assert_eq!((sent.status.code(), status), (Some(255), Some(255)), "{said}");
    for said in [text(&sent.stderr), said] {
        assert!(said.contains("give --insecure on both, or on none"), "{said}");
    }
    assert!(!place.path("target").exists() && !place.path("target.part").exists());
}

/// Starts a sender whose standard input stays open, and waits until data arrive.
fn endless(place: &Place, receiver: &Receiver, target: &Path) -> Child {
    let mut sender = place.send(&receiver.port, &[]).stdin(Stdio::piped()).spawn().expect("it starts");
    sender.stdin.as_mut().expect("a pipe").write_all(&pattern(2_000_000)).expect("taken");
    wait_for("some bytes", || fs::metadata(target).is_ok_and(|facts| facts.len() > 0));
    sender
}

#[test]
fn a_killed_sender_leaves_no_file() {
    let place = Place::new();
    let receiver = place.recv(&[&place.word("target")]);
    let mut sender = endless(&place, &receiver, &place.path("target.part"));
    let began = Instant::now();
    signal(&sender, Signal::KILL);
    sender.wait().expect("ends");
    let (status, said) = receiver.end();
    assert_eq!(status, Some(255), "{said}");
    assert!(said.contains("127.0.0.1") || said.contains("cut off after"), "{said}");
    assert!(began.elapsed() < END_LIMIT, "{:?}", began.elapsed());
    assert!(!place.path("target").exists() && !place.path("target.part").exists());
}

#[test]
fn a_killed_receiver_ends_the_sender() {
    let place = Place::new();
    let receiver = place.recv(&[&place.word("target")]);
    let sender = endless(&place, &receiver, &place.path("target.part"));
    let began = Instant::now();
    signal(&receiver.child, Signal::KILL);
    let sent = sender.wait_with_output().expect("ends");
    assert_eq!(sent.status.code(), Some(255), "{}", text(&sent.stderr));
    assert!(began.elapsed() < END_LIMIT, "{:?}", began.elapsed());
    receiver.end();
}

#[test]
fn ctrl_c_on_one_side_ends_both_and_both_say_so() {
    let place = Place::new();
    let receiver = place.recv(&[&place.word("target")]);
    let mut sender = endless(&place, &receiver, &place.path("target.part"));
    signal(&sender, Signal::INT);
    // To wait for the output closes the input, whose end could come before the signal.
    let input = sender.stdin.take();
    let sent = sender.wait_with_output().expect("ends");
    drop(input);
    assert_eq!((sent.status.code(), text(&sent.stderr)), (Some(130), "caravan: interrupted\n".to_owned()));
    let (status, said) = receiver.end();
    assert_eq!((status, said), (Some(1), "caravan: 127.0.0.1: interrupted\n".to_owned()));
    assert!(!place.path("target").exists() && !place.path("target.part").exists());
    // The same holds while the receiver still waits.
    let receiver = place.recv(&[&place.word("target")]);
    signal(&receiver.child, Signal::INT);
    assert_eq!(receiver.end().0, Some(130));
    assert!(!place.path("target.part").exists());
}

/// After Ctrl-Z on either side, for longer than a host may be silent, the other side waits.
#[test]
fn a_side_that_is_stopped_goes_on() {
    let place = Place::new();
    let transfers = ["one", "two"].map(|target| {
        let receiver = place.recv(&[&place.word(target)]);
        let sender = endless(&place, &receiver, &place.path(&format!("{target}.part")));
        (receiver, sender)
    });
    let [(one, _), (_, two)] = &transfers;
    let both = |to_send| [&one.child, two].into_iter().for_each(|child| signal(child, to_send));
    both(Signal::STOP);
    std::thread::sleep(Duration::from_secs(6));
    both(Signal::CONT);
    for (receiver, mut sender) in transfers {
        drop(sender.stdin.take());
        let sent = sender.wait_with_output().expect("ends");
        assert_eq!((sent.status.code(), text(&sent.stderr)), (Some(0), String::new()));
        assert_eq!(receiver.end(), (Some(0), String::new()));
    }
    for target in ["one", "two"] {
        assert!(fs::read(place.path(target)).expect("there") == pattern(2_000_000));
    }
}

#[test]
fn both_sides_hear_of_a_full_disk() {
    let place = Place::new();
    fs::write(place.path("source"), pattern(3_000_000)).expect("written");
    let receiver = place.recv(&["/dev/full"]);
    let mut send = place.send(&receiver.port, &[]);
    send.arg(place.path("source"));
    let sent = run(send);
    let (status, said) = receiver.end();
    assert_eq!((sent.status.code(), status), (Some(1), Some(1)), "{} {said}", text(&sent.stderr));
    for said in [text(&sent.stderr), said] {
        assert!(said.contains("No space left on device"), "{said}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let place = Place::new();
    let mut receiver = place.recv(&[]);
    let mut sender = place.send(&receiver.port, &[]).stdin(Stdio::piped()).spawn().expect("it starts");
    let mut input = sender.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || while input.write_all(&pattern(100_000)).is_ok() {});
    let mut line = [0; 1000];
    receiver.stdout.take().expect("a pipe").read_exact(&mut line).expect("read");
    let sent = sender.wait_with_output().expect("ends");
    assert_eq!((sent.status.code(), text(&sent.stderr)), (Some(0), String::new()));
    writer.join().expect("no panic");
    assert_eq!(receiver.end(), (Some(0), String::new()));
}

#[test]
fn a_file_that_is_none_is_named() {
    let place = Place::new();
    for (word, expected) in [("none", "cannot read"), ("", "is a folder: `tar c")] {
        let mut send = place.send("9", &[]);
        send.arg(place.path(word));
        let output = run(send);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

#[test]
fn nobody_there_is_said_after_ten_seconds() {
    let place = Place::new();
    let began = Instant::now();
    // Nothing listens here at the discard port.
    let output = run(place.send("9", &[]));
    assert_eq!(output.status.code(), Some(255));
    assert!(text(&output.stderr).contains("127.0.0.1:9 refused the connection"), "{}", text(&output.stderr));
    assert!((9..40).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}
