//! An interface of this host, frame by frame: packet(7).

mod checksum;
mod device;
mod ring;

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use serde::Deserialize;

use crate::app::{App, AppError};
use crate::device::interface::{check_present, has_capability};
use crate::device::{DeviceLine, Intake, interface, is_away};
use crate::io::Io;
use crate::layout::DropReason;
use crate::packet::Packet;

use device::{AfPacketDevice, explain};

/// Sends a copy of every frame that the interface receives to `output`, and sends what arrives at
/// `input` through the interface.
#[derive(Debug)]
pub struct AfPacket {
    config: AfPacketConfig,
    line: DeviceLine<AfPacketDevice>,
    /// Packets on their way to the kernel: empty between calls.
    batch: Vec<Packet>,
    intake: Intake,
    received: u64,
    transmitted: u64,
    kernel_drops: u64,
}

/// Which interface.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AfPacketConfig {
    /// Its name.
    pub interface: String,
    /// Whether frames to other hosts are received, too, as a bridge needs.
    #[serde(default)]
    pub promiscuous: bool,
    /// Whether frames are sent past the interface's queueing discipline: faster, but what the driver
    /// does not take at once is dropped.
    #[serde(default)]
    pub qdisc_bypass: bool,
}

impl AfPacketConfig {
    /// The interface `name`, and otherwise what a configuration gets that says no more.
    pub fn new(name: &str) -> Self {
        Self { interface: name.to_owned(), promiscuous: false, qdisc_bypass: false }
    }
}

impl App for AfPacket {
    type Config = AfPacketConfig;

    fn check(config: &AfPacketConfig) -> Result<(), AppError> {
        check_present(&config.interface)?;
        if !has_capability(CapabilitySet::NET_RAW) {
            return Err(device::not_allowed(&config.interface));
        }
        Ok(())
    }

    fn start(config: AfPacketConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        let line =
            DeviceLine::start(AfPacketDevice::open(&config)).map_err(|failure| explain(&failure, &config))?;
        Ok(Self {
            config,
            line,
            batch: Vec::new(),
            intake: Intake::default(),
            received: 0,
            transmitted: 0,
            kernel_drops: 0,
        })
    }

    fn pull(&mut self, io: &mut Io) {
        let Self { config, line, intake, received, .. } = self;
        let now_ns = io.now_ns();
        let Some(device) = line.device_or(now_ns, || {
            interface::index_if_up(&config.interface)?;
            AfPacketDevice::open(config)
        }) else {
            return;
        };
        for _ in 0..intake.budget(io) {
            let Some(frame) = device.ring.peek() else { break };
            let Some(mut packet) = intake.allocate(io) else { break };
            *received += 1;
            match device.ring.take(&frame, &mut packet) {
                Ok(()) => io.transmit(0, packet),
                Err(why) => io.discard(packet, why),
            }
        }
        if line.shall_count(now_ns) {
            self.count_drops(io);
        }
        if self.line.shall_look(now_ns) {
            self.look(now_ns);
        }
    }

    fn push(&mut self, io: &mut Io) {
        while let Some(packet) = io.receive(0) {
            self.batch.push(packet);
            if self.batch.len() == crate::device::sys::SEND_PACKETS {
                self.send(io);
            }
        }
        self.send(io);
    }

    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>> {
        self.count_drops(io);
        None
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let device = self.line.peek().filter(|_| !self.intake.is_held_up());
        device.map(|device| device.receiver.as_fd()).into_iter().collect()
    }

    fn wake_ns(&self) -> Option<u64> {
        self.line.wake_ns()
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("received", self.received),
            ("transmitted", self.transmitted),
            ("kernel_drops", self.kernel_drops),
            ("up", self.line.peek().is_some().into()),
            ("losses", self.line.losses()),
        ]
    }
}

impl AfPacket {
    /// Sends the batch, and empties it.
    fn send(&mut self, io: &mut Io) {
        while !self.batch.is_empty() {
            let sent = match self.line.device() {
                Some(device) => device.send(&self.batch),
                None => Err(Errno::NODEV),
            };
            match sent {
                Ok(count) => {
                    self.transmitted += count as u64;
                    self.batch.drain(..count).for_each(|packet| io.free(packet));
                }
                Err(Errno::INTR) => {}
                Err(errno) => {
                    // The error is the first one's; the next may be luckier.
                    io.discard(self.batch.remove(0), cause(errno));
                    if is_away(errno) {
                        self.line.lose(io.now_ns());
                    }
                }
            }
        }
    }

    /// Counts what the kernel dropped because the ring was full.
    fn count_drops(&mut self, io: &mut Io) {
        let drops = self.line.device().map_or(0, |device| device.drops());
        self.kernel_drops += drops;
        io.count_drops(DropReason::Device, drops);
    }

    /// Looks whether the interface is still there.
    fn look(&mut self, now_ns: u64) {
        if self.line.device().is_some_and(|device| device.has_failed()) {
            self.line.lose(now_ns);
        }
    }
}

/// Under which cause a frame is counted that the kernel did not take.
fn cause(errno: Errno) -> DropReason {
    match errno {
        Errno::MSGSIZE => DropReason::Oversize,
        // Shorter than an Ethernet header.
        Errno::INVAL => DropReason::Malformed,
        // ENOBUFS, EAGAIN: the interface does not keep up. ENETDOWN, ENXIO: it is away.
        _ => DropReason::Device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_refused() {
        let trouble = AfPacket::check(&AfPacketConfig::new("no-such-one")).expect_err("it is not there");
        assert!(trouble.0.contains("`no-such-one`"), "{trouble}");
    }
}
