//! Random pipelines with random deaths: each ends in time and leaves nothing behind. It either succeeds with exactly
//! the right output, or fails after a correct beginning of it.
//!
//! `CARAVAN_PIPE_CHAINS` is the number of pipelines (a few by default), `CARAVAN_PIPE_SEED` the seed of the first;
//! each prints its own seed, with which it can run again alone.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::census::{GONE_WITHIN, Process};
use crate::pipe::bytes::{Random, difference, pattern};
use crate::pipe::live::{Done, Live};
use crate::pipe::rig::{Rig, is_program};

/// How long a pipeline may take from its start or its death, whichever is later.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn random_chains_with_random_deaths() {
    let clock = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis() as u64;
    let first = setting("CARAVAN_PIPE_SEED").unwrap_or(clock % 1_000_000_000);
    let rig = Rig::new(&["a", "b", "c"]);
    let count = setting("CARAVAN_PIPE_CHAINS").unwrap_or(8);
    let mut succeeded = 0;
    for seed in first..first + count {
        let chain = Chain::random(seed);
        // The output is shown if a check fails.
        eprintln!("CARAVAN_PIPE_SEED={seed} CARAVAN_PIPE_CHAINS=1: {chain:?}");
        succeeded += u64::from(chain.run(&rig) == Some(0));
    }
    eprintln!("{succeeded} of {count} succeeded");
}

/// The process that dies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Nobody,
    Command,
    Agent,
    Ssh,
    Caller,
}

#[derive(Debug)]
struct Chain {
    seed: u64,
    words: Vec<String>,
    input_bytes: usize,
    /// The number of stages that change each byte.
    steps: u8,
    source_is_file: bool,
    sink_is_file: bool,
    victim: Victim,
    after: Duration,
    signal: i32,
}

/// Turns each byte into the next one, so that the output shows how many stages it went through.
const STEP: &str = "tr '\\000-\\377' '\\001-\\377\\000'";

impl Chain {
    fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let options: &[&str] = random.pick(&[
            &[][..],
            &["-t", "tcp"],
            &["-t", "tcp"],
            &["-t", "ssh"],
            &["-t", "tcp", "--insecure"],
            &["-t", "tcp", "-P", "3"],
            &["-t", "tcp", "-c", "zstd", "-m", "2M"],
            &["-t", "tcp", "-c", "lz4", "--digest", "sha256"],
        ]);
        let mut words: Vec<String> = options.iter().map(|word| (*word).to_owned()).collect();
        let victims =
            [Victim::Nobody, Victim::Command, Victim::Command, Victim::Agent, Victim::Ssh, Victim::Caller];
        let victim = random.pick(&victims);
        let mut input_bytes = random.below(12_000_000) as usize;
        match random.below(4) {
            0 => input_bytes %= 1000,
            // The stream takes about as long as the longest time until the death.
            _ if victim != Victim::Nobody => words.extend(["-L".to_owned(), (input_bytes + 1).to_string()]),
            _ => {}
        }
        let source_is_file = random.below(4) == 0;
        let sink_is_file = random.below(4) == 0;
        let host = |random: &mut Random| random.pick(&["a", "b", "c", ""]);
        if source_is_file {
            words.push(format!("{}:<@/chain-in", host(&mut random)));
        }
        let mut steps = 0;
        for _ in 0..1 + random.below(5) {
            let does_step = random.below(2) == 0;
            steps += u8::from(does_step);
            let command =
                if does_step { STEP } else { random.pick(&["cat", "dd bs=10007 status=none", "(cat)"]) };
            words.push(format!("{}:{command}", host(&mut random)));
        }
        if sink_is_file {
            words.push(format!("{}:>@/chain-out", host(&mut random)));
        }
        Self {
            seed,
            words,
            input_bytes,
            steps,
            source_is_file,
            sink_is_file,
            victim,
            after: Duration::from_millis(random.below(1200)),
            signal: random.pick(&[2, 9, 9, 15]),
        }
    }

    fn run(&self, rig: &Rig) -> Option<i32> {
        let mut bytes = pattern(self.seed, self.input_bytes);
        // Only half of the bytes can be compressed.
        bytes.iter_mut().take(self.input_bytes / 2).for_each(|byte| *byte &= 3);
        let expected: Vec<u8> = bytes.iter().map(|byte| byte.wrapping_add(self.steps)).collect();
        let _ = std::fs::remove_file(rig.file("chain-out"));
        if self.source_is_file {
            rig.write("chain-in", &bytes);
        }
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let begin = Instant::now();
        let mut live = rig.start(&words);
        live.feed(if self.source_is_file { Vec::new() } else { bytes });
        let mut killed = false;
        if self.victim != Victim::Nobody {
            while begin.elapsed() < self.after && !live.has_ended() {
                std::thread::sleep(Duration::from_millis(2));
            }
            killed = !live.has_ended() && self.kill(rig, &live);
        }
        let deadline = Instant::now().max(begin + self.after) + ENDS_WITHIN;
        let done = live.finish_within(deadline.saturating_duration_since(Instant::now()));
        rig.census.check_by(Instant::now() + GONE_WITHIN, &format!("seed {}", self.seed));
        self.check(rig, &done, &expected, killed);
        done.status
    }

    /// Kills the victim; false if there was none.
    fn kill(&self, rig: &Rig, live: &Live) -> bool {
        let signal = Signal::from_named_raw(self.signal).expect("a signal");
        let mut random = Random::new(!self.seed);
        let candidates: Vec<Process> = match self.victim {
            Victim::Nobody => return false,
            Victim::Caller => {
                live.kill(signal);
                return true;
            }
            Victim::Ssh => rig.ssh(),
            Victim::Agent => ["a", "b", "c"].iter().flat_map(|host| rig.programs(host)).collect(),
            Victim::Command => rig.commands("").into_iter().filter(|process| !is_program(process)).collect(),
        };
        if candidates.is_empty() {
            return false;
        }
        let victim = random.pick(&candidates);
        eprintln!("  {signal:?} to {} ({})", victim.pid, victim.command);
        victim.kill(signal);
        true
    }

    fn check(&self, rig: &Rig, done: &Done, expected: &[u8], killed: bool) {
        let output = if self.sink_is_file { rig.read("chain-out") } else { done.output.clone() };
        let seed = self.seed;
        let said = &done.errors;
        if self.sink_is_file {
            assert!(done.output.is_empty(), "seed {seed}: a stream beside the file");
        }
        match done.status {
            Some(0) => assert!(output == expected, "seed {seed}: {}\n{said}", difference(&output, expected)),
            _ => {
                assert!(killed, "seed {seed}: nobody was killed, and it failed: {:?} {said}", done.status);
                let is_prefix = expected.starts_with(&output);
                assert!(is_prefix, "seed {seed}: {}\n{said}", difference(&output, expected));
                assert!(done.signal.is_some() || !said.is_empty(), "seed {seed}: it failed without a word");
            }
        }
        assert!(!said.contains("panicked"), "seed {seed}: {said}");
    }
}
