//! From one core to another: a cache line, and waking a thread that sleeps.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::futex;

use super::Pace;
use super::model::{RequestLatency, RequestModel};
use super::report::{Digits, LimitRow};
use crate::error::Error;
use crate::placement::{self, CorePair, pin_self};

/// How long a sleeper waits before it looks whether the other side has ended.
const GLANCE: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// A message that says that this was the last.
const LAST: u32 = u32::MAX;

/// Measures the ways from the first core to the others: the next one, or with `--full` up to 16.
pub fn measure(cores: &[usize], pace: &Pace) -> Result<Vec<LimitRow>, Error> {
    let mut rows = Vec::new();
    for pair in pairs(cores, pace) {
        pace.interrupt.check()?;
        let line_s = placement::line_ns(pair)? * 1e-9;
        rows.push(row(pair, "a cache line", RequestLatency { p50_s: line_s, p99_s: line_s }, false));
        for (name, bell) in [("wake-up by futex", Bell::futex()), ("wake-up by eventfd", Bell::eventfd()?)] {
            rows.push(row(pair, name, RequestLatency::of(wake_ups(pair, &bell, pace.cell)?), true));
        }
    }
    Ok(rows)
}

fn pairs(cores: &[usize], pace: &Pace) -> Vec<CorePair> {
    match pace.is_full {
        true => {
            let others = cores.iter().skip(1).take(16);
            others.map(|&second| CorePair { first: cores[0], second }).collect()
        }
        false => placement::pair(cores).into_iter().collect(),
    }
}

/// A row of latency alone: a line carries its bytes, a wake-up carries none.
fn row(pair: CorePair, name: &str, latency: RequestLatency, is_wake_up: bool) -> LimitRow {
    let what = format!("core {} to {}, {name}", pair.first, pair.second);
    let block = if is_wake_up { 8.0 } else { 64.0 };
    let model = RequestModel::of_latency(latency.p50_s);
    let mut row = LimitRow::predicted(&what, model, block, 1.0, Digits::default());
    row.latency = Some(latency);
    row
}

/// How a thread wakes another one: a word to sleep on for each, or an eventfd.
enum Bell {
    Futex([AtomicU32; 2]),
    Eventfd([OwnedFd; 2]),
}

impl Bell {
    fn futex() -> Self {
        Self::Futex([AtomicU32::new(0), AtomicU32::new(0)])
    }

    fn eventfd() -> Result<Self, Error> {
        let make = || eventfd(0, EventfdFlags::CLOEXEC);
        let made = make().and_then(|first| Ok([first, make()?]));
        Ok(Self::Eventfd(made.map_err(failed("eventfd"))?))
    }

    /// Wakes a side with a number that is not 0.
    fn ring(&self, side: usize, number: u32) -> Result<(), Error> {
        match self {
            Self::Futex(words) => {
                // pairs with the Acquire in wait()
                words[side].store(number, Ordering::Release);
                futex::wake(&words[side], futex::Flags::PRIVATE, 1).map_err(failed("futex"))?;
            }
            Self::Eventfd(files) => {
                let number = u64::from(number).to_ne_bytes();
                rustix::io::write(&files[side], &number).map_err(failed("write to an eventfd"))?;
            }
        }
        Ok(())
    }

    /// Sleeps until the side is woken with a number, and returns it.
    fn wait(&self, side: usize) -> Result<u32, Error> {
        match self {
            Self::Futex(words) => loop {
                // Both sides sleep each time: this does not look at the word before it sleeps, the kernel does.
                match futex::wait(&words[side], futex::Flags::PRIVATE, 0, Some(&GLANCE)) {
                    Ok(())
                    | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::TIMEDOUT) =>
                        {}
                    Err(why) => return Err(failed("futex")(why)),
                }
                // pairs with the Release in ring()
                let number = words[side].swap(0, Ordering::Acquire);
                if number != 0 {
                    return Ok(number);
                }
            },
            Self::Eventfd(files) => loop {
                let mut number = [0_u8; 8];
                match rustix::io::read(&files[side], &mut number) {
                    Ok(_) => return Ok(u64::from_ne_bytes(number) as u32),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(why) => return Err(failed("read of an eventfd")(why)),
                }
            },
        }
    }
}

fn failed(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |why| Error::System { call, source: io::Error::from(why) }
}

/// Returns the seconds of single wake-ups, each half of a round trip.
fn wake_ups(pair: CorePair, bell: &Bell, run: Duration) -> Result<Vec<f64>, Error> {
    let here = || {
        let mut times = Vec::new();
        let begun = Instant::now();
        while times.is_empty() || begun.elapsed() < run {
            let rung = Instant::now();
            bell.ring(1, 1)?;
            bell.wait(0)?;
            times.push(rung.elapsed().as_secs_f64() / 2.0);
        }
        Ok::<_, Error>(times)
    };
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = pin_self(pair.second);
            while bell.wait(1)? != LAST {
                bell.ring(0, 1)?;
            }
            pinned
        });
        let times = placement::on_core(pair.first, here);
        bell.ring(1, LAST)?;
        echo.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        times
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On one core the two sides take turns as well.
    #[test]
    fn both_bells_wake() {
        let cores = placement::cores();
        let pair = CorePair { first: cores[0], second: *cores.last().expect("a core") };
        for bell in [Bell::futex(), Bell::eventfd().expect("eventfds")] {
            assert!(wake_ups(pair, &bell, Duration::ZERO).expect("woken")[0] > 0.0);
        }
    }
}
