//! `caravan bench store`: Caravan's store beside Redis, Valkey, memcached and LMDB, in turn.

mod case;
mod echo;
mod fixed;
mod link;
mod lmdb;
mod mapped;
pub mod pairs;
mod restart;
pub mod sampling;
mod server;
mod socket;

use std::path::Path;

use caravan_store::StoreTransport;
use serde_json::json;

use crate::args::StoreBench;
use crate::choice::{chosen, list};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::placement;
use crate::report::{self, BenchReport, CaseTurn, Sample};
use crate::store::case::{BENCHMARKS, PIPELINE, StoreBenchmark, StoreCase, StoreRun};
use crate::store::echo::EchoPeer;
pub use crate::store::echo::peer as echo_peer;
use crate::store::lmdb::LmdbDatabase;
use crate::store::mapped::{MappedRequest, MappedStore};
pub use crate::store::mapped::{MappedTask, peer};
use crate::store::pairs::{KEY_BYTES, RandomKeys, VALUE_BYTES};
use crate::store::sampling::{ClientSampling, latency_samples, rate_samples};
use crate::store::server::{PairServer, RunningServer};

/// Measures and reports.
pub fn run(args: &StoreBench) -> Result<(), Error> {
    if args.list {
        return list(&BENCHMARKS, 15);
    }
    let chosen = chosen(&BENCHMARKS, &args.only)?;
    let interrupt = Interrupt::watch()?;
    // Ctrl-C at a terminal ends the servers, too, whose ends are not the reason then.
    measure(args, &chosen, &interrupt).map_err(|error| interrupt.check().err().unwrap_or(error))
}

fn measure(args: &StoreBench, chosen: &[StoreBenchmark], interrupt: &Interrupt) -> Result<(), Error> {
    let pair = placement::pair(&placement::cores());
    let title = format!("{} keys of {KEY_BYTES} B with values of {VALUE_BYTES} B", args.keys);
    let facts = json!({ "keys": args.keys, "seconds": args.seconds.as_secs_f64(), "cores": pair });
    let mut report = BenchReport::begin("store", args.rounds, title, facts);
    let mut bed = StoreBed::start(args, chosen, interrupt, &mut report.notes)?;
    let runs: Vec<Vec<StoreRun>> = chosen.iter().map(|one| bed.runs(one.case)).collect();
    for (one, runs) in chosen.iter().zip(&runs) {
        let mut cases = [one.bench_case(runs)];
        // The memory of full stores does not change from round to round.
        let rounds = if one.case == StoreCase::Memory { 1 } else { args.rounds };
        report::measure(&mut cases, rounds, interrupt, |CaseTurn { contender, .. }| {
            bed.sample(one.case, runs[contender])
        })?;
        report.add(&cases);
    }
    report.notes.extend(bed.notes());
    drop(bed);
    report.write(&args.files, Path::new(""))
}

/// Everything that is measured, filled with the same pairs.
struct StoreBed<'a> {
    args: &'a StoreBench,
    interrupt: &'a Interrupt,
    servers: Vec<RunningServer>,
    lmdb: Option<LmdbDatabase>,
    mapped: Option<MappedStore>,
    random: RandomKeys,
    /// How a client reads that maps nothing, once there was one.
    far: Option<StoreTransport>,
    /// Writes beside the mapped reads, and the seconds of these.
    writes: (u64, f64),
}

