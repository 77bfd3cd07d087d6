//! Work requests, and how a device takes them and reports their completions. `unsafe`: libibverbs' calls
//! that take and fill in lists.

#![allow(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr;

use super::super::abi::*;
use super::super::library;
use super::super::limits::*;
use super::{CompletionQueue, RemoteMemory, Resources};
use crate::contract::{Error, Local};
use crate::region::RegionNumber;

/// One work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRequest {
    /// The work to do.
    pub work: WorkKind,
    /// The id that its completion returns.
    pub id: u64,
    /// True if the request has a completion of its own, which says that all requests before it are done, too.
    pub signaled: bool,
}

/// The work of a request. Places are offsets in arenas, and have been checked against their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Copies to the peer's arena, with an immediate if the device has immediates.
    Write {
        /// The source, in this side's arena.
        from: Local,
        /// The place in the peer's memory.
        to: RemoteMemory,
        /// The immediate that the peer polls, if any.
        immediate: Option<u32>,
    },
    /// Copies from the peer's arena.
    Read {
        /// The place in the peer's memory.
        from: RemoteMemory,
        /// The destination, in this side's arena.
        into: Local,
    },
    /// Compares and swaps a word of the peer's arena.
    Swap {
        /// The place of the word.
        at: RemoteMemory,
        /// The value that the word must have.
        expected: u64,
        /// The value that the word gets.
        desired: u64,
        /// The place on this side for the word that is found.
        slot: u32,
    },
    /// Acknowledges immediates that this side has taken.
    Acknowledge {
        /// The number of immediates to acknowledge.
        count: u32,
    },
    /// Sends the peer eight bytes, on devices without immediates.
    Message {
        /// The bytes.
        body: u64,
        /// The place on this side that the bytes leave from.
        slot: u32,
    },
    /// Binds the memory window: the peer's key becomes valid.
    Bind,
    /// Binds the window of a region that is lent.
    BindLoan(RegionNumber),
}

