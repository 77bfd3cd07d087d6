//! The state that a bridge takes along when it moves to another worker.
//!
//! ```text
//! version 1, VLANs told apart 1, time 8
//! ports 2, each: bytes 1, name
//! entries 4, each: address 8, port 2, age in milliseconds 4
//! ```
//!
//! Numbers are little-endian. The time is the machine's monotonic clock, which the next worker has,
//! too. Anything else is no valid state, and the bridge learns anew.

use super::table::{KnownStation, PortNumber, StationTable};
use crate::limits::{LINKS_MAX, NAME_BYTES_MAX, STATE_BYTES_MAX};

const VERSION: u8 = 1;
const ENTRY_BYTES: usize = 14;
/// The number of entries of a bridge at most: as many as fit into a state with the names of all ports.
pub const ENTRIES_MAX: usize = 16 << 10;

// A link from the bridge to itself is two ports.
const _: () =
    assert!(14 + 2 * LINKS_MAX * (1 + NAME_BYTES_MAX) + ENTRIES_MAX * ENTRY_BYTES <= STATE_BYTES_MAX);
const _: () = assert!(NAME_BYTES_MAX <= u8::MAX as usize);

/// The state that a bridge has left to its successor.
#[derive(Debug, PartialEq, Eq)]
pub struct BridgeState {
    /// The names of its ports, by their numbers.
    pub ports: Vec<String>,
    pub stations: Vec<KnownStation>,
}

/// Writes a state.
pub fn write<'a>(
    vlans: bool,
    now_ns: u64,
    ports: impl ExactSizeIterator<Item = &'a str>,
    table: &StationTable,
) -> Vec<u8> {
    let mut bytes = vec![VERSION, u8::from(vlans)];
    bytes.extend(now_ns.to_le_bytes());
    bytes.extend((ports.len() as u16).to_le_bytes());
    for name in ports {
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
    }
    bytes.extend((table.length() as u32).to_le_bytes());
    for station in table.iter() {
        let age_ms = now_ns.saturating_sub(station.seen_ns) / 1_000_000;
        bytes.extend(station.address.to_le_bytes());
        bytes.extend(station.port.to_le_bytes());
        bytes.extend(u32::try_from(age_ms).unwrap_or(u32::MAX).to_le_bytes());
    }
    bytes
}

/// Reads a state. Returns `None` if it is incomplete, or if `vlans` differs from that of the bridge that left it.
pub fn read(vlans: bool, bytes: &[u8]) -> Option<BridgeState> {
    let mut rest = Rest(bytes);
    if rest.number::<1>()? != u64::from(VERSION) || rest.number::<1>()? != u64::from(vlans) {
        return None;
    }
    let now_ns = rest.number::<8>()?;
    let count = rest.number::<2>()?;
    let ports = (0..count).map(|_| {
        let length = rest.number::<1>()?;
        String::from_utf8(rest.bytes(length as usize)?.to_vec()).ok()
    });
    let ports: Vec<_> = ports.collect::<Option<_>>()?;
    let count = rest.number::<4>()? as usize;
    // The check comes before memory is allocated for them.
    if count > ENTRIES_MAX || rest.0.len() != count * ENTRY_BYTES {
        return None;
    }
    let stations = (0..count).map(|_| {
        let (address, port, age_ms) = (rest.number::<8>()?, rest.number::<2>()?, rest.number::<4>()?);
        let seen_ns = now_ns.saturating_sub(age_ms * 1_000_000);
        (port < ports.len() as u64).then_some(KnownStation { address, port: port as PortNumber, seen_ns })
    });
    let stations = stations.collect::<Option<_>>()?;
    Some(BridgeState { ports, stations })
}

/// The bytes that have not been read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Reads a number of `BYTES` bytes, 8 at most.
    fn number<const BYTES: usize>(&mut self) -> Option<u64> {
        let bytes = self.bytes(BYTES)?;
        Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }
}
