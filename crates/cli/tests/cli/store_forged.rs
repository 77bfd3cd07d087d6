//! What is no member of a store of several servers, and speaks to its servers as if it were one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::wait_for;
use crate::store_cluster::Cluster;

/// How long a server may take to answer, or to end a connection.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A connection that says anything.
struct Stranger(BufReader<TcpStream>);

impl Stranger {
    fn new(port: u16) -> Self {
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        socket.set_read_timeout(Some(ANSWER_MAX)).expect("set");
        Self(BufReader::new(socket))
    }

    fn send(&mut self, bytes: &[u8]) {
        // The server may have closed the connection already.
        let _ = self.0.get_mut().write_all(bytes);
    }

    /// Sends a command, and returns the first line of the answer.
    fn say(&mut self, words: &[&[u8]]) -> String {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.send(&bytes);
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        line
    }

    /// Sends bytes between members, with their length in front.
    fn frame(&mut self, bytes: &[u8]) {
        self.send(&(bytes.len() as u32).to_be_bytes());
        self.send(bytes);
    }

    /// Waits for the end of the connection.
    fn assert_closed(mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest, b"", "a server says nothing on a line"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
    }
}

/// Returns what a server says of its store; one without a lease says nothing.
fn told(port: u16) -> Value {
    let mut told = None;
    wait_for("a server that may answer", || {
        let mut stranger = Stranger::new(port);
        let head = stranger.say(&[b"CARAVAN.STATUS"]);
        let Some(bytes) = head.trim_end().strip_prefix('$').and_then(|text| text.parse().ok()) else {
            return false;
        };
        let mut text = vec![0; bytes];
        stranger.0.read_exact(&mut text).expect("read");
        told = serde_json::from_slice(&text).ok();
        true
    });
    told.expect("JSON")
}

/// Two servers with two parts, whose copies are complete; their ports; and what the first one says.
fn pair() -> (Cluster, [u16; 2], Value) {
    let mut cluster = Cluster::new();
    // Other tests take the processor: nobody is to be expelled for that.
    let lease = ["--parts", "2", "--lease", "5s"];
    let ports = [cluster.start("m1", &lease), cluster.start("m2", &lease)];
    wait_for("a copy of each part, at each server one", || {
        let parts = told(ports[0])["configuration"]["parts"].clone();
        let parts = parts.as_array().expect("parts");
        let primaries: Vec<_> = parts.iter().map(|part| part["primary"].as_u64()).collect();
        parts.iter().all(|part| part["backups"].as_array().is_some_and(|copies| copies.len() == 1))
            && primaries[0] != primaries[1]
    });
    let configuration = told(ports[0])["configuration"].clone();
    (cluster, ports, configuration)
}

/// Writes or reads keys at whichever server has them.
fn each_key(ports: [u16; 2], command: &[u8], value: Option<&[u8]>, is_right: impl Fn(&str) -> bool) {
    for number in 0..20 {
        let key = format!("key{number}").into_bytes();
        let words: Vec<&[u8]> = [command, &key].into_iter().chain(value).collect();
        wait_for("the server of a key", || {
            ports.iter().any(|port| is_right(&Stranger::new(*port).say(&words)))
        });
    }
}

