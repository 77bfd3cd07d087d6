//! Two packet sockets on an interface: one receives through a ring in memory, one sends.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::AfPacketConfig;
use super::ring::{BLOCK_BYTES, BLOCKS, PacketRing};
use crate::app::AppError;
use crate::device::mapping::Mapping;
use crate::device::sys::{bind_packet, option, send_packets, set_option};
use crate::device::{DeviceFailure, failed, interface};
use crate::packet::Packet;

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
/// All protocols, and none, of `linux/if_ether.h`.
const ALL: u16 = 3;
const NONE: u16 = 0;

/// How long frames wait in a block that is not full. The kernel rounds it up to its tick
/// before Linux 6.18.
const BLOCK_MS: u32 = 1;
/// The size that a ring of version 3 must name, and does not use.
const FRAME_BYTES: usize = 2048;

const SOCKET: &str = "socket AF_PACKET";
const RING: &str = "setsockopt PACKET_RX_RING";

#[derive(Debug)]
pub(super) struct AfPacketDevice {
    /// Unmapped before the socket goes, and empty between two pulls.
    pub(super) ring: PacketRing,
    pub(super) receiver: OwnedFd,
    /// Of its own, as a socket whose frames come with a `virtio_net_hdr` must send them so, too.
    sender: OwnedFd,
}

impl AfPacketDevice {
    pub(super) fn open(config: &AfPacketConfig) -> Result<Self, DeviceFailure> {
        let index = interface::index(&config.interface)?;
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
        Ok(Self { ring, receiver, sender })
    }

    /// How many of `packets` were sent, from the first on; an error is the first one's.
    pub(super) fn send(&self, packets: &[Packet]) -> Result<usize, Errno> {
        send_packets(&self.sender, packets)
    }

    /// Frames lost since the last call: the ring was full, or one of its frames made no sense.
    pub(super) fn drops(&mut self) -> u64 {
        // `struct tpacket_stats_v3`: packets, drops, freezes; reading sets them to 0.
        let words = option::<12>(&self.receiver, libc::SOL_PACKET, STATISTICS).unwrap_or_default();
        let dropped = u32::from_ne_bytes([words[4], words[5], words[6], words[7]]);
        u64::from(dropped) + self.ring.take_broken()
    }

    /// Whether the interface went away or down. Neither says so but once, to the first that asks.
    pub(super) fn has_failed(&self) -> bool {
        !matches!(sockopt::socket_error(&self.receiver), Ok(Ok(())))
    }
}

fn packet_socket() -> Result<OwnedFd, DeviceFailure> {
    // Without a protocol it receives nothing until it is bound.
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

pub(super) fn not_allowed(name: &str) -> AppError {
    AppError(format!(
        "frames of `{name}` take CAP_NET_RAW: run as root, or allow it to the program: \
         setcap cap_net_raw+ep $(command -v caravan)"
    ))
}

/// What failed, and what to do.
pub(super) fn explain(failure: &DeviceFailure, config: &AfPacketConfig) -> AppError {
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
        (_, Errno::NOPROTOOPT) => {
            AppError(format!("`{name}`: this kernel is too old, {} takes Linux 4.20 or newer", failure.call))
        }
        _ => AppError(format!("the interface `{name}`: {failure}")),
    }
}
