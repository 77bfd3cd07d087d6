//! A TAP interface: frames to and from this host's own network stack (Documentation/networking/tuntap.rst of
//! Linux).

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, readv, write};
use rustix::thread::CapabilitySet;
use serde::Deserialize;

use crate::app::AppError;
use crate::device::sys::{InterfaceCall, InterfaceRequest, TapCall, interface_call, tap_call};
use crate::device::{
    self, DeviceApp, DeviceFailure, MTU_MAX, MTU_MIN, PacketDevice, Received, check_name, failed,
    has_capability, index, is_away, within,
};
use crate::layout::DropReason;
use crate::packet::Packet;

/// Sends frames that the host sends through the interface to `output`, and gives frames at `input` to
/// the host. Frames are complete: the kernel leaves no checksum and no segmentation undone.
pub type Tap = DeviceApp<TapInterface>;

/// The configuration of a `tap` app.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapConfig {
    /// The interface's name. The app makes the interface if it does not exist.
    pub name: String,
    /// The network namespace of the interface, as a file (`/run/netns/NAME`); the engine's own by default.
    #[serde(default)]
    pub namespace: Option<PathBuf>,
    /// The MTU, from 68 to 1966; by default it is left as it is.
    #[serde(default)]
    pub mtu: Option<usize>,
    /// True to bring the interface up.
    #[serde(default = "yes")]
    pub up: bool,
    /// True if the interface stays, with its addresses and routes, once no process has it open: while the app
    /// moves, while its worker starts again, and after the engine.
    #[serde(default)]
    pub persist: bool,
    /// True if several apps, of any worker and engine, may have the interface open: the kernel then spreads
    /// flows over them.
    #[serde(default)]
    pub multi_queue: bool,
}

fn yes() -> bool {
    true
}

impl TapConfig {
    /// Returns the configuration of the interface `name`, with the defaults of all other keys.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            namespace: None,
            mtu: None,
            up: true,
            persist: false,
            multi_queue: false,
        }
    }
}

const TUN: &str = "/dev/net/tun";
const OPEN: &str = "open /dev/net/tun";
const ATTACH: &str = "ioctl TUNSETIFF";

/// An open TAP interface.
#[derive(Debug)]
pub struct TapInterface {
    /// Each read or write takes one frame, and never waits.
    file: OwnedFd,
}

impl PacketDevice for TapInterface {
    type Config = TapConfig;

    fn check(config: &TapConfig) -> Result<(), AppError> {
        check_name(&config.name)?;
        if let Some(mtu) = config.mtu.filter(|mtu| !(MTU_MIN..=MTU_MAX).contains(mtu)) {
            return Err(AppError(format!(
                "mtu = {mtu}: frames fit into packets with an MTU of {MTU_MIN} to {MTU_MAX}"
            )));
        }
        let openable = open_tun().map(drop);
        if config.namespace.is_some() {
            // Entering it also shows whether that is allowed.
            let entered = within(config.namespace.as_deref(), || Ok(()));
            return openable.and(entered).map_err(|failure| Self::explain(&failure, config));
        }
        if openable.is_ok() && !has_capability(CapabilitySet::NET_ADMIN) && index(&config.name).is_err() {
            return Err(not_allowed(&config.name));
        }
        openable.map_err(|failure| Self::explain(&failure, config))
    }

    fn open(config: &TapConfig) -> Result<Self, DeviceFailure> {
        within(config.namespace.as_deref(), || Self::open_here(config))
    }

