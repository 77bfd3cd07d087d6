//! What large messages and many links cost over an RDMA device. Both ends of each connection are in this
//! process, and one thread moves all of them.
//!
//!     cargo build --release -p caravan-fabric --example rdma_costs
//!     tests/verbs-vm/run --rxe -- target/release/examples/rdma_costs [large | many]
//!
//! `large` compares the ring with a rendezvous read, for the section on RDMA in ARCHITECTURE.md. It needs
//! a device without memory windows. `many` prints the table of docs/scale.md. Medians of nine rounds.
#![forbid(unsafe_code)]

mod large;
mod many;

use std::time::{Duration, Instant};

use caravan_fabric::contract::Endpoint;
use caravan_fabric::{Exposure, Link, verbs};

type RdmaResult<T> = Result<T, Box<dyn std::error::Error>>;

const ROUNDS: usize = 9;
/// The default of every face.
const RING_BYTES: u64 = 512 << 10;
/// A limit that is longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> RdmaResult<()> {
    match std::env::args().nth(1).as_deref() {
        None => large::run().and_then(|()| many::run()),
        Some("large") => large::run(),
        Some("many") => many::run(),
        Some(other) => Err(format!("{other}: it takes large, or many, or nothing for both").into()),
    }
}

/// Makes the two ends of a connection.
fn ends(exposure: &Exposure) -> RdmaResult<[Box<dyn Endpoint>; 2]> {
    let (asking, request) = verbs::connect(&verbs::offer()?, exposure)?;
    let (accepting, answer) = verbs::accept(&request, exposure)?;
    std::thread::scope(|scope| {
        let right = scope.spawn(|| accepting.finish(&[], PATIENCE));
        let left = asking.finish(&answer, PATIENCE)?;
        let right = right.join().map_err(|_| "the accepting side panicked")??;
        Ok([left, right])
    })
}

/// Makes the two ends of a link.
fn links() -> RdmaResult<[Link; 2]> {
    let [left, right] = ends(&Link::exposure(RING_BYTES)?)?;
    Ok([Link::new(left, RING_BYTES)?, Link::new(right, RING_BYTES)?])
}

/// Moves both ends until nothing is under way, and both have learnt that.
fn settle(ends: &mut [Link; 2]) -> RdmaResult<()> {
    let deadline = CostDeadline::new();
    loop {
        let mut settled = true;
        for end in &mut *ends {
            end.refresh()?;
            settled &= end.is_settled()? && end.outbound_used_bytes() == 0;
        }
        if settled {
            return Ok(());
        }
        deadline.check("a link does not come to rest")?;
    }
}

struct CostDeadline(Instant);

impl CostDeadline {
    fn new() -> Self {
        Self(Instant::now() + PATIENCE)
    }

    fn check(&self, what: &str) -> RdmaResult<()> {
        if Instant::now() > self.0 { Err(what.into()) } else { Ok(()) }
    }
}

/// Returns the microseconds that `what` takes.
fn time(what: impl FnOnce() -> RdmaResult<()>) -> RdmaResult<f64> {
    let before = Instant::now();
    what()?;
    Ok(before.elapsed().as_secs_f64() * 1e6)
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
