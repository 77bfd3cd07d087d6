//! What else than devices this machine's RDMA hangs on: rdma-core, and how much memory may be locked.

use super::library;
use super::limits::*;
use super::obstacle::Obstacle;
use super::resources::{Depths, own_bytes};
use crate::contract::Exposure;

/// The version of rdma-core, such as "44.0"; empty where its file does not tell. Loads it.
pub fn library_version() -> Result<String, Obstacle> {
    library::verbs().map_err(|why| Obstacle::NoLibrary { why })?;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    Ok(maps.lines().find_map(version_in).unwrap_or_default().to_owned())
}

/// Of a line of /proc/self/maps that names libibverbs.so.1.14.44.0: "44.0". The first two numbers are
/// those of its interface.
fn version_in(line: &str) -> Option<&str> {
    let (_, numbers) = line.rsplit_once("/libibverbs.so.")?;
    numbers.splitn(3, '.').nth(2).filter(|version| !version.is_empty())
}

/// Bytes that a connection of that exposure locks, on a device that
/// [uses windows](super::device::Context::uses_windows), or another.
pub fn registered_bytes(exposure: &Exposure, uses_windows: bool) -> u64 {
    let depths = Depths { send: SEND_DEPTH, receive: WINDOW + RECEIVE_RESERVE };
    let exposed = exposure.exposed.end - exposure.exposed.start;
    let all = exposed == exposure.arena_bytes;
    let twice = if uses_windows || all { 0 } else { exposed };
    exposure.arena_bytes.next_multiple_of(PAGE_BYTES) + twice + own_bytes(depths).next_multiple_of(PAGE_BYTES)
}

/// Bytes that this process may lock; `None` where nothing limits it.
pub fn memory_lock_limit() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    match may_lock_all(&status) {
        true => None,
        false => rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
    }
}

/// Whether a /proc/PID/status has the capability CAP_IPC_LOCK, which no limit holds.
fn may_lock_all(status: &str) -> bool {
    const CAP_IPC_LOCK: u64 = 14;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits & 1 << CAP_IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Link;

    #[test]
    fn the_version_is_in_the_name_of_the_file() {
        let line = "7f00-7f01 r--p 0 fe:00 1  /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0";
        assert_eq!(version_in(line), Some("44.0"));
        assert_eq!(version_in("7f00-7f01 r--p 0 fe:00 1  /opt/lib/libibverbs.so.1"), None);
        assert_eq!(version_in("7f00-7f01 r--p 0 fe:00 1  /usr/lib/libc.so.6"), None);
    }

    #[test]
    fn root_locks_without_limit() {
        assert!(may_lock_all("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!may_lock_all("Name:\tx\nCapEff:\t0000000000000000\n"));
        assert!(!may_lock_all(""));
    }

    #[test]
    fn a_window_saves_a_registration() {
        let exposure = Link::exposure(1 << 19).unwrap();
        let (with, without) = (registered_bytes(&exposure, true), registered_bytes(&exposure, false));
        assert_eq!(without - with, 1 << 19);
        assert!(with > 2 << 19 && with < 2 << 20);
        assert_eq!(
            registered_bytes(&Exposure::all(4096), true),
            registered_bytes(&Exposure::all(4096), false)
        );
    }
}
