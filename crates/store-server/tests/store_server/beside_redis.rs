//! The same random commands to this server and to a redis-server: the replies must be equal.
//!
//! `CARAVAN_REDIS_SEED=N` repeats one run, `CARAVAN_REDIS_RUNS=N` makes more of them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caravan_store::{Store, StoreOptions};
use caravan_store_server::{ServerOptions, StoreAnswer, StoreClient, StoreServer};

/// Random numbers from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

const KEYS: &[&str] = &["a", "b", "c", "d", "key:1", "key:2", "", "A"];
const VALUES: &[&str] = &[
    "",
    "0",
    "1",
    "-1",
    "10",
    "hello",
    "01",
    " 1",
    "1 ",
    "+1",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "1.5",
    "-0.25",
    "3.0",
    "abc\0def",
    "a\r\nb",
    "x",
];
const INTEGERS: &[&str] =
    &["0", "1", "-1", "2", "5", "-3", "9223372036854775807", "-9223372036854775808", "x", "1.0", ""];
/// Times in the far future and in the past: what expires in between would make replies depend on the moment.
const SECONDS: &[&str] = &["1000", "2000", "0", "-1", "9223372036854775807", "x", "100000"];
const MOMENTS: &[&str] = &["1", "4000000000", "4000001000", "-1", "x"];
const DECIMALS: &[&str] = &["1.5", "-0.25", "0.1", "1", "x", "", "0.05", "-1"];
const PATTERNS: &[&str] = &["*", "?", "k*", "[a-c]", "[^a]", "key:[12]", "\\a", "", "[", "*[", "A"];
/// Without moments: a SET with one in the past leaves a key that DBSIZE counts in both servers until they remove it.
const SET_OPTIONS: &[&str] =
    &["NX", "XX", "GET", "KEEPTTL", "EX", "PX", "1000000", "0", "nx", "4000000000", "zz"];

/// Makes a command. `{k}` stands for a key, and so on.
const SHAPES: &[&str] = &[
    "get {k}",
    "get {k}",
    "set {k} {v}",
    "set {k} {v}",
    "SET {k} {v} {o}",
    "set {k} {v} {o} {o}",
    "set {k} {v} {o} {o} {o}",
    "set {k} {v} ex {s}",
    "set {k} {v} exat 4000000000 {o}",
    "set {k} {v} pxat 4000000000000 {o}",
    "setnx {k} {v}",
    "setex {k} {s} {v}",
    "psetex {k} {s} {v}",
    "getset {k} {v}",
    "getdel {k}",
    "getex {k}",
    "getex {k} persist",
    "getex {k} ex {s}",
    "getex {k} {o} {s}",
    "mget {k} {k} {k}",
    "mset {k} {v} {k} {v}",
    "mset {k} {v} {k}",
    "msetnx {k} {v} {k} {v}",
    "append {k} {v}",
    "strlen {k}",
    "getrange {k} {i} {i}",
    "setrange {k} {i} {v}",
    "setrange {k} 3 {v}",
    "incr {k}",
    "decr {k}",
    "incrby {k} {i}",
    "decrby {k} {i}",
    "incrbyfloat f {d}",
    "incrbyfloat {k} x",
    "del {k} {k}",
    "unlink {k}",
    "exists {k} {k}",
    "type {k}",
    "rename {k} {k}",
    "renamenx {k} {k}",
    "expire {k} {s}",
    "expire {k} {s} {x}",
    "expire {k} {s} {x} {x}",
    "pexpire {k} {s}",
    "expireat {k} {m}",
    "pexpireat {k} {m}",
    "persist {k}",
    "ttl {k}",
    "pttl {k}",
    "expiretime {k}",
    "pexpiretime {k}",
    "keys {p}",
    "dbsize",
    "scan 0 count 100000 match {p}",
    "scan 0 count 100000",
    "scan {i} count x",
    "scan x",
    "scan 0 count 0",
    "multi",
    "multi",
    "exec",
    "exec",
    "exec",
    "discard",
    "watch",
    "multi x",
    "exec x",
    "ping",
    "ping {v}",
    "echo {v}",
    "select 0",
    "select 1",
    "select x",
    "flushall",
    "flushdb sync",
    "flushall zz",
    "client getname",
    "client setname {k}",
    "client",
    "client nosuch",
    "client setname",
    "client id x",
    "config get databases",
    "config get nosuch",
    "config set nosuch 1",
    "config set databases 2",
    "command count x",
    "command info nosuch",
    "command list filterby pattern ttl",
    "config set maxclients 5 maxclients 6",
    "config set maxclients x",
    "client list id 999999999",
    "client list id x",
    "nosuch",
    "nosuch {v} {v}",
    "get",
    "get {k} {k}",
    "set {k}",
    "auth x",
    "auth default x",
    "auth a b c",
    "hello 4",
    "hello x",
    "hello 2 nosuch",
    "debug",
    "reset",
];

