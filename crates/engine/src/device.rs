//! What the apps on the kernel's devices share: the app itself ([`DeviceApp`]), interfaces by name, memory
//! shared with the kernel, and system calls.

mod app;
#[allow(unsafe_code)]
pub(crate) mod sys;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, move_into_link_name_space};

use crate::app::AppError;
use crate::limits::{HEADROOM_BYTES, PACKET_BYTES_MAX};
use crate::packet::Packet;
pub(crate) use app::{DeviceApp, PacketDevice, Received};
use sys::{InterfaceCall, InterfaceRequest};

/// A call on a device that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {errno}")]
pub struct DeviceFailure {
    /// The call, as its manual page names it.
    pub call: &'static str,
    /// The kernel's error.
    pub errno: Errno,
}

/// Names the call in a failure: `.map_err(failed("socket"))`.
pub(crate) fn failed(call: &'static str) -> impl FnOnce(Errno) -> DeviceFailure {
    move |errno| DeviceFailure { call, errno }
}

/// True if an error says that a device does not exist, or is down.
pub(crate) fn is_away(errno: Errno) -> bool {
    matches!(errno, Errno::NETDOWN | Errno::NODEV | Errno::NXIO | Errno::BADFD)
}

/// Sends packets one by one. Returns the number sent; an error is that of the first packet.
pub(crate) fn send_each(
    packets: &[Packet],
    mut send: impl FnMut(&[u8]) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    for (sent, packet) in packets.iter().enumerate() {
        match send(packet.data()) {
            Ok(()) => {}
            Err(errno) if sent == 0 => return Err(errno),
            Err(_) => return Ok(sent),
        }
    }
    Ok(packets.len())
}

/// Bytes of an interface's name at most.
pub(crate) const NAME_MAX: usize = libc::IFNAMSIZ - 1;
/// Bytes of an Ethernet header with one VLAN tag.
const ETHERNET_BYTES: usize = 18;
/// The largest MTU whose frames fit into a packet with the usual room in front.
pub(crate) const MTU_MAX: usize = PACKET_BYTES_MAX - HEADROOM_BYTES - ETHERNET_BYTES;
/// The smallest MTU of IPv4 (RFC 791).
pub(crate) const MTU_MIN: usize = 68;

/// Refuses a text that cannot be an interface's name.
pub(crate) fn check_name(name: &str) -> Result<(), AppError> {
    let bad = |c: char| c == '/' || c == '%' || c == ':' || c.is_whitespace() || c.is_control();
    if name.is_empty() || name.len() > NAME_MAX || name.contains(bad) || name == "." || name == ".." {
        return Err(AppError(format!(
            "`{name}` cannot be an interface's name: that is 1 to {NAME_MAX} bytes without `/`, `%`, `:` and spaces"
        )));
    }
    Ok(())
}

/// Refuses an interface that does not exist now.
pub(crate) fn check_present(name: &str) -> Result<(), AppError> {
    check_name(name)?;
    match index(name) {
        Ok(_) => Ok(()),
        Err(failure) if failure.errno == Errno::NODEV => Err(AppError(format!(
            "there is no interface `{name}` in this network namespace: `ip link` shows those there are"
        ))),
        Err(failure) => Err(AppError(format!("interface `{name}`: {failure}"))),
    }
}

