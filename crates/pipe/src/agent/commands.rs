//! Commands of stages: starts them, reports their standard error line by line, and turns their end into a status.

use std::io::{BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::ReportOutbox;
use crate::control::{AgentReport, CommandKind, Status, line_cost};
use crate::credit::Credit;
use crate::limits::LINE_BYTES_MAX;

/// How long a command's last lines may take after its end: a process that it left in the background may hold its
/// standard error open for ever.
const LAST_WORDS_LIMIT: Duration = Duration::from_millis(200);
/// The shell of a user for whom the system knows none.
const SHELL: &str = "/bin/sh";

/// Starts a command.
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

/// Waits for a command, and reports its standard error and its end.
pub fn attend(stage: u32, mut child: Child, credit: &Arc<Credit>, outbox: &ReportOutbox) {
    let (all_said, last_words) = mpsc::channel::<()>();
    if let Some(errors) = child.stderr.take() {
        let (credit, outbox) = (Arc::clone(credit), outbox.clone());
        std::thread::spawn(move || {
            forward(stage, errors, &credit, &outbox);
            drop(all_said);
        });
    }
    let status = match child.wait() {
        Ok(status) => status_of(status),
        Err(error) => Status::Failed(format!("cannot wait for it: {error}")),
    };
    // The thread hangs up when it has reported the last line.
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

/// The most bytes of lines in one message.
const BATCH_BYTES_MAX: usize = 32 << 10;

/// Reports lines until the end of `from`. Waits while too many bytes are under way: then the command waits, too.
/// Lines that arrive together go in one message.
pub fn forward(stage: u32, from: impl Read, credit: &Arc<Credit>, outbox: &ReportOutbox) {
    let mut from = BufReader::with_capacity(BATCH_BYTES_MAX, from);
    let mut line = Vec::new();
    let (mut texts, mut bytes) = (Vec::new(), 0);
    while next(&mut from, &mut line) {
        let text = String::from_utf8_lossy(&line).into_owned();
        bytes += line_cost(&text);
        texts.push(text);
        line.clear();
        if from.buffer().contains(&b'\n') && bytes < BATCH_BYTES_MAX as u64 {
            continue;
        }
        let mut wanted = bytes;
        while wanted > 0 {
            match credit.take(wanted) {
                Some(taken) => wanted -= taken,
                None => return,
            }
        }
        outbox.report(AgentReport::Lines { stage, texts: std::mem::take(&mut texts) });
        bytes = 0;
    }
}

/// Reads the next line without its end, or as much of it as a line may have. Returns false at the end of `from`.
fn next(from: &mut BufReader<impl Read>, line: &mut Vec<u8>) -> bool {
    use std::io::BufRead;
    loop {
        let Ok(buffer) = from.fill_buf() else { return !line.is_empty() };
        if buffer.is_empty() {
            return !line.is_empty();
        }
        let room = LINE_BYTES_MAX - line.len();
        let end = buffer.iter().take(room).position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(room.min(buffer.len()));
        line.extend(buffer.iter().take(taken));
        from.consume(taken + usize::from(end.is_some()));
        if end.is_some() || line.len() == LINE_BYTES_MAX {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_not_too_long() {
        let long = "x".repeat(LINE_BYTES_MAX + 3);
        let text = format!("a\n\nb c\n{long}\nlast");
        let mut from = BufReader::with_capacity(7, text.as_bytes());
        let (mut line, mut lines) = (Vec::new(), Vec::new());
        while next(&mut from, &mut line) {
            lines.push(String::from_utf8(std::mem::take(&mut line)).expect("text"));
        }
        let (whole, rest) = long.split_at(LINE_BYTES_MAX);
        assert_eq!(lines, ["a", "", "b c", whole, rest, "last"]);
    }
}
