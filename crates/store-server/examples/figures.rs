//! Measures clients that attach to a server in another process: `cargo run --release -p caravan-store-server --example
//! figures [KEYS]`.
//!
//! The keys have 16 bytes and the values 32. The processor's time is that of both sides, and of all their threads: other
//! programs on the machine change it less than the time that passes. redis-server is measured beside, if it is
//! installed, and so is an echo of 32 bytes each way over a TCP socket.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caravan_segment::process::ProcessStat;
use caravan_store::{ConnectedStore, Store, StoreOptions};
use caravan_store_server::{ServerOptions, StoreServer, local_address};

type Outcome<T> = Result<T, Box<dyn Error>>;

const ROUNDS: usize = 9;
/// The time of one round.
const ROUND: Duration = Duration::from_millis(300);

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    key[4..].copy_from_slice(format!("{number:012}").as_bytes());
    key
}

/// A cheap random number (splitmix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    match first.as_deref() {
        Some("--serve") => {
            return serve(&arguments.next().ok_or("FOLDER")?, arguments.next().ok_or("KEYS")?.parse()?);
        }
        Some("--echo") => return echo(),
        _ => {}
    }
    let keys: u64 = first.map_or(Ok(1_000_000), |keys| keys.parse())?;
    let folder = std::env::temp_dir().join(format!("caravan-figures-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let result = measure(&folder, keys);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn measure(folder: &Path, keys: u64) -> Outcome<()> {
    let text = folder.display().to_string();
    let (server, addresses) = Peer::start(&["--serve", &text, &keys.to_string()])?;
    let (socket, tcp) = addresses.split_once(' ').ok_or("no addresses")?;
    let mapped = Store::connect(format!("unix:{socket}"))?;
    println!("through a link in mapped memory:");
    latency("put", &server, |number| Ok(mapped.put(&key(number % keys), &[1; 32])?))?;
    for window in [1, 16, 64] {
        rate(&format!("put, {window} under way"), &server, window, |from| {
            let puts: Vec<_> =
                (from..from + window).map(|n| mapped.start_put(&key(n % keys), &[2; 32], None)).collect();
            puts.into_iter().try_for_each(|put| Ok(put.wait()?))
        })?;
        // A request of 32 bytes that changes nothing.
        rate(&format!("delete an absent key, {window} under way"), &server, window, |from| {
            let mut absent = [b'-'; 20];
            absent[..8].copy_from_slice(&from.to_ne_bytes());
            let deletes: Vec<_> = (0..window).map(|_| mapped.start_delete(&absent)).collect();
            deletes.into_iter().try_for_each(|delete| Ok(delete.wait().map(|_| ())?))
        })?;
    }
    let (echo, address) = Peer::start(&["--echo"])?;
    println!("an echo of 32 bytes each way over a TCP socket of this host:");
    for window in [1, 16, 64] {
        let mut stream = TcpStream::connect(&address)?;
        stream.set_nodelay(true)?;
        let mut bytes = vec![0; 32 * window as usize];
        rate(&format!("echo, {window} under way"), &echo, window, |_| {
            stream.write_all(&bytes)?;
            Ok(stream.read_exact(&mut bytes)?)
        })?;
    }
    println!("over TCP, of {keys} keys, chosen at random:");
    let client = Store::connect(tcp)?;
    warm(&client, keys)?;
    let mut state = 1;
    for window in [1, 64, 256] {
        let before = client.one_sided_reads();
        let mut gets = 0;
        rate(&format!("get, {window} under way"), &server, window, |_| {
            gets += window;
            if window == 1 {
                assert!(client.get(&key(random(&mut state) % keys))?.is_some());
                return Ok(());
            }
            let gets: Vec<_> =
                (0..window).map(|_| client.start_get(&key(random(&mut state) % keys))).collect();
            for get in gets {
                assert_eq!(get.wait()?.map_or(0, |value| value.len()), 32);
            }
            Ok(())
        })?;
        println!(
            "    one-sided reads for each: {:.2}",
            (client.one_sided_reads() - before) as f64 / gets as f64
        );
    }
    redis(folder, keys)
}

/// Reads each key once, so that the client knows where keys lie.
fn warm(client: &ConnectedStore, keys: u64) -> Outcome<()> {
    let all: Vec<[u8; 16]> = (0..keys).map(key).collect();
    let mut found = 0;
    client.get_many(&all, |_, value| found += usize::from(value.is_some()))?;
    assert_eq!(found, all.len());
    Ok(())
}

/// GET of redis-server with a pipeline of 64, over TCP.
fn redis(folder: &Path, keys: u64) -> Outcome<()> {
    let port = TcpListener::bind(local_address(0))?.local_addr()?.port();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--dir"]).arg(folder);
    let Ok(child) = command.stdout(Stdio::null()).spawn() else {
        println!("redis-server is not installed");
        return Ok(());
    };
    let server = Peer(child);
    let mut stream = loop {
        match TcpStream::connect(local_address(port)) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    stream.set_nodelay(true)?;
    let word = |word: &[u8]| [format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"].concat();
    let mut ok = [0; 5 * 64];
    for from in (0..keys.next_multiple_of(64)).step_by(64) {
        let puts = (from..from + 64)
            .flat_map(|n| [&b"*3\r\n"[..], &word(b"SET"), &word(&key(n)), &word(&[7; 32])].concat());
        stream.write_all(&puts.collect::<Vec<_>>())?;
        stream.read_exact(&mut ok)?;
    }
    println!("redis-server over TCP:");
    let (mut state, mut reply) = (1, vec![0; 64 * (5 + 34)]);
    rate("GET, pipeline 64", &server, 64, |_| {
        let gets = (0..64)
            .flat_map(|_| [&b"*2\r\n"[..], &word(b"GET"), &word(&key(random(&mut state) % keys))].concat());
        stream.write_all(&gets.collect::<Vec<_>>())?;
        Ok(stream.read_exact(&mut reply)?)
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn latency(what: &str, server: &Peer, mut operation: impl FnMut(u64) -> Outcome<()>) -> Outcome<()> {
    let mut all = Vec::new();
    let cpu = processor(server)?;
    for number in 0..100_000 {
        let begin = Instant::now();
        operation(number)?;
        all.push(begin.elapsed().as_nanos() as f64 / 1e3);
    }
    let cpu = (processor(server)? - cpu) * 1e6 / all.len() as f64;
    all.sort_by(f64::total_cmp);
    let [p50, p99] = [2, 100].map(|share| all[if share == 2 { all.len() / 2 } else { all.len() * 99 / 100 }]);
    println!("  {what}: p50 {p50:.2} us, p99 {p99:.2} us; {cpu:.2} us of processor, both sides");
    Ok(())
}

/// Repeats an operation on `window` things, given a number that grows by as much.
fn rate(
    what: &str,
    server: &Peer,
    window: u64,
    mut operation: impl FnMut(u64) -> Outcome<()>,
) -> Outcome<()> {
    let (mut rates, mut costs, mut number) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        let (begin, cpu, from) = (Instant::now(), processor(server)?, number);
        while begin.elapsed() < ROUND {
            operation(number)?;
            number += window;
        }
        let done = (number - from) as f64;
        rates.push(done / begin.elapsed().as_secs_f64());
        costs.push((processor(server)? - cpu) * 1e9 / done);
    }
    let (rate, cost) = (median(rates), median(costs));
    println!("  {what}: {:.0} k/s; {cost:.0} ns of processor each, both sides", rate / 1e3);
    Ok(())
}

/// Returns the seconds that this process and its peer have had a processor.
fn processor(server: &Peer) -> Outcome<f64> {
    let mine = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let theirs = ProcessStat::of(server.0.id() as i32)?;
    let theirs = (theirs.user_ticks + theirs.system_ticks) as f64 / 100.0;
    Ok(mine.tv_sec as f64 + mine.tv_nsec as f64 / 1e9 + theirs)
}

/// A process that ends with this one.
struct Peer(Child);

impl Peer {
    /// Starts this program in another role, and returns the line that it says when it is ready.
    fn start(arguments: &[&str]) -> Outcome<(Self, String)> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok((Self(child), line.trim().to_owned()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(folder: &str, keys: u64) -> Outcome<()> {
    let store = Arc::new(Store::embedded(StoreOptions::new((64 << 20) + 256 * keys))?);
    for number in 0..keys {
        store.put(&key(number), &[7; 32])?;
    }
    let mut options = ServerOptions::new("figures", Path::new(folder).join("socket"));
    options.address = Some(local_address(0));
    let server = StoreServer::start(store, options, |text| eprintln!("{text}"))?;
    println!("{} {}", server.socket().display(), server.address().ok_or("no address")?);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn echo() -> Outcome<()> {
    let listener = TcpListener::bind(local_address(0))?;
    println!("{}", listener.local_addr()?);
    for stream in listener.incoming() {
        let mut stream = stream?;
        stream.set_nodelay(true)?;
        std::thread::spawn(move || {
            let mut bytes = vec![0; 64 << 10];
            while let Ok(read @ 1..) = stream.read(&mut bytes) {
                if stream.write_all(&bytes[..read]).is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}
