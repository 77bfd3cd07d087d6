//! Processes and what came of them, through `/proc`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Between two looks whether they are gone.
const LOOK: Duration = Duration::from_millis(5);

/// All processes that came of `root`, without it, in no order.
pub fn descendants(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Some((parent, is_dead)) = parent(pid) else { continue };
        if !is_dead || pid == root.as_raw_nonzero().get() {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut open = vec![root.as_raw_nonzero().get()];
    while let Some(pid) = open.pop() {
        // Each is taken out once: a process that moved meanwhile makes no loop.
        for child in children.remove(&pid).unwrap_or_default() {
            open.push(child);
            found.extend(Pid::from_raw(child));
        }
    }
    found
}

/// The parent of a process, and whether it has ended already. `None` if there is no such process.
fn parent(pid: i32) -> Option<(i32, bool)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, so look behind its end (proc(5)).
    let mut words = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_dead = matches!(words.next()?, "Z" | "X");
    Some((words.next()?.parse().ok()?, is_dead))
}

/// Sends a signal to each; those that are gone do not matter.
pub fn signal(processes: &[Pid], signal: Signal) {
    for process in processes {
        let _ = kill_process(*process, signal);
    }
}

/// Asks what `list` finds to end, and kills what is left after `grace`. Returns once none is found.
///
/// All are stopped first, until no new one is found, and told while they are: a shell that saw its child
/// die before itself would go on with its next command.
pub fn end(list: impl Fn() -> Vec<Pid>, grace: Duration) {
    let deadline = Instant::now() + grace;
    let mut stopped = Vec::new();
    loop {
        let all = list();
        let is_new = |process: &Pid| !stopped.contains(process);
        let new: Vec<Pid> = all.iter().copied().filter(is_new).collect();
        if new.is_empty() || Instant::now() >= deadline {
            break;
        }
        signal(&new, Signal::STOP);
        stopped.extend(new);
    }
    signal(&stopped, Signal::TERM);
    signal(&stopped, Signal::CONT);
    loop {
        let left = list();
        if left.is_empty() {
            return;
        }
        if Instant::now() >= deadline {
            signal(&left, Signal::KILL);
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_of_children_are_found_and_ended() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' TERM; (trap '' TERM; sleep 600; true) & echo here; wait"]);
        let mut shell = shell.stdout(Stdio::piped()).spawn().expect("sh starts");
        let root = Pid::from_child(&shell);
        let mut line = String::new();
        let mut out = std::io::BufReader::new(shell.stdout.take().expect("a pipe"));
        std::io::BufRead::read_line(&mut out, &mut line).expect("read");
        // The shell in the background, and its sleep as soon as it is there.
        assert!(!descendants(root).is_empty());
        end(|| descendants(root), Duration::from_millis(20));
        assert!(descendants(root).is_empty());
        let _ = shell.kill();
        let _ = shell.wait();
    }
}
