//! A TAP interface: frames to and from this host's own network stack.

mod device;

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::io::{Errno, readv, write};
use rustix::thread::CapabilitySet;
use serde::Deserialize;

use crate::app::{App, AppError};
use crate::device::interface::{MTU_MAX, MTU_MIN, check_name, has_capability, index};
use crate::device::namespace::within;
use crate::device::{DeviceLine, Intake, is_away};
use crate::io::Io;
use crate::layout::DropReason;
use crate::packet::Packet;

use device::{TapDevice, explain};

/// Sends what the host sends through the interface to `output`, and gives what arrives at `input` to
/// the host. Frames are whole: the kernel leaves no checksum and no segmentation undone.
#[derive(Debug)]
pub struct Tap {
    config: TapConfig,
    line: DeviceLine<TapDevice>,
    intake: Intake,
    received: u64,
    transmitted: u64,
}

/// Which interface.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapConfig {
    /// Its name: one that is there, or is made.
    pub name: String,
    /// The network namespace that it is in, as a file (`/run/netns/NAME`); the engine's own if not given.
    #[serde(default)]
    pub namespace: Option<PathBuf>,
    /// Bytes of payload of a frame at most, from 68 to 1966; as it is if not given.
    #[serde(default)]
    pub mtu: Option<usize>,
    /// Whether it is brought up.
    #[serde(default = "yes")]
    pub up: bool,
    /// Whether it stays, with its addresses and routes, once nobody has it open: while the app
    /// moves, while its worker starts again, and after the engine.
    #[serde(default)]
    pub persist: bool,
    /// Whether several apps, of any worker and engine, may have it open: the kernel then spreads
    /// flows over them.
    #[serde(default)]
    pub multi_queue: bool,
}

fn yes() -> bool {
    true
}

impl TapConfig {
    /// The interface `name`, and otherwise what a configuration gets that says no more.
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

impl App for Tap {
    type Config = TapConfig;

    fn check(config: &TapConfig) -> Result<(), AppError> {
        check_name(&config.name)?;
        if let Some(mtu) = config.mtu.filter(|mtu| !(MTU_MIN..=MTU_MAX).contains(mtu)) {
            return Err(AppError(format!(
                "mtu = {mtu}: frames fit into packets with an MTU of {MTU_MIN} to {MTU_MAX}"
            )));
        }
        let openable = device::open_tun().map(drop);
        if config.namespace.is_some() {
            // To enter it also shows whether that is allowed.
            let entered = within(config.namespace.as_deref(), || Ok(()));
            return openable.and(entered).map_err(|failure| explain(&failure, config));
        }
        if openable.is_ok() && !has_capability(CapabilitySet::NET_ADMIN) && index(&config.name).is_err() {
            return Err(device::not_allowed(&config.name));
        }
        openable.map_err(|failure| explain(&failure, config))
    }

    fn start(config: TapConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        let line =
            DeviceLine::start(TapDevice::open(&config)).map_err(|failure| explain(&failure, &config))?;
        Ok(Self { config, line, intake: Intake::default(), received: 0, transmitted: 0 })
    }

    fn pull(&mut self, io: &mut Io) {
        let Self { config, line, intake, received, .. } = self;
        let now_ns = io.now_ns();
        let Some(device) = line.device_or(now_ns, || TapDevice::open(config)) else { return };
        for _ in 0..intake.budget(io) {
            let Some(mut packet) = intake.allocate(io) else { return };
            match read(device, &mut packet) {
                Ok(true) => {
                    *received += 1;
                    io.transmit(0, packet);
                }
                Ok(false) => io.discard(packet, DropReason::Oversize),
                Err(errno) => {
                    // Dropped, not freed: that would count as work, and the worker would not sleep.
                    drop(packet);
                    if errno == Errno::INTR {
                        continue;
                    }
                    if is_away(errno) {
                        line.lose(now_ns);
                    }
                    return;
                }
            }
        }
    }

    fn push(&mut self, io: &mut Io) {
        let now_ns = io.now_ns();
        while let Some(packet) = io.receive(0) {
            let Some(device) = self.line.device() else {
                io.discard(packet, DropReason::Device);
                continue;
            };
            match write(&device.file, packet.data()) {
                Ok(_) => {
                    self.transmitted += 1;
                    io.free(packet);
                }
                // Shorter than an Ethernet header.
                Err(Errno::INVAL) => io.discard(packet, DropReason::Malformed),
                Err(errno) => {
                    // EIO: the interface is down. EAGAIN, ENOBUFS, ENOMEM: the host does not keep up.
                    io.discard(packet, DropReason::Device);
                    if is_away(errno) {
                        self.line.lose(now_ns);
                    }
                }
            }
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let device = self.line.peek().filter(|_| !self.intake.is_held_up());
        device.map(|device| device.file.as_fd()).into_iter().collect()
    }

    fn wake_ns(&self) -> Option<u64> {
        self.line.wake_ns()
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("received", self.received),
            ("transmitted", self.transmitted),
            ("up", self.line.peek().is_some().into()),
            ("losses", self.line.losses()),
        ]
    }
}

/// Reads one frame into an empty packet; false if it is longer than that.
fn read(device: &TapDevice, packet: &mut Packet) -> Result<bool, Errno> {
    let room = packet.tailroom();
    // The kernel cuts off what does not fit without saying so: one byte more tells.
    let mut excess = [0];
    let data = packet.resize(room).unwrap_or_default();
    let length = readv(&device.file, &mut [IoSliceMut::new(data), IoSliceMut::new(&mut excess)])?;
    packet.truncate(length);
    Ok(length <= room)
}

#[cfg(test)]
mod tests {
    use super::*;

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
