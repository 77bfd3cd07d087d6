//! The end of a child process.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Kills a child.
pub fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It has ended, and is a zombie until `wait_for`: nothing to kill.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Reaps a child that has ended, or is about to; says how.
pub fn wait_for(pid: i32) -> String {
    let status = loop {
        match waitpid(Pid::from_raw(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => break status,
            Ok(None) | Err(Errno::INTR) => {}
            // Somebody else in this process reaped it.
            Err(_) => return "unknown status".to_owned(),
        }
    };
    match (status.terminating_signal(), status.exit_status()) {
        (Some(signal), _) => format!("signal {signal}{}", signal_name(signal)),
        (_, Some(crate::fork::PANICKED)) => "a panic in an app".to_owned(),
        (_, Some(status)) => format!("status {status}"),
        _ => "unknown status".to_owned(),
    }
}

fn signal_name(signal: i32) -> String {
    let names = [
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGTERM, "SIGTERM"),
    ];
    names.iter().find(|(number, _)| *number == signal).map_or(String::new(), |(_, name)| format!(" ({name})"))
}
