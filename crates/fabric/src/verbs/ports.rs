//! What this machine has for RDMA: the ports that a connection could use, how its routes see an address,
//! the version of rdma-core, and how much memory may be locked.
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
use super::limits::*;
use super::message::Port;
use super::obstacle::Obstacle;
use super::quirks::Quirk;
use super::resources::{Depths, own_bytes};
use crate::contract::Exposure;

/// Any port will do to ask for a route: no packet is sent.
const DISCARD: u16 = 9;

/// The ports that carry traffic, and the obstacles of all others.
#[derive(Debug, Default)]
pub struct Usable {
    /// Each address of each port.
    pub ports: Vec<Port>,
    /// Why there are no more ports.
    pub obstacles: Vec<Obstacle>,
}

/// Asks the kernel and every device. Cheap if there is no device.
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
    // A missing library is the same obstacle for all devices.
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
        for PortAddress { gid, gid_index } in addresses(context, facts) {
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

/// An address of a port that peers can use.
struct PortAddress {
    gid: [u8; 16],
    /// The index of the address in the port's table.
    gid_index: u8,
}

fn addresses(context: &Context, facts: &PortFacts) -> Vec<PortAddress> {
    let listed = |wanted: &dyn Fn(&Gid) -> bool| {
        let wanted = facts.gids.iter().filter(|gid| wanted(gid));
        wanted.map(|gid| PortAddress { gid: gid.bytes, gid_index: gid.index }).collect()
    };
    match facts.fabric {
        Some(Fabric::InfiniBand) => listed(&|gid| gid.index == 0),
        Some(Fabric::Roce) => listed(&|gid| gid.version == IBV_GID_TYPE_ROCE_V2),
        Some(Fabric::Iwarp) => managed_addresses(context.name()),
        None => Vec::new(),
    }
}

/// Returns the IP addresses at which the connection manager finds the device of that name: an iWARP device's
/// GID does not contain them.
fn managed_addresses(device: &str) -> Vec<PortAddress> {
    let here = |ip: &IpAddr| {
        let found = Id::bind(*ip).and_then(|id| Ok(id.context()?.name() == device));
        found.unwrap_or(false)
    };
    let gid = |ip| match ip {
        IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4).octets(),
        IpAddr::V6(v6) => Ipv6Addr::octets(&v6),
    };
    own_addresses().into_iter().filter(here).map(|ip| PortAddress { gid: gid(ip), gid_index: 0 }).collect()
}

/// Returns every address of an interface that is up, except link-local and loopback addresses.
pub fn own_addresses() -> Vec<IpAddr> {
    let mut list = ptr::null_mut();
    // SAFETY: the call fills in a list, which is freed below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut addresses = Vec::new();
    let mut entry = list;
    while !entry.is_null() {
        // SAFETY: `entry` is of the list; its address is null or of the family that it names.
        unsafe {
            if (*entry).ifa_flags & libc::IFF_UP as libc::c_uint != 0 {
                addresses.extend(address((*entry).ifa_addr));
            }
            entry = (*entry).ifa_next;
        }
    }
    // SAFETY: the list was made above, and is not used any more.
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
    // SAFETY: the caller promises it.
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

/// Returns how this machine would send from one address to another. Sends no packet.
pub fn route(from: IpAddr, to: IpAddr) -> Route {
    match (source(to), source_from(from, to)) {
        (Some(usual), _) if usual == from => Route::Usual,
        (_, Some(_)) => Route::Possible,
        _ => Route::None,
    }
}

/// Returns the address from which this machine sends to another by default.
pub fn source(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    source_from(any, to)
}

/// True if the address is this machine's own. Sends no packet.
pub fn is_here(ip: IpAddr) -> bool {
    ip.is_loopback() || source(ip) == Some(ip)
}

fn source_from(bound: IpAddr, to: IpAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((bound, 0)).ok()?;
    socket.connect((to, DISCARD)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// True if a port's device belongs to the NUMA node that this thread runs on, if there is one node only,
/// or if the kernel does not say.
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

/// Loads rdma-core, and returns its version, such as "44.0"; empty if the name of its file has none.
pub fn library_version() -> Result<String, Obstacle> {
    library::verbs().map_err(|why| Obstacle::NoLibrary { why })?;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    Ok(maps.lines().find_map(version_in).unwrap_or_default().to_owned())
}

/// Returns "44.0" for a line of /proc/self/maps that names libibverbs.so.1.14.44.0. The first two numbers are
/// the version of its interface.
fn version_in(line: &str) -> Option<&str> {
    let (_, numbers) = line.rsplit_once("/libibverbs.so.")?;
    numbers.splitn(3, '.').nth(2).filter(|version| !version.is_empty())
}

/// Returns the number of bytes that a connection of that exposure locks, on a device that
/// [uses windows](super::device::Context::uses_windows), or on another.
pub fn registered_bytes(exposure: &Exposure, uses_windows: bool) -> u64 {
    let depths = Depths { send: SEND_DEPTH, receive: IMMEDIATE_CREDIT + RECEIVE_RESERVE };
    let exposed = exposure.exposed.end - exposure.exposed.start;
    let all = exposed == exposure.arena_bytes;
    let twice = if uses_windows || all { 0 } else { exposed };
    exposure.arena_bytes.next_multiple_of(PAGE_BYTES) + twice + own_bytes(depths).next_multiple_of(PAGE_BYTES)
}

/// Returns the number of bytes that this process may lock; `None` if there is no limit.
pub fn memory_lock_limit() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match may_lock_all(&status) {
        true => None,
        false => rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
    }
}

/// True if the text of a /proc/PID/status lists the capability CAP_IPC_LOCK, to which no limit applies.
fn may_lock_all(status: &str) -> bool {
    const CAP_IPC_LOCK: u64 = 14;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits & 1 << CAP_IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Link;

    #[test]
    fn the_version_is_in_the_name_of_the_file() {
        let line = "7f00-7f01 r--p 0 fe:00 1  /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0";
        assert_eq!(version_in(line), Some("44.0"));
        assert_eq!(version_in("7f00-7f01 r--p 0 fe:00 1  /opt/lib/libibverbs.so.1"), None);
        assert_eq!(version_in("7f00-7f01 r--p 0 fe:00 1  /usr/lib/libc.so.6"), None);
    }

    #[test]
    fn root_locks_without_limit() {
        assert!(may_lock_all("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!may_lock_all("Name:\tx\nCapEff:\t0000000000000000\n"));
        assert!(!may_lock_all(""));
    }

    #[test]
    fn a_window_saves_a_registration() {
        let exposure = Link::exposure(1 << 19).unwrap();
        let (with, without) = (registered_bytes(&exposure, true), registered_bytes(&exposure, false));
        assert_eq!(without - with, 1 << 19);
        assert!(with > 2 << 19 && with < 2 << 20);
        assert_eq!(
            registered_bytes(&Exposure::all(4096), true),
            registered_bytes(&Exposure::all(4096), false)
        );
    }

    #[test]
    fn this_machine_knows_its_own_addresses() {
        for (ip, here) in [("127.0.0.1", true), ("::1", true), ("127.9.9.9", true), ("192.0.2.1", false)] {
            assert_eq!(is_here(ip.parse().unwrap()), here, "{ip}");
        }
    }
}
