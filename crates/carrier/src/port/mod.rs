//! The emulator's C interface: one entry for the driver, one [`DriverPort`] for each open port.
//!
//! All `unsafe` of the crate is in this module. Every callback goes through [`enter`], which
//! catches a panic and closes the port instead of the node. A port is closed as the very last
//! thing of a callback, because the emulator then frees it (`stop`) before it returns.

#![allow(unsafe_code, reason = "the emulator's C interface")]

mod abi;
mod live;
mod state;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::slice;

use abi::*;
use state::{ControlReply, DriverPort, Errand, PortEvent};

use crate::error::Error;

/// The value that `driver_init` returns; the emulator writes its own fields of it.
struct DriverEntry(std::cell::UnsafeCell<ErlDrvEntry>);

// SAFETY: only the emulator touches the entry, under its own locks.
unsafe impl Sync for DriverEntry {}

static ENTRY: DriverEntry = DriverEntry(std::cell::UnsafeCell::new(ErlDrvEntry {
    init: None,
    start: Some(start),
    stop: Some(stop),
    output: None,
    ready_input: Some(ready_input),
    ready_output: None,
    driver_name: c"caravan_driver".as_ptr(),
    finish: None,
    handle: ptr::null_mut(),
    control: Some(control),
    timeout: Some(timeout),
    outputv: Some(outputv),
    ready_async: Some(ready_async),
    flush: Some(flush),
    call: None,
    unused_event_callback: None,
    extended_marker: ERL_DRV_EXTENDED_MARKER,
    major_version: ERL_DRV_EXTENDED_MAJOR_VERSION,
    minor_version: ERL_DRV_EXTENDED_MINOR_VERSION,
    driver_flags: ERL_DRV_FLAG_USE_PORT_LOCKING | ERL_DRV_FLAG_SOFT_BUSY,
    handle2: ptr::null_mut(),
    process_exit: None,
    stop_select: Some(stop_select),
    emergency_close: None,
}));

/// The entry that `erl_ddll` looks for.
// SAFETY: the name is the one that the emulator expects, and no other library of a node has it in
// its global scope: drivers are opened locally.
#[unsafe(no_mangle)]
pub extern "C" fn driver_init() -> *mut c_void {
    ENTRY.0.get().cast()
}

/// Runs one callback on its port. `closes` says whether the port may be closed at the end of
/// it; otherwise a timer closes it.
fn enter(data: ErlDrvData, closes: bool, callback: impl FnOnce(&mut DriverPort) -> Result<(), Error>) {
    // SAFETY: `data` is what `start` returned, until `stop` frees it; the emulator holds the
    // port's lock during every callback, so there is no other reference.
    let port = unsafe { &mut *data.cast::<DriverPort>() };
    let outcome = catch_unwind(AssertUnwindSafe(|| callback(port))).unwrap_or(Err(Error::Panicked));
    if let Err(error) = outcome {
        port.end(error);
    }
    let Some(reason) = port.ended_for() else { return };
    let handle = port.handle();
    if closes {
        // A panic here ends the same port for the same reason.
        let _ = catch_unwind(AssertUnwindSafe(|| port.last_words()));
        // SAFETY: the port is this callback's own, and nothing of it is used after this: `stop` may
        // run inside this call.
        unsafe { driver_failure_atom(handle, reason.as_ptr().cast_mut()) };
    } else {
        // SAFETY: the port is this callback's own.
        unsafe { driver_set_timer(handle, 0) };
    }
}

unsafe extern "C" fn start(handle: ErlDrvPort, _command: *mut c_char) -> ErlDrvData {
    // The library stays loaded for as long as the node runs. Otherwise it would be unloaded when
    // `net_kernel:stop/0` ends the process that loaded it, and would leave its segment of counters.
    // SAFETY: the port is this callback's own.
    unsafe { driver_lock_driver(handle) };
    match catch_unwind(|| Box::new(DriverPort::new(handle))) {
        Ok(port) => Box::into_raw(port).cast(),
        Err(_) => ERL_DRV_ERROR_GENERAL,
    }
}