impl Resources {
    /// Hands `requests` to the device with one doorbell. Their places must have been checked.
    pub fn post(&mut self, requests: &[WorkRequest]) -> Result<(), Error> {
        self.requests.clear();
        self.pieces.clear();
        for request in requests {
            self.translate(request);
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

    fn translate(&mut self, request: &WorkRequest) {
        // SAFETY: numbers and null pointers, for which zeros are valid.
        let mut raw: ibv_send_wr = unsafe { std::mem::zeroed() };
        raw.wr_id = request.id;
        raw.send_flags = if request.signaled { IBV_SEND_SIGNALED } else { 0 };
        // SAFETY: the regions are open for as long as `self` is.
        let (local, own) = unsafe { ((*self.local).lkey, (*self.own).lkey) };
        let (address, length, lkey) = match request.work {
            WorkKind::Write { from, to, immediate } => {
                raw.opcode = IBV_WR_RDMA_WRITE;
                if let Some(immediate) = immediate {
                    raw.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
                    raw.imm_data = immediate.to_be();
                }
                raw.wr.rdma = ibv_wr_rdma { remote_addr: to.address, rkey: to.key };
                let address = self.memory.arena.address(from.offset as usize, from.bytes as usize);
                (address, from.bytes, local)
            }
            WorkKind::Read { from, into } => {
                raw.opcode = IBV_WR_RDMA_READ;
                raw.wr.rdma = ibv_wr_rdma { remote_addr: from.address, rkey: from.key };
                let address = self.memory.arena.address(into.offset as usize, into.bytes as usize);
                (address, into.bytes, local)
            }
            WorkKind::Swap { at, expected, desired, slot } => {
                raw.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
                let remote_addr = at.address;
                raw.wr.atomic =
                    ibv_wr_atomic { remote_addr, compare_add: expected, swap: desired, rkey: at.key };
                (self.memory.own.address(slot as usize * 8, 8), 8, own)
            }
            WorkKind::Acknowledge { count } => {
                raw.opcode = IBV_WR_SEND_WITH_IMM;
                raw.imm_data = count.to_be();
                (ptr::null_mut(), 0, 0)
            }
            WorkKind::Message { body, slot } => {
                raw.opcode = IBV_WR_SEND;
                let at = self.message_out(slot);
                self.memory.own.copy_in(at, &body.to_le_bytes());
                (self.memory.own.address(at, MESSAGE_BYTES as usize), MESSAGE_BYTES, own)
            }
            WorkKind::Bind => {
                raw.opcode = IBV_WR_BIND_MW;
                let at = self.exposure.exposed.start;
                let length = self.exposure.exposed.end - at;
                let bind_info = ibv_mw_bind_info {
                    mr: self.local,
                    addr: self.memory.arena.address(at as usize, length as usize) as u64,
                    length,
                    mw_access_flags: (self.access & !IBV_ACCESS_LOCAL_WRITE) as u32,
                };
                raw.bind_mw = ibv_wr_bind_mw { mw: self.window, rkey: self.remote_memory().key, bind_info };
                (ptr::null_mut(), 0, 0)
            }
            WorkKind::BindLoan(number) => {
                raw.opcode = IBV_WR_BIND_MW;
                raw.bind_mw = self.loan_binding(number);
                (ptr::null_mut(), 0, 0)
            }
        };
        if length > 0 {
            let writes = matches!(request.work, WorkKind::Write { .. } | WorkKind::Message { .. });
            if writes && length <= self.inline_bytes {
                raw.send_flags |= IBV_SEND_INLINE;
            }
            // The piece is linked to the request once all pieces are in their places.
            raw.num_sge = 1;
            self.pieces.push(ibv_sge { addr: address as u64, length, lkey });
        }
        self.requests.push(raw);
    }

    /// Posts `count` more receives, each for one message of the peer. A message without bytes takes no
    /// memory; those of iWARP have bytes, and each lands in the place after the last one's.
    pub fn post_receives(&mut self, count: u32) -> Result<(), Error> {
        // SAFETY: the region is open for as long as `self` is.
        let lkey = unsafe { (*self.own).lkey };
        let bytes = if self.context.has_immediates() { 0 } else { MESSAGE_BYTES };
        self.pieces.clear();
        self.receives.clear();
        for _ in 0..count.min(self.depths.receive) {
            let address = self.memory.own.address(self.message_in(self.received), MESSAGE_BYTES as usize);
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

    /// Returns the offset of the message that arrived as number `count`, from 0; iWARP only.
    fn message_in(&self, count: u32) -> usize {
        let slot = count % self.depths.receive;
        (READS_MAX * 8 + slot * MESSAGE_BYTES) as usize
    }

    fn message_out(&self, slot: u32) -> usize {
        let slot = self.depths.receive + slot % self.depths.send;
        (READS_MAX * 8 + slot * MESSAGE_BYTES) as usize
    }

    /// Returns the message that arrived as number `count`, from 0; iWARP only.
    pub fn message(&self, count: u32) -> u64 {
        let mut body = [0; MESSAGE_BYTES as usize];
        self.memory.own.copy_out(self.message_in(count), &mut body);
        u64::from_le_bytes(body)
    }

    /// Returns the word that a compare-and-swap found.
    pub fn found(&self, slot: u32) -> u64 {
        let mut word = [0; 8];
        self.memory.own.copy_out(slot as usize * 8, &mut word);
        u64::from_ne_bytes(word)
    }
}

impl Resources {
    /// Takes up to [`POLL_BATCH`] completions, and gives each to `each`.
    pub fn poll(&self, queue: CompletionQueue, each: &mut dyn FnMut(&ibv_wc)) -> Result<usize, Error> {
        let Some(poll) = self.operations().poll_cq else {
            return Err(self.device_error("it has no way to poll".to_owned()));
        };
        // SAFETY: the structures are plain numbers, for which any value is valid; the device fills in what it returns.
        let mut completions: [ibv_wc; POLL_BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open, and the array has as many places as the call asks for.
        let count = unsafe { poll(self.raw(queue), POLL_BATCH as c_int, completions.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            return Err(self.device_error("its completion queue failed".to_owned()));
        };
        completions[..count.min(POLL_BATCH)].iter().for_each(each);
        Ok(count)
    }

    fn raw(&self, queue: CompletionQueue) -> *mut ibv_cq {
        match queue {
            CompletionQueue::Send => self.send,
            CompletionQueue::Receive => self.receive,
        }
    }

    /// Makes the next completion make the descriptor readable.
    pub fn arm(&self, queue: CompletionQueue) -> Result<(), Error> {
        let Some(arm) = self.operations().req_notify_cq else {
            return Err(self.device_error("it has no completion events".to_owned()));
        };
        // SAFETY: the queue is open.
        match unsafe { arm(self.raw(queue), 0) } {
            0 => Ok(()),
            _ => Err(self.device_error("its completion queue cannot be armed".to_owned())),
        }
    }

    /// Returns a descriptor that becomes readable with a completion of an armed queue.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open for as long as `self` is.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// Makes the descriptor unreadable again. Acknowledges many events at once, because that takes a lock.
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

    pub(super) fn acknowledge_events(&mut self) {
        for (queue, count) in [self.send, self.receive].into_iter().zip(&mut self.unacknowledged) {
            if *count > 0 {
                // SAFETY: as many events of this open queue have been taken.
                unsafe { (self.verbs.ibv_ack_cq_events)(queue, *count) };
                *count = 0;
            }
        }
    }

    /// Returns the library's text for a completion's status.
    pub fn status_text(&self, status: c_int) -> &'static str {
        // SAFETY: the text is in the library's own table.
        unsafe { library::static_text((self.verbs.ibv_wc_status_str)(status)) }
    }

    /// Returns the event that the device has reported about this queue pair or about itself, and its name. Makes a
    /// system call.
    pub fn trouble(&self) -> Option<(c_int, &'static str)> {
        self.context.trouble(self.queue_pair as usize)
    }
}
