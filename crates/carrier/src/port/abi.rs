//! The part of the emulator's driver interface that is used here, as `erl_driver.h` and
//! `erl_drv_nif.h` of OTP 25 to 28 declare it (extended version 3.3), with the same names.

#![allow(non_camel_case_types, missing_docs, reason = "the C interface's own names and documentation")]

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::io::IoSlice;

pub type ErlDrvSizeT = usize;
pub type ErlDrvSSizeT = isize;
pub type ErlDrvTermData = usize;
pub type ErlDrvEvent = *mut c_void;
pub type ErlDrvData = *mut c_void;
/// The argument of an asynchronous job; `void *` in the manual.
pub type ErlDrvThreadData = *mut c_void;

#[repr(C)]
pub struct PortHandle {
    _opaque: [u8; 0],
}
pub type ErlDrvPort = *mut PortHandle;

#[repr(C)]
pub struct ErlDrvBinary {
    pub orig_size: c_long,
    pub orig_bytes: [u8; 1],
}

/// `struct iovec`, with which `std` promises `IoSlice` to be compatible; kept raw because empty
/// parts may have a null base.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SysIOVec {
    pub iov_base: *const u8,
    pub iov_len: usize,
}
const _: () = assert!(size_of::<SysIOVec>() == size_of::<IoSlice<'static>>());

#[repr(C)]
pub struct ErlIOVec {
    pub vsize: c_int,
    pub size: ErlDrvSizeT,
    pub iov: *mut SysIOVec,
    pub binv: *mut *mut ErlDrvBinary,
}

pub const ERL_DRV_READ: c_int = 1;
pub const ERL_DRV_USE: c_int = 4;
pub const ERL_DRV_EXTENDED_MARKER: c_int = 0xfeee_eeed_u32 as c_int;
pub const ERL_DRV_EXTENDED_MAJOR_VERSION: c_int = 3;
pub const ERL_DRV_EXTENDED_MINOR_VERSION: c_int = 3;
pub const ERL_DRV_FLAG_USE_PORT_LOCKING: c_int = 1;
pub const ERL_DRV_FLAG_SOFT_BUSY: c_int = 2;
pub const ERL_DRV_ERROR_GENERAL: ErlDrvData = -1_isize as ErlDrvData;

pub const ERL_DRV_ATOM: ErlDrvTermData = 2;
pub const ERL_DRV_PORT: ErlDrvTermData = 4;
pub const ERL_DRV_TUPLE: ErlDrvTermData = 7;
pub const ERL_DRV_BUF2BINARY: ErlDrvTermData = 14;

type InitCallback = unsafe extern "C" fn() -> c_int;
type StartCallback = unsafe extern "C" fn(ErlDrvPort, *mut c_char) -> ErlDrvData;
type StopCallback = unsafe extern "C" fn(ErlDrvData);
type OutputCallback = unsafe extern "C" fn(ErlDrvData, *mut c_char, ErlDrvSizeT);
type ReadyCallback = unsafe extern "C" fn(ErlDrvData, ErlDrvEvent);
type ControlCallback = unsafe extern "C" fn(
    ErlDrvData,
    c_uint,
    *mut c_char,
    ErlDrvSizeT,
    *mut *mut c_char,
    ErlDrvSizeT,
) -> ErlDrvSSizeT;
type OutputvCallback = unsafe extern "C" fn(ErlDrvData, *mut ErlIOVec);
type ReadyAsyncCallback = unsafe extern "C" fn(ErlDrvData, ErlDrvThreadData);
pub type AsyncWork = unsafe extern "C" fn(ErlDrvThreadData);
type UnusedCallback = unsafe extern "C" fn();
type StopSelectCallback = unsafe extern "C" fn(ErlDrvEvent, *mut c_void);

#[repr(C)]
pub struct ErlDrvEntry {
    pub init: Option<InitCallback>,
    pub start: Option<StartCallback>,
    pub stop: Option<StopCallback>,
    pub output: Option<OutputCallback>,
    pub ready_input: Option<ReadyCallback>,
    pub ready_output: Option<ReadyCallback>,
    pub driver_name: *const c_char,
    pub finish: Option<UnusedCallback>,
    pub handle: *mut c_void,
    pub control: Option<ControlCallback>,
    pub timeout: Option<StopCallback>,
    pub outputv: Option<OutputvCallback>,
    pub ready_async: Option<ReadyAsyncCallback>,
    pub flush: Option<StopCallback>,
    pub call: Option<UnusedCallback>,
    pub unused_event_callback: Option<UnusedCallback>,
    pub extended_marker: c_int,
    pub major_version: c_int,
    pub minor_version: c_int,
    pub driver_flags: c_int,
    pub handle2: *mut c_void,
    pub process_exit: Option<UnusedCallback>,
    pub stop_select: Option<StopSelectCallback>,
    pub emergency_close: Option<StopCallback>,
}

unsafe extern "C" {
    pub fn driver_select(port: ErlDrvPort, event: ErlDrvEvent, mode: c_int, on: c_int) -> c_int;
    pub fn driver_output_binary(
        port: ErlDrvPort,
        header: *mut c_char,
        header_length: ErlDrvSizeT,
        binary: *mut ErlDrvBinary,
        offset: ErlDrvSizeT,
        length: ErlDrvSizeT,
    ) -> c_int;
    pub fn driver_async(
        port: ErlDrvPort,
        key: *mut c_uint,
        invoke: AsyncWork,
        data: ErlDrvThreadData,
        free: Option<AsyncWork>,
    ) -> c_long;
    pub fn driver_set_timer(port: ErlDrvPort, milliseconds: c_ulong) -> c_int;
    pub fn driver_failure_atom(port: ErlDrvPort, reason: *mut c_char) -> c_int;
    pub fn set_busy_port(port: ErlDrvPort, on: c_int);
    pub fn driver_alloc(size: ErlDrvSizeT) -> *mut c_void;
    pub fn driver_alloc_binary(size: ErlDrvSizeT) -> *mut ErlDrvBinary;
    pub fn driver_realloc_binary(binary: *mut ErlDrvBinary, size: ErlDrvSizeT) -> *mut ErlDrvBinary;
    pub fn driver_free_binary(binary: *mut ErlDrvBinary);
    pub fn driver_enq(port: ErlDrvPort, bytes: *mut c_char, length: ErlDrvSizeT) -> c_int;
    pub fn driver_enqv(port: ErlDrvPort, vector: *mut ErlIOVec, skip: ErlDrvSizeT) -> c_int;
    pub fn driver_pushq(port: ErlDrvPort, bytes: *mut c_char, length: ErlDrvSizeT) -> c_int;
    pub fn driver_deq(port: ErlDrvPort, size: ErlDrvSizeT) -> ErlDrvSizeT;
    pub fn driver_sizeq(port: ErlDrvPort) -> ErlDrvSizeT;
    pub fn driver_peekq(port: ErlDrvPort, count: *mut c_int) -> *mut SysIOVec;
    pub fn driver_lock_driver(port: ErlDrvPort) -> c_int;
    pub fn driver_caller(port: ErlDrvPort) -> ErlDrvTermData;
    pub fn driver_mk_atom(name: *mut c_char) -> ErlDrvTermData;
    pub fn driver_mk_port(port: ErlDrvPort) -> ErlDrvTermData;
    pub fn erl_drv_send_term(
        port: ErlDrvTermData,
        receiver: ErlDrvTermData,
        term: *mut ErlDrvTermData,
        length: c_int,
    ) -> c_int;
}
