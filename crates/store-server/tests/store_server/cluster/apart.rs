//! Requests of clients of the Redis protocol on keys of several parts, and on keys of another server.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caravan_cluster::PartId;
use caravan_store::{ClusterStore, StoreError};
use caravan_store_server::limits::{ERRAND_THREADS_MAX, ERRAND_WAIT};
use caravan_store_server::{StoreAnswer, StoreClient};

use super::rig::{ClusterRig, ask};
use crate::beside_redis::Redis;

/// Returns a key of each part.
fn keys(rig: &ClusterRig) -> Vec<String> {
    let parts = rig.configuration.parts.len() as u16;
    (0..parts).map(|part| rig.key_of(PartId(part), &format!("key{part}:"))).collect()
}

/// Puts the keys in the place of `{0}`, `{1}` and so on.
fn worded(shape: &str, keys: &[String]) -> String {
    keys.iter()
        .enumerate()
        .fold(shape.to_owned(), |words, (part, key)| words.replace(&format!("{{{part}}}"), key))
}

/// What a server of six parts, of which it has the first and the fourth, and a Redis that is alone answer in the same words.
const SHAPES: &[&str] = &[
    "MSET {0} a {1} b {2} c {3} d",
    "MGET {0} {1} {2} {3} {4} {5}",
    "MGET {5} {1}",
    "MSET {0} a {1}",
    "MSETNX {4} 1 {1} 2",
    "MSETNX {4} 1 {5} 2",
    "EXISTS {0} {1} {1} {4}",
    "RENAME {1} {4}",
    "RENAME {1} {4}",
    "RENAMENX {4} {2}",
    "RENAMENX {4} {1}",
    "DEL {1} {4} {0}",
    "UNLINK {2} {5}",
    "MGET {0} {1} {2} {3} {4} {5}",
    "MULTI",
    "SET {0} 1",
    "SET {1} text PX 100000",
    "INCR {1}",
    "INCRBY {2} 7",
    "DECR {2}",
    "INCRBYFLOAT {2} 0.5",
    "APPEND {3} more",
    "STRLEN {3}",
    "GETRANGE {1} -3 -1",
    "SETRANGE {1} 1 XX",
    "GETSET {0} 2",
    "GETEX {1} PERSIST",
    "TTL {1}",
    "EXPIREAT {4} 1",
    "EXPIREAT {2} 1",
    "GET {2}",
    "SETNX {5} first",
    "SETNX {5} second",
    "PING",
    "MGET {0} {1} {2} {3} {4} {5}",
    "GETDEL {5}",
    "EXEC",
    "MGET {0} {1} {2} {3} {4} {5}",
    "TTL {0}",
    "MULTI",
    "SET {0} 3",
    "GET {1} x",
    "SET {1} 3",
    "EXEC",
    "WATCH {0} {1}",
    "SET {0} 4",
    "MULTI",
    "SET {0} 5",
    "SET {1} 5",
    "EXEC",
    "WATCH {0}",
    "WATCH {2}",
    "MULTI",
    "GET {0}",
    "WATCH {1} {2}",
    "EXEC",
    "WATCH {1} {2}",
    "UNWATCH",
    "MULTI",
    "MGET {1} {2}",
    "DISCARD",
    "EXEC",
    "MULTI",
    "MGET {1} {2}",
    "NOSUCH",
    "EXEC",
    "MGET {0} {1} {2} {3} {4} {5}",
];

#[test]
fn keys_of_several_parts_get_the_replies_of_one_redis() {
    let rig = ClusterRig::new(3, 6);
    let keys = keys(&rig);
    let redis = Redis::start_with(&rig.folder, &["--port", "0"]);
    let mut clients = [rig.servers[0].client(), StoreClient::connect(&redis.socket).expect("connected")];
    for version in ["2", "3"] {
        clients.iter_mut().for_each(|client| _ = ask(client, &format!("HELLO {version}")));
        for shape in SHAPES {
            let words = worded(shape, &keys);
            let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            let [ours, theirs] = clients.each_mut().map(|client| client.call(&words).expect("an answer"));
            assert_eq!(ours, theirs, "{shape}, RESP{version}");
        }
    }
}

