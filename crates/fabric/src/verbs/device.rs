//! Devices, their ports and addresses. `unsafe`: calls of libibverbs.

#![allow(unsafe_code, reason = "calls into libibverbs")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::abi::*;
use super::library::{self, Verbs};
use super::obstacle::Obstacle;
use super::quirks::{self, Quirk};

/// Where the kernel lists its RDMA devices, with or without rdma-core.
pub(super) const SYSFS: &str = "/sys/class/infiniband";
/// Where the kernel lists the devices that programs may open, once the module for that is loaded.
const SYSFS_VERBS: &str = "/sys/class/infiniband_verbs";
/// The folder of the device files.
const DEVICE_FILES: &str = "/dev/infiniband";
/// The variable that the tests set, to anything, to run the code of memory windows over Soft-RoCE.
const WINDOWS_VARIABLE: &str = "CARAVAN_BROKEN_WINDOWS";
/// The number of addresses of a port that are read; a RoCE port has two or more for each IP address.
const GIDS_MAX: u32 = 256;
/// The number of addresses of a device's ports that are read at once: few have as many as four ports.
const GIDS_AT_ONCE_MAX: usize = 4 * GIDS_MAX as usize;

/// An open device. All connections of this process over a device share one; the last of them closes it.
#[derive(Debug)]
pub struct Context {
    pub(super) raw: NonNull<ibv_context>,
    pub(super) verbs: &'static Verbs,
    name: String,
    facts: DeviceFacts,
    iwarp: bool,
    /// The device belongs to librdmacm, which closes it.
    borrowed: bool,
    failed: AtomicBool,
}

/// The events of queue pairs and devices, by address. One table for all: several values may stand for one device
/// of librdmacm's, and any of them may be the one that reads its events.
static TROUBLE: Mutex<BTreeMap<usize, c_int>> = Mutex::new(BTreeMap::new());

// SAFETY: libibverbs' objects may be used by any thread; its calls lock what they share.
unsafe impl Send for Context {}
// SAFETY: libibverbs' calls lock what they share.
unsafe impl Sync for Context {}

/// Where the kernel shows the devices that programs may open.
#[derive(Clone, Copy, Debug)]
struct DevicePaths<'a> {
    /// A folder with an entry for each device.
    listed: &'a Path,
    /// A folder with the device files.
    files: &'a Path,
}

/// Returns the names of the devices that the kernel has, with or without rdma-core.
pub fn names() -> Vec<String> {
    names_below(Path::new(SYSFS))
}

fn names_below(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Opens the device of that name, or shares it if it is open already.
pub fn open(name: &str) -> Result<Arc<Context>, Obstacle> {
    static OPEN: Mutex<Vec<(String, Weak<Context>)>> = Mutex::new(Vec::new());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|(_, context)| context.strong_count() > 0);
    if let Some(context) = open.iter().find(|(other, _)| other == name).and_then(|(_, weak)| weak.upgrade()) {
        // A device that has failed is of no use to a new connection.
        if !context.failed.load(Ordering::Relaxed) {
            return Ok(context);
        }
        open.retain(|(other, _)| other != name);
    }
    let context = Arc::new(Context::open(name)?);
    open.push((name.to_owned(), Arc::downgrade(&context)));
    Ok(context)
}

impl Context {
    fn open(name: &str) -> Result<Self, Obstacle> {
        let paths = DevicePaths { listed: Path::new(SYSFS_VERBS), files: Path::new(DEVICE_FILES) };
        Self::open_by(library::verbs(), name, paths)
    }

