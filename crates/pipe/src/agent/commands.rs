//! Commands of stages: how they start, and how their end becomes a status.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use super::lines;
use super::outbox::ReportOutbox;
use crate::control::{AgentReport, CommandKind, Status};
use crate::window::Credit;

/// How long a command's last words may take after its end: what it left in the background may hold its
/// standard error open for good.
const LAST_WORDS_LIMIT: Duration = Duration::from_millis(200);
/// The shell of whom the system knows none of.
const SHELL: &str = "/bin/sh";

/// Starts it.
pub fn spawn(kind: &CommandKind, input: Stdio, output: Stdio) -> Result<Child, String> {
    let (mut command, name) = match kind {
        CommandKind::Shell(text) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
            let shell = shell.unwrap_or_else(|| SHELL.into());
            let mut command = Command::new(&shell);
            command.arg("-c").arg(text);
            (command, shell.to_string_lossy().into_owned())
        }
        CommandKind::Program(arguments) => {
            let mut command = Command::new("/proc/self/exe");
            command.args(arguments);
            (command, "this program".to_owned())
        }
    };
    command.stdin(input).stdout(output).stderr(Stdio::piped());
    command.spawn().map_err(|error| format!("cannot start {name}: {error}"))
}

/// Waits for it, and reports its standard error and its end.
pub fn attend(stage: u32, mut child: Child, window: &Arc<Credit>, outbox: &ReportOutbox) {
    let (all_said, last_words) = mpsc::channel::<()>();
    if let Some(errors) = child.stderr.take() {
        let (window, outbox) = (Arc::clone(window), outbox.clone());
        std::thread::spawn(move || {
            lines::forward(stage, errors, &window, &outbox);
            drop(all_said);
        });
    }
    let status = match child.wait() {
        Ok(status) => status_of(status),
        Err(error) => Status::Failed(format!("cannot wait for it: {error}")),
    };
    // It says so by hanging up.
    let _ = last_words.recv_timeout(LAST_WORDS_LIMIT);
    outbox.report(AgentReport::Ended { stage, status });
}

fn status_of(status: ExitStatus) -> Status {
    let byte = |number: i32| u8::try_from(number).ok();
    match (status.code().and_then(byte), status.signal().and_then(byte)) {
        (Some(code), _) => Status::Exit(code),
        (None, Some(signal)) => Status::Signal(signal),
        (None, None) => Status::Failed(status.to_string()),
    }
}