fn command(random: &mut Random) -> Vec<Vec<u8>> {
    let shape = random.of(SHAPES);
    let word = |word: &str, random: &mut Random| match word {
        "{k}" => random.of(KEYS),
        "{v}" => random.of(VALUES),
        "{i}" => random.of(INTEGERS),
        "{s}" => random.of(SECONDS),
        "{m}" => random.of(MOMENTS),
        "{d}" => random.of(DECIMALS),
        "{p}" => random.of(PATTERNS),
        "{o}" => random.of(SET_OPTIONS),
        "{x}" => random.of(&["NX", "XX", "GT", "LT", "zz"]),
        _ => "",
    };
    let words = shape.split(' ').map(|part| match part.starts_with('{') {
        true => word(part, random).as_bytes().to_vec(),
        false => part.as_bytes().to_vec(),
    });
    words.collect()
}

/// A redis-server that ends with the value.
pub struct Redis {
    child: Child,
    pub socket: PathBuf,
}

impl Redis {
    fn start(folder: &Path) -> Self {
        Self::start_with(folder, &["--port", "0"])
    }

    /// Starts one with these options, too.
    pub fn start_with(folder: &Path, further: &[&str]) -> Self {
        let socket = folder.join("redis.sock");
        let options = ["--save", "", "--appendonly", "no", "--databases", "1"];
        let child = Command::new("redis-server")
            .args(options)
            .args(further)
            .args(["--enable-debug-command", "yes", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(folder)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server starts: `make test` installs it (Debian's package redis-server)");
        let redis = Self { child, socket };
        let deadline = Instant::now() + Duration::from_secs(60);
        while StoreClient::connect(&redis.socket).is_err() {
            assert!(Instant::now() < deadline, "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        redis
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both servers, in a folder of their own.
struct Pair {
    redis: Redis,
    server: StoreServer,
    folder: PathBuf,
}

impl Pair {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("caravan-beside-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("made");
        let store = Arc::new(Store::embedded(StoreOptions::new(64 << 20)).expect("a store"));
        let options = ServerOptions::new("test", folder.join("socket"));
        let server = StoreServer::start(store, options, |_| {}).expect("a server");
        Self { redis: Redis::start(&folder), server, folder }
    }

    fn clients(&self) -> [StoreClient; 2] {
        [self.server.socket(), &self.redis.socket]
            .map(|socket| StoreClient::connect(socket).expect("connected"))
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// How far two answers may be apart that tell a time, in milliseconds or in seconds: the servers read their clocks one after the
/// other, on a machine that may be busy.
const CLOCKS_APART: i64 = 30_000;

fn is_equal(words: &[Vec<u8>], ours: &StoreAnswer, theirs: &StoreAnswer) -> bool {
    match (ours, theirs) {
        (StoreAnswer::Integer(ours), StoreAnswer::Integer(theirs)) => {
            let is_time = words[0].to_ascii_lowercase().ends_with(b"ttl") || words[0].ends_with(b"time");
            ours == theirs || (is_time && ours.min(theirs) > &0 && (ours - theirs).abs() < CLOCKS_APART)
        }
        // Keys come in any order.
        (StoreAnswer::Array(ours), StoreAnswer::Array(theirs)) if words[0] == b"keys" => {
            sorted(ours) == sorted(theirs)
        }
        (StoreAnswer::Array(ours), StoreAnswer::Array(theirs)) if words[0] == b"scan" => {
            match (&ours[..], &theirs[..]) {
                ([_, StoreAnswer::Array(ours)], [_, StoreAnswer::Array(theirs)]) => {
                    sorted(ours) == sorted(theirs)
                }
                _ => false,
            }
        }
        _ => ours == theirs,
    }
}

fn shown(answer: &StoreAnswer) -> String {
    match answer {
        StoreAnswer::Error(text) | StoreAnswer::Simple(text) => String::from_utf8_lossy(text).into_owned(),
        other => format!("{other:?}"),
    }
}

fn sorted(answers: &[StoreAnswer]) -> Vec<String> {
    let mut texts: Vec<_> = answers.iter().map(|answer| format!("{answer:?}")).collect();
    texts.sort();
    texts
}

/// Runs commands on both servers, and returns the first difference. `plant` may change what our server gets.
fn difference(pair: &Pair, seed: u64, commands: usize, plant: impl Fn(&mut Vec<Vec<u8>>)) -> Option<String> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut clients = [pair.clients(), pair.clients()];
    for version in [&b"2"[..], b"3"] {
        for [ours, theirs] in &mut clients {
            ours.call(&[b"HELLO", version]).expect("an answer");
            theirs.call(&[b"HELLO", version]).expect("an answer");
            ours.call(&[b"FLUSHALL"]).expect("an answer");
            theirs.call(&[b"FLUSHALL"]).expect("an answer");
        }
        // What is queued for EXEC, whose answer has the parts in the same order.
        let mut queued: [Option<Vec<Vec<Vec<u8>>>>; 2] = [None, None];
        for step in 0..commands {
            let client = random.below(2);
            let words = command(&mut random);
            let mut planted = words.clone();
            plant(&mut planted);
            let [ours, theirs] = &mut clients[client];
            let ours = ours.call(&slices(&planted)).expect("an answer");
            let theirs = theirs.call(&slices(&words)).expect("an answer");
            let parts = queued[client].clone().unwrap_or_default();
            let equal = match (&ours, &theirs) {
                (StoreAnswer::Array(ours), StoreAnswer::Array(theirs)) if words[0] == b"exec" => {
                    ours.len() == theirs.len()
                        && ours
                            .iter()
                            .zip(theirs)
                            .zip(&parts)
                            .all(|((ours, theirs), words)| is_equal(words, ours, theirs))
                }
                _ => is_equal(&words, &ours, &theirs),
            };
            if !equal {
                let words: Vec<_> =
                    words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
                return Some(format!(
                    "seed {seed}, RESP{}, step {step}, client {client}: {words:?}\n ours:   {}\n redis: {}\n queued: {parts:?}",
                    version[0] - b'0',
                    shown(&ours),
                    shown(&theirs),
                ));
            }
            match (&ours, &mut queued[client]) {
                (StoreAnswer::Simple(text), Some(queue)) if text == b"QUEUED" => queue.push(words),
                (StoreAnswer::Simple(text), queue) if words[0] == b"multi" && text == b"OK" => {
                    *queue = Some(Vec::new());
                }
                (_, queue) if matches!(&words[0][..], b"exec" | b"discard" | b"reset") => *queue = None,
                _ => {}
            }
        }
        // RESET went back to RESP2, and MULTI may be open.
        for [ours, theirs] in &mut clients {
            ours.call(&[b"RESET"]).expect("an answer");
            theirs.call(&[b"RESET"]).expect("an answer");
        }
    }
    None
}

fn slices(words: &[Vec<u8>]) -> Vec<&[u8]> {
    words.iter().map(|word| &word[..]).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn random_commands_get_the_replies_of_redis() {
    let pair = Pair::new("random");
    let begin = number("CARAVAN_REDIS_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time");
        now.as_micros() as u64
    });
    for seed in begin..begin + number("CARAVAN_REDIS_RUNS").unwrap_or(2) {
        if let Some(difference) = difference(&pair, seed, 2000, |_| {}) {
            panic!("{difference}\nrepeat it with CARAVAN_REDIS_SEED={seed}");
        }
    }
}

#[test]
fn a_planted_difference_is_found() {
    let pair = Pair::new("planted");
    assert_eq!(difference(&pair, 1, 2000, |_| {}), None);
    for (from, to) in [("incr", "decr"), ("ttl", "pttl"), ("setnx", "getset"), ("exec", "discard")] {
        let plant = |words: &mut Vec<Vec<u8>>| {
            if words[0] == from.as_bytes() {
                words[0] = to.as_bytes().to_vec();
            }
        };
        // A command may meet no key for which it matters, so several seeds have a chance.
        assert!((1..=8).any(|seed| difference(&pair, seed, 2000, plant).is_some()), "{from} as {to}");
    }
}

/// Returns a command on values around and above the size of one object of the store.
fn large_command(random: &mut Random) -> Vec<Vec<u8>> {
    let key = random.of(&["a", "b", "c"]).to_owned();
    let other = random.of(&["a", "b", "c"]).to_owned();
    let seed = random.below(251);
    let bytes = [10, 1_013_760, 1_013_761, 2_027_520, 3_000_000][random.below(5)];
    let value: Vec<u8> = (0..bytes).map(|at| (at / 100 % 251) as u8 ^ seed as u8).collect();
    let place = |random: &mut Random| (random.below(5_000_000) as i64 - 1_000_000).to_string().into_bytes();
    let texts = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    match random.below(14) {
        0..=2 => [texts(&["set", &key]), vec![value]].concat(),
        3 => [texts(&["setex", &key, "1000"]), vec![value]].concat(),
        4 => [texts(&["getset", &key]), vec![value]].concat(),
        5 => [texts(&["append", &key]), vec![value[..value.len() / 4].to_vec()]].concat(),
        6 => [texts(&["getrange", &key]), vec![place(random), place(random)]].concat(),
        7 => [texts(&["setrange", &key]), vec![place(random), value[..9].to_vec()]].concat(),
        8 => texts(&["strlen", &key]),
        9 => texts(&["get", &key]),
        10 => texts(&["rename", &key, &other]),
        11 => texts(&["mget", &key, &other]),
        12 => texts(&["expire", &key, "2000"]),
        _ => texts(&["del", &key]),
    }
}

#[test]
fn large_values_are_those_of_redis() {
    let pair = Pair::new("large");
    let [mut ours, mut theirs] = pair.clients();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for step in 0..120 {
        let words = large_command(&mut random);
        if random.below(8) == 0 {
            // A command between MULTI and EXEC reads what one before it has written.
            let again = [b"get".to_vec(), words[1].clone()];
            for client in [&mut ours, &mut theirs] {
                client.call(&[b"multi"]).expect("an answer");
                client.call(&slices(&words)).expect("an answer");
                client.call(&slices(&again)).expect("an answer");
            }
            let both = [&mut ours, &mut theirs].map(|client| client.call(&[b"exec"]).expect("an answer"));
            assert!(
                both[0] == both[1],
                "step {step}: {:?} and GET between MULTI and EXEC",
                slices(&words[..2])
            );
            continue;
        }
        let both = [&mut ours, &mut theirs].map(|client| client.call(&slices(&words)).expect("an answer"));
        assert!(both[0] == both[1], "step {step}: {:?}", slices(&words[..2]));
    }
}

#[test]
fn watched_keys_stop_exec_as_in_redis() {
    let pair = Pair::new("watch");
    let [mut watchers, mut others] = [pair.clients(), pair.clients()];
    for begin in [&[&b"SET"[..], b"k", b"1"][..], &[b"DEL", b"k"], &[b"SET", b"k", b"1", b"EX", b"100"]] {
        for change in [
            &[&b"SET"[..], b"k", b"1"][..],
            &[b"DEL", b"k"],
            &[b"EXPIRE", b"k", b"1000"],
            &[b"PERSIST", b"k"],
            &[b"GET", b"k"],
            &[b"APPEND", b"k", b"x"],
            &[b"SET", b"other", b"1"],
            &[b"RENAME", b"k", b"k2"],
            &[b"SETNX", b"k", b"2"],
            &[b"FLUSHALL"],
        ] {
            for end in [&b"EXEC"[..], b"UNWATCH"] {
                let outcomes = [0, 1].map(|which| {
                    let (watcher, other) = (&mut watchers[which], &mut others[which]);
                    other.call(begin).expect("an answer");
                    watcher.call(&[b"WATCH", b"k"]).expect("an answer");
                    other.call(change).expect("an answer");
                    if end == b"UNWATCH" {
                        watcher.call(&[b"UNWATCH"]).expect("an answer");
                    }
                    watcher.call(&[b"MULTI"]).expect("an answer");
                    watcher.call(&[b"SET", b"done", b"1"]).expect("an answer");
                    watcher.call(&[b"EXEC"]).expect("an answer")
                });
                let change = change.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>();
                assert_eq!(outcomes[0], outcomes[1], "{change:?}");
            }
        }
    }
}