impl<'a> StoreBed<'a> {
    /// Starts what the chosen benchmarks need. A missing peer is noted with the package to install.
    fn start(
        args: &'a StoreBench,
        chosen: &[StoreBenchmark],
        interrupt: &'a Interrupt,
        notes: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let is_needed = |run: StoreRun| chosen.iter().any(|one| one.case.uses(run));
        let needed = PairServer::ALL.into_iter().filter(|server| is_needed(StoreRun::Server(*server)));
        let (missing, here): (Vec<_>, Vec<_>) = needed.partition(|server| server.missing().is_some());
        for server in missing {
            let package = server.missing().unwrap_or_default();
            notes.push(format!("Not installed: {} (apt install {package}).", server.key()));
        }
        let mut bed = Self {
            args,
            interrupt,
            servers: Vec::new(),
            lmdb: None,
            mapped: None,
            random: RandomKeys::of(args.keys, 7),
            far: None,
            writes: (0, 0.0),
        };
        for server in here {
            eprintln!("caravan: filling {}", server.key());
            bed.servers.push(RunningServer::start(server, args.keys, interrupt)?);
        }
        if is_needed(StoreRun::Lmdb) {
            eprintln!("caravan: filling lmdb");
            match LmdbDatabase::start(&args.cc, args.keys, interrupt) {
                Ok(database) => bed.lmdb = Some(database),
                Err(Error::Compiler { .. }) => {
                    notes.push("Not installed: lmdb (apt install liblmdb-dev gcc libc6-dev).".to_owned());
                }
                Err(error) => return Err(error),
            }
        }
        if is_needed(StoreRun::Caravan) {
            eprintln!("caravan: filling a store of this process");
            let pair = placement::pair(&placement::cores());
            bed.mapped = Some(MappedStore::start(args.keys, pair, interrupt)?);
        }
        Ok(bed)
    }

    /// Returns what takes turns in a case: the first is that to which the ratios are.
    fn runs(&self, case: StoreCase) -> Vec<StoreRun> {
        let servers = self.servers.iter().map(|running| StoreRun::Server(running.server));
        let lmdb = self.lmdb.iter().map(|_| StoreRun::Lmdb);
        let echo = [false, true].map(|are_together| StoreRun::Echo { are_together });
        let own = [StoreRun::Caravan, StoreRun::Fixed];
        let all = servers.chain(lmdb).chain(echo).chain(own);
        let mut runs: Vec<_> = all.filter(|run| case.uses(*run)).collect();
        // Caravan's own come last.
        runs.sort_by_key(|run| run.is_own());
        runs
    }

    fn sample(&mut self, case: StoreCase, run: StoreRun) -> Result<Vec<Sample>, Error> {
        match run {
            StoreRun::Server(server) => self.server(case, server),
            StoreRun::Lmdb => self.lmdb(case),
            StoreRun::Echo { are_together } => self.echo(case, are_together),
            StoreRun::Caravan => self.caravan(case),
            StoreRun::Fixed => fixed::sample(self.interrupt),
        }
    }

    fn server(&mut self, case: StoreCase, server: PairServer) -> Result<Vec<Sample>, Error> {
        let Some(running) = self.servers.iter_mut().find(|running| running.server == server) else {
            return Ok(Vec::new());
        };
        let random = &mut self.random;
        let sampling =
            ClientSampling { run: self.args.seconds, servers: &[running.pid()], interrupt: self.interrupt };
        let (operation, requests) = (case.operation(), case.requests());
        let outcome = match (case, server) {
            (StoreCase::Memory, _) => {
                let counted = running.counted_bytes.map(|bytes| Sample::new("counted_bytes", bytes));
                let resident = Sample::new("resident_bytes", running.resident_bytes);
                return Ok([resident].into_iter().chain(counted).collect());
            }
            (StoreCase::Restart, _) => {
                return restart::sample(running, self.args.keys, self.args.seconds, self.interrupt);
            }
            (StoreCase::Call { under_way }, _) => link::calls(&running.link()?, under_way, sampling),
            (StoreCase::LinkSet, PairServer::Caravan) => {
                link::operations(&running.link()?, operation, 1, random, sampling)
            }
            (StoreCase::TcpGet, PairServer::Caravan) => {
                let client = running.far_link()?;
                self.far = Some(client.transport());
                let under_way = requests.connections * requests.pipeline;
                link::operations(&client, operation, under_way, random, sampling)
            }
            (StoreCase::TcpGet, _) => {
                let mut client = running.tcp_client(requests.connections)?;
                client.sample(operation, requests, random, sampling)
            }
            _ => running.client.sample(operation, requests, random, sampling),
        };
        let outcome = outcome?;
        Ok(match case {
            StoreCase::Get | StoreCase::LinkSet => outcome.latency(),
            StoreCase::GetMany => outcome.rate(),
            StoreCase::Call { .. } => outcome.calls(),
            _ => outcome.costs(),
        })
    }

