//! The apps on the kernel's devices, against real interfaces: each case in a network namespace of
//! its own, which goes with its process.
//!
//!     cargo test -p caravan-engine --test devices [PART OF A NAME]...
//!
//! It needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF). As another user, or with
//! CARAVAN_SKIP_ROOT_TESTS set, it says that it is skipped. Each case runs as a child, so that a case
//! that fails or is interrupted leaves nothing behind.

#[path = "devices/af_packet.rs"]
mod af_packet;
#[path = "devices/af_xdp.rs"]
mod af_xdp;
#[path = "devices/support.rs"]
mod support;
#[path = "devices/tap.rs"]
mod tap;

use std::process::{Command, ExitCode};

/// The environment variable that names the case of a child.
const CASE: &str = "CARAVAN_DEVICES_CASE";

/// The name of a case, and its function.
type Case = (&'static str, fn());

fn main() -> ExitCode {
    let cases: Vec<Case> = [tap::CASES, af_packet::CASES, af_xdp::cases()].concat();
    if let Ok(name) = std::env::var(CASE) {
        let (_, case) = cases.iter().find(|case| case.0 == name).expect("a case of that name");
        support::enter_namespace();
        case();
        return ExitCode::SUCCESS;
    }
    if std::env::var_os("CARAVAN_SKIP_ROOT_TESTS").is_some() {
        println!("devices: skipped: CARAVAN_SKIP_ROOT_TESTS is set");
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() {
        println!(
            "devices: skipped: interfaces and network namespaces take root, and this is user {}",
            rustix::process::geteuid().as_raw()
        );
        return ExitCode::SUCCESS;
    }
    // Cargo passes options of its own harness: the other words are names.
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let this = std::env::current_exe().expect("the path of this program");
    let mut failed = Vec::new();
    for (name, _) in cases {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let output = Command::new(&this).env(CASE, name).output().expect("a child");
        println!("devices: {name} ... {}", if output.status.success() { "ok" } else { "FAILED" });
        if !output.status.success() {
            println!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            failed.push(name);
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("devices: failed: {}", failed.join(", "));
    ExitCode::FAILURE
}