unsafe extern "C" fn stop(data: ErlDrvData) {
    // SAFETY: `Box::into_raw` made the pointer in `start`; the emulator does not use it after this.
    let port = unsafe { Box::from_raw(data.cast::<DriverPort>()) };
    let _ = catch_unwind(AssertUnwindSafe(move || drop(port)));
}

unsafe extern "C" fn ready_input(data: ErlDrvData, event: ErlDrvEvent) {
    enter(data, true, |port| port.ready(event as usize as RawFd));
}

unsafe extern "C" fn timeout(data: ErlDrvData) {
    enter(data, true, |port| port.event(PortEvent::Timeout));
}

unsafe extern "C" fn flush(data: ErlDrvData) {
    enter(data, false, |port| port.event(PortEvent::Flush));
}

unsafe extern "C" fn ready_async(data: ErlDrvData, errand: ErlDrvThreadData) {
    // SAFETY: `begin` gave the errand to `driver_async`, which gives it back once, here or to `free`.
    let errand = unsafe { Box::from_raw(errand.cast::<Errand>()) };
    enter(data, true, |port| port.finished(*errand));
}

unsafe extern "C" fn invoke(errand: ErlDrvThreadData) {
    // SAFETY: `begin` gave the errand away; until it comes back, it belongs to this thread alone.
    unsafe { &mut *errand.cast::<Errand>() }.run();
}

/// Frees an errand whose port has closed meanwhile.
unsafe extern "C" fn free(errand: ErlDrvThreadData) {
    // SAFETY: as in `ready_async`.
    let errand = unsafe { Box::from_raw(errand.cast::<Errand>()) };
    let _ = catch_unwind(AssertUnwindSafe(move || drop(errand)));
}

/// Gives the errand to a thread of the emulator; [`DriverPort::finished`] gets it back, unless the port
/// closes first. False if the emulator does not take it.
fn begin(handle: ErlDrvPort, errand: Errand) -> bool {
    let data = Box::into_raw(Box::new(errand)).cast();
    // SAFETY: the port is this callback's own; `invoke`, `free` and `ready_async` expect what `data` points to.
    let begun = unsafe { driver_async(handle, ptr::null_mut(), invoke, data, Some(free)) };
    if begun < 0 {
        // SAFETY: the emulator did not take the errand.
        drop(unsafe { Box::from_raw(data.cast::<Errand>()) });
    }
    begun >= 0
}

unsafe extern "C" fn outputv(data: ErlDrvData, vector: *mut ErlIOVec) {
    enter(data, false, |port| {
        // SAFETY: the emulator's vector is valid for the whole callback.
        let (parts, length) = unsafe { (live::parts((*vector).iov, (*vector).vsize), (*vector).size) };
        port.output(port.live().with_output(vector), parts, length)
    });
}

unsafe extern "C" fn control(
    data: ErlDrvData,
    operation: c_uint,
    bytes: *mut c_char,
    length: ErlDrvSizeT,
    reply_at: *mut *mut c_char,
    reply_size: ErlDrvSizeT,
) -> ErlDrvSSizeT {
    let mut reply = ControlReply::default();
    enter(data, false, |port| {
        let data = match length {
            0 => &[][..],
            // SAFETY: the emulator gives `length` bytes, valid for the whole callback.
            _ => unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) },
        };
        reply = port.control(operation, data)?;
        Ok(())
    });
    let reply = reply.bytes();
    // SAFETY: `reply_at` points to a buffer of `reply_size` bytes; a larger reply goes into one
    // from `driver_alloc`, which the emulator frees.
    unsafe {
        if reply.len() > reply_size {
            let larger = driver_alloc(reply.len()).cast::<c_char>();
            if larger.is_null() {
                return -1;
            }
            *reply_at = larger;
        }
        ptr::copy_nonoverlapping(reply.as_ptr(), (*reply_at).cast::<u8>(), reply.len());
    }
    reply.len() as ErlDrvSSizeT
}

