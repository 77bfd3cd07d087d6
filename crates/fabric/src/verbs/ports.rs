//! The ports of this machine that a connection could use, and how its routes see an address.
//! `unsafe`: the list of interfaces' addresses.

#![allow(unsafe_code, reason = "calls getifaddrs(3)")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::ptr;
use std::sync::Arc;

use super::abi::IBV_GID_TYPE_ROCE_V2;
use super::choose::Route;
use super::cm::Id;
use super::device::{self, Context, Fabric, Gid, PortFacts};
use super::library;
use super::message::Port;
use super::obstacle::Obstacle;
use super::quirks::Quirk;

/// Any port will do to ask for a route: nothing is sent.
const DISCARD: u16 = 9;

/// Ports that carry traffic, and everything that keeps others from it.
#[derive(Debug, Default)]
pub struct Usable {
    /// Each address of each port.
    pub ports: Vec<Port>,
    /// Why there are not more.
    pub obstacles: Vec<Obstacle>,
}

/// Asks the kernel and every device. Cheap where there is no device.
pub fn usable() -> Usable {
    usable_of(device::names(), device::open)
}

pub(super) fn usable_of(names: Vec<String>, open: impl Fn(&str) -> Result<Arc<Context>, Obstacle>) -> Usable {
    let mut usable = Usable::default();
    if names.is_empty() {
        usable.obstacles.push(Obstacle::NoDevice);
    }
    for name in names {
        match open(&name) {
            Ok(context) if context.has(Quirk::NoReliableConnections) => {
                usable.obstacles.push(Obstacle::NoReliableConnections { device: name });
            }
            Ok(context) => usable.add(&context),
            Err(obstacle) => usable.obstacles.push(obstacle),
        }
    }
    // A missing library is missing for all devices alike.
    usable.obstacles.dedup();
    usable
}

impl Usable {
    fn add(&mut self, context: &Arc<Context>) {
        for number in 1..=context.facts().ports {
            match context.port(number) {
                Ok(facts) => self.add_port(context, &facts),
                Err(obstacle) => self.obstacles.push(obstacle),
            }
        }
    }

    fn add_port(&mut self, context: &Arc<Context>, facts: &PortFacts) {
        let (device, port) = (context.name().to_owned(), facts.number);
        if !facts.is_active() {
            self.obstacles.push(Obstacle::PortDown { device, port, state: facts.state });
            return;
        }
        if let (Some(Fabric::Iwarp), Err(why)) = (facts.fabric, library::connections()) {
            self.obstacles.push(Obstacle::NoLibrary { why });
            return;
        }
        let before = self.ports.len();
        for (gid, gid_index) in addresses(context, facts) {
            self.ports.extend(facts.fabric.map(|fabric| Port {
                fabric,
                device: device.clone(),
                number: port,
                gid,
                gid_index,
                lid: facts.lid,
                megabits: facts.megabits,
                mtu: facts.mtu,
            }));
        }
        if self.ports.len() == before {
            self.obstacles.push(Obstacle::NoAddress { device, port });
        }
    }
}

/// The addresses that others can use, with their places in the port's table.
fn addresses(context: &Context, facts: &PortFacts) -> Vec<([u8; 16], u8)> {
    let listed = |wanted: &dyn Fn(&Gid) -> bool| {
        facts.gids.iter().filter(|gid| wanted(gid)).map(|gid| (gid.bytes, gid.index)).collect()
    };
    match facts.fabric {
        Some(Fabric::InfiniBand) => listed(&|gid| gid.index == 0),
        Some(Fabric::Roce) => listed(&|gid| gid.version == IBV_GID_TYPE_ROCE_V2),
        Some(Fabric::Iwarp) => managed_addresses(context.name()),
        None => Vec::new(),
    }
}

/// The IP addresses at which the connection manager finds the device of that name: an iWARP device's
/// GID says nothing of them.
fn managed_addresses(device: &str) -> Vec<([u8; 16], u8)> {
    let here = |ip: &IpAddr| {
        let found = Id::bind(*ip).and_then(|id| Ok(id.context()?.name() == device));
        found.unwrap_or(false)
    };
    let gid = |ip| match ip {
        IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4).octets(),
        IpAddr::V6(v6) => Ipv6Addr::octets(&v6),
    };
    own_addresses().into_iter().filter(here).map(|ip| (gid(ip), 0)).collect()
}

/// Every address of this machine that is up, but those for one link or for itself only.
pub fn own_addresses() -> Vec<IpAddr> {
    let mut list = ptr::null_mut();
    // SAFETY: fills in a list, which is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut addresses = Vec::new();
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: an entry of the list; its address is null or of the family that it names.
        unsafe {
            if (*entry).ifa_flags & libc::IFF_UP as libc::c_uint != 0 {
                addresses.extend(address((*entry).ifa_addr));
            }
            entry = (*entry).ifa_next;
        }
    }
    // SAFETY: made above, and not used any more.
    unsafe { libc::freeifaddrs(list) };
    addresses.retain(|ip| match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && v6.segments()[0] & 0xffc0 != 0xfe80,
    });
    addresses
}

/// # Safety
/// `raw` is null, or points to an address of the family that it names.
unsafe fn address(raw: *const libc::sockaddr) -> Option<IpAddr> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    unsafe {
        match i32::from((*raw).sa_family) {
            libc::AF_INET => {
                let v4 = &*raw.cast::<libc::sockaddr_in>();
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
            }
            libc::AF_INET6 => {
                let v6 = &*raw.cast::<libc::sockaddr_in6>();
                Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
}

/// How this machine would send from one address to another. Nothing is sent.
pub fn route(from: IpAddr, to: IpAddr) -> Route {
    match (source(to), source_from(from, to)) {
        (Some(usual), _) if usual == from => Route::Usual,
        (_, Some(_)) => Route::Possible,
        _ => Route::None,
    }
}

/// The address from which this machine sends to another by itself.
pub fn source(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    source_from(any, to)
}

fn source_from(bound: IpAddr, to: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((bound, 0)).ok()?;
    socket.connect((to, DISCARD)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Whether a port's device hangs on the part of the machine that this thread runs on. True where
/// there is but one, or where nobody knows.
pub fn is_near(port: &Port) -> bool {
    let path = format!("{}/{}/device/numa_node", device::SYSFS, port.device);
    let node = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<i64>().ok());
    match node {
        Some(node) if node >= 0 => {
            let processor = rustix::thread::sched_getcpu();
            std::path::Path::new(&format!("/sys/devices/system/cpu/cpu{processor}/node{node}")).exists()
        }
        _ => true,
    }
}
