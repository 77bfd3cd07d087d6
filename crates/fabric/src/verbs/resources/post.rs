//! Handing work to a device. `unsafe`: libibverbs' calls that take lists of requests.

#![allow(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_int;
use std::ptr;

use super::super::abi::*;
use super::super::limits::*;
use super::super::work::{Request, Work};
use super::{Resources, Target};
use crate::contract::Error;

impl Resources {
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
        let bytes = if self.context.has_immediates() { 0 } else { MESSAGE_BYTES };
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
}
