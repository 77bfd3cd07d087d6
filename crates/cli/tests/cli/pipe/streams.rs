//! Tests that streams arrive unchanged: of every length near a block, with every option, through rows of hosts.

use std::io::{Read, Write};
use std::process::Stdio;

use digest::digest::{Context, SHA256, digest};

use crate::pipe::bytes::{BLOCK_BYTES, difference, pattern};
use crate::pipe::live::{Done, Live};
use crate::pipe::rig::Rig;

/// The options that may change how bytes travel between hosts. Between two agents of one host they would not travel at
/// all, so a transport is demanded.
const OPTIONS: [&[&str]; 12] = [
    &["-t", "tcp"],
    &["-t", "tcp", "--insecure"],
    &["-t", "tcp", "--encrypt"],
    &["-t", "tcp", "-c", "zstd"],
    &["-t", "tcp", "-c", "lz4", "--insecure"],
    &["-t", "tcp", "--digest", "sha256"],
    &["-t", "tcp", "--digest", "off"],
    &["-t", "tcp", "-P", "4"],
    &["-t", "tcp", "-m", "8M"],
    &["-t", "ssh"],
    &["-t", "ssh", "--encrypt", "-c", "zstd"],
    &["-m", "8M"],
];

/// Each stage keeps its input, and drops some bytes of it: a hop for each length.
const LENGTHS: [(&str, usize); 5] = [
    ("a:tee @/0 | head -c -1", BLOCK_BYTES + 1),
    ("b:tee @/1 | head -c -1", BLOCK_BYTES),
    ("a:tee @/2 | tail -c 1", BLOCK_BYTES - 1),
    ("b:tee @/3 | head -c -1", 1),
    ("a:tee @/4", 0),
];

/// The position of the one byte that the third stage leaves.
const LAST: usize = BLOCK_BYTES - 2;

#[test]
fn every_length_with_every_option() {
    let rig = Rig::new(&["a", "b"]);
    for (round, options) in OPTIONS.iter().enumerate() {
        let bytes = pattern(round as u64, BLOCK_BYTES + 1);
        let stages = LENGTHS.map(|(stage, _)| stage);
        rig.yields(&[options, &stages[..]].concat(), &bytes, b"");
        for (number, (_, length)) in LENGTHS.iter().enumerate() {
            let came = rig.read(&number.to_string());
            let expected = if *length == 1 { &bytes[LAST..=LAST] } else { &bytes[..*length] };
            assert!(came == expected, "{options:?}, {length}: {}", difference(&came, expected));
            std::fs::remove_file(rig.file(&number.to_string())).expect("removed");
        }
    }
}

/// The stream has parts that can be compressed, and parts that cannot.
#[test]
fn compressed_streams_of_every_kind() {
    let rig = Rig::new(&["a"]);
    let mut bytes = pattern(3, 1 << 20);
    bytes.extend(vec![b'x'; 3 << 20]);
    bytes.extend(pattern(4, 12_345));
    for how in ["zstd", "lz4"] {
        rig.yields(&["-t", "tcp", "-c", how, "-P", "3", "a:cat"], &bytes, &bytes);
    }
}

/// Returns how many bytes go through rows of hosts: 20 MB, or `CARAVAN_PIPE_BYTES`, which needs no memory.
fn long_stream_bytes() -> usize {
    std::env::var("CARAVAN_PIPE_BYTES").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000_001)
}

/// Writes that many bytes, without repetition. Returns their SHA-256.
fn pour(mut to: impl Write, length: usize) -> Vec<u8> {
    let block = pattern(5, 4 << 20);
    let mut hash = Context::new(&SHA256);
    let mut left = length;
    for number in 0_u64.. {
        let piece = [&number.to_be_bytes()[..], &block].concat();
        let piece = &piece[..piece.len().min(left)];
        hash.update(piece);
        to.write_all(piece).expect("it reads");
        left -= piece.len();
        if left == 0 {
            break;
        }
    }
    hash.finish().as_ref().to_vec()
}

/// Reads to the end. Returns the length and the SHA-256.
fn weigh(mut from: impl Read) -> (usize, Vec<u8>) {
    let mut buffer = vec![0; 1 << 20];
    let (mut length, mut hash) = (0, Context::new(&SHA256));
    loop {
        match from.read(&mut buffer).expect("it writes") {
            0 => return (length, hash.finish().as_ref().to_vec()),
            count => {
                hash.update(&buffer[..count]);
                length += count;
            }
        }
    }
}

