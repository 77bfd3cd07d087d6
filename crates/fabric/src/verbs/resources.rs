//! What a connection is made of: protection domain, completion queues, registered memory, queue pair.
//! `unsafe`: libibverbs' calls that make, use and end them.

#![allow(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use caravan_segment::Window;

use super::abi::*;
use super::cm::Id;
use super::device::{Context, nonblocking};
use super::library::{self, Verbs};
use super::limits::*;
use super::obstacle::Obstacle;
use super::quirks::Quirk;
use super::work::{Request, Work};
use crate::contract::{Error, Exposure};

/// One of the two completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Completions of what this side posted.
    Send,
    /// What came from the peer.
    Receive,
}

/// Work requests of each queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    /// Of the send queue.
    pub send: u32,
    /// Of the receive queue.
    pub receive: u32,
}

/// The peer's side, as far as a work request names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Address of the first byte of its arena, as its device counts.
    pub address: u64,
    /// The key to what it has exposed.
    pub key: u32,
}

/// How the queue pair reaches the peer's, where no connection manager does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// This side's port.
    pub port: u8,
    /// This side's address in that port's table.
    pub gid_index: u8,
    /// The peer's address.
    pub gid: [u8; 16],
    /// The peer's address in an InfiniBand subnet.
    pub lid: u16,
    /// Whether the address travels in every packet, as it must everywhere but within one InfiniBand
    /// subnet.
    pub is_global: bool,
    /// Bytes of a packet's payload.
    pub mtu: u32,
    /// The peer's queue pair.
    pub queue_pair: u32,
    /// First sequence numbers: ours, the peer's.
    pub sequences: (u32, u32),
    /// Reads and swaps under way: ours at the peer, the peer's here.
    pub reads: (u8, u8),
}

/// A connection's objects at one device. Ended in the order that they depend on each other.
pub struct Resources {
    context: Arc<Context>,
    verbs: &'static Verbs,
    managed: Option<Id>,
    domain: *mut ibv_pd,
    channel: *mut ibv_comp_channel,
    send: *mut ibv_cq,
    receive: *mut ibv_cq,
    /// Completion events taken and not acknowledged, of each queue.
    unacknowledged: [u32; 2],
    queue_pair: *mut ibv_qp,
    inline_bytes: u32,
    depths: Depths,
    /// The whole arena, for this side's own use.
    local: *mut ibv_mr,
    /// What the peer may reach, where no window says so.
    exposed: *mut ibv_mr,
    window: *mut ibv_mw,
    /// Memory of this backend's own: results of swaps, messages in, messages out.
    own: *mut ibv_mr,
    arena: Window,
    memory: Window,
    exposure: Exposure,
    access: c_int,
    requests: Vec<ibv_send_wr>,
    pieces: Vec<ibv_sge>,
    receives: Vec<ibv_recv_wr>,
    /// Receives posted so far.
    received: u32,
}

// SAFETY: libibverbs' objects may be used by any thread, one at a time; nothing here is shared.
unsafe impl Send for Resources {}

impl std::fmt::Debug for Resources {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let device = self.context.name();
        formatter.debug_struct("Resources").field("device", &device).finish_non_exhaustive()
    }
}

/// Bytes of memory of the backend's own that a connection of these depths takes.
pub fn own_bytes(depths: Depths) -> u64 {
    u64::from(READS_MAX) * 8 + u64::from(depths.receive + depths.send) * u64::from(MESSAGE_BYTES)
}

