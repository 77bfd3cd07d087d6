//! System calls on devices that rustix does not have. All of them are `unsafe`.

use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

use libc::{c_int, c_void};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::packet::Packet;

/// Packets in one `sendmmsg`.
pub(crate) const SEND_PACKETS: usize = 64;

/// `struct ifreq` of netdevice(7): an interface's name, and a value in a union of 24 bytes.
#[repr(C)]
pub(crate) struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

impl InterfaceRequest {
    /// Makes a request about the interface `name`, cut to the longest possible name.
    pub(crate) fn new(name: &str) -> Self {
        let mut request = Self { name: [0; libc::IFNAMSIZ], value: [0; 24] };
        let length = name.len().min(libc::IFNAMSIZ - 1);
        request.name[..length].copy_from_slice(&name.as_bytes()[..length]);
        request
    }

    /// Returns `ifr_flags`.
    pub(crate) fn flags(&self) -> i16 {
        i16::from_ne_bytes([self.value[0], self.value[1]])
    }

    /// Sets `ifr_flags`.
    pub(crate) fn with_flags(mut self, flags: i16) -> Self {
        self.value[..2].copy_from_slice(&flags.to_ne_bytes());
        self
    }

    /// Returns `ifr_mtu` or `ifr_ifindex`.
    pub(crate) fn number(&self) -> i32 {
        i32::from_ne_bytes([self.value[0], self.value[1], self.value[2], self.value[3]])
    }

    /// Sets `ifr_mtu` or `ifr_ifindex`.
    pub(crate) fn with_number(mut self, number: i32) -> Self {
        self.value[..4].copy_from_slice(&number.to_ne_bytes());
        self
    }
}

/// The calls that read or write a [`InterfaceRequest`].
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum InterfaceCall {
    Flags = libc::SIOCGIFFLAGS as u32,
    SetFlags = libc::SIOCSIFFLAGS as u32,
    Mtu = libc::SIOCGIFMTU as u32,
    SetMtu = libc::SIOCSIFMTU as u32,
    /// A call on `/dev/net/tun`.
    AttachTap = libc::TUNSETIFF as u32,
}

/// The calls on a TAP's descriptor that take a number.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum TapCall {
    /// Whether the interface stays once no process has it open.
    Persist = libc::TUNSETPERSIST as u32,
    /// The work on frames that the kernel may leave undone: checksums, segmentation.
    Offloads = libc::TUNSETOFFLOAD as u32,
}

/// Returns the error of the last call of this thread.
fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn done(result: c_int) -> Result<(), Errno> {
    if result < 0 { Err(last_error()) } else { Ok(()) }
}

/// ioctl(2) about an interface.
pub(crate) fn interface_call(
    fd: impl AsFd,
    call: InterfaceCall,
    request: &mut InterfaceRequest,
) -> Result<(), Errno> {
    // SAFETY: each of these calls reads and writes at most a `struct ifreq`, which `InterfaceRequest` is.
    done(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), call as _, ptr::from_mut(request)) })
}

/// ioctl(2) on a TAP.
pub(crate) fn tap_call(fd: impl AsFd, call: TapCall, value: u32) -> Result<(), Errno> {
    // SAFETY: each of these calls takes a number and touches no memory of this process.
    done(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), call as _, libc::c_ulong::from(value)) })
}

/// setsockopt(2).
pub(crate) fn set_option(fd: impl AsFd, level: c_int, option: c_int, value: &[u8]) -> Result<(), Errno> {
    let (start, length) = (value.as_ptr().cast::<c_void>(), value.len() as libc::socklen_t);
    // SAFETY: the kernel reads at most `length` bytes from `start`. No option whose value holds an
    // address of memory is set this way.
    done(unsafe { libc::setsockopt(fd.as_fd().as_raw_fd(), level, option, start, length) })
}

/// getsockopt(2) of an option of up to `N` bytes. Bytes that the kernel has no value for are 0.
pub(crate) fn option<const N: usize>(fd: impl AsFd, level: c_int, option: c_int) -> Result<[u8; N], Errno> {
    let mut value = [0; N];
    let mut length = N as libc::socklen_t;
    let start = value.as_mut_ptr().cast::<c_void>();
    // SAFETY: the kernel writes at most `length` bytes to `start`.
    done(unsafe { libc::getsockopt(fd.as_fd().as_raw_fd(), level, option, start, &mut length) })?;
    Ok(value)
}

