//! One queue of an interface, past the kernel's network stack: Documentation/networking/af_xdp.rst
//! of Linux.

mod device;
#[allow(unsafe_code)]
mod program;
mod ring;
mod umem;

use std::os::fd::{AsFd, BorrowedFd};

use rustix::thread::CapabilitySet;
use serde::Deserialize;

use crate::app::{App, AppError};
use crate::device::interface::{check_present, has_capability};
use crate::device::{DeviceLine, Intake, interface, is_away};
use crate::io::Io;
use crate::layout::DropReason;

use device::{AfXdpDevice, explain};

/// Takes the frames that one queue of the interface receives away from the host, to `output`, and
/// sends what arrives at `input` through that queue.
#[derive(Debug)]
pub struct AfXdp {
    config: AfXdpConfig,
    line: DeviceLine<AfXdpDevice>,
    intake: Intake,
    received: u64,
    transmitted: u64,
    kernel_drops: u64,
}

/// How the kernel runs the program that hands frames over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XdpMode {
    /// In the driver if that can, else behind it.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// Behind the driver: works everywhere, and is slower.
    Generic,
}

/// Which queue.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AfXdpConfig {
    /// The interface's name.
    pub interface: String,
    /// The queue's number.
    #[serde(default)]
    pub queue: u32,
    /// How the kernel runs the program that hands frames over.
    #[serde(default)]
    pub mode: XdpMode,
    /// Whether the kernel copies frames even if the driver could do without.
    #[serde(default)]
    pub copy: bool,
}

impl AfXdpConfig {
    /// PacketQueue 0 of the interface `name`, and otherwise what a configuration gets that says no more.
    pub fn new(name: &str) -> Self {
        Self { interface: name.to_owned(), queue: 0, mode: XdpMode::Auto, copy: false }
    }
}

impl App for AfXdp {
    type Config = AfXdpConfig;

    fn check(config: &AfXdpConfig) -> Result<(), AppError> {
        check_present(&config.interface)?;
        if config.queue >= program::QUEUES_MAX {
            return Err(AppError(format!(
                "queue = {}: queues are numbered from 0 to {}",
                config.queue,
                program::QUEUES_MAX - 1
            )));
        }
        if !has_capability(CapabilitySet::NET_RAW) || !has_capability(CapabilitySet::NET_ADMIN) {
            return Err(device::not_allowed(&config.interface));
        }
        // Whether this kernel has such sockets.
        device::xdp_socket().map(drop).map_err(|failure| explain(&failure, config))
    }

    fn start(config: AfXdpConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        let opened = AfXdpDevice::open_patiently(&config);
        let line = DeviceLine::start(opened).map_err(|failure| explain(&failure, &config))?;
        Ok(Self { config, line, intake: Intake::default(), received: 0, transmitted: 0, kernel_drops: 0 })
    }

    fn pull(&mut self, io: &mut Io) {
        let Self { config, line, intake, received, .. } = self;
        let now_ns = io.now_ns();
        let Some(device) = line.device_or(now_ns, || {
            interface::index_if_up(&config.interface)?;
            AfXdpDevice::open(config)
        }) else {
            return;
        };
        for _ in 0..intake.budget(io).min(device.waiting()) {
            let Some(mut packet) = intake.allocate(io) else { break };
            *received += 1;
            match device.receive(&mut packet) {
                Ok(()) => io.transmit(0, packet),
                Err(why) => io.discard(packet, why),
            }
        }
        device.settle();
        if line.shall_count(now_ns) {
            self.count_drops(io);
        }
        if self.line.shall_look(now_ns) {
            self.look(io);
        }
    }

    fn push(&mut self, io: &mut Io) {
        if io.waiting(0) == 0 {
            return;
        }
        while let Some(packet) = io.receive(0) {
            match self.line.device().map_or(Err(DropReason::Device), |device| device.send(packet.data())) {
                Ok(()) => {
                    self.transmitted += 1;
                    io.free(packet);
                }
                Err(why) => io.discard(packet, why),
            }
        }
        self.flush(io);
    }

    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>> {
        self.count_drops(io);
        None
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let device = self.line.peek().filter(|_| !self.intake.is_held_up());
        device.map(|device| device.socket.as_fd()).into_iter().collect()
    }

    fn wake_ns(&self) -> Option<u64> {
        let unsent = self.line.peek().is_some_and(|device| device.unsent() > 0);
        if unsent { Some(self.line.look_ns()) } else { self.line.wake_ns() }
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("received", self.received),
            ("transmitted", self.transmitted),
            ("kernel_drops", self.kernel_drops),
            ("zero_copy", self.line.peek().is_some_and(|device| device.zero_copy).into()),
            ("up", self.line.peek().is_some().into()),
            ("losses", self.line.losses()),
        ]
    }
}

impl AfXdp {
    /// Counts what the kernel dropped on the way to us.
    fn count_drops(&mut self, io: &mut Io) {
        let drops = self.line.device().map_or(0, AfXdpDevice::drops);
        self.kernel_drops += drops;
        io.count_drops(DropReason::Device, drops);
    }

    /// Has the kernel send what it was given. If the interface is away, that is lost.
    fn flush(&mut self, io: &mut Io) {
        let Some(device) = self.line.device() else { return };
        if device.flush().is_err_and(is_away) {
            let lost = u64::from(device.unsent());
            self.transmitted = self.transmitted.saturating_sub(lost);
            io.count_drops(DropReason::Device, lost);
            self.line.lose(io.now_ns());
        }
    }

    /// Looks whether the interface is still there, and whether the kernel has frames left to send.
    fn look(&mut self, io: &mut Io) {
        self.flush(io);
        if self.line.device().is_some_and(|device| device.has_failed()) {
            self.line.lose(io.now_ns());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_refused() {
        let trouble = AfXdp::check(&AfXdpConfig::new("no-such-one")).expect_err("it is not there");
        assert!(trouble.0.contains("`no-such-one`"), "{trouble}");
    }

    #[test]
    fn a_queue_that_cannot_be_is_refused() {
        let config = AfXdpConfig { queue: program::QUEUES_MAX, ..AfXdpConfig::new("lo") };
        assert!(AfXdp::check(&config).is_err_and(|trouble| trouble.0.contains("queue = 4096")));
    }
}
