//! An app on an interface of this host: packet(7).

mod ring;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use rustix::thread::CapabilitySet;
use serde::Deserialize;

use crate::app::AppError;
use crate::device::sys::{Mapping, bind_packet, option, send_packets, set_option};
use crate::device::{
    self, DeviceApp, DeviceFailure, PacketDevice, Received, check_present, failed, has_capability,
};
use crate::packet::Packet;
use ring::{BLOCK_BYTES, BLOCKS, PacketRing, RingFrame};

/// Sends a copy of every frame that the interface receives to `output`, and sends what arrives at
/// `input` through the interface.
pub type AfPacket = DeviceApp<PacketSockets>;

/// The configuration of an `af_packet` app.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AfPacketConfig {
    /// The interface's name.
    pub interface: String,
    /// True to receive frames to other hosts, too, as a bridge needs.
    #[serde(default)]
    pub promiscuous: bool,
    /// True to send frames past the interface's queueing discipline: this is faster, but frames that the driver
    /// does not take at once are dropped.
    #[serde(default)]
    pub qdisc_bypass: bool,
}

impl AfPacketConfig {
    /// Returns the configuration of the interface `name`, with the defaults of all other keys.
    pub fn new(name: &str) -> Self {
        Self { interface: name.to_owned(), promiscuous: false, qdisc_bypass: false }
    }
}

// `linux/if_packet.h`.
const ADD_MEMBERSHIP: i32 = 1;
const RX_RING: i32 = 5;
const STATISTICS: i32 = 6;
const VERSION: i32 = 10;
const VNET_HEADER: i32 = 15;
const QDISC_BYPASS: i32 = 20;
const IGNORE_OUTGOING: i32 = 23;
const TPACKET_V3: i32 = 2;
const PROMISCUOUS: u16 = 1;
/// All protocols and no protocol, of `linux/if_ether.h`.
const ALL: u16 = 3;
const NONE: u16 = 0;

/// How long frames wait in a block that is not full. The kernel rounds it up to its tick
/// before Linux 6.18.
const BLOCK_MS: u32 = 1;
/// A size that a ring of version 3 must name, and does not use.
const FRAME_BYTES: usize = 2048;

const SOCKET: &str = "socket AF_PACKET";
const RING: &str = "setsockopt PACKET_RX_RING";

/// Two packet sockets on an interface: one receives through a ring in memory, one sends.
#[derive(Debug)]
pub struct PacketSockets {
    /// It is unmapped before the socket is closed, and empty between two pulls.
    ring: PacketRing,
    /// The oldest frame in the ring, if the app has looked for it.
    next: Option<RingFrame>,
    receiver: OwnedFd,
    /// A separate socket, as a socket that receives frames with a `virtio_net_hdr` must send them so, too.
    sender: OwnedFd,
}

impl PacketDevice for PacketSockets {
    type Config = AfPacketConfig;

    fn check(config: &AfPacketConfig) -> Result<(), AppError> {
        check_present(&config.interface)?;
        if !has_capability(CapabilitySet::NET_RAW) {
            return Err(not_allowed(&config.interface));
        }
        Ok(())
    }

    fn open(config: &AfPacketConfig) -> Result<Self, DeviceFailure> {
        let index = device::index(&config.interface)?;
        let receiver = packet_socket()?;
        let set = |option, value: &[u8], call| {
            set_option(&receiver, libc::SOL_PACKET, option, value).map_err(failed(call))
        };
        set(VERSION, &TPACKET_V3.to_ne_bytes(), "setsockopt PACKET_VERSION")?;
        set(VNET_HEADER, &1_i32.to_ne_bytes(), "setsockopt PACKET_VNET_HDR")?;
        set(IGNORE_OUTGOING, &1_i32.to_ne_bytes(), "setsockopt PACKET_IGNORE_OUTGOING")?;
        set(RX_RING, &ring_request(), RING)?;
        let bytes = BLOCKS * BLOCK_BYTES;
        let ring =
            PacketRing::new(Mapping::of(receiver.as_fd(), 0, bytes).map_err(failed("mmap of a ring"))?);
        bind_packet(&receiver, index, ALL).map_err(failed("bind"))?;
        if config.promiscuous {
            set(ADD_MEMBERSHIP, &membership(index), "setsockopt PACKET_ADD_MEMBERSHIP")?;
        }
        let sender = packet_socket()?;
        if config.qdisc_bypass {
            set_option(&sender, libc::SOL_PACKET, QDISC_BYPASS, &1_i32.to_ne_bytes())
                .map_err(failed("setsockopt PACKET_QDISC_BYPASS"))?;
        }
        bind_packet(&sender, index, NONE).map_err(failed("bind"))?;
        Ok(Self { ring, next: None, receiver, sender })
    }

