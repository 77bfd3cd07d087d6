//! The same commands to two servers of a store, and to two of Redis Cluster: the replies must be equal.
//!
//! Redis announces the addresses of our servers, so that only the names of the nodes differ.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use caravan_cluster::{Configuration, PartId, SlotRange};
use caravan_store_server::{StoreAnswer, StoreClient};

use super::rig::{ClusterRig, ask, shown};
use crate::beside_redis::Redis;

/// Returns a port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// Starts a node that says it is at `announced`, with its port of the bus.
fn node(folder: &Path, announced: u16) -> (Redis, u16, u16) {
    std::fs::create_dir(folder).expect("made");
    // The port of the bus is bound after the other one, and may have been taken by then.
    let (port, bus_port) = (free_port(), free_port());
    let numbers = [port, bus_port, announced].map(|number| number.to_string());
    let [port_text, bus, announced] = numbers.each_ref().map(String::as_str);
    let further = [
        ["--cluster-enabled", "yes"],
        ["--port", port_text],
        ["--cluster-port", bus],
        ["--cluster-announce-ip", "127.0.0.1"],
        ["--cluster-announce-port", announced],
        ["--cluster-announce-bus-port", bus],
    ];
    (Redis::start_with(folder, further.as_flattened()), port, bus_port)
}

/// Both clusters: node 0 of each has the slots up to 8191, node 1 the others.
struct Clusters {
    ours: ClusterRig,
    theirs: Vec<Redis>,
}

