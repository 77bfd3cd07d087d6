//! Forking a worker. `unsafe`: fork(2), and what a child must do before anything else.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::Signal;

use crate::error::{Error, system};

/// The exit status of a worker whose app panicked; the message is on standard error.
pub const PANICKED: i32 = 101;

/// Forks: the child runs `body`, ends with the status that it returns, and never comes back here.
/// It is killed when this process ends, however that ends.
///
/// For a process with one thread: a lock that another thread holds would stay closed in the child.
pub fn fork(body: impl FnOnce() -> i32) -> Result<i32, Error> {
    let parent = rustix::process::getpid();
    // SAFETY: the caller has one thread, so no lock is held and the heap is whole in the child.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(system("fork")(std::io::Error::last_os_error())),
        0 => {
            let tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
            // It may have ended before it was tied to us.
            let orphan = rustix::process::getppid() != Some(parent);
            settle_signals();
            let status =
                if !tied || orphan { 1 } else { catch_unwind(AssertUnwindSafe(body)).unwrap_or(PANICKED) };
            // SAFETY: ends the process at once: nothing of the parent's stack is unwound, no
            // handler of its is called.
            unsafe { libc::_exit(status) }
        }
        _ => Ok(pid),
    }
}

/// Ctrl-C and a lost terminal are for the supervisor, which ends its workers in order; what it does on
/// other signals, a worker does not.
fn settle_signals() {
    for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: ignoring a signal runs no code in a handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // The first SIGSEGV that nothing in the process has caused would only end the handler that Rust sets
    // to tell of a full stack.
    for signal in [libc::SIGTERM, libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: as above, for the default action.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
