//! `caravan bench tcp`: one-sided reads over TCP between two processes, and GETs of a redis-server with a pipeline, in
//! turn. No thread of the process that is read does anything but the fabric's agent.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use caravan_fabric::contract::{Armed, Event, Local, Operation};
use caravan_fabric::tcp::{self, TcpEndpoint, TcpListening, TcpSealing};
use caravan_fabric::{Endpoint, Exposure, Region, RegionAccess, RegionNumber, RegionToken};
use caravan_segment::process::ProcessStat;
use serde_json::json;

use crate::args::Tcp;
use crate::chart::{CARAVAN, PEER};
use crate::control::{self, BenchChannel};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::{self, ChildProgram, PeerTask, is_installed};
use crate::report::{self, BenchCase, BenchReport, Bound, Contender, Figure, Goal, Sample, Shown};
use crate::usage::Usage;

/// The number of bytes of a read, and of the value that redis-server returns.
const READ_BYTES: u32 = 64;
/// The number of bytes of the region that is read, at random places. Caches hold it, as they hold the one key that
/// redis-benchmark asks for: the way is measured, and no memory.
const REGION_BYTES: u64 = 256 << 10;
/// How many operations are under way in the cases.
const UNDER_WAY: [u64; 3] = [1, 16, 256];
/// The longest pipeline of one client of redis-server; more operations are under way through more clients.
const PIPELINE_MAX: u64 = 64;
/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The limit of a sample: many times what it takes.
const SAMPLE_LIMIT: Duration = Duration::from_secs(100);
/// Nanoseconds of a tick in /proc: USER_HZ is 100 on Linux.
const TICK_NS: f64 = 1e7;
const SERVER: &str = "redis-server";
const CLIENT: &str = "redis-benchmark";

const FIGURES: [Figure; 3] = [
    Figure::new("per_s", "a second", Shown::Chart),
    Figure::new("cpu_ns", "CPU ns, both", Shown::Spread),
    Figure::new("cpu_there_ns", "CPU ns, there", Shown::Median),
];

/// What takes turns in each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TcpContender {
    Redis,
    Read(TcpSealing),
}

/// Measures and reports.
pub fn run(args: &Tcp) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let has_redis = is_installed(SERVER) && is_installed(CLIENT);
    let mut contenders = Vec::new();
    if has_redis {
        contenders.push((TcpContender::Redis, Contender::new("redis", "redis-server", PEER)));
    }
    let read = |key: &str, sealing| (TcpContender::Read(sealing), Contender::new(key, key, CARAVAN));
    contenders.extend([read("sealed", TcpSealing::Sealed), read("plain", TcpSealing::Plain)]);
    let mut cases = UNDER_WAY.map(|under_way| {
        let these = contenders.iter().map(|(_, contender)| contender.clone()).collect();
        let title = format!("{under_way} under way");
        let mut case = BenchCase::new(format!("reads/{under_way}"), title, &FIGURES, these);
        if has_redis && Some(&under_way) == UNDER_WAY.last() {
            case.goals.push(Goal {
                text: "as many sealed reads as GETs".to_owned(),
                contender: "sealed".to_owned(),
                figure: "per_s",
                ratio_to: Some("redis".to_owned()),
                bound: Bound::AtLeast(1.0),
                placement: None,
            });
        }
        case
    });
    let redis = has_redis.then(|| RedisServer::start(&interrupt)).transpose()?;
    let mut control = BenchChannel::start(&PeerTask::Tcp)?;
    let title = format!("Reads of {READ_BYTES} B over TCP within this machine");
    let facts = json!({ "read_bytes": READ_BYTES, "region_bytes": REGION_BYTES, "reads": args.reads });
    let mut report = BenchReport::begin("tcp", args.rounds, title, facts);
    report.notes.push(match has_redis {
        true => format!(
            "{SERVER}: GET of one key, with {CLIENT}, pipelines of up to {PIPELINE_MAX}.\nCPU of an operation, in the \
             process that reads and in the one that is read."
        ),
        false => format!("Not here (packages redis-server, redis-tools): {SERVER}, {CLIENT}."),
    });
    report::measure(&mut cases, args.rounds, &interrupt, |turn| {
        let under_way = UNDER_WAY[turn.case];
        let reads = (args.reads * under_way / UNDER_WAY[2]).max(under_way);
        match (contenders[turn.contender].0, &redis) {
            (TcpContender::Redis, Some(redis)) => redis.sample(under_way, reads, &interrupt),
            (TcpContender::Redis, None) => Ok(Vec::new()),
            (TcpContender::Read(sealing), _) => sample(&mut control, sealing, under_way, reads),
        }
    })?;
    report.add(&cases);
    report.write(&args.files, Path::new(""))
}

fn samples(count: u64, took: Duration, here_ns: f64, there_ns: f64) -> Vec<Sample> {
    let count = count as f64;
    vec![
        Sample::new("per_s", count / took.as_secs_f64()),
        Sample::new("cpu_ns", (here_ns + there_ns) / count),
        Sample::new("cpu_there_ns", there_ns / count),
    ]
}