impl Resources {
    /// Everything but the queue pair. `memory` has [`own_bytes`].
    pub fn new(
        context: Arc<Context>,
        managed: Option<Id>,
        (arena, memory): (Window, Window),
        exposure: &Exposure,
        depths: Depths,
    ) -> Result<Self, Error> {
        let mut made = Self {
            verbs: context.verbs,
            managed,
            domain: ptr::null_mut(),
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
            arena,
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
        // SAFETY: the context is open for as long as `self` is, and so for each call below. What
        // is made is given to the value that ends it.
        unsafe {
            self.domain = self.made("a protection domain", (self.verbs.ibv_alloc_pd)(raw))?;
            self.channel = self.made("a completion channel", (self.verbs.ibv_create_comp_channel)(raw))?;
            let (none, channel) = (ptr::null_mut(), self.channel);
            let queue = |depth: u32| (self.verbs.ibv_create_cq)(raw, depth as c_int, none, channel, 0);
            self.send = self.made("a completion queue", queue(self.depths.send))?;
            self.receive = self.made("a completion queue", queue(self.depths.receive))?;
        }
        nonblocking(self.wait_fd());
        Ok(())
    }

    /// The whole arena for this side; for the peer what is exposed, through a window where the device
    /// has them, or by a second registration where that is less than everything.
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

    fn region(&self, memory: &Window, at: u64, bytes: u64, access: c_int) -> Result<*mut ibv_mr, Error> {
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

    /// Refuses null, with what the kernel said.
    fn made<T>(&self, what: &str, raw: *mut T) -> Result<*mut T, Error> {
        if raw.is_null() {
            let why = std::io::Error::last_os_error();
            return Err(self.device_error(format!("it makes no {}: {why}", what.trim_start_matches("a "))));
        }
        Ok(raw)
    }

    /// An error of this device.
    pub fn device_error(&self, what: String) -> Error {
        Error::Device { device: self.context.name().to_owned(), what }
    }

    fn operations(&self) -> &ibv_context_ops {
        // SAFETY: the context is open; its table does not change.
        unsafe { &(*self.context.raw.as_ptr()).ops }
    }

    /// Makes the queue pair, with as much room within its requests as the device gives.
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
                Some(id) => id.make_queue_pair(self.domain, &mut wanted),
                // SAFETY: the domain and the queues are open; the library fills in what it gives.
                None => NonNull::new(unsafe { (self.verbs.ibv_create_qp)(self.domain, &mut wanted) }),
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

    /// The queue pair's number, which the peer's needs to know.
    pub fn queue_pair_number(&self) -> u32 {
        if self.queue_pair.is_null() {
            return 0;
        }
        // SAFETY: open for as long as `self` is.
        unsafe { (*self.queue_pair).qp_num }
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The connection manager's part of it, if it has one.
    pub fn managed(&self) -> Option<&Id> {
        self.managed.as_ref()
    }

    /// Takes over the connection that a listener was asked for.
    pub fn set_managed(&mut self, id: Id) -> Option<Id> {
        self.managed.replace(id)
    }

    /// The arena.
    pub fn arena(&self) -> &Window {
        &self.arena
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

    /// Brings the queue pair into use: from here on it receives and sends. `port` and what the peer
    /// may do are its first state; then the path to the peer.
    pub fn connect(&mut self, path: &Path) -> Result<(), Error> {
        // SAFETY: plain numbers, for which zeros are valid.
        let mut to: ibv_qp_attr = unsafe { std::mem::zeroed() };
        to.qp_state = IBV_QPS_INIT;
        to.port_num = path.port;
        to.qp_access_flags = (self.access & !IBV_ACCESS_LOCAL_WRITE) as u32;
        self.modify(&mut to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)?;
        self.post_receives(self.depths.receive)?;

        to.qp_state = IBV_QPS_RTR;
        to.path_mtu = (path.mtu / 256).max(1).ilog2() as c_int + 1;
        to.dest_qp_num = path.queue_pair;
        to.rq_psn = path.sequences.1;
        to.max_dest_rd_atomic = path.reads.1;
        to.min_rnr_timer = RECEIVER_NOT_READY.0;
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
        to.sq_psn = path.sequences.0;
        to.timeout = ACKNOWLEDGEMENT_TIMEOUT;
        to.retry_cnt = RETRIES;
        to.rnr_retry = RECEIVER_NOT_READY.1;
        to.max_rd_atomic = path.reads.0;
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

    /// Hands `requests` to the device with one doorbell. Their places have been checked.
    pub fn post(&mut self, requests: &[Request], target: Target) -> Result<(), Error> {
        self.requests.clear();
        self.pieces.clear();
        for request in requests {
            self.translate(request, target);
        }
        let mut pieces = self.pieces.iter_mut();
        let mut next = ptr::null_mut();
        for request in self.requests.iter_mut() {
            if request.num_sge == 1 {
                request.sg_list = pieces.next().map_or(ptr::null_mut(), ptr::from_mut);
            }
        }
        for request in self.requests.iter_mut().rev() {
            request.next = next;
            next = request;
        }
        let Some(first) = self.requests.first_mut() else { return Ok(()) };
        let (first, mut refused) = (ptr::from_mut(first), ptr::null_mut());
        let Some(post) = self.operations().post_send else {
            return Err(self.device_error("it has no way to send".to_owned()));
        };
        // SAFETY: the queue pair is open; the list is valid for the call, and every piece lies in
        // registered memory, which stays registered until after the queue pair's end.
        let failed = unsafe { post(self.queue_pair, first, &mut refused) };
        match failed {
            0 => Ok(()),
            error => {
                let why = std::io::Error::from_raw_os_error(error.abs());
                Err(self.device_error(format!("it takes no work: {why}")))
            }
        }
    }

    fn translate(&mut self, request: &Request, target: Target) {
        // SAFETY: numbers and null pointers, for which zeros are valid.
        let mut raw: ibv_send_wr = unsafe { std::mem::zeroed() };
        raw.wr_id = request.id;
        raw.send_flags = if request.signaled { IBV_SEND_SIGNALED } else { 0 };
        // SAFETY: the regions are open for as long as `self` is.
        let (local, own) = unsafe { ((*self.local).lkey, (*self.own).lkey) };
        let piece = match request.work {
            Work::Write { from, to, immediate } => {
                raw.opcode = IBV_WR_RDMA_WRITE;
                if let Some(immediate) = immediate {
                    raw.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
                    raw.imm_data = immediate.to_be();
                }
                let remote_addr = target.address.wrapping_add(to);
                raw.wr.rdma = ibv_wr_rdma { remote_addr, rkey: target.key };
                let address = self.arena.address(from.offset as usize, from.bytes as usize);
                (address, from.bytes, local)
            }
            Work::Read { from, into } => {
                raw.opcode = IBV_WR_RDMA_READ;
                let remote_addr = target.address.wrapping_add(from);
                raw.wr.rdma = ibv_wr_rdma { remote_addr, rkey: target.key };
                let address = self.arena.address(into.offset as usize, into.bytes as usize);
                (address, into.bytes, local)
            }
            Work::Swap { at, expected, desired, slot } => {
                raw.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
                let remote_addr = target.address.wrapping_add(at);
                raw.wr.atomic =
                    ibv_wr_atomic { remote_addr, compare_add: expected, swap: desired, rkey: target.key };
                (self.memory.address(slot as usize * 8, 8), 8, own)
            }
            Work::Acknowledge { count } => {
                raw.opcode = IBV_WR_SEND_WITH_IMM;
                raw.imm_data = count.to_be();
                (ptr::null_mut(), 0, 0)
            }
            Work::Message { body, slot } => {
                raw.opcode = IBV_WR_SEND;
                let at = self.message_out(slot);
                self.memory.copy_in(at, &body.to_le_bytes());
                (self.memory.address(at, MESSAGE_BYTES as usize), MESSAGE_BYTES, own)
            }
            Work::Bind => {
                raw.opcode = IBV_WR_BIND_MW;
                let at = self.exposure.exposed.start;
                let length = self.exposure.exposed.end - at;
                let bind_info = ibv_mw_bind_info {
                    mr: self.local,
                    addr: self.arena.address(at as usize, length as usize) as u64,
                    length,
                    mw_access_flags: (self.access & !IBV_ACCESS_LOCAL_WRITE) as u32,
                };
                raw.bind_mw = ibv_wr_bind_mw { mw: self.window, rkey: self.target().key, bind_info };
                (ptr::null_mut(), 0, 0)
            }
        };
        let (address, length, lkey) = piece;
        if length > 0 {
            let writes = matches!(request.work, Work::Write { .. } | Work::Message { .. });
            if writes && length <= self.inline_bytes {
                raw.send_flags |= IBV_SEND_INLINE;
            }
            // Linked to the request once all of them are in their places.
            raw.num_sge = 1;
            self.pieces.push(ibv_sge { addr: address as u64, length, lkey });
        }
        self.requests.push(raw);
    }

    /// Posts `count` receives more, each for one message of the peer's. A message without bytes takes no
    /// memory; those of iWARP have bytes, and land in one place after the other.
    pub fn post_receives(&mut self, count: u32) -> Result<(), Error> {
        // SAFETY: the region is open for as long as `self` is.
        let lkey = unsafe { (*self.own).lkey };
        let bytes = if self.context.has(Quirk::NoImmediates) { MESSAGE_BYTES } else { 0 };
        self.pieces.clear();
        self.receives.clear();
        for _ in 0..count.min(self.depths.receive) {
            let address = self.memory.address(self.message_in(self.received), MESSAGE_BYTES as usize);
            self.received = self.received.wrapping_add(1);
            self.pieces.push(ibv_sge { addr: address as u64, length: bytes, lkey });
            self.receives.push(ibv_recv_wr {
                wr_id: 0,
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: c_int::from(bytes > 0),
            });
        }
        for i in (0..self.receives.len()).rev() {
            let next = self.receives.get_mut(i + 1).map_or(ptr::null_mut(), ptr::from_mut);
            self.receives[i].next = next;
            self.receives[i].sg_list = &mut self.pieces[i];
        }
        let Some(first) = self.receives.first_mut() else { return Ok(()) };
        let (first, mut refused) = (ptr::from_mut(first), ptr::null_mut());
        let Some(post) = self.operations().post_recv else {
            return Err(self.device_error("it has no way to receive".to_owned()));
        };
        // SAFETY: as in `post`.
        match unsafe { post(self.queue_pair, first, &mut refused) } {
            0 => Ok(()),
            error => {
                let why = std::io::Error::from_raw_os_error(error.abs());
                Err(self.device_error(format!("it takes no receives: {why}")))
            }
        }
    }

    /// Where the message that came as the `count`-th, from 0, lies; iWARP only.
    fn message_in(&self, count: u32) -> usize {
        let slot = count % self.depths.receive;
        (READS_MAX * 8 + slot * MESSAGE_BYTES) as usize
    }

    fn message_out(&self, slot: u32) -> usize {
        let slot = self.depths.receive + slot % self.depths.send;
        (READS_MAX * 8 + slot * MESSAGE_BYTES) as usize
    }

    /// The message that came as the `count`-th, from 0; iWARP only.
    pub fn message(&self, count: u32) -> u64 {
        let mut body = [0; MESSAGE_BYTES as usize];
        self.memory.copy_out(self.message_in(count), &mut body);
        u64::from_le_bytes(body)
    }

    /// What a compare-and-swap found.
    pub fn found(&self, slot: u32) -> u64 {
        let mut word = [0; 8];
        self.memory.copy_out(slot as usize * 8, &mut word);
        u64::from_ne_bytes(word)
    }

    /// Takes up to [`POLL_BATCH`] completions, and gives each to `each`.
    pub fn poll(&self, queue: Queue, each: &mut dyn FnMut(&ibv_wc)) -> Result<usize, Error> {
        let Some(poll) = self.operations().poll_cq else {
            return Err(self.device_error("it has no way to poll".to_owned()));
        };
        // SAFETY: plain numbers, for which any value is valid; the device fills in what it returns.
        let mut completions: [ibv_wc; POLL_BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open, and the array has as many places as are asked for.
        let count = unsafe { poll(self.raw(queue), POLL_BATCH as c_int, completions.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            return Err(self.device_error("its completion queue failed".to_owned()));
        };
        completions[..count.min(POLL_BATCH)].iter().for_each(each);
        Ok(count)
    }

    fn raw(&self, queue: Queue) -> *mut ibv_cq {
        match queue {
            Queue::Send => self.send,
            Queue::Receive => self.receive,
        }
    }

    /// Has the next completion make the descriptor readable.
    pub fn arm(&self, queue: Queue) -> Result<(), Error> {
        let Some(arm) = self.operations().req_notify_cq else {
            return Err(self.device_error("it has no completion events".to_owned()));
        };
        // SAFETY: the queue is open.
        match unsafe { arm(self.raw(queue), 0) } {
            0 => Ok(()),
            _ => Err(self.device_error("its completion queue cannot be armed".to_owned())),
        }
    }

    /// Becomes readable with a completion of an armed queue.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open for as long as `self` is.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// Makes the descriptor unreadable again. Events are acknowledged many at once: it takes a lock.
    pub fn take_events(&mut self) {
        const ACKNOWLEDGE_AT: u32 = 1024;
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open, and its descriptor does not block.
        while unsafe { (self.verbs.ibv_get_cq_event)(self.channel, &mut queue, &mut context) } == 0 {
            self.unacknowledged[usize::from(queue == self.receive)] += 1;
        }
        if self.unacknowledged.iter().any(|&count| count >= ACKNOWLEDGE_AT) {
            self.acknowledge_events();
        }
    }

    fn acknowledge_events(&mut self) {
        for (queue, count) in [self.send, self.receive].into_iter().zip(&mut self.unacknowledged) {
            if *count > 0 {
                // SAFETY: as many events of this open queue have been taken.
                unsafe { (self.verbs.ibv_ack_cq_events)(queue, *count) };
                *count = 0;
            }
        }
    }

    /// A completion's status in the library's words.
    pub fn status_text(&self, status: c_int) -> &'static str {
        // SAFETY: the library's own table.
        unsafe { library::static_text((self.verbs.ibv_wc_status_str)(status)) }
    }

    /// What the device has said of this queue pair or of itself: the event, and its name. Takes a
    /// system call.
    pub fn trouble(&self) -> Option<(c_int, &'static str)> {
        self.context.trouble(self.queue_pair as usize)
    }

    /// Ends the queue pair: the device takes its hands off the memory.
    fn end_queue_pair(&mut self) -> bool {
        if self.queue_pair.is_null() {
            return true;
        }
        let address = self.queue_pair as usize;
        let ended = match &self.managed {
            Some(id) => id.end_queue_pair(),
            // SAFETY: made by this value, and used by nothing after this.
            None => unsafe { (self.verbs.ibv_destroy_qp)(self.queue_pair) == 0 },
        };
        self.queue_pair = ptr::null_mut();
        self.context.forget(address);
        ended
    }
}

impl Drop for Resources {
    fn drop(&mut self) {
        // SAFETY: each was made by this value, is used by nothing after this, and is ended after
        // what depends on it. A bound window depends on its queue pair: rxe waits for it in vain.
        let mut ended = unsafe {
            match self.operations().dealloc_mw {
                Some(deallocate) if !self.window.is_null() => deallocate(self.window) == 0,
                _ => true,
            }
        };
        ended &= self.end_queue_pair();
        self.acknowledge_events();
        // SAFETY: as above.
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
            if !self.domain.is_null() {
                (self.verbs.ibv_dealloc_pd)(self.domain);
            }
        }
        if !ended {
            // The device may still write there: the memory is never given back.
            std::mem::forget((self.arena.clone(), self.memory.clone()));
        }
    }
}

/// What the peer may do with what is exposed.
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

/// The key that a window has after its next binding: its lowest byte is the user's.
fn next_key(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}