/// bind(2) of a packet socket to an interface, for frames of a protocol of `linux/if_ether.h`. With protocol 0,
/// the socket only sends.
pub(crate) fn bind_packet(fd: impl AsFd, interface: u32, protocol: u16) -> Result<(), Errno> {
    // SAFETY: all zeros are a `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface as i32;
    let length = mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes from `address`.
    done(unsafe { libc::bind(fd.as_fd().as_raw_fd(), ptr::from_ref(&address).cast(), length) })
}

/// sendmmsg(2): sends each packet as one message, the first [`SEND_PACKETS`] of them, without waiting. Returns
/// the number sent; an error is that of the first packet.
pub(crate) fn send_packets(fd: impl AsFd, packets: &[Packet]) -> Result<usize, Errno> {
    let packets = &packets[..packets.len().min(SEND_PACKETS)];
    let none = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    let mut parts = [none; SEND_PACKETS];
    // SAFETY: all zeros are a `mmsghdr` without address, parts or control data.
    let mut messages: [libc::mmsghdr; SEND_PACKETS] = unsafe { mem::zeroed() };
    for ((packet, part), message) in packets.iter().zip(&mut parts).zip(&mut messages) {
        let data = packet.data();
        *part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
        message.msg_hdr.msg_iov = part;
        message.msg_hdr.msg_iovlen = 1;
    }
    let (fd, count) = (fd.as_fd().as_raw_fd(), packets.len() as u32);
    // SAFETY: `count` messages, each of one part, which points to a packet's data; the kernel only
    // reads the data, and all of it outlives the call.
    let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
    usize::try_from(sent).map_err(|_| last_error())
}

/// A mapping of this process, unmapped on drop, for one thread.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps zeroed memory in pages of its own.
    pub(crate) fn anonymous(bytes: usize) -> Result<Self, Errno> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags)? };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, bytes })
    }

    /// Maps `bytes` bytes of a descriptor at `offset`.
    pub(crate) fn of(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, fd, offset)? };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, bytes })
    }

    /// Returns the number of bytes in the mapping.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the mapping, for the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    #[inline]
    fn has(&self, at: usize, bytes: usize) -> bool {
        at <= self.bytes && bytes <= self.bytes - at
    }

    /// Returns the 32-bit word at `at`, or `None` if it is not inside or `at` is no multiple of 4.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> Option<&AtomicU32> {
        if !self.has(at, 4) || at % 4 != 0 {
            return None;
        }
        // SAFETY: the word is in bounds, aligned (mappings start on pages) and mapped as long as `self` lives; an
        // atomic may be shared with the kernel.
        Some(unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) })
    }

    /// Copies the bytes at `at` to `to`. Returns false, and does nothing, if they are not inside.
    #[inline]
    pub(crate) fn copy_out(&self, at: usize, to: &mut [u8]) -> bool {
        if !self.has(at, to.len()) {
            return false;
        }
        // SAFETY: the source is in bounds; `to` is exclusive memory outside the mapping, of which no reference is
        // ever handed out.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().add(at), to.as_mut_ptr(), to.len()) }
        true
    }

    /// Copies `from` to `at`. Returns false, and does nothing, if it would not fit there.
    #[inline]
    pub(crate) fn copy_in(&self, at: usize, from: &[u8]) -> bool {
        if !self.has(at, from.len()) {
            return false;
        }
        // SAFETY: as in `copy_out`.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.start.as_ptr().add(at), from.len()) }
        true
    }

    /// Returns the `N` bytes at `at`, or `None` if they are not inside.
    #[inline]
    pub(crate) fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut array = [0; N];
        self.copy_out(at, &mut array).then_some(array)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping; everything that was borrowed from it borrowed `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn nothing_outside_is_touched() {
        let mapping = Mapping::anonymous(4096).unwrap();
        assert!(mapping.copy_in(4092, &[1, 2, 3, 4]));
        assert_eq!(mapping.array(4092), Some([1, 2, 3, 4]));
        assert_eq!(
            mapping.word(4092).map(|word| word.load(Ordering::Relaxed)),
            Some(u32::from_ne_bytes([1, 2, 3, 4]))
        );
        for at in [4093, 4096, 5000, usize::MAX] {
            assert!(!mapping.copy_in(at, &[1, 2, 3, 4]));
            assert_eq!(mapping.array::<4>(at), None);
            assert!(mapping.word(at).is_none());
        }
        assert!(mapping.word(2).is_none(), "not aligned");
        assert!(mapping.copy_in(4096, &[]));
    }
}
