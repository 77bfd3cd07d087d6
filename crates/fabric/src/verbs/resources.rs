//! The objects of a connection: protection domain, completion queues, registered memory, queue pair.
//! `unsafe`: libibverbs' calls that make, register, use and end them.

#![allow(unsafe_code, reason = "calls into libibverbs")]

mod lending;
mod work;

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use caravan_segment::SharedSlice;

use super::abi::*;
use super::cm::Id;
use super::device::{Context, ReadDepths, nonblocking};
use super::domain::DeviceDomain;
use super::library::Verbs;
use super::limits::*;
use super::quirks::Quirk;
use crate::contract::{Error, Exposure};
use crate::region::RegionTable;

pub use lending::VerbsLoan;
pub use work::{WorkKind, WorkRequest};

/// One of the two completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionQueue {
    /// Completions of this side's work requests.
    Send,
    /// Messages from the peer.
    Receive,
}

/// The number of work requests of each queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// The number for the send queue.
    pub send: u32,
    /// The number for the receive queue.
    pub receive: u32,
}

/// A side's memory, as the other side's work requests name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteMemory {
    /// The address of the first byte of an arena or of a region, as the side's device counts.
    pub address: u64,
    /// The key to what the peer may reach there.
    pub key: u32,
}

impl RemoteMemory {
    /// Returns the memory from `offset` on.
    pub fn at(self, offset: u64) -> Self {
        Self { address: self.address.wrapping_add(offset), ..self }
    }
}

/// The memory of one side.
#[derive(Clone, Debug)]
pub struct ConnectionMemory {
    /// The arena of the contract.
    pub arena: SharedSlice,
    /// The backend's own memory, of [`own_bytes`]: results of swaps, messages in, messages out.
    pub own: SharedSlice,
}

/// The path from this side's queue pair to the peer's, where no connection manager makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairPath {
    /// This side's port.
    pub port: u8,
    /// The index of this side's address in that port's table.
    pub gid_index: u8,
    /// The peer's address.
    pub gid: [u8; 16],
    /// The peer's address in an InfiniBand subnet.
    pub lid: u16,
    /// True if every packet carries the address, which only packets within one InfiniBand subnet need
    /// not.
    pub is_global: bool,
    /// The number of bytes of a packet's payload.
    pub mtu: u32,
    /// The number of the peer's queue pair.
    pub queue_pair: u32,
    /// The first sequence number of this side's packets.
    pub own_sequence: u32,
    /// The first sequence number of the peer's packets.
    pub peer_sequence: u32,
    /// The number of reads and swaps that may be under way.
    pub reads: ReadDepths,
}

/// A connection's objects at one device. Dependent objects end first.
pub struct Resources {
    context: Arc<Context>,
    verbs: &'static Verbs,
    managed: Option<Id>,
    domain: Arc<DeviceDomain>,
    /// The regions that this side lends.
    lent: RegionTable<VerbsLoan>,
    channel: *mut ibv_comp_channel,
    send: *mut ibv_cq,
    receive: *mut ibv_cq,
    /// The number of completion events taken and not acknowledged, for each queue.
    unacknowledged: [u32; 2],
    queue_pair: *mut ibv_qp,
    inline_bytes: u32,
    depths: Depths,
    /// The whole arena, for this side's own use.
    local: *mut ibv_mr,
    /// The exposed part for the peer, if there is no window.
    exposed: *mut ibv_mr,
    window: *mut ibv_mw,
    /// The backend's own memory.
    own: *mut ibv_mr,
    memory: ConnectionMemory,
    exposure: Exposure,
    access: c_int,
    requests: Vec<ibv_send_wr>,
    pieces: Vec<ibv_sge>,
    receives: Vec<ibv_recv_wr>,
    /// The number of receives posted so far.
    received: u32,
}

// SAFETY: any thread may use libibverbs' objects, one at a time; nothing here is shared.
unsafe impl Send for Resources {}

impl std::fmt::Debug for Resources {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let device = self.context.name();
        formatter.debug_struct("Resources").field("device", &device).finish_non_exhaustive()
    }
}

