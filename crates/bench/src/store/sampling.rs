//! How a client of a server is measured, whatever it speaks.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::failed;
use crate::report::Sample;
use crate::usage::Usage;

/// A sample of clients in this process, and of the processes that they ask.
#[derive(Clone, Copy, Debug)]
pub struct ClientSampling<'a> {
    pub run: Duration,
    pub servers: &'a [i32],
    pub interrupt: &'a Interrupt,
}

/// What a client has done in a sample.
#[derive(Clone, Debug)]
pub struct ClientOutcome {
    pub operations: f64,
    pub elapsed_s: f64,
    /// The processor time of all threads of this process.
    client_s: f64,
    /// That of the processes which were asked.
    server_s: f64,
    /// The nanoseconds of each repetition, sorted.
    took_ns: Vec<u64>,
}

impl ClientSampling<'_> {
    /// Repeats `once`, which does so many operations, until the time is over.
    pub fn repeat(
        &self,
        operations: usize,
        mut once: impl FnMut() -> Result<(), Error>,
    ) -> Result<ClientOutcome, Error> {
        self.measured(operations, |begin| self.times(begin, &mut once))
    }

    /// Has each client repeat `once` in a thread of its own, until the time is over.
    pub fn repeat_in_threads<C: Send>(
        &self,
        clients: &mut [C],
        once: impl Fn(&mut C) -> Result<(), Error> + Sync,
    ) -> Result<ClientOutcome, Error> {
        let once = &once;
        self.measured(1, |begin| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = clients
                    .iter_mut()
                    .map(|client| scope.spawn(move || self.times(begin, || once(&mut *client))))
                    .collect();
                let ended = threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
                Ok(ended.collect::<Result<Vec<_>, _>>()?.concat())
            })
        })
    }

    /// Repeats `once`, and returns how many nanoseconds it took each time.
    fn times(&self, begin: Instant, mut once: impl FnMut() -> Result<(), Error>) -> Result<Vec<u64>, Error> {
        let mut took_ns = Vec::new();
        let mut before = Instant::now();
        while before - begin < self.run {
            self.interrupt.check()?;
            once()?;
            let now = Instant::now();
            took_ns.push((now - before).as_nanos() as u64);
            before = now;
        }
        Ok(took_ns)
    }

    fn measured(
        &self,
        operations: usize,
        run: impl FnOnce(Instant) -> Result<Vec<u64>, Error>,
    ) -> Result<ClientOutcome, Error> {
        let usage = || self.servers.iter().map(|server| Usage::of(*server)).collect::<Result<Vec<_>, _>>();
        let usage = || usage().map_err(|why| failed("server", &why));
        let (servers, client, begin) = (usage()?, process_time(), Instant::now());
        let mut took_ns = run(begin)?;
        let elapsed_s = begin.elapsed().as_secs_f64();
        let client_s = process_time().saturating_sub(client).as_secs_f64();
        let server_s = usage()?.iter().zip(&servers).map(|(after, before)| after.spent_s(before)).sum();
        let operations = (operations * took_ns.len()) as f64;
        took_ns.sort_unstable();
        Ok(ClientOutcome { operations, elapsed_s, client_s, server_s, took_ns })
    }
}

impl ClientOutcome {
    /// Returns the microseconds of the processor for each operation, on both sides.
    fn cpu_us(&self) -> f64 {
        (self.client_s + self.server_s) * 1e6 / self.operations
    }

    /// Returns the times of operations that were one at a time.
    pub fn latency(&self) -> Vec<Sample> {
        let [p50, p99] = [50, 99].map(|percent| percentile(&self.took_ns, percent));
        latency_samples(p50, p99, self.cpu_us())
    }

    /// Returns the rate of operations that are cheap: in millions.
    pub fn rate(&self) -> Vec<Sample> {
        rate_samples(self.operations / self.elapsed_s / 1e6, self.cpu_us())
    }

    /// Returns the rate, and what an operation takes on the server's side and on both.
    pub fn costs(&self) -> Vec<Sample> {
        vec![
            Sample::new("kops", self.operations / self.elapsed_s / 1e3),
            Sample::new("server_cpu_us", self.server_s * 1e6 / self.operations),
            Sample::new("cpu_us", self.cpu_us()),
        ]
    }

    /// Returns the rate, and millions of operations for each second of processor time: on each side, and on both.
    pub fn calls(&self) -> Vec<Sample> {
        // A sample that is shorter than a tick may see no processor time at all.
        let mops = |seconds: f64| self.operations / 1e6 / seconds.max(1e-9);
        vec![
            Sample::new("mops", mops(self.elapsed_s)),
            Sample::new("mops_client", mops(self.client_s)),
            Sample::new("mops_server", mops(self.server_s)),
            Sample::new("mops_both", mops(self.client_s + self.server_s)),
        ]
    }
}

pub fn latency_samples(p50_ns: f64, p99_ns: f64, cpu_us: f64) -> Vec<Sample> {
    vec![
        Sample::new("p50_us", p50_ns / 1e3),
        Sample::new("p99_us", p99_ns / 1e3),
        Sample::new("cpu_us", cpu_us),
    ]
}

pub fn rate_samples(mops: f64, cpu_us: f64) -> Vec<Sample> {
    vec![Sample::new("mops", mops), Sample::new("mops_per_core", 1.0 / cpu_us)]
}

/// Returns a percentile of sorted times.
pub fn percentile(sorted: &[u64], percent: usize) -> f64 {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default() as f64
}

/// Returns the time that all threads of this process have had a core.
pub fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
