//! `caravan bench workloads`: one-object transactions with a copy, YCSB, TATP and SmallBank on Caravan's store beside Redis and Valkey, in turn.

mod case;
mod client;
mod link;
mod one_object;
mod resp;
mod servers;
mod smallbank;
mod tatp;
mod ycsb;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use crate::args::WorkloadsBench;
use crate::choice::{chosen, list};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::is_installed;
use crate::report::{self, BenchReport, CaseTurn, Sample};
use crate::store::pairs::{RandomKeys, RandomNumbers};
use crate::store::sampling::ClientSampling;
use crate::workloads::case::{WORKLOADS, Workload, WorkloadData, WorkloadRun, WorkloadTask};
use crate::workloads::client::WorkloadClient;
use crate::workloads::link::{ConnectedParts, LinkClient};
use crate::workloads::resp::RespClient;
use crate::workloads::servers::{WorkloadProgram, WorkloadServers};
use crate::workloads::smallbank::BankCustomers;
use crate::workloads::tatp::TatpSubscribers;
use crate::workloads::ycsb::{RECORD_BYTES, YcsbRecords};

/// The memory of Caravan's stores: some, for each record (with room for those that are inserted), and for each subscriber.
const MEMORY_BYTES: u64 = 256 << 20;
const RECORD_MEMORY_BYTES: u64 = 4 * RECORD_BYTES as u64;
const SUBSCRIBER_MEMORY_BYTES: u64 = 2 << 10;
/// The memory of a customer's two accounts.
const CUSTOMER_MEMORY_BYTES: u64 = 512;
/// The share of TATP's subscribers in the number of records: a subscriber has 10.75 rows.
const RECORDS_PER_SUBSCRIBER: u64 = 5;

/// Measures and reports.
pub fn run(args: &WorkloadsBench) -> Result<(), Error> {
    if args.list {
        return list(&WORKLOADS, 15);
    }
    let chosen = chosen(&WORKLOADS, &args.only)?;
    let interrupt = Interrupt::watch()?;
    // Ctrl-C at a terminal ends the servers, too, whose ends are not the reason then.
    measure(args, &chosen, &interrupt).map_err(|error| interrupt.check().err().unwrap_or(error))
}

fn measure(args: &WorkloadsBench, chosen: &[Workload], interrupt: &Interrupt) -> Result<(), Error> {
    let subscribers = args.records / RECORDS_PER_SUBSCRIBER;
    let title = format!("{} keys of 16 B or records of 1 kB, {subscribers} subscribers", args.records);
    let facts = json!({ "records": args.records, "seconds": args.seconds.as_secs_f64() });
    let mut report = BenchReport::begin("workloads", args.rounds, title, facts);
    let (missing, here): (Vec<_>, Vec<_>) = WorkloadRun::ALL
        .into_iter()
        .partition(|run| run.program.program().is_some_and(|program| !is_installed(program)));
    for name in missing.iter().filter_map(|run| run.program.program()) {
        report.notes.push(format!("Not installed: {name} (apt install {name})."));
    }
    for group in chosen.chunk_by(|one, next| one.task.data() == next.task.data()) {
        let Some(first) = group.first() else { continue };
        let mut bed = WorkloadBed::start(args, first.task.data(), &here, interrupt)?;
        for workload in group {
            let mut cases = [workload.bench_case(&here)];
            report::measure(&mut cases, args.rounds, interrupt, |CaseTurn { contender, .. }| {
                bed.sample(workload, contender)
                    .map_err(|error| bed.contenders[contender].servers.explained(error))
            })?;
            report.add(&cases);
        }
    }
    report.write(&args.files, Path::new(""))
}

/// All contenders, filled with the same data.
struct WorkloadBed<'a> {
    args: &'a WorkloadsBench,
    interrupt: &'a Interrupt,
    contenders: Vec<RunningContender>,
    subscribers: TatpSubscribers,
}

/// A contender that runs. Those of the same program share its servers.
struct RunningContender {
    servers: Arc<WorkloadServers>,
    link: Option<Arc<ConnectedParts>>,
    records: Arc<YcsbRecords>,
    /// For each thread, what chooses.
    seed: u64,
}

/// A thread of the client.
struct WorkloadThread {
    client: Box<dyn WorkloadClient>,
    keys: RandomKeys,
    numbers: RandomNumbers,
    value: Vec<u8>,
}