    /// Opens a device through the library. `verbs` may be the reason why there is no library.
    fn open_by(
        verbs: Result<&'static Verbs, String>,
        name: &str,
        paths: DevicePaths<'_>,
    ) -> Result<Self, Obstacle> {
        let verbs = verbs.map_err(|why| Obstacle::NoLibrary { why })?;
        let mut count = 0;
        // SAFETY: the call returns a list of `count` devices that ends in null, or null.
        let list = unsafe { (verbs.ibv_get_device_list)(&mut count) };
        if list.is_null() {
            return Err(not_opened(name, std::io::Error::last_os_error()));
        }
        let mut found = Err(unlisted(name, paths));
        for i in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: `i` is below the list's count; its devices live until the list is freed.
            let device = unsafe { *list.add(i) };
            // SAFETY: as above; the name is a C string.
            if unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_bytes() == name.as_bytes() {
                // SAFETY: as above.
                found = unsafe { Self::open_device(verbs, device, name) };
            }
        }
        // SAFETY: `list` was made above; open contexts keep their devices.
        unsafe { (verbs.ibv_free_device_list)(list) };
        found
    }

    /// # Safety
    /// `device` is of a list that is not freed yet.
    unsafe fn open_device(
        verbs: &'static Verbs,
        device: *mut ibv_device,
        name: &str,
    ) -> Result<Self, Obstacle> {
        // SAFETY: the caller promises it.
        let raw = unsafe { (verbs.ibv_open_device)(device) };
        let Some(raw) = NonNull::new(raw) else {
            let error = std::io::Error::last_os_error();
            // SAFETY: the caller promises it; the name is a C string.
            let file = unsafe { CStr::from_ptr((*device).dev_name.as_ptr()) }.to_string_lossy();
            return Err(unopened(name, format!("{DEVICE_FILES}/{file}"), error));
        };
        // SAFETY: the caller promises it.
        let iwarp = unsafe { (*device).transport_type } == IBV_TRANSPORT_IWARP;
        // SAFETY: the context was just opened, and the value that this makes owns it.
        let context = unsafe { Self::of(verbs, raw, name, iwarp, false) }?;
        nonblocking(context.async_fd());
        Ok(context)
    }

    /// Makes a value for a device that librdmacm has opened.
    ///
    /// # Safety
    /// `raw` stays open for as long as the result is used.
    pub(super) unsafe fn borrow(verbs: &'static Verbs, raw: NonNull<ibv_context>) -> Result<Self, Obstacle> {
        // SAFETY: the caller promises it; an open context has a device with a name.
        let (name, iwarp) = unsafe {
            let device = (*raw.as_ptr()).device;
            let name = CStr::from_ptr((*device).name.as_ptr()).to_string_lossy().into_owned();
            (name, (*device).transport_type == IBV_TRANSPORT_IWARP)
        };
        // SAFETY: the caller promises it.
        let context = unsafe { Self::of(verbs, raw, &name, iwarp, true) }?;
        // librdmacm leaves the device's events to its user.
        nonblocking(context.async_fd());
        Ok(context)
    }

    /// # Safety
    /// `raw` is open, and stays so; it is the result's to close unless it is borrowed.
    unsafe fn of(
        verbs: &'static Verbs,
        raw: NonNull<ibv_context>,
        name: &str,
        iwarp: bool,
        borrowed: bool,
    ) -> Result<Self, Obstacle> {
        let mut context = Self {
            raw,
            verbs,
            name: name.to_owned(),
            facts: DeviceFacts::default(),
            iwarp,
            borrowed,
            failed: AtomicBool::new(false),
        };
        // SAFETY: `ibv_device_attr` is plain numbers, for which zeros are valid.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the structure is as large as the library thinks.
        let failed = unsafe { (verbs.ibv_query_device)(raw.as_ptr(), &mut attributes) };
        if failed != 0 {
            return Err(not_opened(name, std::io::Error::from_raw_os_error(failed)));
        }
        context.facts = DeviceFacts::of(&attributes);
        Ok(context)
    }

    /// Returns the name that the kernel gives the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the device reports about itself.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// True if the device has the quirk.
    pub fn has(&self, quirk: Quirk) -> bool {
        quirks::has(quirk, &self.name, self.iwarp)
    }

    /// True if a write can carry an immediate; otherwise a message follows the write.
    pub fn has_immediates(&self) -> bool {
        !self.has(Quirk::NoImmediates)
    }

    /// True if a memory window limits what a peer may reach; otherwise a registration of its own does. Windows are
    /// used if the device has them and they work. `WINDOWS_VARIABLE` makes this process try those that do not work.
    pub fn uses_windows(&self) -> bool {
        let tried = || std::env::var_os(WINDOWS_VARIABLE).is_some();
        self.facts.memory_windows && (!self.has(Quirk::BrokenWindows) || tried())
    }

    /// Returns what a port reports about itself now.
    pub fn port(&self, number: u8) -> Result<PortFacts, Obstacle> {
        // SAFETY: plain numbers, for which zeros are valid.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the function fills the structure up to `flags` at most.
        let failed = unsafe { (self.verbs.ibv_query_port)(self.raw.as_ptr(), number, &mut attributes) };
        if failed != 0 {
            return Err(not_opened(&self.name, std::io::Error::from_raw_os_error(failed)));
        }
        let fabric = match attributes.link_layer {
            _ if self.iwarp => Some(Fabric::Iwarp),
            IBV_LINK_LAYER_INFINIBAND | 0 => Some(Fabric::InfiniBand),
            IBV_LINK_LAYER_ETHERNET => Some(Fabric::Roce),
            _ => None,
        };
        Ok(PortFacts {
            number,
            fabric,
            state: state_name(attributes.state),
            megabits: self.megabits(number, &attributes),
            mtu: 128 << attributes.active_mtu.clamp(1, 5),
            operation_bytes_max: attributes.max_msg_sz,
            lid: attributes.lid,
            gids: self.gids(number, attributes.gid_tbl_len),
        })
    }

    fn gids(&self, port: u8, table_length: c_int) -> Vec<Gid> {
        let length = u32::try_from(table_length).unwrap_or(0).min(GIDS_MAX);
        if length == 0 {
            return Vec::new();
        }
        if let Some(entries) = self.gid_table() {
            let of_port = entries.iter().filter(|entry| entry.port_num == u32::from(port));
            return of_port.filter_map(gid_of).collect();
        }
        (0..length).filter_map(|index| self.gid(port, index)).collect()
    }

    /// Returns the addresses of all ports, if the device tells them and they are not more than expected. Each connection asks for them, and one call for all
    /// takes a hundredth of the time of one for each place in the table.
    fn gid_table(&self) -> Option<Vec<ibv_gid_entry>> {
        // SAFETY: plain numbers, for which zeros are valid.
        let mut entries = vec![unsafe { std::mem::zeroed::<ibv_gid_entry>() }; GIDS_AT_ONCE_MAX];
        let (room, entry_bytes) = (entries.len(), size_of::<ibv_gid_entry>());
        // SAFETY: the context is open; there is room for as many entries of that size as are passed along.
        let count = unsafe {
            (self.verbs._ibv_query_gid_table)(self.raw.as_ptr(), entries.as_mut_ptr(), room, 0, entry_bytes)
        };
        entries.truncate(usize::try_from(count).ok()?);
        if entries.is_empty() { None } else { Some(entries) }
    }

    fn gid(&self, port: u8, index: u32) -> Option<Gid> {
        // SAFETY: plain numbers, for which zeros are valid.
        let mut entry: ibv_gid_entry = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open; the size of the entry is passed along.
        let failed = unsafe {
            (self.verbs._ibv_query_gid_ex)(
                self.raw.as_ptr(),
                u32::from(port),
                index,
                &mut entry,
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        if failed == 0 { gid_of(&entry) } else { None }
    }

    /// Prefers the kernel's text for the speed: the numbers of width and speed lag behind new hardware.
    fn megabits(&self, port: u8, attributes: &ibv_port_attr) -> u32 {
        let path = Path::new(SYSFS).join(&self.name).join(format!("ports/{port}/rate"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let gigabits = text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
        match gigabits {
            Some(gigabits) if gigabits > 0.0 && gigabits < 4e6 => (gigabits * 1000.0) as u32,
            _ => u32::from(attributes.active_width) * 2500,
        }
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the context is.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    /// Returns the event that the device has reported about the queue pair at `address`, or about itself, and the
    /// library's name for it. Makes a system call.
    pub(super) fn trouble(&self, address: usize) -> Option<(c_int, &'static str)> {
        let mut trouble = TROUBLE.lock().unwrap_or_else(PoisonError::into_inner);
        self.take_events(&mut trouble);
        let event = match trouble.get(&address) {
            Some(event) => *event,
            None if self.failed.load(Ordering::Relaxed) => IBV_EVENT_DEVICE_FATAL,
            None => return None,
        };
        // SAFETY: the text is in the library's own table.
        Some((event, unsafe { library::static_text((self.verbs.ibv_event_type_str)(event)) }))
    }

    fn take_events(&self, trouble: &mut BTreeMap<usize, c_int>) {
        // SAFETY: a pointer and a number, for which zeros are valid.
        let mut event: ibv_async_event = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and its descriptor does not block.
        while unsafe { (self.verbs.ibv_get_async_event)(self.raw.as_ptr(), &mut event) } == 0 {
            match event.event_type {
                IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
                    trouble.insert(event.element as usize, event.event_type);
                }
                IBV_EVENT_DEVICE_FATAL => self.failed.store(true, Ordering::Relaxed),
                _ => {}
            }
            // SAFETY: the call above returned the event; each is acknowledged once.
            unsafe { (self.verbs.ibv_ack_async_event)(&mut event) };
        }
    }

    /// Forgets the events of a queue pair that is gone: another one may come to lie at its address.
    pub(super) fn forget(&self, address: usize) {
        TROUBLE.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.borrowed {
            // SAFETY: this value opened the device; everything made with it holds a reference to this value.
            unsafe { (self.verbs.ibv_close_device)(self.raw.as_ptr()) };
        }
    }
}

/// How a port talks to others, as far as setting up a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// InfiniBand: addressed by LID and GID, no IP needed.
    InfiniBand,
    /// RDMA over Converged Ethernet, version 2: UDP port 4791, addressed by GIDs made of IP addresses.
    Roce,
    /// RDMA over TCP: the connection manager makes connections.
    Iwarp,
}

impl Fabric {
    /// Returns the name that users know.
    pub fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE v2",
            Self::Iwarp => "iWARP",
        }
    }
}