impl Clusters {
    fn new() -> Self {
        let ours = ClusterRig::new(2, 2);
        let started: Vec<_> = ours
            .servers
            .iter()
            .enumerate()
            .map(|(number, server)| {
                let announced = server.server.address().expect("an address").port();
                node(&ours.folder.join(format!("redis-{number}")), announced)
            })
            .collect();
        let clients =
            || started.iter().map(|(redis, ..)| StoreClient::connect(&redis.socket).expect("connected"));
        let addresses = started.iter().map(|(_, port, bus_port)| (*port, *bus_port));
        for (mut client, range) in clients().zip(SlotRange::divide(2)) {
            assert_eq!(
                ask(&mut client, &format!("CLUSTER ADDSLOTSRANGE {} {}", range.first, range.last)),
                "OK"
            );
            for (port, bus_port) in addresses.clone() {
                assert_eq!(ask(&mut client, &format!("CLUSTER MEET 127.0.0.1 {port} {bus_port}")), "OK");
            }
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        for mut client in clients() {
            while !ask(&mut client, "CLUSTER INFO").contains("cluster_state:ok")
                || ask(&mut client, "CLUSTER SHARDS").matches("online").count() < 2
            {
                assert!(Instant::now() < deadline, "the nodes of Redis do not meet");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let theirs = started.into_iter().map(|(redis, ..)| redis).collect();
        Self { ours, theirs }
    }

    /// Returns a client of ours, and one of Redis.
    fn clients(&self, node: usize) -> [StoreClient; 2] {
        [self.ours.servers[node].server.socket(), &self.theirs[node].socket]
            .map(|socket| StoreClient::connect(socket).expect("connected"))
    }
}

/// Returns which nodes have which name, by asking each for its own.
fn names(clusters: &Clusters, whose: usize) -> Vec<String> {
    (0..2).map(|node| ask(&mut clusters.clients(node)[whose], "CLUSTER MYID")).collect()
}

/// Puts `node-0` and `node-1` in the place of the names, so that replies can be compared.
fn unnamed(answer: StoreAnswer, names: &[String]) -> StoreAnswer {
    match answer {
        StoreAnswer::Bulk(text) => {
            let text = names
                .iter()
                .enumerate()
                .fold(String::from_utf8_lossy(&text).into_owned(), |text, (number, name)| {
                    text.replace(name, &format!("node-{number}"))
                });
            StoreAnswer::Bulk(text.into_bytes())
        }
        StoreAnswer::Array(parts) => {
            StoreAnswer::Array(parts.into_iter().map(|part| unnamed(part, names)).collect())
        }
        other => other,
    }
}

/// Removes from CLUSTER NODES what is of the moment or of Redis's own bus: its port, times and epochs.
fn lasting_nodes(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let address = fields[1].split('@').next().unwrap_or_default();
        [&[fields[0], address, fields[2], fields[3]], &fields[7..]].concat().join(" ")
    };
    // In RESP3 it is a text with a name of its kind.
    let mut lines: Vec<String> = text.trim_start_matches("txt:").lines().map(line).collect();
    lines.sort();
    lines
}

/// Removes from CLUSTER INFO the epochs, and the counts of messages of Redis's bus.
fn lasting_info(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.contains("epoch") && !line.contains("_messages_")).collect()
}

/// Removes the offset of the stream of replication, which a store does not have.
fn without_offset(text: &str) -> Vec<String> {
    let mut shards: Vec<String> = text
        .split("[slots, ")
        .map(|shard| {
            let (before, after) = shard.split_once("replication-offset, ").unwrap_or((shard, ""));
            let after = after.split_once(',').map_or(after, |(_, after)| after);
            format!("{before}{after}").trim_end_matches([',', ' ', ']']).to_owned()
        })
        .collect();
    shards.sort();
    shards
}

#[test]
fn replies_are_those_of_redis_cluster() {
    let clusters = Clusters::new();
    let names = [names(&clusters, 0), names(&clusters, 1)];
    assert!(
        names
            .iter()
            .flatten()
            .all(|name| name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit()))
    );
    let keys = |configuration: &Configuration| {
        let near = clusters.ours.key_of(configuration.parts[0].id, "near");
        let far = clusters.ours.key_of(PartId(1), "far");
        (near, far)
    };
    let (near, far) = keys(&clusters.ours.configuration);
    let shapes = [
        "GET {near}",
        "SET {near} 1",
        "GET {far}",
        "SET {far} 1",
        "MGET {{near}}1 {{near}}2",
        "MSET {{near}}1 a {{near}}2 b",
        "MSET {{far}}1 a {{far}}2 b",
        "EXISTS {far}",
        "WATCH {far}",
        "UNWATCH",
        "WATCH {near}",
        "MULTI",
        "SET {near} 2",
        "GET {{near}}1",
        "EXEC",
        "MULTI",
        "GET {far}",
        "EXEC",
        "MULTI",
        "GET {near} x",
        "EXEC",
        "MULTI",
        "DISCARD",
        "DBSIZE",
        "KEYS *",
        "CLUSTER KEYSLOT {near}",
        "CLUSTER KEYSLOT a{b}c",
        "CLUSTER KEYSLOT a{}c",
        "CLUSTER KEYSLOT",
        "CLUSTER COUNTKEYSINSLOT {slot}",
        "CLUSTER COUNTKEYSINSLOT 16383",
        "CLUSTER COUNTKEYSINSLOT 16384",
        "CLUSTER COUNTKEYSINSLOT -1",
        "CLUSTER COUNTKEYSINSLOT x",
        "CLUSTER COUNTKEYSINSLOT 1 2",
        "CLUSTER GETKEYSINSLOT {slot} 1000",
        "CLUSTER GETKEYSINSLOT {slot} 0",
        "CLUSTER GETKEYSINSLOT {slot} -1",
        "CLUSTER GETKEYSINSLOT {slot} x",
        "CLUSTER GETKEYSINSLOT x 1",
        "CLUSTER GETKEYSINSLOT 16384 1",
        "CLUSTER GETKEYSINSLOT 1",
        "CLUSTER MYID",
        "CLUSTER MYID x",
        "CLUSTER SLOTS",
        "CLUSTER SLOTS x",
        "CLUSTER NOSUCH",
        "CLUSTER",
        "READONLY",
        "GET {far}",
        "READWRITE",
        "READWRITE x",
        "ASKING",
        "GET {near}",
        "ROLE",
        "WAIT 0 0",
        "WAIT x 0",
        "WAIT 0 x",
        "WAIT 0 -1",
        "SELECT 0",
        "SELECT 1",
        "SELECT x",
        "INFO cluster",
        "CONFIG GET cluster-enabled",
        "FLUSHALL",
        "GET {near}",
    ];
    for version in ["2", "3"] {
        for node in 0..2 {
            let mut clients = clusters.clients(node);
            clients.iter_mut().for_each(|client| _ = ask(client, &format!("HELLO {version}")));
            let slot = caravan_cluster::slot_of(near.as_bytes()).to_string();
            let words =
                |shape: &str| shape.replace("{near}", &near).replace("{far}", &far).replace("{slot}", &slot);
            let mut equal = |shape: &str| {
                let words = words(shape);
                let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
                let [ours, theirs] = &mut clients;
                let mut ours = unnamed(ours.call(&words).expect("an answer"), &names[0]);
                let mut theirs = unnamed(theirs.call(&words).expect("an answer"), &names[1]);
                match (&mut ours, &mut theirs) {
                    // The offset of the stream of replication, which a store does not have.
                    (_, StoreAnswer::Array(role)) if shape == "ROLE" => role[1] = StoreAnswer::Integer(0),
                    // Keys come in any order.
                    (StoreAnswer::Array(ours), StoreAnswer::Array(theirs)) if shape.contains("KEYS") => {
                        [ours, theirs].into_iter().for_each(|keys| keys.sort_by_key(shown));
                    }
                    _ => {}
                }
                assert_eq!(ours, theirs, "{shape}, RESP{version}, node {node}");
            };
            shapes.iter().for_each(|shape| equal(shape));
            let mut both = |words: &str| {
                let [ours, theirs] = &mut clients;
                [(ours, &names[0]), (theirs, &names[1])].map(|(client, names)| {
                    let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
                    shown(&unnamed(client.call(&words).expect("an answer"), names))
                })
            };
            let [ours, theirs] = both("CLUSTER NODES");
            assert_eq!(lasting_nodes(&ours), lasting_nodes(&theirs));
            let [ours, theirs] = both("CLUSTER INFO");
            assert_eq!(lasting_info(&ours), lasting_info(&theirs));
            let [ours, theirs] = both("CLUSTER SHARDS");
            assert_eq!(without_offset(&ours), without_offset(&theirs));
            for words in ["INFO server", "INFO replication", "HELLO"] {
                let [ours, theirs] = both(words);
                for line in
                    ["redis_mode:cluster", "role:master", "connected_slaves:0", "mode, cluster, role, master"]
                {
                    assert_eq!(ours.contains(line), theirs.contains(line), "{line} in {words}");
                }
            }
        }
    }
}
