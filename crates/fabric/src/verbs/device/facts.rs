//! What devices and ports report of themselves. `unsafe`: texts that the C library fills in.

#![allow(unsafe_code, reason = "reads what libibverbs filled in")]

use std::ffi::{CStr, c_int};
use std::net::{IpAddr, Ipv6Addr};

use super::super::abi::*;

/// How a port talks to others, as far as setting up a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// InfiniBand: addressed by LID and GID, no IP needed.
    InfiniBand,
    /// RDMA over Converged Ethernet, version 2: UDP port 4791, addressed by GIDs made of IP addresses.
    Roce,
    /// RDMA over TCP: connections are made by the connection manager.
    Iwarp,
}

impl Fabric {
    /// What users call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE v2",
            Self::Iwarp => "iWARP",
        }
    }
}

/// What a device reports of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Version of its firmware; empty for software devices.
    pub firmware: String,
    /// Who made it, as PCI numbers vendors; and which part.
    pub vendor: (u32, u32),
    /// Connections (queue pairs) it takes.
    pub queue_pairs_max: u32,
    /// Work requests of a queue.
    pub queue_depth_max: u32,
    /// Entries of a completion queue.
    pub completions_max: u32,
    /// Memory regions.
    pub regions_max: u32,
    /// Bytes of the largest region.
    pub region_bytes_max: u64,
    /// Reads and compare-and-swaps under way on one connection, as target and as initiator.
    pub reads_max: (u8, u8),
    /// Compare-and-swap exists; and is atomic against the processor.
    pub swaps: (bool, bool),
    /// Memory windows that bind to a connection (type 2B).
    pub memory_windows: bool,
    /// Ports, numbered from 1.
    pub ports: u8,
}

/// What a port reports of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// From 1.
    pub number: u8,
    /// How it talks to others; `None` for a link layer that is not known.
    pub fabric: Option<Fabric>,
    /// "active", or what else it is.
    pub state: &'static str,
    /// Megabits a second; 0 where it does not say.
    pub megabits: u32,
    /// Bytes of a packet's payload.
    pub mtu: u32,
    /// Bytes of the longest operation.
    pub operation_bytes_max: u32,
    /// Its address in an InfiniBand subnet; 0 elsewhere.
    pub lid: u16,
    /// Its other addresses.
    pub gids: Vec<Gid>,
}

impl PortFacts {
    /// It carries traffic.
    pub fn is_active(&self) -> bool {
        self.state == "active"
    }
}

/// One address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the port's table.
    pub index: u8,
    /// The address.
    pub bytes: [u8; 16],
    /// 0: InfiniBand; 1, 2: RoCE v1, v2.
    pub version: u32,
    /// The network interface that it belongs to; empty where there is none.
    pub interface: String,
}

impl Gid {
    /// As an IP address, which RoCE v2 and iWARP use.
    pub fn ip(&self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.bytes);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// Valid on one link only.
    pub fn is_link_local(&self) -> bool {
        self.bytes[0] == 0xfe && self.bytes[1] & 0xc0 == 0x80
    }
}

impl Facts {
    pub(super) fn of(attributes: &ibv_device_attr) -> Self {
        let count = |number: c_int| u32::try_from(number).unwrap_or(0);
        let small = |number: c_int| u8::try_from(number.clamp(0, 255)).unwrap_or(0);
        // SAFETY: the library ends it in a zero byte.
        let firmware = unsafe { CStr::from_ptr(attributes.fw_ver.as_ptr()) };
        Self {
            firmware: firmware.to_string_lossy().into_owned(),
            vendor: (attributes.vendor_id, attributes.vendor_part_id),
            queue_pairs_max: count(attributes.max_qp),
            queue_depth_max: count(attributes.max_qp_wr),
            completions_max: count(attributes.max_cqe),
            regions_max: count(attributes.max_mr),
            region_bytes_max: attributes.max_mr_size,
            reads_max: (small(attributes.max_qp_rd_atom), small(attributes.max_qp_init_rd_atom)),
            swaps: (attributes.atomic_cap != IBV_ATOMIC_NONE, attributes.atomic_cap == IBV_ATOMIC_GLOB),
            memory_windows: attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B != 0
                && attributes.max_mw > 0,
            ports: attributes.phys_port_cnt,
        }
    }
}

pub(super) fn state_name(state: c_int) -> &'static str {
    match state {
        1 => "down",
        2 => "initializing",
        3 => "armed",
        IBV_PORT_ACTIVE => "active",
        5 => "active, deferred",
        _ => "in no known state",
    }
}

pub(super) fn interface_name(index: u32) -> String {
    let mut buffer = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the function asks for; it ends the name in a zero byte.
    let named = unsafe { libc::if_indextoname(index, buffer.as_mut_ptr()) };
    if index == 0 || named.is_null() {
        return String::new();
    }
    // SAFETY: filled just now.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned()
}
