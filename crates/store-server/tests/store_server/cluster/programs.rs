//! Programs that know Redis Cluster, and nothing of us.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use caravan_cluster::PartId;

use super::rig::{ClusterRig, RigServer, ask};

fn redis_cli(server: &RigServer, words: &[&str]) -> String {
    let (_, port) = server.server.address().map(|at| (at.ip(), at.port().to_string())).expect("an address");
    let output = Command::new("redis-cli").args(["-c", "-p", &port]).args(words).output();
    let output = output.expect("redis-cli starts: `make test` installs it (Debian's package redis-tools)");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

#[test]
fn redis_cli_goes_where_it_is_sent() {
    let mut rig = ClusterRig::new(3, 3);
    for part in 0..3 {
        let key = rig.key_of(PartId(part), "key");
        assert_eq!(redis_cli(&rig.servers[0], &["set", &key, "1"]), "OK");
        assert_eq!(redis_cli(&rig.servers[1], &["incr", &key]), "2");
    }
    let key = rig.key_of(PartId(0), "key");
    rig.move_part(PartId(0), 2);
    assert_eq!(redis_cli(&rig.servers[0], &["get", &key]), "2");
    assert_eq!(ask(&mut rig.servers[2].client(), &format!("GET {key}")), "2");
}

/// Uses a cluster as programs do.
const REDIS_PY: &str = r#"
import logging, sys
from redis.cluster import RedisCluster

# It would print each MOVED.
logging.disable()

host, port = sys.argv[1].rsplit(":", 1)
client = RedisCluster(host=host, port=int(port))
assert len(client.get_primaries()) == 3, client.get_primaries()
assert client.get_replicas() == []
for number in range(300):
    assert client.set(f"key:{number}", number)
assert [int(client.get(f"key:{number}")) for number in range(300)] == list(range(300))
assert client.dbsize(target_nodes=RedisCluster.PRIMARIES) == 300
assert sorted(client.keys(target_nodes=RedisCluster.PRIMARIES)) == sorted(f"key:{n}".encode() for n in range(300))
assert sorted(client.scan_iter(match="key:1*")) == sorted(f"key:{n}".encode() for n in range(300) if str(n)[0] == "1")
assert client.mset_nonatomic({f"many:{n}": n for n in range(50)})
assert client.mget_nonatomic([f"many:{n}" for n in range(50)]) == [str(n).encode() for n in range(50)]
with client.pipeline() as pipe:
    for number in range(100):
        pipe.incr(f"key:{number}")
    assert pipe.execute() == [number + 1 for number in range(100)]
assert client.keyslot("foo") == client.cluster_keyslot("foo") == 12182
assert client.cluster_info(target_nodes=client.get_primaries()[0])["cluster_state"] == "ok"
assert len(client.cluster_nodes()) == 3
assert client.wait(0, 0, target_nodes=client.get_primaries()[0]) == 0
print("ready", flush=True)
done = 0
for line in sys.stdin:
    # The parts have moved.
    for number in range(300):
        client.incr(f"key:{number}")
    done += 1
    print("done", done, flush=True)
assert client.flushall(target_nodes=RedisCluster.PRIMARIES)
assert client.dbsize(target_nodes=RedisCluster.PRIMARIES) == 0
print("the end", flush=True)
"#;

#[test]
fn redis_py_follows_the_parts() {
    let mut command = Command::new("/usr/bin/python3");
    follow_the_parts(command.args(["-c", REDIS_PY]));
}

/// `make redis-suite` runs it.
#[test]
#[ignore = "it takes the program of tests/redis-suite/go-client"]
fn go_redis_follows_the_parts() {
    let program = std::env::var_os("CARAVAN_GO_CLIENT").expect("CARAVAN_GO_CLIENT names the program");
    follow_the_parts(Command::new(program).arg("cluster"));
}

/// Runs a program on a cluster. It is ready when it says so, and writes to all keys again for each line that it reads.
fn follow_the_parts(command: &mut Command) {
    let mut rig = ClusterRig::new(3, 6);
    let mut child = command
        .arg(rig.servers[0].address())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts: `make test` installs python3 and redis-py (Debian's package python3-redis)");
    let (mut input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let mut lines = BufReader::new(output).lines();
    // The program ends when it fails, and so do its lines.
    let mut next = || lines.next().expect("it goes on").expect("text");
    assert_eq!(next(), "ready");
    for round in 1..=3 {
        for part in 0..6 {
            rig.move_part(PartId(part), (rig.holder(PartId(part)) + 1) % 3);
        }
        writeln!(input, "moved").expect("it reads");
        assert_eq!(next(), format!("done {round}"));
    }
    drop(input);
    assert_eq!(next(), "the end");
    assert!(child.wait().expect("it ends").success());
}