    fn explain(failure: &DeviceFailure, config: &TapConfig) -> AppError {
        let name = &config.name;
        match (failure.call, failure.errno) {
            (OPEN, Errno::NOENT | Errno::NODEV | Errno::NXIO) => AppError(format!(
                "{TUN} is missing ({}): load the kernel's module (modprobe tun), or hand the device to the \
                 container (--device {TUN})",
                failure.errno
            )),
            (OPEN, Errno::ACCESS | Errno::PERM) => AppError(format!(
                "{TUN} may not be opened: run as root, or have root allow it (chmod 666 {TUN})"
            )),
            (ATTACH, Errno::BUSY) if config.multi_queue => AppError(format!(
                "the TAP interface `{name}` is in use without multi_queue: end its other user"
            )),
            (ATTACH, Errno::BUSY) => AppError(format!(
                "the TAP interface `{name}` is in use: end its other user, or give all of them multi_queue = true"
            )),
            (ATTACH, Errno::INVAL) => AppError(format!(
                "the interface `{name}` is no TAP interface, or was made with another multi_queue than \
                 {}: choose another name, or delete it (ip link del {name})",
                config.multi_queue
            )),
            (device::OPEN | device::ENTER, errno) => {
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

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn receive(&mut self, packet: &mut Packet) -> Result<Received, Errno> {
        let room = packet.tailroom();
        // The kernel silently cuts off bytes that do not fit: one extra byte shows it.
        let mut excess = [0];
        let data = packet.resize(room).unwrap_or_default();
        match readv(&self.file, &mut [IoSliceMut::new(data), IoSliceMut::new(&mut excess)]) {
            Ok(length) if length > room => Ok(Received::Dropped(DropReason::Oversize)),
            Ok(length) => {
                packet.truncate(length);
                Ok(Received::Frame)
            }
            Err(errno) if is_away(errno) => Err(errno),
            // EAGAIN: there is no frame. EINTR: the next breath tries again.
            Err(_) => Ok(Received::Nothing),
        }
    }

    fn send(&mut self, packets: &[Packet]) -> Result<usize, Errno> {
        device::send_each(packets, |frame| write(&self.file, frame).map(drop))
    }
}

impl TapInterface {
    fn open_here(config: &TapConfig) -> Result<Self, DeviceFailure> {
        let file = open_tun()?;
        let mut flags = libc::IFF_TAP | libc::IFF_NO_PI;
        if config.multi_queue {
            flags |= libc::IFF_MULTI_QUEUE;
        }
        let mut request = InterfaceRequest::new(&config.name).with_flags(flags as i16);
        interface_call(&file, InterfaceCall::AttachTap, &mut request).map_err(failed(ATTACH))?;
        // An earlier user may have left some of them switched on.
        tap_call(&file, TapCall::Offloads, 0).map_err(failed("ioctl TUNSETOFFLOAD"))?;
        if config.persist {
            tap_call(&file, TapCall::Persist, 1).map_err(failed("ioctl TUNSETPERSIST"))?;
        }
        if let Some(mtu) = config.mtu {
            device::set_mtu(&config.name, mtu)?;
        }
        if config.up {
            device::set_up(&config.name)?;
        }
        Ok(Self { file })
    }
}

fn open_tun() -> Result<OwnedFd, DeviceFailure> {
    open(TUN, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).map_err(failed(OPEN))
}

fn not_allowed(name: &str) -> AppError {
    AppError(format!(
        "making or changing the TAP interface `{name}` takes CAP_NET_ADMIN: run as root, or have root make it \
         for this user: ip tuntap add {name} mode tap user USER && ip link set {name} up"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::App;

    #[test]
    fn a_configuration_is_checked_before_anything_is_opened() {
        let long = TapConfig { mtu: Some(MTU_MAX + 1), ..TapConfig::new("tap0") };
        let trouble = Tap::check(&long).expect_err("too long");
        assert!(trouble.0.contains("1967") && trouble.0.contains("1966"), "{trouble}");
        let trouble = Tap::check(&TapConfig::new("tap%d")).expect_err("no name");
        assert!(trouble.0.contains("tap%d"), "{trouble}");
    }

    #[test]
    fn keys_have_defaults_and_no_others_are_taken() {
        let parse = serde_json::from_str::<TapConfig>;
        assert_eq!(parse(r#"{"name":"tap0"}"#).unwrap(), TapConfig::new("tap0"));
        assert!(parse(r#"{"name":"tap0","mac":1}"#).is_err());
    }
}
