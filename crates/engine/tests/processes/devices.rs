//! The apps on the kernel's devices, against real interfaces: each case in a network namespace of
//! its own, which goes with its process.
//!
//! They need root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF).

mod af_packet;
mod af_xdp;
mod support;
mod tap;

use crate::Scene;
pub use support::enter_namespace;

/// Returns all cases, or why there are none here.
pub fn cases() -> Result<Vec<Scene>, String> {
    let user = rustix::process::geteuid();
    if std::env::var_os("CARAVAN_SKIP_ROOT_TESTS").is_some() {
        return Err("CARAVAN_SKIP_ROOT_TESTS is set".to_owned());
    }
    match user.is_root() {
        true => Ok([tap::CASES, af_packet::CASES, af_xdp::cases()].concat()),
        false => {
            Err(format!("interfaces and network namespaces take root, and this is user {}", user.as_raw()))
        }
    }
}