/// Returns the number of bytes of the backend's own memory that a connection of these depths takes.
pub fn own_bytes(depths: Depths) -> u64 {
    u64::from(READS_MAX) * 8 + u64::from(depths.receive + depths.send) * u64::from(MESSAGE_BYTES)
}

impl Resources {
    /// Makes all objects but the queue pair.
    pub fn new(
        domain: Arc<DeviceDomain>,
        managed: Option<Id>,
        memory: ConnectionMemory,
        exposure: &Exposure,
        depths: Depths,
    ) -> Result<Self, Error> {
        let context = Arc::clone(domain.context());
        let mut made = Self {
            verbs: context.verbs,
            managed,
            domain,
            lent: RegionTable::default(),
            channel: ptr::null_mut(),
            send: ptr::null_mut(),
            receive: ptr::null_mut(),
            unacknowledged: [0; 2],
            queue_pair: ptr::null_mut(),
            inline_bytes: 0,
            depths,
            local: ptr::null_mut(),
            exposed: ptr::null_mut(),
            window: ptr::null_mut(),
            own: ptr::null_mut(),
            memory,
            exposure: exposure.clone(),
            access: access(exposure),
            requests: Vec::with_capacity(depths.send as usize),
            pieces: Vec::with_capacity(depths.send as usize),
            receives: Vec::with_capacity(depths.receive as usize),
            received: 0,
            context,
        };
        made.make_queues()?;
        made.register()?;
        Ok(made)
    }

    fn make_queues(&mut self) -> Result<(), Error> {
        let raw = self.context.raw.as_ptr();
        // SAFETY: the context is open for as long as `self` is, and so for each call below. Each object that
        // is made is given to the value that ends it.
        unsafe {
            self.channel = self.made("a completion channel", (self.verbs.ibv_create_comp_channel)(raw))?;
            let (none, channel) = (ptr::null_mut(), self.channel);
            let queue = |depth: u32| (self.verbs.ibv_create_cq)(raw, depth as c_int, none, channel, 0);
            self.send = self.made("a completion queue", queue(self.depths.send))?;
            self.receive = self.made("a completion queue", queue(self.depths.receive))?;
        }
        nonblocking(self.wait_fd());
        Ok(())
    }

    /// Returns `raw`, or the kernel's error if it is null.
    fn made<T>(&self, what: &str, raw: *mut T) -> Result<*mut T, Error> {
        if raw.is_null() {
            let why = std::io::Error::last_os_error();
            return Err(self.device_error(format!("it makes no {}: {why}", what.trim_start_matches("a "))));
        }
        Ok(raw)
    }

    /// Returns an error of this device.
    pub fn device_error(&self, what: String) -> Error {
        Error::Device { device: self.context.name().to_owned(), what }
    }

    fn operations(&self) -> &ibv_context_ops {
        // SAFETY: the context is open; its table does not change.
        unsafe { &(*self.context.raw.as_ptr()).ops }
    }

    /// Makes the queue pair, with as much room for inline bytes as the device gives.
    pub fn make_queue_pair(&mut self) -> Result<(), Error> {
        let mut why = std::io::Error::from(std::io::ErrorKind::Other);
        for inline_bytes in [INLINE_BYTES, 64, 0] {
            let mut wanted = ibv_qp_init_attr {
                qp_context: ptr::null_mut(),
                send_cq: self.send,
                recv_cq: self.receive,
                srq: ptr::null_mut(),
                cap: ibv_qp_cap {
                    max_send_wr: self.depths.send,
                    max_recv_wr: self.depths.receive,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: inline_bytes,
                },
                qp_type: IBV_QPT_RC,
                sq_sig_all: 0,
            };
            let made = match &self.managed {
                Some(id) => id.make_queue_pair(self.domain.raw(), &mut wanted),
                // SAFETY: the domain and the queues are open; the library fills in the sizes that it gives.
                None => NonNull::new(unsafe { (self.verbs.ibv_create_qp)(self.domain.raw(), &mut wanted) }),
            };
            if let Some(made) = made {
                self.queue_pair = made.as_ptr();
                self.inline_bytes = wanted.cap.max_inline_data;
                return Ok(());
            }
            why = std::io::Error::last_os_error();
        }
        Err(self.device_error(format!("it makes no queue pair: {why}")))
    }

