//! Tests of `caravan frames` as a user runs it.

use std::io::Read;
use std::process::{Child, Stdio};

use crate::common::{Folder, caravan, json, run, signal, text, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// A name that no other test and no other run of this one has.
fn name(test: &str) -> String {
    format!("cli-{}-{test}", std::process::id())
}

/// Starts `caravan frames send`, which is killed when the value is dropped.
struct Sender(Child);

impl Sender {
    fn start(name: &str, words: &str) -> Self {
        let mut command = caravan();
        command.args(["frames", "send", name, "--quiet"]).args(words.split(' '));
        Self(command.stderr(Stdio::piped()).spawn().expect("started"))
    }

    /// Waits for its end, and returns what it complained about.
    fn end(mut self) -> String {
        let mut said = String::new();
        self.0.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        assert!(self.0.wait().expect("waited for").success(), "{said}");
        said
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_frame_of_a_lossless_pattern_arrives_and_every_byte_is_right() {
    for format in ["rgba", "yuv420p"] {
        let name = name(format);
        let sender = Sender::start(
            &name,
            &format!("--size 320x180 --format {format} --frames 50 --lossless --digest --patience 600"),
        );
        let figures = json(&run(&["frames", "recv", &name, "--wait", "60", "--every", "--check", "--json"]));
        let numbers = ["frames", "dropped", "overtaken", "torn", "wrong"].map(|key| figures[key].as_u64());
        assert_eq!(numbers, [50, 0, 0, 0, 0].map(Some), "{figures}");
        assert_eq!((&figures["stream"], sender.end()), (&Value::from("end"), String::new()));
    }
}

#[test]
fn frames_come_out_as_they_went_in() {
    let folder = Folder::new();
    let [first, second, raw] = ["first.y4m", "second.y4m", "raw"].map(|file| folder.path().join(file));
    let lossless = "--lossless --patience 600";
    for (input, output) in [
        (format!("--size 64x48 --format yuv420p --rate 30000/1001 --frames 20 {lossless}"), &first),
        (format!("--input {} {lossless}", first.display()), &second),
    ] {
        let name = name("files");
        let sender = Sender::start(&name, &input);
        let output = output.to_str().expect("UTF-8");
        let said = run(&["frames", "recv", &name, "--wait", "60", "--every", "-q", "-o", output]);
        assert!(said.status.success() && said.stdout.is_empty(), "{}", text(&said.stderr));
        sender.end();
    }
    let bytes = std::fs::read(&first).expect("written");
    let header = b"YUV4MPEG2 W64 H48 F30000:1001 Ip A1:1 C420jpeg\n";
    assert!(bytes.starts_with(header));
    assert_eq!(bytes.len(), header.len() + 20 * ("FRAME\n".len() + 64 * 48 * 3 / 2));
    assert_eq!(std::fs::read(&second).expect("written"), bytes);

    // Raw frames, to standard output.
    let pixels: Vec<u8> = (0..7 * 64 * 48 * 4_u32).map(|number| (number % 251) as u8).collect();
    std::fs::write(&raw, &pixels).expect("written");
    let name = name("raw");
    let sender = Sender::start(&name, &format!("--input {} --size 64x48 {lossless}", raw.display()));
    let output = run(&["frames", "recv", &name, "--wait", "60", "--every", "-q", "-o", "-"]);
    assert!(output.stdout == pixels, "{}", text(&output.stderr));
    sender.end();
}

/// As from host to host, but for ssh.
#[test]
fn frames_pass_through_a_pipe() {
    let folder = Folder::new();
    let [first, last] = ["first.y4m", "last.y4m"].map(|file| folder.path().join(file));
    let pixels: Vec<u8> = (0..64 * 48 * 3 / 2_u32).map(|number| (number % 241) as u8).collect();
    let frames = [&b"FRAME\n"[..], &pixels].concat().repeat(12);
    std::fs::write(&first, [b"YUV4MPEG2 W64 H48 F60:1 Ip A1:1 C420jpeg\n", &frames[..]].concat())
        .expect("written");
    let [here, there] = ["pipe-here", "pipe-there"].map(name);
    let sender = Sender::start(&here, &format!("--lossless --patience 600 --input {}", first.display()));
    let program = env!("CARGO_BIN_EXE_caravan");
    let stages = [
        format!(":{program} frames recv {here} --wait 60 --every -q -o -"),
        format!(":{program} frames send {there} --lossless --patience 600 -q -i -"),
    ];
    let pipe = caravan().arg("pipe").args(stages).stderr(Stdio::piped()).spawn().expect("started");
    let last_path = last.to_str().expect("UTF-8");
    let said = run(&["frames", "recv", &there, "--wait", "60", "--every", "-q", "-o", last_path]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let pipe = pipe.wait_with_output().expect("its end");
    assert!(pipe.status.success(), "{}", text(&pipe.stderr));
    sender.end();
    assert!(std::fs::read(&first).expect("read") == std::fs::read(&last).expect("read"));
}

#[test]
fn a_killed_producer_is_told_and_the_next_one_is_followed() {
    let name = name("killed");
    let sender = Sender::start(&name, "--size 64x48");
    let mut command = caravan();
    command.args(["frames", "recv", &name, "--wait", "60", "--check"]);
    let follower = caravan()
        .args(["frames", "recv", &name, "--wait", "60", "--check", "--follow", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let plain = command.stderr(Stdio::piped()).spawn().expect("started");
    wait_for("two consumers", || {
        let view = json(&run(&["frames", "top", "--once", "--json", "--interval", "0.1"]));
        let rows = view["frames"].as_array().expect("a list").clone();
        let ours =
            |row: &&Value| row["stream"] == *name && row["side"] == "recv" && row["counters"]["frames"] != 0;
        rows.iter().filter(ours).count() == 2
    });
    drop(sender);
    let plain = plain.wait_with_output().expect("its end");
    assert_eq!(plain.status.code(), Some(1));
    assert!(text(&plain.stderr).contains(&format!("the producer of {name} was killed")));
    // The second producer sends fewer frames than the consumer would have to see if it were the first one still.
    Sender::start(&name, "--size 64x48 --consumers 1 --lossless --frames 5").end();
    signal(&follower, Signal::INT);
    let figures = json(&follower.wait_with_output().expect("its end"));
    assert_eq!((&figures["torn"], &figures["wrong"]), (&Value::from(0), &Value::from(0)), "{figures}");
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let taken = name("taken");
    let _sender = Sender::start(&taken, "--size 64x48");
    wait_for("the stream", || run(&["frames", "recv", &taken, "--frames", "1", "-q"]).status.success());
    for (words, reason) in [
        (vec!["send", &taken], "already sends the stream"),
        (vec!["send", "a b"], "cannot be the name of a stream"),
        (vec!["recv", "none-of-that-name", "--wait", "0.1"], "sends the stream `none-of-that-name`"),
        (vec!["send", "x", "--input", "/dev/null"], "it is empty"),
        (vec!["send", "x", "--size", "2x8"], "rows of at least 16 bytes"),
    ] {
        let output = run(&[&["frames"], &words[..]].concat());
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(reason), "{words:?}: {said}");
    }
}

#[test]
fn the_benchmark_measures_every_way_and_tears_nothing() {
    let words = "frames bench --cases 360p60-rgba --rounds 1 --seconds 0.2 --json - --svg=";
    let report = json(&run(&words.split(' ').collect::<Vec<_>>()));
    assert_eq!(report["benchmark"], "frames");
    let contenders = report["cases"][0]["contenders"].as_array().expect("a list").clone();
    let keys: Vec<_> = contenders.iter().filter_map(|one| one["key"].as_str()).collect();
    assert_eq!(keys, ["pipe", "tcp", "copy", "caravan"]);
    for one in &contenders {
        assert_eq!(one["figures"]["torn"]["median"], 0.0, "{one}");
        assert!(one["figures"]["fps"]["median"].as_f64().is_some_and(|fps| fps > 0.0), "{one}");
    }
}
