//! What several connections share: a protection domain at each device, and the regions registered there. `unsafe`:
//! libibverbs' calls that make, register and end them.
//!
//! A region is registered at a device when it is first lent there, once for each kind of access, and stays
//! registered until the region and all loans of it are gone (which the next loan notices), or the domain is.

#![allow(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use caravan_segment::SharedSlice;

use super::abi::*;
use super::cm::Id;
use super::connect::{self, PendingEndpoint};
use super::device::{self, Context, Fabric};
use super::message::Port;
use super::obstacle::Obstacle;
use crate::contract::{Error, Exposure};
use crate::region::{Region, RegionAccess};

/// Connections that share their registered regions.
///
/// A key of one connection opens the memory of every other connection of its domain, unless the device has memory
/// windows that work. So a domain is the boundary of trust: put peers that may read the same regions into one, and
/// others into another. [`connect`](super::connect) and [`accept`](super::accept) make a domain for each connection.
#[derive(Clone, Debug, Default)]
pub struct Domain {
    devices: Arc<Mutex<Vec<Weak<DeviceDomain>>>>,
}

impl Domain {
    /// Returns a domain without connections.
    pub fn new() -> Self {
        Self::default()
    }

    /// Does what [`connect`](super::connect) does, in this domain.
    pub fn connect(&self, offer: &[u8], exposure: &Exposure) -> Result<(PendingEndpoint, Vec<u8>), Error> {
        connect::connect_in(self, offer, exposure)
    }

    /// Does what [`accept`](super::accept) does, in this domain.
    pub fn accept(&self, request: &[u8], exposure: &Exposure) -> Result<(PendingEndpoint, Vec<u8>), Error> {
        connect::accept_in(self, request, exposure)
    }

    /// Returns the protection domain at the device of `port`.
    pub(super) fn at(&self, port: &Port) -> Result<Arc<DeviceDomain>, Error> {
        let (context, keeper) = match port.fabric {
            Fabric::Iwarp => {
                let id = Id::bind(port.ip())?;
                (Arc::new(id.context()?), Some(id))
            }
            Fabric::InfiniBand | Fabric::Roce => (device::open(&port.device)?, None),
        };
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|device| device.strong_count() > 0);
        let same = |device: &Arc<DeviceDomain>| device.context.raw == context.raw;
        if let Some(device) = devices.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(device);
        }
        let device = Arc::new(DeviceDomain::new(context, keeper)?);
        devices.push(Arc::downgrade(&device));
        Ok(device)
    }
}

/// A protection domain at one device.
pub struct DeviceDomain {
    raw: NonNull<ibv_pd>,
    registrations: Mutex<Vec<Arc<Registration>>>,
    context: Arc<Context>,
    /// On iWARP, what keeps the connection manager's device open: it ends last.
    _keeper: Option<Id>,
}

// SAFETY: any thread may use libibverbs' objects; its calls lock what they share.
unsafe impl Send for DeviceDomain {}
// SAFETY: as above; the list has a lock of its own.
unsafe impl Sync for DeviceDomain {}

impl std::fmt::Debug for DeviceDomain {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("DeviceDomain").field("device", &self.context.name()).finish_non_exhaustive()
    }
}

impl DeviceDomain {
    fn new(context: Arc<Context>, keeper: Option<Id>) -> Result<Self, Error> {
        // SAFETY: the context is open for as long as the value that is made here.
        let raw = unsafe { (context.verbs.ibv_alloc_pd)(context.raw.as_ptr()) };
        let Some(raw) = NonNull::new(raw) else {
            let what = format!("it makes no protection domain: {}", std::io::Error::last_os_error());
            return Err(Error::Device { device: context.name().to_owned(), what });
        };
        Ok(Self { raw, registrations: Mutex::default(), context, _keeper: keeper })
    }

