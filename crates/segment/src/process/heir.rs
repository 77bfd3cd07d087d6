//! The heir of a process: a process that shares its memory and does nothing but outlive it. `unsafe`: clone(2).
//!
//! The kernel takes down the mappings of a process that has died before it releases its locks, closes its sockets
//! and reports its death: tens of milliseconds for each gigabyte. As long as another process shares the memory,
//! there is nothing to take down: the locks are free and the death is known at once, and the other process does the
//! rest when it ends. (`exit_mm` comes before `exit_files` and `exit_notify` in `do_exit`, Linux's kernel/exit.c.)
//!
//! Nothing depends on an heir but time: it holds no descriptor of the process, so a lock that is free says as
//! before that no thread of the process can run any more.

#![allow(unsafe_code, reason = "calls clone(2)")]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::Process;
use crate::error::{Error, system};

/// The heir calls a handful of functions.
const STACK_BYTES: usize = 64 << 10;
/// The lowest priority: whoever waits for the death of the process has the processor before its heir.
const PRIORITY: i32 = 19;

/// Starts the heir of this process, and returns its number. It ends when this process has ended, in whatever way.
///
/// Its parent is this process's parent, which gets SIGCHLD for both and has to wait for both; it finds the heir in
/// the process group of this process. The heir has none of its descriptors, and runs no handler of a signal.
pub fn start_heir() -> Result<i32, Error> {
    let process = Process::open(rustix::process::getpid().as_raw_pid())?;
    let (closed, open) = pipe_with(PipeFlags::CLOEXEC).map_err(system("pipe2"))?;
    // For ever: the heir lives longer than anything that could give it back.
    let stack = Vec::leak(vec![0_u128; STACK_BYTES / size_of::<u128>()]);
    let flags = libc::CLONE_VM | libc::CLONE_PARENT | libc::SIGCHLD;
    let argument = process.pidfd.as_raw_fd() as usize as *mut c_void;
    let cloned = with_signals_blocked(|| {
        // SAFETY: the heir runs `outlive` on a stack of its own, which stays. That function takes a number, touches no
        // memory but its stack, and calls nothing that uses the heap or a lock. It shares the variables of this
        // thread, of which it may write `errno` only: this thread reads that after a failed clone alone.
        match unsafe { libc::clone(outlive, stack.as_mut_ptr_range().end.cast(), flags, argument) } {
            -1 => Err(std::io::Error::last_os_error()),
            pid => Ok(pid),
        }
    });
    let pid = cloned.map_err(system("clone"))?;
    drop(open);
    // Until then it has copies of the descriptors of now, and with them of the locks.
    while rustix::io::read(&closed, &mut [0; 1]) == Err(Errno::INTR) {}
    Ok(pid)
}

/// Runs `body` with all signals blocked in this thread.
fn with_signals_blocked<T>(body: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: `sigfillset` writes the first set, which then is one, and `pthread_sigmask` the second one. Neither fails
    // with these arguments.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let value = body();
    // SAFETY: the call above has written the set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    value
}

/// What the heir does: it closes all descriptors but this one, which becomes readable when the process has ended.
extern "C" fn outlive(process: *mut c_void) -> c_int {
    let kept = process.addr() as RawFd;
    let close = |first: RawFd, last: RawFd| {
        // SAFETY: the table of descriptors is the heir's own, in which nobody else has any.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) == 0 }
    };
    if close(kept + 1, RawFd::MAX) && (kept == 0 || close(0, kept - 1)) {
        // SAFETY: it was not closed.
        let process = unsafe { BorrowedFd::borrow_raw(kept) };
        // For those who look at processes. Neither call matters if it fails.
        let _ = rustix::thread::set_name(c"caravan-heir");
        let _ = rustix::process::setpriority_process(None, PRIORITY);
        let mut set = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
        while matches!(poll(&mut set, None), Ok(0) | Err(Errno::INTR)) {}
    }
    // SAFETY: `_exit` ends the heir at once, and calls nothing of the process's.
    unsafe { libc::_exit(0) }
}
