//! What ssh, and the other side through it, say on standard error: kept, and shown if it fails.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use caravan_segment::printable;

/// Lines that are kept.
const LINES_MAX: usize = 20;
/// Bytes of a line that are kept.
const LINE_BYTES_MAX: u64 = 1 << 10;
/// How long the last of them may take to come, after ssh's end: somebody else may hold the pipe open.
const LAST_LIMIT: Duration = Duration::from_secs(1);

/// The last lines.
#[derive(Debug)]
pub struct Complaints {
    lines: Arc<Mutex<VecDeque<String>>>,
    /// Disconnected once the last of them is there.
    all_kept: Receiver<()>,
}

impl Complaints {
    /// Keeps what comes there, in a thread.
    pub fn keep(from: impl Read + Send + 'static) -> Self {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let kept = Arc::clone(&lines);
        let (kept_all, all_kept) = mpsc::channel();
        std::thread::spawn(move || {
            keep(BufReader::new(from), &kept);
            drop::<mpsc::Sender<()>>(kept_all);
        });
        Self { lines, all_kept }
    }

    /// All that was kept, once no more comes.
    pub fn last(&self) -> String {
        let _ = self.all_kept.recv_timeout(LAST_LIMIT);
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

fn keep(mut from: impl BufRead, kept: &Mutex<VecDeque<String>>) {
    loop {
        let mut line = Vec::new();
        // A longer one is broken there.
        match (&mut from).take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(printable(line.trim_ascii_end()));
        if kept.len() > LINES_MAX {
            kept.pop_front();
        }
    }
}

/// What to do about the usual ones; a sentence with a space in front, or nothing.
pub fn remedy(complaints: &str, host: &str) -> String {
    let table = [
        (
            "REMOTE HOST IDENTIFICATION HAS CHANGED",
            "Its key is another than the one you know: find out why first",
        ),
        ("Host key verification failed", "Its key is not known: connect once with ssh and accept it"),
        ("Permission denied", "It lets you not in: the same ssh must work first"),
        ("Could not resolve hostname", "Its name is not known"),
        ("Connection refused", "No sshd answers at that port"),
        ("No route to host", "No way leads there"),
        ("Network is unreachable", "No way leads there"),
        ("Connection timed out", "It does not answer"),
        ("timed out", "It does not answer"),
        ("not responding", "It no longer answers"),
    ];
    let found = table.iter().find(|(words, _)| complaints.contains(words));
    found.map_or_else(String::new, |(_, remedy)| format!(" {remedy} (`ssh {host} true`)."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_nothing_that_a_terminal_obeys() {
        let said: String = (0..100).map(|i| format!("line {i}\r\n")).collect();
        let last = Complaints::keep(std::io::Cursor::new(said)).last();
        assert!(last.starts_with("line 80\nline 81\n") && last.ends_with("\nline 99"), "{last}");
        let last = Complaints::keep(&b"a\tb\x1b[2Jc\xff"[..]).last();
        assert_eq!(last, r"a\tb\u{1b}[2Jc\xff");
        let last = Complaints::keep(std::io::repeat(b'x').take(1 << 20)).last();
        assert_eq!(last.len(), LINES_MAX * (LINE_BYTES_MAX as usize + 1) - 1);
    }

    #[test]
    fn usual_complaints_have_a_remedy() {
        assert!(remedy("ssh: Could not resolve hostname x", "x").contains("not known (`ssh x true`)."));
        assert_eq!(remedy("hm", "x"), "");
    }
}
