//! A bare loop in C, the peer of a benchmark: compiled from a source inside this program, then run.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::child;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::scratch::Scratch;

/// What it is called where it fails.
const NAME: &str = "bare loop in C";

/// The compiled program: an open file without a name, so that nothing of it is left behind however
/// this process ends.
#[derive(Debug)]
pub struct Bare(File);

impl Bare {
    pub fn compile(compiler: &Path, source: &str) -> Result<Self, Error> {
        let failed = |reason: String| Error::Compiler { program: compiler.display().to_string(), reason };
        let scratch = Scratch::create()?;
        let output = scratch.path().join("bare");
        let mut child = Command::new(compiler)
            .args(["-O2", "-std=gnu11", "-x", "c", "-", "-o"])
            .arg(&output)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        if let Some(mut input) = child.stdin.take() {
            // A compiler that does not read to the end says itself why.
            let _ = input.write_all(source.as_bytes());
        }
        let done = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
        if done.status.success() {
            File::open(output).map(Self).map_err(|error| failed(error.to_string()))
        } else {
            Err(failed(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
        }
    }

    /// Runs it: the numbers that it prints. One that takes longer than `limit` is killed.
    pub fn run(&self, words: &[String], limit: Duration, interrupt: &Interrupt) -> Result<Vec<f64>, Error> {
        let mut command = Command::new(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()));
        command.args(words);
        let text = child::output(command, NAME, limit, interrupt)?;
        let numbers: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
        match numbers {
            Ok(numbers) if !numbers.is_empty() => Ok(numbers),
            _ => Err(Error::BenchProcess { process: NAME, reason: format!("it said: {text}") }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_compiler_is_named_with_the_remedy() {
        let error = Bare::compile(Path::new("/none/cc"), "").expect_err("refused");
        let text = error.to_string();
        assert!(text.contains("/none/cc") && text.contains("--cc"), "{text}");
    }
}