/// True if this process has a capability (capabilities(7)) in effect.
pub(crate) fn has_capability(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

/// Returns an interface's number, or `ENODEV` if no interface has that name.
pub(crate) fn index(name: &str) -> Result<u32, DeviceFailure> {
    netdevice::name_to_index(&socket()?, name).map_err(failed("ioctl SIOCGIFINDEX"))
}

/// Returns the number of an interface that is up, or `ENETDOWN` if it is down.
pub(crate) fn index_if_up(name: &str) -> Result<u32, DeviceFailure> {
    if flags(name)? & libc::IFF_UP as i16 == 0 {
        return Err(DeviceFailure { call: "ioctl SIOCGIFFLAGS", errno: Errno::NETDOWN });
    }
    index(name)
}

/// Brings an interface up. It needs CAP_NET_ADMIN only if the interface is down.
pub(crate) fn set_up(name: &str) -> Result<(), DeviceFailure> {
    let flags = flags(name)?;
    if flags & libc::IFF_UP as i16 != 0 {
        return Ok(());
    }
    let mut request = InterfaceRequest::new(name).with_flags(flags | libc::IFF_UP as i16);
    sys::interface_call(&socket()?, InterfaceCall::SetFlags, &mut request)
        .map_err(failed("ioctl SIOCSIFFLAGS"))
}

/// Sets an interface's MTU. It needs CAP_NET_ADMIN only if the interface has another MTU.
pub(crate) fn set_mtu(name: &str, mtu: usize) -> Result<(), DeviceFailure> {
    let socket = socket()?;
    let mut request = InterfaceRequest::new(name);
    sys::interface_call(&socket, InterfaceCall::Mtu, &mut request).map_err(failed("ioctl SIOCGIFMTU"))?;
    if request.number() == mtu as i32 {
        return Ok(());
    }
    let mut request = InterfaceRequest::new(name).with_number(mtu as i32);
    sys::interface_call(&socket, InterfaceCall::SetMtu, &mut request).map_err(failed("ioctl SIOCSIFMTU"))
}

fn flags(name: &str) -> Result<i16, DeviceFailure> {
    let mut request = InterfaceRequest::new(name);
    sys::interface_call(&socket()?, InterfaceCall::Flags, &mut request)
        .map_err(failed("ioctl SIOCGIFFLAGS"))?;
    Ok(request.flags())
}

/// Opens a socket for questions about interfaces; any kind will do.
fn socket() -> Result<OwnedFd, DeviceFailure> {
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(failed("socket"))
}

/// The names of calls that can fail, for a [`DeviceFailure`].
pub(crate) const OPEN: &str = "open a network namespace";
pub(crate) const ENTER: &str = "setns";

/// Runs a function in the network namespace of a file, such as `/run/netns/NAME`, or in this thread's namespace if
/// no file is named.
pub(crate) fn within<T>(
    namespace: Option<&Path>,
    what: impl FnOnce() -> Result<T, DeviceFailure>,
) -> Result<T, DeviceFailure> {
    let Some(namespace) = namespace else { return what() };
    let there = opened(namespace)?;
    let home = opened(Path::new("/proc/thread-self/ns/net"))?;
    // A thread that may not enter its own namespace could not come back.
    enter(&home)?;
    enter(&there)?;
    let done = what();
    if enter(&home).is_err() {
        // The process would look for everything else that it opens in the wrong namespace.
        std::process::abort();
    }
    done
}

fn opened(path: &Path) -> Result<OwnedFd, DeviceFailure> {
    open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).map_err(failed(OPEN))
}

fn enter(namespace: &OwnedFd) -> Result<(), DeviceFailure> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map_err(failed(ENTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_kernel_takes() {
        for name in ["lo", "veth-0.1", "a23456789012345"] {
            assert_eq!(check_name(name), Ok(()));
        }
        for name in ["", ".", "..", "a b", "tap%d", "a/b", "a:1", "a234567890123456", "a\n"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn interfaces_are_found_by_name() {
        assert!(index("lo").is_ok_and(|index| index > 0));
        assert_eq!(index("no-such-one").map_err(|failure| failure.errno), Err(Errno::NODEV));
        assert_eq!(index_if_up("no-such-one").map_err(|failure| failure.errno), Err(Errno::NODEV));
        let trouble = check_present("no-such-one").expect_err("it is not there");
        assert!(trouble.0.contains("no-such-one") && trouble.0.contains("ip link"), "{trouble}");
    }
}
