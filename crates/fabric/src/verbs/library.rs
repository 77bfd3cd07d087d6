//! rdma-core, loaded when it is first asked for. `unsafe`: `dlopen`, and the types of the functions that it finds.
//!
//! Nothing is linked: without rdma-core everything but RDMA still runs. Loading it changes no signal
//! handler and starts no thread. It is never unloaded.

#![allow(unsafe_code, reason = "the door to rdma-core")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::abi::*;

/// Declares a table of functions, and a way to fill it from a shared library.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $table {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            /// Returns functions that end the test; a test replaces those that it expects.
            #[cfg(test)]
            #[allow(dead_code, reason = "not of every table")]
            pub fn unexpected() -> Self {
                unsafe extern "C" fn called() {
                    std::process::abort();
                }
                Self {
                    $($name: {
                        // SAFETY: the function never returns, whatever its arguments are.
                        unsafe {
                            std::mem::transmute::<
                                unsafe extern "C" fn(),
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(called)
                        }
                    },)*
                }
            }

            fn load(handle: Handle) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let found = handle.symbol(concat!(stringify!($name), "\0"))?;
                        // SAFETY: the library's header declares the function of this name so.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    /// libibverbs.
    Verbs {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list: fn(*mut *mut ibv_device);
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device: fn(*mut ibv_context) -> c_int;
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        _ibv_query_gid_ex: fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
        _ibv_query_gid_table: fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
        ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event: fn(*mut ibv_async_event);
        ibv_wc_status_str: fn(c_int) -> *const c_char;
        ibv_event_type_str: fn(c_int) -> *const c_char;
        ibv_fork_init: fn() -> c_int;
    }
}

functions! {
    /// librdmacm.
    Connections {
        rdma_create_event_channel: fn() -> *mut rdma_event_channel;
        rdma_destroy_event_channel: fn(*mut rdma_event_channel);
        rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int) -> c_int;
        rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
        rdma_bind_addr: fn(*mut rdma_cm_id, *mut sockaddr) -> c_int;
        rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_get_src_port: fn(*mut rdma_cm_id) -> u16;
        rdma_resolve_addr: fn(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
        rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_create_qp: fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        rdma_destroy_qp: fn(*mut rdma_cm_id);
        rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect: fn(*mut rdma_cm_id) -> c_int;
        rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
        rdma_event_str: fn(c_int) -> *const c_char;
    }
}

/// Returns libibverbs, or the error of the loader.
pub fn verbs() -> Result<&'static Verbs, String> {
    static VERBS: OnceLock<Verbs> = OnceLock::new();
    loaded(&VERBS, || {
        let verbs = Verbs::load(Handle::open(c"libibverbs.so.1")?)?;
        prepare_for_forks(&verbs);
        Ok(verbs)
    })
}

/// Returns librdmacm, which only devices that demand it need, or the error of the loader.
pub fn connections() -> Result<&'static Connections, String> {
    static CONNECTIONS: OnceLock<Connections> = OnceLock::new();
    loaded(&CONNECTIONS, || Connections::load(Handle::open(c"librdmacm.so.1")?))
}

/// Returns a text of the library's own.
///
/// # Safety
/// `text` is null or a C string that is never freed, as the libraries' tables of names are.
pub unsafe fn static_text(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "unknown";
    }
    // SAFETY: the caller promises it.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("unknown")
}

/// Returns a library, and remembers only success: it may be installed while this process runs.
fn loaded<T>(
    cell: &'static OnceLock<T>,
    load: impl FnOnce() -> Result<T, String>,
) -> Result<&'static T, String> {
    match cell.get() {
        Some(table) => Ok(table),
        None => load().map(|table| cell.get_or_init(|| table)),
    }
}

/// Prepares for forks. Must run before the first registration: a child process must not take registered pages
/// along when it writes to them first. Kernels since 5.12 need no preparation, which the library knows.
fn prepare_for_forks(verbs: &Verbs) {
    // SAFETY: called before any region is registered, as its manual page demands. A failure
    // leaves things as they are; this process's registered memory is shared, not copied on write.
    let _ = unsafe { (verbs.ibv_fork_init)() };
}

/// An open shared library, never closed.
#[derive(Clone, Copy, Debug)]
struct Handle(*mut c_void);

impl Handle {
    fn open(name: &CStr) -> Result<Self, String> {
        // SAFETY: a C string; RTLD_LOCAL keeps the library's names to itself. Its initializers only
        // read the environment.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() { Err(trouble()) } else { Ok(Self(handle)) }
    }

    fn symbol(self, name: &'static str) -> Result<*mut c_void, String> {
        // SAFETY: the handle is open, and `name` ends in a zero byte.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr().cast()) };
        if found.is_null() { Err(trouble()) } else { Ok(found) }
    }
}

/// Returns the loader's text for its last failure.
fn trouble() -> String {
    // SAFETY: the text belongs to this thread until its next call of the loader.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "unknown".to_owned()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}