/// What a device reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The version of the firmware; empty for software devices.
    pub firmware: String,
    /// The vendor, by its PCI number.
    pub vendor: u32,
    /// The vendor's number of the device.
    pub part: u32,
    /// The largest number of queue pairs.
    pub queue_pairs_max: u32,
    /// The largest number of work requests in a queue.
    pub queue_depth_max: u32,
    /// The largest number of entries of a completion queue.
    pub completions_max: u32,
    /// The largest number of memory regions.
    pub regions_max: u32,
    /// The number of bytes of the largest region.
    pub region_bytes_max: u64,
    /// The largest number of reads and compare-and-swaps under way on one connection.
    pub reads_max: ReadDepths,
    /// What the device promises about compare-and-swap.
    pub swaps: AtomicSupport,
    /// The device has memory windows that bind to a connection (type 2B).
    pub memory_windows: bool,
    /// The number of ports; they are numbered from 1.
    pub ports: u8,
}

/// How many reads and compare-and-swaps one connection may have under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadDepths {
    /// The number of requests of the peer.
    pub responder: u8,
    /// The number of requests of this side.
    pub initiator: u8,
}

impl ReadDepths {
    pub(super) fn at_most(self, maximum: u8) -> Self {
        Self { responder: self.responder.min(maximum), initiator: self.initiator.min(maximum) }
    }
}