impl<'a> WorkloadBed<'a> {
    fn start(
        args: &'a WorkloadsBench,
        data: WorkloadData,
        runs: &[WorkloadRun],
        interrupt: &'a Interrupt,
    ) -> Result<Self, Error> {
        let subscribers = TatpSubscribers::of(args.records / RECORDS_PER_SUBSCRIBER);
        let memory_bytes = MEMORY_BYTES
            + match data {
                WorkloadData::Pairs => 0,
                WorkloadData::Records => RECORD_MEMORY_BYTES * args.records,
                WorkloadData::Subscribers => SUBSCRIBER_MEMORY_BYTES * args.records / RECORDS_PER_SUBSCRIBER,
                WorkloadData::Accounts => CUSTOMER_MEMORY_BYTES * args.records,
            };
        let mut bed = Self { args, interrupt, contenders: Vec::new(), subscribers };
        let mut before: Option<(WorkloadProgram, Arc<WorkloadServers>, Arc<YcsbRecords>)> = None;
        for run in runs {
            let known = before.take().filter(|(program, ..)| *program == run.program);
            let (_, servers, records) = match known {
                Some(known) => known,
                None => {
                    eprintln!("caravan: filling {}", run.program.key());
                    let servers =
                        WorkloadServers::start(run.program, data.layout(), memory_bytes, interrupt)?;
                    let records = YcsbRecords::new(args.records);
                    let mut client = RespClient::connect(servers.resp.clone())?;
                    match data {
                        WorkloadData::Pairs => client.fill(&mut one_object::pairs(args.records)),
                        WorkloadData::Records => client.fill(&mut records.pairs()),
                        WorkloadData::Subscribers => client.fill(&mut subscribers.pairs()),
                        WorkloadData::Accounts => client.fill(&mut BankCustomers(args.records).pairs()),
                    }
                    .map_err(|error| servers.explained(error))?;
                    (run.program, Arc::new(servers), records)
                }
            };
            before = Some((run.program, Arc::clone(&servers), Arc::clone(&records)));
            let link = if run.is_link { Some(servers.link()?) } else { None };
            bed.contenders.push(RunningContender { servers, link, records, seed: 1 });
            interrupt.check()?;
        }
        Ok(bed)
    }

    fn sample(&mut self, workload: &Workload, contender: usize) -> Result<Vec<Sample>, Error> {
        let contender = &mut self.contenders[contender];
        let mut threads = contender.threads(workload.threads, self.args.records)?;
        let pids = contender.servers.pids();
        let sampling = ClientSampling { run: self.args.seconds, servers: &pids, interrupt: self.interrupt };
        let mut info = RespClient::connect(contender.servers.resp.clone())?;
        let commands = info.sum_of_info("total_commands_processed")?;
        let (records, subscribers, commits) = (&contender.records, self.subscribers, AtomicU64::new(0));
        let (customers, link) = (BankCustomers(self.args.records), contender.link.as_deref());
        let once = |thread: &mut WorkloadThread| {
            let WorkloadThread { client, keys, numbers, value } = thread;
            match workload.task {
                WorkloadTask::Update => one_object::update(&mut **client, keys),
                WorkloadTask::Set => one_object::set(&mut **client, keys),
                WorkloadTask::Ycsb(kind) => records.run(kind, &mut **client, numbers, value),
                WorkloadTask::Tatp => {
                    let writes = subscribers.run(&mut **client, numbers)?;
                    // Only the sum counts.
                    commits.fetch_add(u64::from(writes > 0), Ordering::Relaxed);
                    Ok(())
                }
                WorkloadTask::SmallBank => {
                    let transaction = customers.next(numbers);
                    if transaction.run(&mut **client)? > 0 {
                        let all = link.map_or(0, |link| link.commits(&transaction));
                        commits.fetch_add(all, Ordering::Relaxed);
                    }
                    Ok(())
                }
            }
        };
        let outcome = sampling.repeat_in_threads(&mut threads, once)?;
        let mut samples = outcome.costs();
        samples.extend(outcome.latency().into_iter().filter(|sample| sample.figure != "cpu_us"));
        let cpu_us =
            samples.iter().find(|sample| sample.figure == "cpu_us").map_or(0.0, |sample| sample.value);
        samples.push(Sample::new("kops_per_core", 1e3 / cpu_us));
        if workload.task.is_counted() && contender.link.is_some() {
            // What asks for the number counts, too.
            let asked = contender.servers.resp.sockets.len() as u64;
            let calls = info.sum_of_info("total_commands_processed")?.saturating_sub(commands + asked);
            let writes = commits.into_inner() as f64 * contender.servers.backups();
            samples.push(Sample::new("messages", 2.0 * calls as f64 / outcome.operations));
            samples.push(Sample::new("one_sided", writes / outcome.operations));
        }
        Ok(samples)
    }
}

impl RunningContender {
    /// Returns new threads, which choose otherwise than those before.
    fn threads(&mut self, count: usize, keys: u64) -> Result<Vec<WorkloadThread>, Error> {
        let thread = || {
            let client: Box<dyn WorkloadClient> = match &self.link {
                Some(link) => Box::new(LinkClient(Arc::clone(link))),
                None => Box::new(RespClient::connect(self.servers.resp.clone())?),
            };
            self.seed += 1;
            let (keys, numbers) = (RandomKeys::of(keys, self.seed), RandomNumbers::of(self.seed));
            Ok(WorkloadThread { client, keys, numbers, value: Vec::new() })
        };
        std::iter::repeat_with(thread).take(count).collect()
    }
}