    /// Returns the protection domain itself, which is open for as long as `self` is.
    pub fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }

    /// Returns the device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Registers `bytes` bytes of `memory`. The caller ends the registration before the memory and before `self`.
    pub fn register(
        &self,
        memory: &SharedSlice,
        at: u64,
        bytes: u64,
        access: c_int,
    ) -> Result<NonNull<ibv_mr>, Error> {
        let address = memory.address(at as usize, bytes as usize);
        // SAFETY: the memory is mapped for as long as the caller's slice, which outlives the registration.
        // The device writes to it as a peer may write to any shared memory: no reference to it ever exists.
        let made =
            unsafe { (self.context.verbs.ibv_reg_mr)(self.raw(), address.cast(), bytes as usize, access) };
        NonNull::new(made).ok_or_else(|| {
            let why = std::io::Error::last_os_error();
            match why.raw_os_error() {
                Some(libc::ENOMEM) => self.memory_lock(bytes),
                _ => self.device_error(format!("it makes no memory region: {why}")),
            }
        })
    }

    /// Returns the error for ENOMEM of a registration: in practice the limit on locked memory.
    fn memory_lock(&self, needed_bytes: u64) -> Error {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        match limit {
            Some(limit_bytes) => {
                Obstacle::MemoryLock { device: self.context.name().to_owned(), needed_bytes, limit_bytes }
                    .into()
            }
            None => self.device_error(format!("no memory to register {needed_bytes} bytes")),
        }
    }

    fn device_error(&self, what: String) -> Error {
        Error::Device { device: self.context.name().to_owned(), what }
    }

    /// Returns the registration of a region, and true if this call has made it.
    pub fn registration(
        &self,
        region: &Region,
        access: RegionAccess,
    ) -> Result<(Arc<Registration>, bool), Error> {
        let mut registrations = self.registrations();
        registrations.retain(|registration| registration.is_needed());
        // A window narrows the access by itself.
        let access = if self.context.uses_windows() { RegionAccess::Write } else { access };
        let same = |made: &&Arc<Registration>| made.access == access && region.is(&made.region);
        if let Some(registration) = registrations.iter().find(same) {
            return Ok((Arc::clone(registration), false));
        }
        let mut flags = match access {
            RegionAccess::Read => IBV_ACCESS_REMOTE_READ,
            RegionAccess::Write => IBV_ACCESS_LOCAL_WRITE | remote_access(access),
        };
        if self.context.uses_windows() {
            // Only windows have keys for peers.
            flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
        }
        let made = Arc::new(Registration {
            raw: self.register(region.memory(), 0, region.bytes(), flags)?,
            access,
            region: region.downgrade(),
            memory: region.memory().clone(),
            context: Arc::clone(&self.context),
        });
        registrations.push(Arc::clone(&made));
        Ok((made, true))
    }

    fn registrations(&self) -> MutexGuard<'_, Vec<Arc<Registration>>> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DeviceDomain {
    fn drop(&mut self) {
        self.registrations().clear();
        // SAFETY: this value made the domain; each connection, whose objects are in it, holds this value and ends them
        // first; the registrations have just ended.
        unsafe { (self.context.verbs.ibv_dealloc_pd)(self.raw()) };
    }
}

/// Returns the rights of a peer at a device.
pub fn remote_access(access: RegionAccess) -> c_int {
    match access {
        RegionAccess::Read => IBV_ACCESS_REMOTE_READ,
        RegionAccess::Write => IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC,
    }
}

/// A region at a device. It ends before its [`DeviceDomain`], which holds it, and whose other holders are connections.
#[derive(Debug)]
pub struct Registration {
    raw: NonNull<ibv_mr>,
    access: RegionAccess,
    region: Weak<()>,
    memory: SharedSlice,
    context: Arc<Context>,
}

// SAFETY: any thread may use libibverbs' objects; its calls lock what they share.
unsafe impl Send for Registration {}
// SAFETY: as above; nothing here changes.
unsafe impl Sync for Registration {}

impl Registration {
    /// Returns the registered memory as the device knows it.
    pub fn raw(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    /// Returns the address of the first byte, and the key that peers use where there are no windows.
    pub fn remote(&self) -> (u64, u32) {
        // SAFETY: the registration is open for as long as `self` is.
        (self.memory.address(0, 0) as u64, unsafe { self.raw.as_ref().rkey })
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// True while the region exists, or somebody else than the list holds the registration.
    fn is_needed(self: &Arc<Self>) -> bool {
        self.region.strong_count() > 0 || Arc::strong_count(self) > 1
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: this value made the registration, and nothing uses it after this.
        let ended = unsafe { (self.context.verbs.ibv_dereg_mr)(self.raw()) == 0 };
        if !ended {
            // The device may still read or write the memory, so it is never given back.
            std::mem::forget(self.memory.clone());
        }
    }
}
