//! Which memory a device may reach, and which of it the peer. `unsafe`: libibverbs' calls that register it.

#![allow(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_int;
use std::ptr;

use caravan_segment::SharedSlice;

use super::super::abi::*;
use super::super::obstacle::Obstacle;
use super::super::quirks::Quirk;
use super::{Resources, Target};
use crate::contract::{Error, Exposure};

impl Resources {
    /// The whole arena for this side; for the peer what is exposed, through a window where the device
    /// has them, or by a second registration where that is less than everything.
    pub(super) fn register(&mut self) -> Result<(), Error> {
        let all = self.exposure.exposed == (0..self.exposure.arena_bytes);
        let windowed = self.context.uses_windows();
        let mut local = IBV_ACCESS_LOCAL_WRITE;
        match (windowed, all) {
            (true, _) => local |= IBV_ACCESS_MW_BIND,
            (false, true) => local |= self.access,
            (false, false) if self.context.has(Quirk::ReadsNeedRemoteWrite) && self.exposure.peer_reads => {
                local |= IBV_ACCESS_REMOTE_WRITE;
            }
            (false, false) => {}
        }
        self.local = self.region(&self.arena, 0, self.exposure.arena_bytes, local)?;
        if windowed {
            let allocate = self.operations().alloc_mw;
            // SAFETY: the domain is open; a device with windows has the function.
            let window = allocate.map_or(ptr::null_mut(), |call| unsafe { call(self.domain, IBV_MW_TYPE_2) });
            self.window = self.made("a memory window", window)?;
        } else if !all {
            let bytes = self.exposure.exposed.end - self.exposure.exposed.start;
            self.exposed = self.region(&self.arena, self.exposure.exposed.start, bytes, self.access)?;
        }
        self.own = self.region(&self.memory, 0, self.memory.bytes(), IBV_ACCESS_LOCAL_WRITE)?;
        Ok(())
    }

    fn region(&self, memory: &SharedSlice, at: u64, bytes: u64, access: c_int) -> Result<*mut ibv_mr, Error> {
        let address = memory.address(at as usize, bytes as usize);
        // SAFETY: the memory is mapped for as long as `self` is, and `drop` ends the region before.
        // The device writes to it as a peer may to any shared memory: never seen through references.
        let region = unsafe { (self.verbs.ibv_reg_mr)(self.domain, address.cast(), bytes as usize, access) };
        if region.is_null() && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM) {
            return Err(self.memory_lock(bytes));
        }
        self.made("a memory region", region)
    }

    /// ENOMEM of a registration: in practice the limit on locked memory.
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

    /// What the peer must name to reach what is exposed.
    pub fn target(&self) -> Target {
        let address = self.arena.address(0, 0) as u64;
        // SAFETY: each is open for as long as `self` is, or null.
        let key = unsafe {
            match (self.window.is_null(), self.exposed.is_null()) {
                // The window's next key: binding it makes that one valid.
                (false, _) => next_key((*self.window).rkey),
                (true, false) => (*self.exposed).rkey,
                (true, true) => (*self.local).rkey,
            }
        };
        Target { address, key }
    }

    /// True if a window is to be bound before the peer may write.
    pub fn has_window(&self) -> bool {
        !self.window.is_null()
    }

    /// Bytes registered with the device.
    pub fn registered_bytes(&self) -> u64 {
        let exposed = self.exposure.exposed.end - self.exposure.exposed.start;
        let twice = if self.exposed.is_null() { 0 } else { exposed };
        self.exposure.arena_bytes + twice + self.memory.bytes()
    }
}

/// What the peer may do with what is exposed.
pub(super) fn access(exposure: &Exposure) -> c_int {
    let mut access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    if exposure.peer_reads {
        access |= IBV_ACCESS_REMOTE_READ;
    }
    if exposure.peer_swaps {
        access |= IBV_ACCESS_REMOTE_ATOMIC;
    }
    access
}

/// The key that a window has after its next binding: its lowest byte is the user's.
fn next_key(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}