    fn open_again(config: &AfPacketConfig) -> Result<Self, DeviceFailure> {
        device::index_if_up(&config.interface)?;
        Self::open(config)
    }

    fn explain(failure: &DeviceFailure, config: &AfPacketConfig) -> AppError {
        let name = &config.interface;
        match (failure.call, failure.errno) {
            (_, Errno::PERM | Errno::ACCESS) => not_allowed(name),
            (SOCKET, Errno::AFNOSUPPORT) => AppError(
                "this kernel has no packet sockets (CONFIG_PACKET): load the module (modprobe af_packet)"
                    .to_owned(),
            ),
            (RING, Errno::NOMEM) => AppError(format!(
                "the kernel has no {} MiB for the ring of `{name}`: free memory, or allow the control group more",
                (BLOCKS * BLOCK_BYTES) >> 20
            )),
            (_, Errno::NOPROTOOPT) => AppError(format!(
                "`{name}`: this kernel is too old, {} takes Linux 4.20 or newer",
                failure.call
            )),
            _ => AppError(format!("the interface `{name}`: {failure}")),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }

    fn has_frame(&mut self) -> bool {
        self.next = self.ring.peek();
        self.next.is_some()
    }

    fn receive(&mut self, packet: &mut Packet) -> Result<Received, Errno> {
        let Some(frame) = self.next.take() else { return Ok(Received::Nothing) };
        Ok(self.ring.take(&frame, packet).map_or_else(Received::Dropped, |()| Received::Frame))
    }

    fn send(&mut self, packets: &[Packet]) -> Result<usize, Errno> {
        send_packets(&self.sender, packets)
    }

    /// Counts the frames for which the ring was full, and the frames that were invalid.
    fn take_drops(&mut self) -> u64 {
        // `struct tpacket_stats_v3`: packets, drops, freezes; reading sets them to 0.
        let words = option::<12>(&self.receiver, libc::SOL_PACKET, STATISTICS).unwrap_or_default();
        let dropped = u32::from_ne_bytes([words[4], words[5], words[6], words[7]]);
        u64::from(dropped) + self.ring.take_broken()
    }

    /// The kernel reports either event only once, to the first call that asks.
    fn has_failed(&self) -> bool {
        !matches!(sockopt::socket_error(&self.receiver), Ok(Ok(())))
    }

    fn figures(_: Option<&Self>, kernel_drops: u64) -> Vec<(&'static str, u64)> {
        vec![("kernel_drops", kernel_drops)]
    }
}

fn packet_socket() -> Result<OwnedFd, DeviceFailure> {
    // Without a protocol, the socket receives nothing until it is bound.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(failed(SOCKET))
}

/// `struct tpacket_req3`.
fn ring_request() -> [u8; 28] {
    let frames = BLOCKS * BLOCK_BYTES / FRAME_BYTES;
    let sizes = [BLOCK_BYTES as u32, BLOCKS as u32, FRAME_BYTES as u32, frames as u32, BLOCK_MS, 0, 0];
    let mut request = [0; 28];
    for (bytes, size) in request.chunks_exact_mut(4).zip(sizes) {
        bytes.copy_from_slice(&size.to_ne_bytes());
    }
    request
}

/// `struct packet_mreq`.
fn membership(index: u32) -> [u8; 16] {
    let mut request = [0; 16];
    request[..4].copy_from_slice(&index.to_ne_bytes());
    request[4..6].copy_from_slice(&PROMISCUOUS.to_ne_bytes());
    request
}

fn not_allowed(name: &str) -> AppError {
    AppError(format!(
        "frames of `{name}` take CAP_NET_RAW: run as root, or allow it to the program: \
         setcap cap_net_raw+ep $(command -v caravan)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::App;

    #[test]
    fn an_interface_that_is_not_there_is_refused() {
        let trouble = AfPacket::check(&AfPacketConfig::new("no-such-one")).expect_err("it is not there");
        assert!(trouble.0.contains("`no-such-one`"), "{trouble}");
    }
}