#[test]
fn replies_come_in_the_order_of_the_requests() {
    let rig = ClusterRig::new(2, 2);
    let keys = keys(&rig);
    let mut client = UnixStream::connect(rig.servers[0].server.socket()).expect("connected");
    client.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    let requests = "SET {0} 1\r\nMSET {0} 2 {1} 3\r\nGET {0}\r\nMULTI\r\nINCR {0}\r\nINCR {1}\r\nEXEC\r\nDEL {1} {0}\r\nGET {0}\r\nPING\r\n";
    let replies =
        "+OK\r\n+OK\r\n$1\r\n2\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:3\r\n:4\r\n:2\r\n$-1\r\n+PONG\r\n";
    let requests = worded(requests, &keys);
    let mut read = vec![0; replies.len()];
    // At once, and byte by byte.
    client.write_all(requests.as_bytes()).expect("sent");
    client.read_exact(&mut read).expect("answers");
    assert_eq!(String::from_utf8_lossy(&read), replies);
    requests.bytes().for_each(|byte| client.write_all(&[byte]).expect("sent"));
    client.read_exact(&mut read).expect("answers");
    assert_eq!(String::from_utf8_lossy(&read), replies);
}

#[test]
fn watched_keys_of_other_parts_count() {
    let mut rig = ClusterRig::new(3, 3);
    let keys = keys(&rig);
    let mut client = rig.servers[0].client();
    let mut exec = |rig: &mut ClusterRig, watch: &str, meanwhile: &dyn Fn(&mut ClusterRig)| {
        for words in ["MSET {0} 1 {1} 1", watch] {
            assert_eq!(ask(&mut client, &worded(words, &keys)), "OK");
        }
        meanwhile(rig);
        ask(&mut client, "MULTI");
        for words in ["INCR {1}", "INCR {0}"] {
            assert_eq!(ask(&mut client, &worded(words, &keys)), "QUEUED");
        }
        ask(&mut client, "EXEC")
    };
    let write = |server: usize, words: &str| {
        let words = worded(words, &keys);
        move |rig: &mut ClusterRig| _ = ask(&mut rig.servers[server].client(), &words)
    };
    let all = "WATCH {0} {1} {2}";
    assert_eq!(exec(&mut rig, all, &|_| ()), "[2, 2]");
    assert_eq!(exec(&mut rig, all, &write(0, "SET {0} 1")), "null");
    assert_eq!(exec(&mut rig, all, &write(1, "SET {1} 1")), "null");
    // It does not exist before, and not afterwards.
    assert_eq!(exec(&mut rig, all, &write(2, "SET {2} 1")), "null");
    assert_eq!(exec(&mut rig, all, &write(2, "DEL {2}")), "null");
    assert_eq!(exec(&mut rig, all, &|_| ()), "[2, 2]");
    // A part that moves is the same one.
    assert_eq!(exec(&mut rig, all, &|rig| rig.move_part(PartId(1), 2)), "[2, 2]");
    // One that was served here may be another one afterwards.
    assert_eq!(exec(&mut rig, "WATCH {0}", &|rig| rig.move_part(PartId(0), 1)), "null");
}

/// Accounts, two in each part, and what each has at the beginning.
const ACCOUNTS: usize = 12;
const BEGIN: i64 = 100;

/// Ends all threads of a test when one of them fails.
struct EndAtPanic<'e>(&'e AtomicBool);

impl Drop for EndAtPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Returns the numbers of an answer, or `None` if it says to try again.
fn numbers(answer: &StoreAnswer) -> Option<Vec<i64>> {
    match answer {
        StoreAnswer::Array(values) => {
            let number = |value: &StoreAnswer| match value {
                StoreAnswer::Bulk(text) => String::from_utf8_lossy(text).parse().expect("a number"),
                other => panic!("{other:?}"),
            };
            Some(values.iter().map(number).collect())
        }
        StoreAnswer::Error(text) if text.windows(8).any(|word| word == b"TRYAGAIN") => None,
        other => panic!("{other:?}"),
    }
}

