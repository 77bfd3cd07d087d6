//! The bare loop in C: compiled from the source inside this program, then run.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{SAMPLE_LIMIT, slow};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::scratch::Scratch;

const SOURCE: &str = include_str!("../../../../../bench/ring/flag_copy.c");
/// Between two looks at a running child.
const LOOK: Duration = Duration::from_millis(5);

/// The compiled program: an open file without a name, so that nothing of it is left behind however
/// this process ends.
#[derive(Debug)]
pub struct FlagCopy(File);

impl FlagCopy {
    pub fn compile(compiler: &Path) -> Result<Self, Error> {
        let failed = |reason: String| Error::Compiler { program: compiler.display().to_string(), reason };
        let scratch = Scratch::create()?;
        let output = scratch.path().join("flag_copy");
        let mut child = Command::new(compiler)
            .args(["-O2", "-std=gnu11", "-x", "c", "-", "-o"])
            .arg(&output)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        if let Some(mut input) = child.stdin.take() {
            // A compiler that does not read to the end says itself why.
            let _ = input.write_all(SOURCE.as_bytes());
        }
        let done = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
        if done.status.success() {
            File::open(output).map(Self).map_err(|error| failed(error.to_string()))
        } else {
            Err(failed(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
        }
    }

    /// One sample: nanoseconds for all records.
    pub fn sample(
        &self,
        echo: bool,
        (producer, consumer): (usize, usize),
        records: u64,
        interrupt: &Interrupt,
    ) -> Result<f64, Error> {
        let words = [producer.to_string(), consumer.to_string(), records.to_string()];
        let mut child = Command::new(format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()))
            .arg(if echo { "echo" } else { "stream" })
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error))?;
        let status = wait(&mut child, interrupt)?;
        let mut text = String::new();
        let streams = [child.stdout.take().map(reader), child.stderr.take().map(reader)];
        for mut stream in streams.into_iter().flatten() {
            stream.read_to_string(&mut text).map_err(|error| failed(&error))?;
        }
        match text.trim().parse() {
            Ok(took) if status.success() => Ok(took),
            _ => Err(failed(&format!("{status}: {}", text.trim()))),
        }
    }
}

fn reader(stream: impl Read + 'static) -> Box<dyn Read> {
    Box::new(stream)
}

/// Waits for the end, within the limit. The child's few bytes of output fit into the pipe.
fn wait(child: &mut std::process::Child, interrupt: &Interrupt) -> Result<ExitStatus, Error> {
    let deadline = Instant::now() + SAMPLE_LIMIT;
    loop {
        if let Some(status) = child.try_wait().map_err(|error| failed(&error))? {
            return Ok(status);
        }
        let ended = interrupt.check().and_then(|()| match Instant::now() < deadline {
            true => Ok(()),
            false => Err(slow()),
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

fn failed(reason: &dyn std::fmt::Display) -> Error {
    Error::RingProcess { process: "bare loop in C", reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_compiler_is_named_with_the_remedy() {
        let error = FlagCopy::compile(Path::new("/none/cc")).expect_err("refused");
        let text = error.to_string();
        assert!(text.contains("/none/cc") && text.contains("--cc"), "{text}");
    }
}