#[test]
fn long_streams_through_rows_of_hosts() {
    let rig = Rig::new(&["a", "b", "c"]);
    let length = long_stream_bytes();
    for (count, options) in [
        (1, &["-t", "tcp", "--insecure"][..]),
        (2, &["-t", "tcp"]),
        (3, &["-t", "tcp", "-m", "16M", "--digest", "sha256"]),
        (4, &[]),
        (5, &["-t", "tcp", "-P", "2", "--insecure"]),
    ] {
        let stages = ["a:cat", "b:cat", "c:cat", ":cat", "b:cat"];
        let mut command = rig.command(&[options, &stages[..count]].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let live = Live::of(child, &command);
        let poured = std::thread::spawn(move || pour(input, length));
        let came = weigh(output);
        let done = live.finish();
        assert_eq!((done.status, done.complaints().as_str()), (Some(0), ""), "{count} stages");
        assert_eq!(came, (length, poured.join().expect("poured")), "{count} stages");
        rig.census.check(&format!("{count} stages"));
    }
}

/// Slow ends do no harm: a reader that sleeps, a writer of small pieces.
#[test]
fn pieces_of_every_size() {
    let rig = Rig::new(&["a", "b"]);
    let expected: Vec<u8> = (0..20_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    let pieces = "a:i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done";
    rig.yields(&["-t", "tcp", pieces, "b:sleep 0.3; dd bs=7 status=none"], b"", &expected);
}

/// The rate holds for the whole stream.
#[test]
fn a_rate_is_kept() {
    let rig = Rig::new(&["a"]);
    let bytes = pattern(6, 2_000_000);
    let done = rig.run_clean(&["-t", "tcp", "-L", "2M", "a:cat"], &bytes);
    assert_eq!((done.status, done.errors.as_str()), (Some(0), ""));
    assert!(done.output == bytes);
    assert!(done.took.as_secs_f64() > 0.8, "{:?}", done.took);
}

/// Returns the object of `--json`.
fn figures(done: &Done) -> serde_json::Value {
    let object = done.errors.lines().find_map(|line| serde_json::from_str(line).ok());
    object.unwrap_or_else(|| panic!("{}", done.errors))
}

/// The final figures: the line that users of rdpipe know, and one object with the stream's length and digest.
#[test]
fn the_figures_are_told_at_the_end() {
    let rig = Rig::new(&["a", "b"]);
    let bytes = pattern(7, 1_000_000);
    rig.write("in", &bytes);
    let done =
        rig.run_clean(&["-v", "--json", "-t", "tcp", "--digest", "sha256", "a:<@/in", "b:>@/out"], b"");
    assert_eq!(done.status, Some(0), "{}", done.errors);
    let rate = done.errors.lines().find_map(|line| line.strip_prefix("Bandwidth ")?.strip_suffix(" GB/s"));
    let (whole, part) = rate.and_then(|rate| rate.split_once('.')).expect("a line of its own");
    assert!(whole.parse::<u32>().is_ok() && part.len() == 3, "{}", done.errors);
    let json = figures(&done);
    assert_eq!(json["status"], 0, "{json}");
    assert_eq!(json["statuses"], serde_json::json!([[0], [0]]), "{json}");
    assert_eq!(json["hops"][0]["bytes"], 1_000_000, "{json}");
    let hash = digest(&SHA256, &bytes);
    let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(json.to_string().contains(&hash), "{json}");
}

/// The figures report the bytes on the wire for each hop, of a star and of a chain, with progress and without.
#[test]
fn bytes_on_the_wire() {
    let rig = Rig::new(&["a", "b"]);
    rig.write("in", &[0; 3_000_000]);
    for (options, least, most) in [
        (&[][..], 3_000_000, 3_010_000),
        (&["-c", "zstd", "--progress"], 100, 300_000),
        (&["-c", "zstd", "--star"], 100, 300_000),
    ] {
        let words = [options, &["--json", "-t", "tcp", ":<@/in", "a,b:cat >/dev/null"]].concat();
        let done = rig.run_clean(&words, b"");
        let json = figures(&done);
        for hop in &json["hops"].as_array().expect("hops")[..2] {
            let wire_bytes = hop["wire_bytes"].as_u64().expect("a number");
            assert!((least..most).contains(&wire_bytes), "{words:?}: {json}");
        }
    }
}
