//! What a device tells: completions, the descriptor that announces them, and trouble. `unsafe`: libibverbs'
//! calls that fill in lists of completions.

#![allow(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr;

use super::super::abi::*;
use super::super::library;
use super::super::limits::POLL_BATCH;
use super::{Queue, Resources};
use crate::contract::Error;

impl Resources {
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

    pub(super) fn acknowledge_events(&mut self) {
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
}
