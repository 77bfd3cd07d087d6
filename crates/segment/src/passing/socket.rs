//! The two system calls of a hand-over that rustix does not have. `unsafe`: pointers for the kernel.
//!
//! rustix can receive credentials, but takes a process number of 0 for impossible. The kernel reports 0 for
//! a process that this one's PID namespace hides.

#![allow(unsafe_code, reason = "calls setsockopt(2) and recvmsg(2)")]

use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::io::Errno;

use super::{DESCRIPTORS_MAX, SECRET_BYTES};

/// The number of words of a nonce, as a filter compares them.
const WORDS: usize = SECRET_BYTES / 4;
/// Room for the descriptors and the sender's credentials, aligned as a header of control data: 128 bytes.
const CONTROL_WORDS: usize = 16;

/// One received message.
pub struct Message {
    /// The number of its bytes in the buffer.
    pub bytes: usize,
    /// The user who sent the message, as the kernel has checked.
    pub uid: Option<u32>,
    /// The descriptors of the message, close-on-exec.
    pub descriptors: Vec<OwnedFd>,
    /// Descriptors are missing: the message had more than fit, or this process has no number free for them.
    pub is_cut: bool,
}

/// Makes the kernel drop every message to `socket` that does not begin with `nonce`. The kernel drops it while
/// it is being sent, so that it never takes a place in the queue.
///
/// Source: socket(7), `SO_ATTACH_FILTER`; `unix_dgram_sendmsg` in Linux's net/unix/af_unix.c, which asks the
/// filter before it looks at the queue.
pub fn admit_only(socket: BorrowedFd<'_>, nonce: &[u8; SECRET_BYTES]) -> Result<(), Errno> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = Vec::with_capacity(2 * WORDS + 2);
    for (word, bytes) in nonce.chunks_exact(4).enumerate() {
        filter.push(statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 4 * word as u32));
        let wanted = bytes.iter().fold(0, |all, byte| all << 8 | u32::from(*byte));
        // Any difference leads to the last statement.
        let jf = 2 * (WORDS - word) as u8 - 1;
        let compare = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, wanted);
        filter.push(libc::sock_filter { jf, ..compare });
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, u32::MAX));
    filter.push(statement(libc::BPF_RET | libc::BPF_K, 0));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the descriptor is open as long as it is borrowed; the option takes a `sock_fprog`, and the
    // statements that it points to outlive the call. The kernel copies them.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            ptr::from_ref(&program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// Takes one message, if there is one.
pub fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<Message, Errno> {
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: the structure is numbers and null pointers, for which zeros are valid.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the descriptor is open as long as it is borrowed; the header names two buffers of this function,
    // with their lengths.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, flags) };
    let bytes = usize::try_from(got).map_err(|_| last_error())?;
    let is_cut = header.msg_flags & libc::MSG_CTRUNC != 0;
    let mut message = Message { bytes, uid: None, descriptors: Vec::new(), is_cut };
    // SAFETY: the kernel has filled the header and the buffer that it names, which is still there.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&header) };
    while !next.is_null() {
        // SAFETY: `next` is a whole control message inside that buffer.
        unsafe { message.take(next) };
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(&header, next) };
    }
    Ok(message)
}

impl Message {
    /// # Safety
    /// `control` is a whole control message that the kernel has just made.
    unsafe fn take(&mut self, control: *const libc::cmsghdr) {
        // SAFETY: the caller promises that the header is there, and aligned; its data follow it.
        let (header, data) = unsafe { (control.read(), libc::CMSG_DATA(control)) };
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                // SAFETY: the call only computes a length.
                let empty = unsafe { libc::CMSG_LEN(0) } as usize;
                // The field has another type in another C library.
                let length: usize = header.cmsg_len as _;
                let count = length.saturating_sub(empty) / size_of::<RawFd>();
                for i in 0..count {
                    // SAFETY: the message has `count` descriptors, each new and owned by nobody else.
                    let descriptor = unsafe {
                        OwnedFd::from_raw_fd(data.cast::<RawFd>().wrapping_add(i).read_unaligned())
                    };
                    self.descriptors.push(descriptor);
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                // SAFETY: a message of this type has a `ucred`.
                self.uid = Some(unsafe { data.cast::<libc::ucred>().read_unaligned() }.uid);
            }
            _ => {}
        }
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

// Both kinds of control message fit: CMSG_SPACE of the descriptors, and of a `ucred`.
const _: () = assert!((16 + 4 * DESCRIPTORS_MAX) + (16 + 16) <= 8 * CONTROL_WORDS);
