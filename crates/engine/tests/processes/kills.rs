//! Workers are killed at random instants, while packets flow, apps move and memory grows.
//!
//! | environment variable | meaning |
//! |---|---|
//! | `CARAVAN_KILLS` | the number of kills, however long they take; by default a few, as many as fit the time |
//! | `CARAVAN_SEED` | the seed of the random numbers, which is always printed |
//! | `CARAVAN_SOAK_SECONDS` | runs that long without kills, and memory must stay flat |
//!
//! Every so often all workers are stopped, and every packet must have exactly one owner. No packet
//! arrives twice, or changed. The program prints the instants that kills have hit; with 2,000 kills or more, they must
//! include every kind of instant.

mod apps;
pub mod killer;
mod network;
mod soak;
mod storm;

use std::str::FromStr;

fn environment<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number is expected")))
}

/// Kills, or runs for a long time without kills.
pub fn run() {
    if let Some(seconds) = environment("CARAVAN_SOAK_SECONDS") {
        return soak::run(seconds);
    }
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    storm::run(environment("CARAVAN_KILLS"), environment("CARAVAN_SEED").unwrap_or(now));
}
