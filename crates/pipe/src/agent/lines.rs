//! A command's standard error, line by line to the coordinator.

use std::io::{BufReader, Read};
use std::sync::Arc;

use super::outbox::ReportOutbox;
use crate::control::{AgentReport, line_cost};
use crate::limits::LINE_BYTES_MAX;
use crate::window::Credit;

/// Bytes of lines in one message.
const BATCH_BYTES_MAX: usize = 32 << 10;

/// Reads until the end. Waits where too much is under way: then the command waits, too. Lines that are there
/// at once go in one message.
pub fn forward(stage: u32, from: impl Read, window: &Arc<Credit>, outbox: &ReportOutbox) {
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
            match window.take(wanted) {
                Some(taken) => wanted -= taken,
                None => return,
            }
        }
        outbox.report(AgentReport::Lines { stage, texts: std::mem::take(&mut texts) });
        bytes = 0;
    }
}

/// The next line without its end, or as much of it as a line may have. Whether there was one.
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
