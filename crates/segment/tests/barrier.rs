//! A process that may no longer ask for the kernel's barrier, because it has got a filter of system calls.

use caravan_segment::barrier::{self, Fences};

/// Makes the kernel refuse membarrier(2) to this thread from now on (seccomp(2)).
fn refuse_membarrier() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let number = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_membarrier as u32);
    let mut filter = [
        // The number of the call is the first word of a filter's input.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..number },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls take numbers, and the second a program that outlives it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_barrier_that_is_refused_is_told_and_asked_for_again() {
    if !barrier::join() {
        eprintln!("skipped: the kernel has no such barrier");
        return;
    }
    std::thread::spawn(|| {
        assert!(Fences::Asymmetric.heavy());
        refuse_membarrier();
        assert!(!Fences::Asymmetric.heavy(), "what was not ordered is not said to be");
        assert!(Fences::Symmetric.heavy());
        assert!(!barrier::join(), "the next link does without");
    })
    .join()
    .unwrap();
    assert!(barrier::join(), "other threads may still");
}