/// Moves money by WATCH, MULTI and EXEC; returns whether it has happened.
fn transfer(client: &mut StoreClient, from: &str, to: &str, amount: i64) -> bool {
    let asked = |client: &mut StoreClient, words: &str| {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        client.call(&words).expect("an answer")
    };
    if ask(client, &format!("WATCH {from} {to}")) != "OK" {
        return false;
    }
    let Some(values) = numbers(&asked(client, &format!("MGET {from} {to}"))) else {
        ask(client, "UNWATCH");
        return false;
    };
    ask(client, "MULTI");
    assert_eq!(ask(client, &format!("SET {from} {}", values[0] - amount)), "QUEUED");
    assert_eq!(ask(client, &format!("SET {to} {}", values[1] + amount)), "QUEUED");
    match asked(client, "EXEC") {
        StoreAnswer::Null => false,
        StoreAnswer::Array(replies) => {
            assert!(replies.iter().all(|reply| *reply == StoreAnswer::Simple(b"OK".to_vec())), "{replies:?}");
            true
        }
        other => numbers(&other).is_some(),
    }
}

/// Clients of both kinds move money, each reading finds the same sum, and parts move meanwhile.
#[test]
fn sums_stay_right_beside_other_clients() {
    let mut rig = ClusterRig::new(3, 6);
    let accounts: Vec<String> = (0..ACCOUNTS)
        .map(|account| rig.key_of(PartId(account as u16 % 6), &format!("account{account}:")))
        .collect();
    let all = accounts.join(" ");
    let opened = accounts.iter().map(|account| format!(" {account} {BEGIN}")).collect::<String>();
    assert_eq!(ask(&mut rig.servers[0].client(), &format!("MSET{opened}")), "OK");
    let is_over = AtomicBool::new(false);
    let done = [const { AtomicU64::new(0) }; 4];
    let mut clients: Vec<StoreClient> = (0..3).map(|server| rig.servers[server].client()).collect();
    let store = ClusterStore::connect(rig.servers[2].address()).expect("connected");
    std::thread::scope(|scope| {
        let (is_over, accounts, all) = (&is_over, &accounts, &all);
        let (movers, readers) = clients.split_at_mut(2);
        for (number, (client, done)) in movers.iter_mut().zip(&done).enumerate() {
            scope.spawn(move || {
                let _end = EndAtPanic(is_over);
                for round in 0_usize.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    // Of two parts always.
                    let from = (round * 5 + number) % ACCOUNTS;
                    let to = (from + 1 + round % 5) % ACCOUNTS;
                    let is_done = transfer(client, &accounts[from], &accounts[to], 1 + round as i64 % 9);
                    done.fetch_add(u64::from(is_done), Ordering::Relaxed);
                }
            });
        }
        let (reader, read) = (&mut readers[0], &done[2]);
        scope.spawn(move || {
            let _end = EndAtPanic(is_over);
            while !is_over.load(Ordering::Relaxed) {
                let words: Vec<&[u8]> =
                    std::iter::once("MGET").chain(all.split(' ')).map(str::as_bytes).collect();
                if let Some(values) = numbers(&reader.call(&words).expect("an answer")) {
                    assert_eq!(values.iter().sum::<i64>(), BEGIN * ACCOUNTS as i64);
                    read.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let (store, moved) = (&store, &done[3]);
        scope.spawn(move || {
            let _end = EndAtPanic(is_over);
            for round in 0_usize.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let [from, to] =
                    [round * 7 % ACCOUNTS, (round * 7 + 1) % ACCOUNTS].map(|at| accounts[at].as_bytes());
                let result = store.transaction(|tx| {
                    let [source, target] = [tx.get(from)?, tx.get(to)?].map(|value| {
                        String::from_utf8_lossy(&value.expect("an account")).parse::<i64>().expect("a number")
                    });
                    tx.put(from, (source - 3).to_string().as_bytes())?;
                    tx.put(to, (target + 3).to_string().as_bytes())
                });
                result.expect("a server of the part comes");
                moved.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _end = EndAtPanic(is_over);
        let begin = Instant::now();
        for step in 0_usize.. {
            if is_over.load(Ordering::Relaxed) || begin.elapsed() > Duration::from_secs(3) {
                break;
            }
            let part = PartId(step as u16 % 6);
            rig.move_part(part, (rig.holder(part) + 1 + step % 2) % 3);
            // All of them work between two moves.
            let before: Vec<u64> = done.iter().map(|done| done.load(Ordering::Relaxed)).collect();
            let deadline = Instant::now() + Duration::from_secs(60);
            while done.iter().zip(&before).any(|(done, before)| done.load(Ordering::Relaxed) == *before)
                && !is_over.load(Ordering::Relaxed)
            {
                assert!(Instant::now() < deadline, "a client stands still after move {step}: {done:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("transfers of two clients, readings, transfers of a third client: {done:?}");
    let words: Vec<&[u8]> = std::iter::once("MGET").chain(all.split(' ')).map(str::as_bytes).collect();
    let values = rig.servers[1].client().call(&words).expect("an answer");
    assert_eq!(numbers(&values).expect("readable").iter().sum::<i64>(), BEGIN * ACCOUNTS as i64);
}

/// More clients than there are threads for it wait for the home of their transactions, which says nothing; others are served by the same thread as ever.
#[test]
fn nobody_else_waits_while_a_part_is_out_of_reach() {
    let mut rig = ClusterRig::with(2, 2, |options| options.workers = Some(1));
    let keys = keys(&rig);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("an address").to_string();
    rig.change(|configuration| configuration.members[1].client_address = address);
    let mut other = rig.servers[0].client();
    assert_eq!(ask(&mut other, &worded("SET {0} 1", &keys)), "OK");
    let late: Vec<StoreClient> = (0..ERRAND_THREADS_MAX + 4).map(|_| rig.servers[0].client()).collect();
    let (answered, keys) = (AtomicU64::new(0), &keys);
    std::thread::scope(|scope| {
        for mut client in late {
            let answered = &answered;
            scope.spawn(move || {
                let answer = ask(&mut client, &worded("MSET {1} 2 {0} 2", keys));
                answered.fetch_add(1, Ordering::Relaxed);
                assert!(answer.starts_with("TRYAGAIN "), "{answer}");
            });
        }
        let (begin, mut waits) = (Instant::now(), Vec::new());
        while answered.load(Ordering::Relaxed) == 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "nobody gets an answer");
            let asked = Instant::now();
            assert_eq!(ask(&mut other, &worded("GET {0}", keys)), "1");
            waits.push(asked.elapsed());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(begin.elapsed() >= ERRAND_WAIT / 2, "the part was not out of reach");
        waits.sort();
        let (median, longest) = (waits[waits.len() / 2], waits[waits.len() - 1]);
        println!("{} requests took {median:?}, at most {longest:?}", waits.len());
        assert!(median < Duration::from_millis(10), "{median:?}");
        assert!(longest < ERRAND_WAIT / 4, "{longest:?}");
    });
    assert_eq!(ask(&mut other, &worded("GET {0}", keys)), "1");
}

/// Uses a server as a program does that knows nothing of several servers.
const PLAIN_REDIS_PY: &str = r#"
import sys
import redis

clients = [redis.Redis(host=host, port=int(port), password="secret") for host, port in (at.rsplit(":", 1) for at in sys.argv[1:])]
def client(number):
    return clients[number % len(clients)]
keys = [f"key:{number}" for number in range(100)]
for number, key in enumerate(keys):
    assert client(number).set(key, number)
    assert client(number + 1).incr(key) == number + 1
    assert client(number + 2).get(key) == str(number + 1).encode()
assert client(0).mget(keys) == [str(number + 1).encode() for number in range(100)]
with client(1).pipeline(transaction=True) as pipe:
    pipe.watch("key:1")
    value = int(pipe.get("key:1"))
    pipe.multi()
    pipe.set("key:1", value + 1)
    pipe.get("key:1")
    assert pipe.execute() == [True, b"3"]
    pipe.watch("key:2")
    client(2).set("key:2", 0)
    pipe.multi()
    pipe.delete(*keys)
    try:
        pipe.execute()
        raise AssertionError("a watched key was written")
    except redis.WatchError:
        pass
with client(2).pipeline(transaction=False) as pipe:
    for key in keys:
        pipe.strlen(key)
    assert sum(pipe.execute()) > 100
assert sum(client(number).dbsize() for number in range(len(clients))) == 100
assert client(0).delete(*keys) == 100
"#;

#[test]
fn a_server_that_forwards_takes_any_key() {
    let mut rig = ClusterRig::with(3, 6, |options| {
        options.forwards = true;
        options.password = Some(b"secret".to_vec());
    });
    let addresses: Vec<String> = rig.servers.iter().map(|server| server.address()).collect();
    let output = Command::new("/usr/bin/python3").args(["-c", PLAIN_REDIS_PY]).args(&addresses).output();
    let output = output
        .expect("it starts: `make test` installs python3 and redis-py (Debian's package python3-redis)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let keys = keys(&rig);
    let mut client = rig.servers[0].client();
    ask(&mut client, "AUTH secret");
    for (part, key) in keys.iter().enumerate() {
        // The one with the keys learns nothing of it.
        assert_eq!(ask(&mut client, &format!("SET {key} {part}")), "OK");
        rig.move_part(PartId(part as u16), (part + 2) % 3);
        assert_eq!(ask(&mut client, &format!("GET {key}")), part.to_string());
    }
    // The password is another one now; the server goes on with that.
    for server in &rig.servers {
        let mut client = server.client();
        ask(&mut client, "AUTH secret");
        assert_eq!(ask(&mut client, "CONFIG SET requirepass other"), "OK");
    }
    assert_eq!(ask(&mut client, &worded("MSET {0} 8 {1} 9", &keys)), "OK");
    assert_eq!(ask(&mut client, &worded("GET {1}", &keys)), "9");
}

/// Accounts that are read together, spread over all parts; their sum never changes.
const READ_TOGETHER: usize = 24;

#[test]
fn mget_over_all_parts_ends_beside_writers() {
    let rig = ClusterRig::new(3, 6);
    let key = |number: usize| rig.key_of(PartId((number % 6) as u16), &format!("hot{number}:"));
    let keys: Vec<String> = (0..READ_TOGETHER).map(key).collect();
    let mut client = rig.servers[0].client();
    let pairs: String = keys.iter().map(|key| format!(" {key} {BEGIN}")).collect();
    assert_eq!(ask(&mut client, &format!("MSET{pairs}")), "OK");
    let (is_over, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _end = EndAtPanic(&is_over);
        for writer in 0..4 {
            let (rig, keys, is_over, moved) = (&rig, &keys, &is_over, &moved);
            scope.spawn(move || {
                let _end = EndAtPanic(is_over);
                let store = ClusterStore::connect(rig.servers[writer % 3].address()).expect("connected");
                let mut step = writer;
                while !is_over.load(Ordering::Relaxed) {
                    step += 5;
                    let [from, to] =
                        [step, step / 2 + 1].map(|number| keys[number % READ_TOGETHER].as_bytes());
                    let done: Result<(), StoreError> = store.transaction(|tx| {
                        let read = tx.get_many(&[from, to])?;
                        let amount = |value: &Option<Vec<u8>>| {
                            let text = value.clone().map(String::from_utf8).expect("an account");
                            text.expect("text").parse::<i64>().expect("a number")
                        };
                        tx.put(from, (amount(&read[0]) - 1).to_string().as_bytes())?;
                        let rest = if from == to { amount(&read[0]) } else { amount(&read[1]) + 1 };
                        tx.put(to, rest.to_string().as_bytes())
                    });
                    match done {
                        Ok(()) => _ = moved.fetch_add(1, Ordering::Relaxed),
                        // Writers may starve each other.
                        Err(StoreError::Conflict) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let words: Vec<&[u8]> =
            std::iter::once("MGET").chain(keys.iter().map(String::as_str)).map(str::as_bytes).collect();
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            let before = (Instant::now(), moved.load(Ordering::Relaxed));
            let values = numbers(&client.call(&words).expect("an answer")).expect("no part is away");
            assert_eq!(values.iter().sum::<i64>(), READ_TOGETHER as i64 * BEGIN, "not of one moment");
            longest = longest.max(before.0.elapsed());
            // The next one reads other values.
            let limit = Instant::now() + Duration::from_secs(60);
            while moved.load(Ordering::Relaxed) == before.1 {
                assert!(Instant::now() < limit && !is_over.load(Ordering::Relaxed), "nothing is written");
                std::thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        println!("the longest of 20 took {longest:?} beside {} transfers", moved.load(Ordering::Relaxed));
    });
}
