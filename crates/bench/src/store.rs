//! `caravan bench store`: Caravan's store beside Redis, Valkey, memcached and LMDB, in turn.

mod case;
mod lmdb;
mod mapped;
mod pairs;
mod restart;
mod server;
mod socket;

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;

use crate::args::StoreBench;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output;
use crate::placement;
use crate::report::{self, BenchReport, CaseTurn, Sample};
use crate::store::case::{BENCHMARKS, PIPELINE, StoreBenchmark, StoreCase, StoreRun, chosen};
use crate::store::lmdb::LmdbDatabase;
use crate::store::mapped::{MappedRequest, MappedStore, percentile};
pub use crate::store::mapped::{MappedTask, peer};
use crate::store::pairs::{KEY_BYTES, PairOperation, RandomKeys, VALUE_BYTES};
use crate::store::server::{PairServer, RunningServer};

/// Measures and reports.
pub fn run(args: &StoreBench) -> Result<(), Error> {
    if args.list {
        return list();
    }
    let chosen = chosen(&args.only)?;
    let interrupt = Interrupt::watch()?;
    // Ctrl-C at a terminal ends the servers, too, whose ends are not the reason then.
    measure(args, &chosen, &interrupt).map_err(|error| interrupt.check().err().unwrap_or(error))
}

fn list() -> Result<(), Error> {
    let mut text = String::new();
    for StoreBenchmark { name, what, .. } in BENCHMARKS {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{name:<15}{what}");
    }
    output::table(&text, Path::new(""))
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
        // The memory of a full store does not change from round to round.
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
        let random = RandomKeys::of(args.keys, 7);
        let mut bed =
            Self { args, interrupt, servers: Vec::new(), lmdb: None, mapped: None, random, writes: (0, 0.0) };
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
        let mapped = self.mapped.iter().map(|_| StoreRun::Caravan);
        let mut runs: Vec<_> = servers.chain(lmdb).chain(mapped).filter(|run| case.uses(*run)).collect();
        // Caravan's own come last.
        runs.sort_by_key(|run| matches!(run, StoreRun::Caravan | StoreRun::Server(PairServer::Caravan)));
        runs
    }

    fn sample(&mut self, case: StoreCase, run: StoreRun) -> Result<Vec<Sample>, Error> {
        match run {
            StoreRun::Server(server) => self.server(case, server),
            StoreRun::Lmdb => self.lmdb(case),
            StoreRun::Caravan => self.caravan(case),
        }
    }

    fn server(&mut self, case: StoreCase, server: PairServer) -> Result<Vec<Sample>, Error> {
        let Some(running) = self.servers.iter_mut().find(|running| running.server == server) else {
            return Ok(Vec::new());
        };
        if case == StoreCase::Memory {
            let counted = running.counted_bytes.map(|bytes| Sample::new("counted_bytes", bytes));
            return Ok([Sample::new("resident_bytes", running.resident_bytes)]
                .into_iter()
                .chain(counted)
                .collect());
        }
        let operation = match case {
            StoreCase::Socket { operation, .. } => operation,
            _ => PairOperation::Get,
        };
        if case == StoreCase::Restart {
            return restart::sample(running, self.args.keys, self.args.seconds, self.interrupt);
        }
        let before = running.usage()?;
        let outcome = running.client.sample(
            operation,
            case.requests(),
            &mut self.random,
            self.args.seconds,
            self.interrupt,
        )?;
        let server_s = running.usage()?.spent_s(&before);
        let operations = outcome.operations as f64;
        let cpu_us = (server_s + outcome.cpu.as_secs_f64()) * 1e6 / operations;
        let mops = operations / outcome.elapsed.as_secs_f64() / 1e6;
        Ok(match case {
            StoreCase::Get => {
                let mut took = outcome.round_trips_ns;
                took.sort_unstable();
                get_samples(percentile(&took, 50), percentile(&took, 99), cpu_us)
            }
            StoreCase::GetMany => many_samples(mops, cpu_us),
            _ => vec![
                Sample::new("kops", mops * 1e3),
                Sample::new("server_cpu_us", server_s * 1e6 / operations),
                Sample::new("cpu_us", cpu_us),
            ],
        })
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
                many_samples(operations * 1e3 / ns, cpu_ns / operations / 1e3)
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
            StoreCase::Get => get_samples(outcome.p50_ns, outcome.p99_ns, cpu_us),
            _ => many_samples(outcome.operations as f64 * 1e3 / outcome.elapsed_ns, cpu_us),
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
        beside.into_iter().chain(used).collect()
    }
}

fn get_samples(p50_ns: f64, p99_ns: f64, cpu_us: f64) -> Vec<Sample> {
    vec![
        Sample::new("p50_us", p50_ns / 1e3),
        Sample::new("p99_us", p99_ns / 1e3),
        Sample::new("cpu_us", cpu_us),
    ]
}

fn many_samples(mops: f64, cpu_us: f64) -> Vec<Sample> {
    vec![Sample::new("mops", mops), Sample::new("mops_per_core", 1.0 / cpu_us)]
}

fn put_samples(ns: f64, cpu_ns: f64) -> Vec<Sample> {
    vec![Sample::new("ns", ns), Sample::new("cpu_ns", cpu_ns)]
}