    fn echo(&self, case: StoreCase, are_together: bool) -> Result<Vec<Sample>, Error> {
        let StoreCase::Call { under_way } = case else { return Ok(Vec::new()) };
        let mut echo = EchoPeer::start()?;
        let sampling =
            ClientSampling { run: self.args.seconds, servers: &[echo.pid], interrupt: self.interrupt };
        Ok(echo.sample(under_way, are_together, sampling)?.calls())
    }

    fn lmdb(&mut self, case: StoreCase) -> Result<Vec<Sample>, Error> {
        let Some(lmdb) = &self.lmdb else { return Ok(Vec::new()) };
        let sample = |task, batch| lmdb.sample(task, self.args.seconds, batch, self.interrupt);
        Ok(match case {
            StoreCase::Memory => vec![Sample::new("resident_bytes", lmdb.bytes_each)],
            StoreCase::Put => {
                let [operations, ns, cpu_ns] = sample("put", 1)?;
                put_samples(ns / operations, cpu_ns / operations)
            }
            _ => {
                let [operations, ns, cpu_ns] = sample("get", PIPELINE)?;
                rate_samples(operations * 1e3 / ns, cpu_ns / operations / 1e3)
            }
        })
    }

    fn caravan(&mut self, case: StoreCase) -> Result<Vec<Sample>, Error> {
        let Some(mapped) = &mut self.mapped else { return Ok(Vec::new()) };
        let run_ns = self.args.seconds.as_nanos() as u64;
        let request = match case {
            StoreCase::Put => {
                let outcome = mapped.put(self.args.seconds, self.interrupt)?;
                let operations = outcome.operations as f64;
                return Ok(put_samples(outcome.elapsed_ns / operations, outcome.cpu_ns / operations));
            }
            StoreCase::Get => MappedRequest::Get { run_ns },
            _ => MappedRequest::GetMany { run_ns },
        };
        let (outcome, writes) = mapped.read_beside_writes(request, self.interrupt)?;
        self.writes = (self.writes.0 + writes, self.writes.1 + outcome.elapsed_ns / 1e9);
        let cpu_us = outcome.cpu_ns / outcome.operations as f64 / 1e3;
        Ok(match case {
            StoreCase::Get => latency_samples(outcome.p50_ns, outcome.p99_ns, cpu_us),
            _ => rate_samples(outcome.operations as f64 * 1e3 / outcome.elapsed_ns, cpu_us),
        })
    }

    /// Returns what else was found.
    fn notes(&self) -> Vec<String> {
        let (writes, seconds) = self.writes;
        let beside = (seconds > 0.0).then(|| {
            let rate = writes as f64 / seconds / 1e6;
            format!(
                "While mapped memory was read, its owner overwrote {rate:.2} M random keys a second, whose \
                 processor time is not counted. The servers had no writer beside their reads."
            )
        });
        let used = self.mapped.as_ref().map(|mapped| {
            let (bytes, ns) = (mapped.bytes_each(), mapped.new_key_ns);
            format!("The embedded store counts {bytes:.1} bytes a pair; a new key took {ns:.0} ns.")
        });
        let far = self.far.map(|far| format!("tcp-get: the link went over {}.", far.name()));
        beside.into_iter().chain(used).chain(far).collect()
    }
}

fn put_samples(ns: f64, cpu_ns: f64) -> Vec<Sample> {
    vec![Sample::new("ns", ns), Sample::new("cpu_ns", cpu_ns)]
}
