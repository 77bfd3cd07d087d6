//! How two processes of a benchmark come to an endpoint of a fabric, over their control channel.

use std::time::Duration;

use caravan_fabric::{Endpoint, Exposure, shm, verbs};

use crate::control::Control;
use crate::error::Error;

/// How long making the connection may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Over an RDMA device: the side that measures.
pub fn connect_rdma(control: &mut Control, exposure: &Exposure) -> Result<Box<dyn Endpoint>, Error> {
    let offer: Vec<u8> = control.answer()?;
    let (pending, request) = verbs::connect(&offer, exposure)?;
    control.say(&request)?;
    let answer: Vec<u8> = control.answer()?;
    Ok(pending.finish(&answer, CONNECT_LIMIT)?)
}

/// The other side of [`connect_rdma`].
pub fn accept_rdma(control: &mut Control, exposure: &Exposure) -> Result<Box<dyn Endpoint>, Error> {
    control.say(&Ok::<_, String>(verbs::offer()?))?;
    let request: Vec<u8> = control.expect()?;
    let (pending, answer) = verbs::accept(&request, exposure)?;
    control.say(&Ok::<_, String>(answer))?;
    Ok(pending.finish(&[], CONNECT_LIMIT)?)
}

/// Through mapped memory: the side that measures.
pub fn connect_shm(control: &mut Control) -> Result<Box<dyn Endpoint>, Error> {
    let descriptor: Vec<u8> = control.answer()?;
    let endpoint = shm::connect(&descriptor)?;
    control.say(&())?;
    Ok(Box::new(endpoint))
}

/// The other side of [`connect_shm`].
pub fn accept_shm(control: &mut Control, arena_bytes: u64) -> Result<Box<dyn Endpoint>, Error> {
    let (listener, descriptor) = shm::Listener::listen(arena_bytes)?;
    control.say(&Ok::<_, String>(descriptor))?;
    control.expect::<()>()?;
    Ok(Box::new(listener.accept()?))
}