    /// Returns the queue pair's number, which the peer needs to know.
    pub fn queue_pair_number(&self) -> u32 {
        if self.queue_pair.is_null() {
            return 0;
        }
        // SAFETY: the queue pair is open for as long as `self` is.
        unsafe { (*self.queue_pair).qp_num }
    }

    /// Returns the device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the connection manager's end of the connection, if it has one.
    pub fn managed(&self) -> Option<&Id> {
        self.managed.as_ref()
    }

    /// Takes over the connection that was requested from a listener.
    pub fn set_managed(&mut self, id: Id) -> Option<Id> {
        self.managed.replace(id)
    }

    /// Returns the arena.
    pub fn arena(&self) -> &SharedSlice {
        &self.memory.arena
    }

    /// Brings the queue pair into use: from now on it receives and sends. The first state sets the port and what
    /// the peer may do; the next ones set the path to the peer.
    pub fn connect(&mut self, path: &QueuePairPath) -> Result<(), Error> {
        // SAFETY: the structure is plain numbers, for which zeros are valid.
        let mut to: ibv_qp_attr = unsafe { std::mem::zeroed() };
        to.qp_state = IBV_QPS_INIT;
        to.port_num = path.port;
        to.qp_access_flags = (self.access & !IBV_ACCESS_LOCAL_WRITE) as u32;
        self.modify(&mut to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)?;
        self.post_receives(self.depths.receive)?;

        to.qp_state = IBV_QPS_RTR;
        to.path_mtu = (path.mtu / 256).max(1).ilog2() as c_int + 1;
        to.dest_qp_num = path.queue_pair;
        to.rq_psn = path.peer_sequence;
        to.max_dest_rd_atomic = path.reads.responder;
        to.min_rnr_timer = RECEIVER_NOT_READY_TIMER;
        to.ah_attr.port_num = path.port;
        to.ah_attr.dlid = path.lid;
        to.ah_attr.is_global = u8::from(path.is_global);
        to.ah_attr.grh.dgid = ibv_gid(path.gid);
        to.ah_attr.grh.sgid_index = path.gid_index;
        to.ah_attr.grh.hop_limit = 64;
        self.modify(
            &mut to,
            IBV_QP_STATE
                | IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER,
        )?;

        to.qp_state = IBV_QPS_RTS;
        to.sq_psn = path.own_sequence;
        to.timeout = ACKNOWLEDGEMENT_TIMEOUT;
        to.retry_cnt = RETRIES;
        to.rnr_retry = RECEIVER_NOT_READY_RETRIES;
        to.max_rd_atomic = path.reads.initiator;
        self.modify(
            &mut to,
            IBV_QP_STATE
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    fn modify(&mut self, to: &mut ibv_qp_attr, mask: c_int) -> Result<(), Error> {
        // SAFETY: the queue pair is open; the mask names the fields that are filled.
        let failed = unsafe { (self.verbs.ibv_modify_qp)(self.queue_pair, to, mask) };
        match failed {
            0 => Ok(()),
            error => {
                let why = std::io::Error::from_raw_os_error(error.abs());
                let state = match to.qp_state {
                    IBV_QPS_INIT => "prepare",
                    IBV_QPS_RTR => "reach the peer",
                    _ => "send",
                };
                Err(self.device_error(format!("the queue pair cannot {state}: {why}")))
            }
        }
    }

    /// Ends the queue pair: the device no longer accesses the memory.
    fn end_queue_pair(&mut self) -> bool {
        if self.queue_pair.is_null() {
            return true;
        }
        let address = self.queue_pair as usize;
        let ended = match &self.managed {
            Some(id) => id.end_queue_pair(),
            // SAFETY: this value made the queue pair, and nothing uses it after this.
            None => unsafe { (self.verbs.ibv_destroy_qp)(self.queue_pair) == 0 },
        };
        self.queue_pair = ptr::null_mut();
        self.context.forget(address);
        ended
    }
}

impl Resources {
    /// Registers the whole arena for this side, and the exposed part for the peer: through a window if the device
    /// has them, or by a second registration if the part is not everything.
    fn register(&mut self) -> Result<(), Error> {
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
        self.local = self.region(&self.memory.arena, 0, self.exposure.arena_bytes, local)?;
        if windowed {
            let allocate = self.operations().alloc_mw;
            // SAFETY: the domain is open; a device with windows has the function.
            let window =
                allocate.map_or(ptr::null_mut(), |call| unsafe { call(self.domain.raw(), IBV_MW_TYPE_2) });
            self.window = self.made("a memory window", window)?;
        } else if !all {
            let bytes = self.exposure.exposed.end - self.exposure.exposed.start;
            self.exposed =
                self.region(&self.memory.arena, self.exposure.exposed.start, bytes, self.access)?;
        }
        self.own = self.region(&self.memory.own, 0, self.memory.own.bytes(), IBV_ACCESS_LOCAL_WRITE)?;
        Ok(())
    }

    fn region(&self, memory: &SharedSlice, at: u64, bytes: u64, access: c_int) -> Result<*mut ibv_mr, Error> {
        // The memory is mapped for as long as `self` is, and `drop` ends the registration before.
        self.domain.register(memory, at, bytes, access).map(NonNull::as_ptr)
    }

    /// Returns the address and key that the peer must name to reach the exposed part.
    pub fn remote_memory(&self) -> RemoteMemory {
        let address = self.memory.arena.address(0, 0) as u64;
        // SAFETY: each is open for as long as `self` is, or null.
        let key = unsafe {
            match (self.window.is_null(), self.exposed.is_null()) {
                // The window's next key: binding the window makes that key valid.
                (false, _) => next_key((*self.window).rkey),
                (true, false) => (*self.exposed).rkey,
                (true, true) => (*self.local).rkey,
            }
        };
        RemoteMemory { address, key }
    }

    /// True if a window must be bound before the peer may write.
    pub fn has_window(&self) -> bool {
        !self.window.is_null()
    }

    /// Returns the number of bytes registered with the device.
    pub fn registered_bytes(&self) -> u64 {
        let exposed = self.exposure.exposed.end - self.exposure.exposed.start;
        let twice = if self.exposed.is_null() { 0 } else { exposed };
        self.exposure.arena_bytes + twice + self.memory.own.bytes()
    }
}

impl Drop for Resources {
    fn drop(&mut self) {
        // A bound window depends on its queue pair: rxe would wait for it for ever.
        while let Some(loan) = self.lent.pop() {
            self.end_loan(loan);
        }
        // SAFETY: this value made each object, nothing uses it after this, and each is ended after
        // the objects that depend on it.
        let mut ended = unsafe {
            match self.operations().dealloc_mw {
                Some(deallocate) if !self.window.is_null() => deallocate(self.window) == 0,
                _ => true,
            }
        };
        ended &= self.end_queue_pair();
        self.acknowledge_events();
        // SAFETY: this value made each object, nothing uses it after this, and each is ended after the objects
        // that depend on it.
        unsafe {
            for region in [self.own, self.exposed, self.local] {
                ended &= region.is_null() || (self.verbs.ibv_dereg_mr)(region) == 0;
            }
            for queue in [self.send, self.receive] {
                ended &= queue.is_null() || (self.verbs.ibv_destroy_cq)(queue) == 0;
            }
            if !self.channel.is_null() {
                (self.verbs.ibv_destroy_comp_channel)(self.channel);
            }
        }
        if !ended {
            // The device may still write to the memory, so it is never given back.
            std::mem::forget(self.memory.clone());
        }
    }
}

/// Returns what the peer may do with the exposed part.
fn access(exposure: &Exposure) -> c_int {
    let mut access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    if exposure.peer_reads {
        access |= IBV_ACCESS_REMOTE_READ;
    }
    if exposure.peer_swaps {
        access |= IBV_ACCESS_REMOTE_ATOMIC;
    }
    access
}

/// Returns the key that a window has after its next binding: the user chooses its lowest byte.
fn next_key(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}
