//! Workers killed at instants that nobody chooses, while packets flow, apps move and memory grows.
//!
//! | in the environment | |
//! |---|---|
//! | `CARAVAN_KILLS` | how many, however long that takes; without it as many as there is time for, and few |
//! | `CARAVAN_SEED` | of the random numbers; printed in any case |
//! | `CARAVAN_SOAK_SECONDS` | no kills: runs that long, and memory must stay flat |
//!
//! Every so often all workers are stopped, and every packet must have exactly one owner. No packet
//! arrives twice, or changed. The instants that were hit are printed; of 2,000 kills and more, every
//! kind of instant must have been.
//!
//! A program of its own, because an engine forks: the test harness has threads.

#![forbid(unsafe_code)]

mod apps;
mod killer;
mod network;
#[path = "../common/random.rs"]
mod random;
mod soak;
mod storm;

use std::str::FromStr;

fn environment<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number is expected")))
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some(killer::ARGUMENT) {
        return killer::run();
    }
    if let Some(seconds) = environment("CARAVAN_SOAK_SECONDS") {
        return soak::run(seconds);
    }
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    storm::run(environment("CARAVAN_KILLS"), environment("CARAVAN_SEED").unwrap_or(now));
}