#[test]
fn what_comes_from_no_member_is_refused_by_name_and_changes_nothing() {
    let (cluster, ports, configuration) = pair();
    each_key(ports, b"SET", Some(b"before"), |answer| answer == "+OK\r\n");
    let part = &configuration["parts"][0];
    let member = |id: &Value| {
        let members = configuration["members"].as_array().expect("members");
        members.iter().position(|member| member["id"] == *id).expect("a member")
    };
    let port_of = |id: &Value| {
        let address = configuration["members"][member(id)]["client_address"].as_str().expect("an address");
        address.rsplit(':').next().and_then(|port| port.parse::<u16>().ok()).expect("a port")
    };
    let identity = |id: &Value| json!({ "id": id, "since": configuration["members"][member(id)]["since"] });
    let (at_copy, at_primary) = (port_of(&part["backups"][0]), port_of(&part["primary"]));
    let since = part["primary_since"].as_u64().expect("an epoch");
    let call = json!({
        "instance": configuration["instance"], "part": part["id"], "primary": identity(&part["primary"]),
        "primary_since": since, "filling_since": null,
    });
    let with = |name: &str, value: Value| {
        let mut call = call.clone();
        call[name] = value;
        call.to_string().into_bytes()
    };
    let stranger = json!({ "id": part["primary"], "since": 999 });
    let other = "0123456789abcdef0123456789abcdef";
    let copy = |call: Vec<u8>| vec![b"COPY".to_vec(), call];
    let refused: [(u16, Vec<Vec<u8>>, &str); 10] = [
        (at_copy, vec![], "wrong number of arguments"),
        (at_copy, vec![b"LINE".to_vec(), b"\xff\0".to_vec()], "is malformed"),
        (at_copy, vec![b"LINE".to_vec(), other.into()], "of another store"),
        (at_copy, copy(b"{\"part\":0}".to_vec()), "is malformed"),
        (at_copy, vec![b"COPY".to_vec(), with("part", part["id"].clone()), b"door".to_vec()], "is malformed"),
        (at_copy, copy(with("instance", other.into())), "of another store"),
        (at_copy, copy(with("part", 999.into())), "has no copy of the part"),
        (at_copy, copy(with("primary_since", (since - 1).into())), "knows another configuration"),
        (at_copy, copy(with("primary", stranger)), "knows another configuration"),
        (at_primary, copy(with("part", part["id"].clone())), "has no copy of the part"),
    ];
    for (port, words, expected) in refused {
        let all: Vec<&[u8]> =
            std::iter::once(&b"CARAVAN.MEMBER"[..]).chain(words.iter().map(Vec::as_slice)).collect();
        let answer = Stranger::new(port).say(&all);
        assert!(
            answer.starts_with('-') && answer.contains(expected),
            "{words:?}: {answer:?} is not {expected:?}"
        );
    }

    let instance = configuration["instance"].as_str().expect("an instance").to_owned();
    let line = |port| {
        let mut stranger = Stranger::new(port);
        assert_eq!(stranger.say(&[b"CARAVAN.MEMBER", b"LINE", instance.as_bytes()]), "+OK\r\n");
        stranger
    };
    // No message of members.
    let mut garbage = line(at_copy);
    garbage.send(&u32::MAX.to_be_bytes());
    garbage.assert_closed();
    for bytes in
        [&b"\xff\xfe"[..], b"{}", b"{\"from\":null,\"to\":{\"id\":0,\"since\":1},\"message\":\"Nothing\"}"]
    {
        let mut garbage = line(at_copy);
        garbage.frame(bytes);
        garbage.assert_closed();
    }
    // Messages of epochs that are over, of somebody who is no member, for somebody else, and about another store.
    let (me, peer) = (identity(&part["backups"][0]), identity(&part["primary"]));
    let mut foreign = configuration.clone();
    (foreign["instance"], foreign["epoch"], foreign["unblocked"]) = (other.into(), 1000.into(), 1000.into());
    let nobody = json!({ "id": 7, "since": 3 });
    let letters = [
        json!({ "from": peer, "to": me, "message": { "Request": { "epoch": 1, "number": 5, "acknowledged": true } } }),
        json!({ "from": peer, "to": me, "message": { "Grant": { "epoch": 1, "number": 5, "unblocked": 1 } } }),
        json!({ "from": peer, "to": nobody, "message": { "Testimony": peer } }),
        json!({ "from": nobody, "to": me, "message": { "Unblocked": { "epoch": 1000 } } }),
        json!({ "from": nobody, "to": me, "message": { "Testimony": nobody } }),
        json!({ "from": peer, "to": me, "message": { "Configuration": { "revision": 9999, "configuration": foreign } } }),
    ];
    let mut forger = line(at_copy);
    letters.iter().for_each(|letter| forger.frame(letter.to_string().as_bytes()));
    // What it is told in the end says that it has read all of that.
    forger.frame(b"end");
    forger.assert_closed();

    // All servers are the same ones, and nothing is lost or stopped.
    each_key(ports, b"GET", None, |answer| answer == "$6\r\n");
    each_key(ports, b"SET", Some(b"after"), |answer| answer == "+OK\r\n");
    let after = told(ports[0])["configuration"].clone();
    assert_eq!(
        (&after["members"], &after["instance"]),
        (&configuration["members"], &configuration["instance"])
    );
    let status = cluster.status();
    let is_alive = |server: &Value| server["state"] == "alive";
    assert!(status["servers"].as_array().expect("servers").iter().all(is_alive), "{status}");
}