/// What a device promises of compare-and-swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicSupport {
    /// The device has compare-and-swap.
    pub exist: bool,
    /// Compare-and-swap is atomic against the processor, too.
    pub atomic_with_processor: bool,
}

/// What a port reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// The port's number, from 1.
    pub number: u8,
    /// The fabric; `None` for an unknown link layer.
    pub fabric: Option<Fabric>,
    /// The state of the port, such as "active".
    pub state: &'static str,
    /// Megabits per second; 0 if unknown.
    pub megabits: u32,
    /// The number of bytes of a packet's payload.
    pub mtu: u32,
    /// The number of bytes of the longest operation.
    pub operation_bytes_max: u32,
    /// The port's address in an InfiniBand subnet; 0 for other fabrics.
    pub lid: u16,
    /// The port's other addresses.
    pub gids: Vec<Gid>,
}

impl PortFacts {
    /// True if the port carries traffic.
    pub fn is_active(&self) -> bool {
        self.state == "active"
    }
}

/// One address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The index of the address in the port's table.
    pub index: u8,
    /// The address.
    pub bytes: [u8; 16],
    /// 0: InfiniBand; 1, 2: RoCE v1, v2.
    pub version: u32,
    /// The network interface of the address; empty if it has none.
    pub interface: String,
}

impl Gid {
    /// Returns the address as an IP address, which RoCE v2 and iWARP use.
    pub fn ip(&self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.bytes);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// True if the address is valid on one link only.
    pub fn is_link_local(&self) -> bool {
        self.bytes[0] == 0xfe && self.bytes[1] & 0xc0 == 0x80
    }
}

