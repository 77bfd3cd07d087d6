//! A bare loop in C, the peer of a benchmark: compiled from a source inside this program, then run.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::scratch::Scratch;

/// Between two looks at a running child.
const LOOK: Duration = Duration::from_millis(5);

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

    /// Runs it: its output, trimmed. One that takes longer than `limit` is killed.
    pub fn run(&self, words: &[String], limit: Duration, interrupt: &Interrupt) -> Result<String, Error> {
        let mut child = Command::new(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error))?;
        let status = wait(&mut child, limit, interrupt)?;
        let mut text = String::new();
        let streams = [child.stdout.take().map(reader), child.stderr.take().map(reader)];
        for mut stream in streams.into_iter().flatten() {
            stream.read_to_string(&mut text).map_err(|error| failed(&error))?;
        }
        match status.success() {
            true => Ok(text.trim().to_owned()),
            false => Err(failed(&format!("{status}: {}", text.trim()))),
        }
    }
}

fn reader(stream: impl Read + 'static) -> Box<dyn Read> {
    Box::new(stream)
}

/// Waits for the end, within the limit. The child's few bytes of output fit into the pipe.
pub fn wait(
    child: &mut std::process::Child,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<ExitStatus, Error> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().map_err(|error| failed(&error))? {
            return Ok(status);
        }
        let ended = interrupt.check().and_then(|()| match Instant::now() < deadline {
            true => Ok(()),
            false => Err(Error::BenchSlow(limit.as_secs())),
        });
        if let Err(error) = ended {
            // It may have ended by itself just now.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        thread::sleep(LOOK);
    }
}

/// What failed, of a loop in C.
pub fn failed(reason: &dyn std::fmt::Display) -> Error {
    Error::BenchProcess { process: "bare loop in C", reason: reason.to_string() }
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
