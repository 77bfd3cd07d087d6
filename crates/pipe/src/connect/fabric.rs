//! Data connections over a fabric: RDMA devices of both hosts.
//!
//! | accepting side | | initiating side |
//! |---|---|---|
//! | offer: its ports, how large a ring it can lock | -> | [`initiate`]: chooses, makes its half |
//! | [`accept`]: makes its half | <- | request |
//! | answer | -> | |
//! | [`FabricHalf::finish`] | | [`FabricHalf::finish`] |
//!
//! The messages go over control channels, which have authenticated both sides. A byte in front of the
//! offer and of the request says how large the rings are to be, as a power of two.

use std::time::Duration;

use caravan_fabric::{Exposure, Link, verbs};

use super::{DataChannel, DataConnection, Secret};
use crate::limits::{FABRIC_RING_BYTES, FABRIC_RING_BYTES_MIN};
use crate::{Error, PipeKey};

/// Returns what this host has, for the other side. The error says in a sentence why there is nothing.
pub fn offer() -> Result<Vec<u8>, Error> {
    let ports = verbs::offer()?;
    Ok(behind(lockable_ring_bytes()?, ports))
}

/// One half of a fabric connection.
#[derive(Debug)]
pub struct FabricHalf {
    pending: verbs::PendingEndpoint,
    ring_bytes: u64,
    /// All messages of both sides, which are different for every connection.
    said: Vec<u8>,
    /// Whether this side made the offer; it has answered already.
    is_accepting: bool,
}

/// Returns this side's half for the peer's offer, and the request for the peer.
pub fn initiate(offer: &[u8]) -> Result<(FabricHalf, Vec<u8>), Error> {
    let (theirs, ports) = ring_bytes(offer)?;
    let ring_bytes = theirs.min(lockable_ring_bytes()?);
    let (pending, request) = verbs::connect(ports, &Link::exposure(ring_bytes)?)?;
    let request = behind(ring_bytes, request);
    Ok((FabricHalf { pending, ring_bytes, said: request.clone(), is_accepting: false }, request))
}

/// Returns the accepting side's half, and the answer for the initiating side.
pub fn accept(request: &[u8]) -> Result<(FabricHalf, Vec<u8>), Error> {
    let (ring_bytes, half) = ring_bytes(request)?;
    let (pending, answer) = verbs::accept(half, &Link::exposure(ring_bytes)?)?;
    let said = [request, &answer].concat();
    Ok((FabricHalf { pending, ring_bytes, said, is_accepting: true }, answer))
}

impl FabricHalf {
    /// Connects. Both sides call this at the same time: the initiating side with the other's answer, the accepting
    /// side with an empty one.
    pub fn finish(self, answer: &[u8], key: &PipeKey, limit: Duration) -> Result<DataConnection, Error> {
        let Self { pending, ring_bytes, mut said, is_accepting } = self;
        if !is_accepting {
            said.extend_from_slice(answer);
        }
        let endpoint = pending.finish(answer, limit)?;
        let link = Link::new(endpoint, ring_bytes)?;
        let secret = Secret::derive(key, &said, b"caravan 1 fabric")?;
        let description = format!("RDMA {}", link.description());
        Ok(DataConnection { channel: DataChannel::Link(Box::new(link)), secret, description })
    }
}

/// Returns the default ring size, or less if this process may not lock the memory for the two hops of a stage in
/// the middle: an ordinary user's limit is often 8 MiB.
fn lockable_ring_bytes() -> Result<u64, Error> {
    let Some(limit) = verbs::memory_lock_limit() else { return Ok(FABRIC_RING_BYTES) };
    fitting(limit, |exposure| verbs::registered_bytes(exposure, false))
}

/// Returns the largest ring of which two fit into the limit, or the smallest ring if none fits: the device then
/// refuses it with the remedy.
fn fitting(limit: u64, registered: impl Fn(&Exposure) -> u64) -> Result<u64, Error> {
    let mut bytes = FABRIC_RING_BYTES;
    while bytes > FABRIC_RING_BYTES_MIN && 2 * registered(&Link::exposure(bytes)?) > limit {
        bytes /= 2;
    }
    Ok(bytes)
}

fn behind(ring_bytes: u64, message: Vec<u8>) -> Vec<u8> {
    [vec![ring_bytes.trailing_zeros() as u8], message].concat()
}

/// Splits the ring size from a message. Returns it in bytes, and the rest.
fn ring_bytes(message: &[u8]) -> Result<(u64, &[u8]), Error> {
    let split =
        message.split_first().and_then(|(power, rest)| Some((1_u64.checked_shl((*power).into())?, rest)));
    match split {
        Some((bytes, rest)) if (FABRIC_RING_BYTES_MIN..=FABRIC_RING_BYTES).contains(&bytes) => {
            Ok((bytes, rest))
        }
        _ => Err(Error::Protocol("asks for a ring of no possible size".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_as_large_as_two_can_be_locked() {
        let ring =
            |limit| fitting(limit, |exposure| verbs::registered_bytes(exposure, false)).expect("a size");
        assert_eq!(ring(u64::MAX), FABRIC_RING_BYTES);
        assert_eq!(ring(64 << 10), FABRIC_RING_BYTES_MIN);
        let usual = ring(8 << 20);
        assert!((256 << 10..=1 << 20).contains(&usual), "{usual}");
        let registered = verbs::registered_bytes(&Link::exposure(usual).expect("an exposure"), false);
        assert!(2 * registered <= 8 << 20, "{registered}");
    }

    #[test]
    fn the_size_of_a_ring_goes_before_a_message() {
        for bytes in [FABRIC_RING_BYTES_MIN, FABRIC_RING_BYTES] {
            let message = behind(bytes, vec![7, 8]);
            assert_eq!(ring_bytes(&message).expect("a size"), (bytes, &[7, 8][..]));
        }
        for bad in [&[][..], &[0], &[3, 1], &[63], &[64], &[255, 1]] {
            assert!(matches!(ring_bytes(bad), Err(Error::Protocol(_))), "{bad:?}");
        }
    }

    #[test]
    fn what_is_no_offer_or_request_is_refused() {
        for bad in [&[][..], &[20], &[20, 1, 2, 3], &[255; 300]] {
            assert!(initiate(bad).is_err() && accept(bad).is_err(), "{bad:?}");
        }
    }
}