unsafe extern "C" fn stop_select(event: ErlDrvEvent, _reserved: *mut c_void) {
    // SAFETY: `DriverPort` gave this descriptor away with `driver_select(USE)`; the emulator has released
    // it now, so this is its only owner.
    drop(unsafe { OwnedFd::from_raw_fd(event as usize as RawFd) });
}

/// A descriptor that the emulator watches and closes, in `stop_select`, once it has been given to [`unwatch`].
#[derive(Debug)]
struct WatchedDescriptor(RawFd);

impl WatchedDescriptor {
    /// True if the watched descriptor is `descriptor`.
    fn is(&self, descriptor: RawFd) -> bool {
        self.0 == descriptor
    }
}

impl AsFd for WatchedDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: only `watch` makes such a value, of an open descriptor, and only `unwatch`, which takes it by
        // value, makes the emulator close the descriptor.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// Makes the emulator watch `descriptor` for input, and gives the descriptor to it.
fn watch(handle: ErlDrvPort, descriptor: OwnedFd) -> Option<WatchedDescriptor> {
    let raw = descriptor.into_raw_fd();
    // SAFETY: the port is this callback's own, and the descriptor is open.
    let failed = unsafe { driver_select(handle, raw as usize as ErlDrvEvent, ERL_DRV_READ | ERL_DRV_USE, 1) };
    if failed == 0 {
        return Some(WatchedDescriptor(raw));
    }
    // SAFETY: the emulator did not take the descriptor.
    drop(unsafe { OwnedFd::from_raw_fd(raw) });
    None
}

/// Makes the emulator stop watching, and close the descriptor.
fn unwatch(handle: ErlDrvPort, WatchedDescriptor(raw): WatchedDescriptor) {
    // SAFETY: `raw` is being watched; `stop_select` will close it.
    unsafe { driver_select(handle, raw as usize as ErlDrvEvent, ERL_DRV_USE, 0) };
}

/// Returns the process that called `port_control`.
fn caller(handle: ErlDrvPort) -> ErlDrvTermData {
    // SAFETY: the port is this callback's own.
    unsafe { driver_caller(handle) }
}

/// Sends `{Port, poll}` to `receiver`, or `{Port, error, <<sentence>>}`, or `{Port, done, <<reply>>}`.
fn send(handle: ErlDrvPort, receiver: ErlDrvTermData, name: &'static std::ffi::CStr, bytes: Option<&[u8]>) {
    // SAFETY: the port is this callback's own; the emulator copies the name and the bytes, and
    // the terms are in the form that the manual of erl_drv_send_term gives.
    unsafe {
        let port = driver_mk_port(handle);
        let name = driver_mk_atom(name.as_ptr().cast_mut());
        let (at, length) = bytes.map_or((0, 0), |bytes| (bytes.as_ptr() as ErlDrvTermData, bytes.len()));
        let mut term =
            [ERL_DRV_PORT, port, ERL_DRV_ATOM, name, ERL_DRV_BUF2BINARY, at, length, ERL_DRV_TUPLE, 3];
        if bytes.is_none() {
            term[4] = ERL_DRV_TUPLE;
            term[5] = 2;
        }
        let used = if bytes.is_none() { 6 } else { term.len() };
        erl_drv_send_term(port, receiver, term.as_mut_ptr(), used as c_int);
    }
}

/// Sets the port's timer.
fn set_timer(handle: ErlDrvPort, milliseconds: u64) {
    // SAFETY: the port is this callback's own.
    unsafe { driver_set_timer(handle, milliseconds) };
}

/// Returns a second descriptor for the file of `raw`, which this side does not own.
fn duplicate(raw: RawFd) -> std::io::Result<OwnedFd> {
    if raw < 0 {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput));
    }
    // SAFETY: the descriptor is borrowed for this one call, which fails cleanly if it is not open.
    unsafe { BorrowedFd::borrow_raw(raw) }.try_clone_to_owned()
}