impl DeviceFacts {
    fn of(attributes: &ibv_device_attr) -> Self {
        let count = |number: c_int| u32::try_from(number).unwrap_or(0);
        let small = |number: c_int| u8::try_from(number.clamp(0, 255)).unwrap_or(0);
        // SAFETY: the library ends the text in a zero byte.
        let firmware = unsafe { CStr::from_ptr(attributes.fw_ver.as_ptr()) };
        Self {
            firmware: firmware.to_string_lossy().into_owned(),
            vendor: attributes.vendor_id,
            part: attributes.vendor_part_id,
            queue_pairs_max: count(attributes.max_qp),
            queue_depth_max: count(attributes.max_qp_wr),
            completions_max: count(attributes.max_cqe),
            regions_max: count(attributes.max_mr),
            region_bytes_max: attributes.max_mr_size,
            reads_max: ReadDepths {
                responder: small(attributes.max_qp_rd_atom),
                initiator: small(attributes.max_qp_init_rd_atom),
            },
            swaps: AtomicSupport {
                exist: attributes.atomic_cap != IBV_ATOMIC_NONE,
                atomic_with_processor: attributes.atomic_cap == IBV_ATOMIC_GLOB,
            },
            memory_windows: attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B != 0
                && attributes.max_mw > 0,
            ports: attributes.phys_port_cnt,
        }
    }
}

fn state_name(state: c_int) -> &'static str {
    match state {
        1 => "down",
        2 => "initializing",
        3 => "armed",
        IBV_PORT_ACTIVE => "active",
        5 => "active, deferred",
        _ => "in no known state",
    }
}

fn gid_of(entry: &ibv_gid_entry) -> Option<Gid> {
    let index = u8::try_from(entry.gid_index).ok().filter(|_| entry.gid != [0; 16])?;
    let interface = interface_name(entry.ndev_ifindex);
    Some(Gid { index, bytes: entry.gid, version: entry.gid_type, interface })
}

fn interface_name(index: u32) -> String {
    let mut buffer = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the function asks for; it ends the name in a zero byte.
    let named = unsafe { libc::if_indextoname(index, buffer.as_mut_ptr()) };
    if index == 0 || named.is_null() {
        return String::new();
    }
    // SAFETY: the call above filled the buffer.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned()
}

/// Returns why rdma-core does not list a device that the kernel has.
fn unlisted(device: &str, DevicePaths { listed, files }: DevicePaths<'_>) -> Obstacle {
    let named = |entry: &std::fs::DirEntry| {
        let name = std::fs::read_to_string(entry.path().join("ibdev"));
        name.is_ok_and(|name| name.trim() == device)
    };
    let entry = std::fs::read_dir(listed).into_iter().flatten().flatten().find(named);
    let file = entry.map(|entry| files.join(entry.file_name()));
    let device = device.to_owned();
    match file {
        None => Obstacle::NoUserAccess { device },
        Some(file) if !file.exists() => {
            Obstacle::NoDeviceFile { device, path: file.to_string_lossy().into_owned() }
        }
        Some(_) => Obstacle::NoProvider { device },
    }
}

/// Returns why a device could not be opened. If the device file forbids access, the library tries another file,
/// and then reports that there is none.
fn unopened(device: &str, path: String, error: std::io::Error) -> Obstacle {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    let device = device.to_owned();
    let kind = match error.kind() {
        NotFound => {
            File::options().read(true).write(true).open(&path).map_or_else(|own| own.kind(), |_| NotFound)
        }
        other => other,
    };
    match kind {
        PermissionDenied => Obstacle::NoPermission { device, path },
        NotFound => Obstacle::NoDeviceFile { device, path },
        _ => not_opened(&device, error),
    }
}

fn not_opened(device: &str, why: std::io::Error) -> Obstacle {
    Obstacle::NotOpened { device: device.to_owned(), why: why.to_string() }
}

/// Makes a descriptor non-blocking. A failure would show as a call that blocks; an open descriptor allows it always.
pub(super) fn nonblocking(descriptor: BorrowedFd<'_>) {
    if let Ok(flags) = rustix::fs::fcntl_getfl(descriptor) {
        let _ = rustix::fs::fcntl_setfl(descriptor, flags | rustix::fs::OFlags::NONBLOCK);
    }
}

#[cfg(test)]
mod tests;
