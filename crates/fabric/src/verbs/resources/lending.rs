//! The regions that a connection lends: registrations of its domain, and a memory window for each loan where windows
//! work. `unsafe`: libibverbs' calls that make and end windows, and stop a queue pair.

#![allow(unsafe_code, reason = "calls into libibverbs")]

use std::ptr;
use std::sync::Arc;

use super::super::abi::*;
use super::super::domain::{Registration, remote_access};
use super::{Resources, next_key};
use crate::contract::Error;
use crate::region::{Region, RegionAccess, RegionNumber, RegionToken};

/// A region that a connection lends.
#[derive(Debug)]
pub struct VerbsLoan {
    registration: Arc<Registration>,
    access: RegionAccess,
    /// Null if the device has no windows that work.
    window: *mut ibv_mw,
}

impl Resources {
    /// Lends a region. Returns the token, and the number of bytes that had to be registered for it. The key is valid
    /// at once, or once the work [`BindLoan`](super::WorkKind::BindLoan) is done.
    pub fn lend(&mut self, region: &Region, access: RegionAccess) -> Result<(RegionToken, u64), Error> {
        let number = self.lent.next()?;
        let (registration, is_new) = self.domain.registration(region, access)?;
        let registered = if is_new { registration.bytes() } else { 0 };
        let (address, mut key) = registration.remote();
        let mut window = ptr::null_mut();
        if self.context.uses_windows() {
            let allocate = self.operations().alloc_mw;
            // SAFETY: the domain is open; a device with windows has the function.
            let made =
                allocate.map_or(ptr::null_mut(), |call| unsafe { call(self.domain.raw(), IBV_MW_TYPE_2) });
            window = self.made("a memory window", made)?;
            // SAFETY: the window has just been made. Binding it makes its next key valid.
            key = next_key(unsafe { (*window).rkey });
        }
        self.lent.insert(number, VerbsLoan { registration, access, window });
        self.open_to(access)?;
        Ok((RegionToken { number, access, bytes: region.bytes(), address, key }, registered))
    }

    /// Lets the queue pair serve what the loan allows, which the arena may not have needed. The connection manager's
    /// queue pairs, of iWARP, leave that to the keys.
    fn open_to(&mut self, access: RegionAccess) -> Result<(), Error> {
        let wanted = self.access | remote_access(access);
        if self.managed.is_some() || wanted == self.access {
            return Ok(());
        }
        // SAFETY: the structure is plain numbers, for which zeros are valid.
        let mut to: ibv_qp_attr = unsafe { std::mem::zeroed() };
        to.qp_state = IBV_QPS_RTS;
        to.qp_access_flags = (wanted & !IBV_ACCESS_LOCAL_WRITE) as u32;
        self.modify(&mut to, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS)
    }

    /// True if a loan's window must be bound before the peer may use its key.
    pub fn binds_loans(&self) -> bool {
        self.context.uses_windows()
    }

    pub(super) fn loan_binding(&self, number: RegionNumber) -> ibv_wr_bind_mw {
        let Some(loan) = self.lent.row(number) else {
            // SAFETY: numbers and null pointers, for which zeros are valid; the device refuses the work.
            return unsafe { std::mem::zeroed() };
        };
        let (addr, _) = loan.registration.remote();
        let bind_info = ibv_mw_bind_info {
            mr: loan.registration.raw(),
            addr,
            length: loan.registration.bytes(),
            mw_access_flags: remote_access(loan.access) as u32,
        };
        // SAFETY: the window is open for as long as the loan.
        ibv_wr_bind_mw { mw: loan.window, rkey: next_key(unsafe { (*loan.window).rkey }), bind_info }
    }

    /// Takes a loan back. Without a window the key is of all connections of the domain, so this one's queue pair is
    /// stopped instead: false then.
    pub fn revoke(&mut self, number: RegionNumber) -> Result<bool, Error> {
        let loan = self.lent.revoke(number)?;
        if !loan.window.is_null() {
            self.end_loan(loan);
            return Ok(true);
        }
        // SAFETY: the structure is plain numbers, for which zeros are valid.
        let mut to: ibv_qp_attr = unsafe { std::mem::zeroed() };
        to.qp_state = IBV_QPS_ERR;
        self.modify(&mut to, IBV_QP_STATE)?;
        Ok(false)
    }

    pub(super) fn end_loan(&self, loan: VerbsLoan) {
        if let (false, Some(deallocate)) = (loan.window.is_null(), self.operations().dealloc_mw) {
            // SAFETY: this value made the window, and nothing uses it after this.
            if unsafe { deallocate(loan.window) } != 0 {
                // The device may still use the registration, so it never ends.
                std::mem::forget(Arc::clone(&loan.registration));
            }
        }
    }
}
