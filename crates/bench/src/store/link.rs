//! A client of Caravan's own server, through a link: writes, calls, and lookups over TCP.

use caravan_store::{ConnectedStore, Pending, Store, StoreError};

use crate::error::Error;
use crate::process::failed;
use crate::store::pairs::{PairOperation, RandomKeys, VALUE};
use crate::store::sampling::{ClientOutcome, ClientSampling};

/// The bytes of a call, and of its answer.
pub const CALL_BYTES: usize = 32;

pub fn connect(address: String) -> Result<ConnectedStore, Error> {
    Store::connect(address).map_err(link_failed)
}

fn link_failed(why: StoreError) -> Error {
    failed("link", &why)
}

/// Does an operation on random keys, so many at a time.
pub fn operations(
    client: &ConnectedStore,
    operation: PairOperation,
    under_way: usize,
    random: &mut RandomKeys,
    sampling: ClientSampling,
) -> Result<ClientOutcome, Error> {
    match operation {
        PairOperation::Get => {
            let is_right = |value: Option<Vec<u8>>| value.is_some_and(|value| value == VALUE);
            started(sampling, under_way, || client.start_get(&random.next()), is_right)
        }
        PairOperation::Set => {
            started(sampling, under_way, || client.start_put(&random.next(), &VALUE, None), |()| true)
        }
    }
}

/// Calls the server, which returns the bytes that it gets, so many times at once.
pub fn calls(
    client: &ConnectedStore,
    under_way: usize,
    sampling: ClientSampling,
) -> Result<ClientOutcome, Error> {
    let bytes = [7; CALL_BYTES];
    started(sampling, under_way, || client.start_ping(&bytes), |answer| answer == bytes)
}

fn started<T>(
    sampling: ClientSampling,
    under_way: usize,
    mut start: impl FnMut() -> Pending<T>,
    is_right: impl Fn(T) -> bool,
) -> Result<ClientOutcome, Error> {
    let mut pending = Vec::with_capacity(under_way);
    let mut once = || {
        pending.extend((0..under_way).map(|_| start()));
        for one in pending.drain(..) {
            if !is_right(one.wait().map_err(link_failed)?) {
                return Err(failed("link", &"an answer is not the expected one"));
            }
        }
        Ok(())
    };
    // The first write opens a session, and the first lookup asks for what the server lends.
    once()?;
    sampling.repeat(under_way, once)
}