/// Takes one sample of reads, over a new connection.
fn sample(
    control: &mut BenchChannel,
    sealing: TcpSealing,
    under_way: u64,
    reads: u64,
) -> Result<Vec<Sample>, Error> {
    let (listening, descriptor) = TcpListening::listen(sealing)?;
    control.say(&descriptor)?;
    let mut endpoint = listening.accept(&Exposure::all(under_way * u64::from(READ_BYTES)), CONNECT_LIMIT)?;
    let token: Vec<u8> = control.answer()?;
    let token = RegionToken::from_bytes(&token).ok_or_else(|| failed(&"it lends nothing"))?;
    let number = endpoint.borrow(&token)?;
    let usage = |pid: Option<i32>| {
        let pid = pid.ok_or_else(|| failed(&"it is on another host"))?;
        Usage::of(pid).map_err(|why| failed(&why))
    };
    let pids = [Some(std::process::id() as i32), control.peer_pid()];
    let (begun, [here, there]) = (Instant::now(), pids.map(usage));
    read(&mut endpoint, number, under_way, reads)?;
    let took = begun.elapsed();
    let [here_after, there_after] = pids.map(usage);
    let spent_ns = |before: Result<Usage, Error>, after: Result<Usage, Error>| {
        Ok::<_, Error>(after?.spent_s(&before?) * 1e9)
    };
    Ok(samples(reads, took, spent_ns(here, here_after)?, spent_ns(there, there_after)?))
}

/// Reads at random places, always with so many reads under way, and sleeps while there is nothing to do.
fn read(endpoint: &mut TcpEndpoint, number: RegionNumber, under_way: u64, reads: u64) -> Result<(), Error> {
    let deadline = Instant::now() + SAMPLE_LIMIT;
    let mut free: Vec<u64> = (0..under_way).collect();
    let (mut posted, mut done, mut random, mut events) = (0, 0, 1u64, Vec::new());
    while done < reads {
        while let (true, Some(slot)) = (posted < reads, free.pop()) {
            // Knuth's generator; its high bits are random enough for places.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (random >> 32) % (REGION_BYTES / u64::from(READ_BYTES)) * u64::from(READ_BYTES);
            let into = Local { offset: slot * u64::from(READ_BYTES), bytes: READ_BYTES };
            endpoint.post(Operation::Read { from: number.place(at), into, context: slot })?;
            posted += 1;
        }
        endpoint.doorbell()?;
        while endpoint.poll(&mut events, under_way as usize)? == 0 {
            if endpoint.arm()? == Armed::Wait {
                control::sleep(endpoint.wait_fd())?;
                endpoint.acknowledge()?;
            }
            if Instant::now() > deadline {
                return Err(Error::BenchSlow(SAMPLE_LIMIT.as_secs()));
            }
        }
        for event in events.drain(..) {
            if let Event::Done(completion) = event {
                free.push(completion.context);
                done += 1;
            }
        }
    }
    Ok(())
}

/// Runs the process that is read: lends a region to each caller, and sleeps.
pub fn peer() -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let region = Region::create("caravan-bench", REGION_BYTES)?;
    let mut last = None;
    BenchChannel::inherited()?.answer_all(&interrupt, |control, descriptor: Vec<u8>| {
        let mut endpoint = tcp::connect(&descriptor, &Exposure::all(8), CONNECT_LIMIT)?;
        let token = endpoint.lend(&region, RegionAccess::Read)?;
        // The last caller has ended.
        drop(last.replace(endpoint));
        control.reply(&token.to_bytes().to_vec())
    })
}

/// A redis-server without persistence, with one key.
#[derive(Debug)]
struct RedisServer {
    program: ChildProgram,
    port: u16,
}

impl RedisServer {
    fn start(interrupt: &Interrupt) -> Result<Self, Error> {
        let port = process::free_port()?;
        let mut command = process::redis_command(SERVER, port);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut server = Self { program: ChildProgram::start(SERVER, command)?, port };
        server.program.until_listening(port, interrupt)?;
        server.benchmark("set", 1, 1, interrupt)?;
        Ok(server)
    }

    /// Runs redis-benchmark, and returns the number of commands a second.
    fn benchmark(&self, test: &str, under_way: u64, count: u64, interrupt: &Interrupt) -> Result<f64, Error> {
        let clients = under_way.div_ceil(PIPELINE_MAX);
        let mut command = Command::new(CLIENT);
        for (option, value) in [
            ("-p", u64::from(self.port)),
            ("-d", u64::from(READ_BYTES)),
            ("-n", count),
            ("-c", clients),
            ("-P", under_way / clients),
        ] {
            command.args([option, &value.to_string()]);
        }
        command.args(["-t", test, "--csv"]);
        let said = process::output(CLIENT, command, SAMPLE_LIMIT, interrupt)?;
        // "test","rps",... and then "GET","429000.41",...
        let rate = said.lines().last().and_then(|line| line.split(',').nth(1));
        let rate = rate.and_then(|rate| rate.trim_matches('"').parse().ok());
        rate.ok_or_else(|| process::failed(CLIENT, &format!("it said {said}")))
    }

    fn sample(&self, under_way: u64, count: u64, interrupt: &Interrupt) -> Result<Vec<Sample>, Error> {
        let pid = self.program.pid() as i32;
        let there = || Usage::of(pid).map_err(|why| process::failed(SERVER, &why));
        // The client's time goes to this process once the client has ended.
        let here = || {
            let stat =
                ProcessStat::of(std::process::id() as i32).map_err(|why| process::failed(CLIENT, &why))?;
            Ok::<_, Error>(stat.waited_for_ticks as f64 * TICK_NS)
        };
        let before = (here()?, there()?);
        let per_s = self.benchmark("get", under_way, count, interrupt)?;
        let after = (here()?, there()?);
        let took = Duration::from_secs_f64(count as f64 / per_s);
        Ok(samples(count, took, after.0 - before.0, after.1.spent_s(&before.1) * 1e9))
    }
}

fn failed(why: &dyn std::fmt::Display) -> Error {
    process::failed("process that is read", why)
}
