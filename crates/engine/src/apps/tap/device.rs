//! An open TAP interface: Documentation/networking/tuntap.rst of Linux.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::TapConfig;
use crate::app::AppError;
use crate::device::namespace::within;
use crate::device::sys::{InterfaceCall, InterfaceRequest, TapCall, interface_call, tap_call};
use crate::device::{DeviceFailure, failed, interface, namespace};

const TUN: &str = "/dev/net/tun";
const OPEN: &str = "open /dev/net/tun";
const ATTACH: &str = "ioctl TUNSETIFF";

#[derive(Debug)]
pub(super) struct TapDevice {
    /// One frame a read, one a write; never waits.
    pub(super) file: OwnedFd,
}

impl TapDevice {
    pub(super) fn open(config: &TapConfig) -> Result<Self, DeviceFailure> {
        within(config.namespace.as_deref(), || Self::open_here(config))
    }

    fn open_here(config: &TapConfig) -> Result<Self, DeviceFailure> {
        let file = open_tun()?;
        let mut flags = libc::IFF_TAP | libc::IFF_NO_PI;
        if config.multi_queue {
            flags |= libc::IFF_MULTI_QUEUE;
        }
        let mut request = InterfaceRequest::new(&config.name).with_flags(flags as i16);
        interface_call(&file, InterfaceCall::AttachTap, &mut request).map_err(failed(ATTACH))?;
        // An earlier user may have left some switched on.
        tap_call(&file, TapCall::Offloads, 0).map_err(failed("ioctl TUNSETOFFLOAD"))?;
        if config.persist {
            tap_call(&file, TapCall::Persist, 1).map_err(failed("ioctl TUNSETPERSIST"))?;
        }
        if let Some(mtu) = config.mtu {
            interface::set_mtu(&config.name, mtu)?;
        }
        if config.up {
            interface::set_up(&config.name)?;
        }
        Ok(Self { file })
    }
}

pub(super) fn open_tun() -> Result<OwnedFd, DeviceFailure> {
    open(TUN, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).map_err(failed(OPEN))
}

pub(super) fn not_allowed(name: &str) -> AppError {
    AppError(format!(
        "making or changing the TAP interface `{name}` takes CAP_NET_ADMIN: run as root, or have root make it \
         for this user: ip tuntap add {name} mode tap user USER && ip link set {name} up"
    ))
}

/// What failed, and what to do.
pub(super) fn explain(failure: &DeviceFailure, config: &TapConfig) -> AppError {
    let name = &config.name;
    match (failure.call, failure.errno) {
        (OPEN, Errno::NOENT | Errno::NODEV | Errno::NXIO) => AppError(format!(
            "{TUN} is missing ({}): load the kernel's module (modprobe tun), or hand the device to the \
             container (--device {TUN})",
            failure.errno
        )),
        (OPEN, Errno::ACCESS | Errno::PERM) => {
            AppError(format!("{TUN} may not be opened: run as root, or have root allow it (chmod 666 {TUN})"))
        }
        (ATTACH, Errno::BUSY) if config.multi_queue => {
            AppError(format!("the TAP interface `{name}` is in use without multi_queue: end its other user"))
        }
        (ATTACH, Errno::BUSY) => AppError(format!(
            "the TAP interface `{name}` is in use: end its other user, or give all of them multi_queue = true"
        )),
        (ATTACH, Errno::INVAL) => AppError(format!(
            "the interface `{name}` is no TAP interface, or was made with another multi_queue than \
             {}: choose another name, or delete it (ip link del {name})",
            config.multi_queue
        )),
        (namespace::OPEN | namespace::ENTER, errno) => {
            let path = config.namespace.as_deref().unwrap_or(std::path::Path::new("")).display();
            let remedy = match errno {
                Errno::PERM | Errno::ACCESS => "that takes CAP_SYS_ADMIN: run as root",
                _ => "name a file of a network namespace (`ip netns add NAME` makes /run/netns/NAME)",
            };
            AppError(format!("namespace = \"{path}\": it cannot be entered ({errno}): {remedy}"))
        }
        (_, Errno::PERM) => not_allowed(name),
        _ => AppError(format!("the TAP interface `{name}`: {failure}")),
    }
}
