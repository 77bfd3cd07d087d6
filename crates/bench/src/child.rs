//! A process of a benchmark that runs to its end and says what it has measured.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::interrupt::Interrupt;

/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(5);

/// Runs a command: its standard output, trimmed. One that takes longer than `limit` is killed, as
/// it is after Ctrl-C. `process` is what it is called if it fails. What it says must fit into a pipe.
pub fn output(
    mut command: Command,
    process: &'static str,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<String, Error> {
    let failed = |reason: &dyn std::fmt::Display| Error::BenchProcess { process, reason: reason.to_string() };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let status = match wait(&mut child, limit, interrupt) {
        Ok(status) => status,
        Err(error) => {
            // It may have ended by itself just now.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
    };
    let (mut said, mut complaint) = (String::new(), String::new());
    if let (Some(mut out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) {
        let read = out.read_to_string(&mut said).and_then(|_| err.read_to_string(&mut complaint));
        read.map_err(|error| failed(&error))?;
    }
    match status.success() {
        true => Ok(said.trim().to_owned()),
        false if complaint.trim().is_empty() => Err(failed(&status)),
        false => Err(failed(&complaint.trim().trim_start_matches("caravan: "))),
    }
}

fn wait(child: &mut Child, limit: Duration, interrupt: &Interrupt) -> Result<ExitStatus, Error> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().map_err(Error::Output)? {
            return Ok(status);
        }
        interrupt.check()?;
        if Instant::now() >= deadline {
            return Err(Error::BenchSlow(limit.as_secs()));
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn shell(script: &str, limit: Duration, interrupted: bool) -> Result<String, Error> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        output(command, "shell", limit, &Interrupt::by(Arc::new(AtomicBool::new(interrupted))))
    }

    #[test]
    fn what_it_says_is_returned_and_what_it_complains_of_is_the_error() {
        let minute = Duration::from_secs(60);
        assert_eq!(shell("echo 12 34; echo no >&2", minute, false).expect("said"), "12 34");
        let error = shell("echo caravan: no memory >&2; exit 1", minute, false).expect_err("failed");
        assert_eq!(error.to_string(), "the shell of the benchmark failed: no memory");
        let error = shell("exit 3", minute, false).expect_err("failed");
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    #[test]
    fn one_that_does_not_end_is_killed() {
        let error = shell("exec sleep 600", Duration::ZERO, false).expect_err("slow");
        assert!(matches!(error, Error::BenchSlow(0)), "{error}");
        let error = shell("exec sleep 600", Duration::from_secs(600), true).expect_err("interrupted");
        assert!(matches!(error, Error::Interrupted), "{error}");
    }
}
