//! What a server says of parts that it has, and of those that it does not have.

use std::sync::Arc;

use caravan_cluster::{FormerHolder, LostPart, MemberId, MemberIdentity, PartId};
use caravan_store::{ConnectOptions, Store, StoreError, StoreOptions, StoreTransport};

use super::rig::{ClusterRig, ask};

#[test]
fn keys_are_served_by_their_server_and_others_say_where_that_is() {
    let rig = ClusterRig::new(2, 4);
    for number in 0..200 {
        let key = format!("key:{number}");
        let slot = caravan_cluster::slot_of(key.as_bytes());
        let home = rig.holder(rig.part_of(key.as_bytes()));
        let moved = format!("MOVED {slot} {}", rig.servers[home].address());
        assert_eq!(ask(&mut rig.servers[home].client(), &format!("SET {key} {number}")), "OK");
        assert_eq!(ask(&mut rig.servers[1 - home].client(), &format!("GET {key}")), moved);
        assert_eq!(ask(&mut rig.servers[1 - home].client(), &format!("SET {key} x")), moved);
        assert_eq!(ask(&mut rig.servers[home].client(), &format!("GET {key}")), number.to_string());
    }
}

#[test]
fn keys_go_together_whatever_their_slots_and_parts() {
    let rig = ClusterRig::new(2, 4);
    // Parts 0 and 2 are at the first server.
    let [a, b, c] = [(0, "a"), (0, "b"), (2, "c")].map(|(part, prefix)| rig.key_of(PartId(part), prefix));
    assert_ne!(caravan_cluster::slot_of(a.as_bytes()), caravan_cluster::slot_of(b.as_bytes()));
    let mut client = rig.servers[0].client();
    assert_eq!(ask(&mut client, &format!("MSET {a} 1 {b} 2")), "OK");
    assert_eq!(ask(&mut client, &format!("MGET {a} {b}")), "[1, 2]");
    assert_eq!(ask(&mut client, &format!("MGET {a} {c}")), "[1, null]");
    // Each of these commands is of one part, and both together are not.
    for (second, reply) in [(&b, "[OK, 2]"), (&c, "[OK, null]")] {
        ask(&mut client, "MULTI");
        assert_eq!(ask(&mut client, &format!("SET {a} 3")), "QUEUED");
        assert_eq!(ask(&mut client, &format!("GET {second}")), "QUEUED");
        assert_eq!(ask(&mut client, "EXEC"), reply);
    }
    assert_eq!(ask(&mut client, "EXEC"), "ERR EXEC without MULTI");
    // Commands on the whole store are about the parts of this server, and run alone there.
    ask(&mut client, "MULTI");
    ask(&mut client, &format!("MSET {a} 4 {c} 4"));
    assert_eq!(ask(&mut client, "DBSIZE"), "QUEUED");
    let refused = "CROSSSLOT a transaction with keys of several parts takes no command on the whole store";
    assert_eq!(ask(&mut client, "EXEC"), refused);
    assert_eq!(ask(&mut client, &format!("GET {a}")), "3");
    // A command whose keys are all elsewhere is refused, and spoils the transaction.
    let far = rig.key_of(PartId(1), "far");
    ask(&mut client, "MULTI");
    assert!(ask(&mut client, &format!("GET {far}")).starts_with("MOVED "));
    assert_eq!(ask(&mut client, "EXEC"), "EXECABORT Transaction discarded because of previous errors.");
}

#[test]
fn commands_on_the_whole_store_are_for_the_parts_of_the_server() {
    let rig = ClusterRig::new(2, 5);
    let mut expected = [Vec::new(), Vec::new()];
    for number in 0..500 {
        let key = format!("key:{number}");
        ask(&mut rig.server_of(key.as_bytes()).client(), &format!("SET {key} 1"));
        expected[rig.holder(rig.part_of(key.as_bytes()))].push(key);
    }
    for (server, expected) in rig.servers.iter().zip(&mut expected) {
        expected.sort();
        let mut client = server.client();
        assert_eq!(ask(&mut client, "DBSIZE"), expected.len().to_string());
        assert_eq!(ask(&mut client, "KEYS *"), format!("[{}]", expected.join(", ")));
        assert!(expected.contains(&ask(&mut client, "RANDOMKEY")));
        let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
        loop {
            let reply = ask(&mut client, &format!("SCAN {cursor} COUNT 7"));
            let (next, keys) = reply[1..].split_once(", ").expect("two parts");
            let keys = keys.trim_matches(['[', ']']).split(", ").filter(|key| !key.is_empty());
            found.extend(keys.map(str::to_owned));
            cursor = next.to_owned();
            if cursor == "0" {
                break;
            }
        }
        found.sort();
        found.dedup();
        assert_eq!(&found, expected);
        assert!(ask(&mut client, "INFO keyspace").contains(&format!("keys={},", expected.len())));
        ask(&mut client, "MULTI");
        ask(&mut client, "DBSIZE");
        assert_eq!(ask(&mut client, "EXEC"), format!("[{}]", expected.len()));
    }
    assert_eq!(ask(&mut rig.servers[0].client(), "FLUSHALL"), "OK");
    assert_eq!(ask(&mut rig.servers[0].client(), "DBSIZE"), "0");
    assert_eq!(ask(&mut rig.servers[0].client(), "RANDOMKEY"), "null");
    assert_eq!(ask(&mut rig.servers[1].client(), "DBSIZE"), expected[1].len().to_string());
}

#[test]
fn a_server_without_a_part_answers_all_the_same() {
    let rig = ClusterRig::new(2, 1);
    let mut client = rig.servers[1].client();
    for (words, reply) in [
        ("DBSIZE", "0"),
        ("KEYS *", "[]"),
        ("SCAN 0", "[0, []]"),
        ("SCAN 99999999999999999", "[0, []]"),
        ("RANDOMKEY", "null"),
        ("FLUSHALL", "OK"),
        ("WAIT 0 0", "0"),
        ("MULTI", "OK"),
        ("PING", "QUEUED"),
        ("EXEC", "[PONG]"),
        ("MULTI", "OK"),
        ("DBSIZE", "QUEUED"),
        ("EXEC", "[0]"),
        ("CARAVAN.ATTACH 1 PART 7", "ERR this store has no part 7"),
        ("CARAVAN.ATTACH 1 PART x", "ERR the number of a part is between 0 and 65535"),
    ] {
        assert_eq!(ask(&mut client, words), reply, "{words}");
    }
    let moved = format!("MOVED PART 0 {}", rig.servers[0].address());
    assert_eq!(ask(&mut client, "CARAVAN.ATTACH 1"), moved);
    assert_eq!(ask(&mut client, "CARAVAN.ATTACH 1 PART 0"), moved);
    assert!(ask(&mut client, "INFO all").contains("cluster_enabled:1"));
}

#[test]
fn a_part_without_a_primary_and_one_on_its_way_are_told_apart() {
    let mut rig = ClusterRig::new(2, 2);
    let key = rig.key_of(PartId(0), "a");
    let mut client = rig.servers[0].client();
    let store = rig.servers[0].parts.remove(PartId(0)).expect("it was served");
    let on_the_way = "TRYAGAIN the part of this key is being taken over: try again";
    assert_eq!(ask(&mut client, &format!("GET {key}")), on_the_way);
    assert_eq!(ask(&mut client, "CARAVAN.ATTACH 1 PART 0"), on_the_way.replace("of this key", "0"));
    // The other server still believes that it is here.
    assert!(ask(&mut rig.servers[1].client(), &format!("GET {key}")).starts_with("MOVED "));
    rig.servers[0].parts.add(PartId(0), store).unwrap();
    assert_eq!(ask(&mut client, &format!("GET {key}")), "null");
    rig.servers[0].parts.remove(PartId(0));
    rig.change(|configuration| {
        let epoch = configuration.epoch;
        let part = &mut configuration.parts[0];
        let identity = MemberIdentity { id: MemberId(9), since: 1 };
        (part.primary, part.primary_since, part.made) = (None, epoch, true);
        part.lost =
            Some(LostPart { since: epoch, holders: vec![FormerHolder { name: "gone".into(), identity }] });
    });
    for server in &rig.servers {
        let mut client = server.client();
        assert_eq!(ask(&mut client, &format!("GET {key}")), "CLUSTERDOWN Hash slot not served");
        let info = ask(&mut client, "CLUSTER INFO");
        assert!(
            info.contains("cluster_state:fail\r\n") && info.contains("cluster_slots_fail:8192\r\n"),
            "{info}"
        );
        assert!(ask(&mut client, "CARAVAN.ATTACH 1 PART 0").starts_with("CLUSTERDOWN part 0 "));
    }
}

#[test]
fn a_watched_key_whose_part_is_served_anew_counts_as_written() {
    let rig = ClusterRig::new(1, 2);
    let key = rig.key_of(PartId(0), "a");
    let mut client = rig.servers[0].client();
    for renewal in [0, 1, 2] {
        ask(&mut client, &format!("SET {key} 1"));
        ask(&mut client, &format!("WATCH {key}"));
        let parts = &rig.servers[0].parts;
        if renewal > 0 {
            let store = parts.remove(PartId(0)).expect("it was served");
            let other = || Arc::new(Store::embedded(StoreOptions::new(32 << 20)).unwrap());
            parts.add(PartId(0), if renewal == 1 { store } else { other() }).unwrap();
        }
        ask(&mut client, "MULTI");
        ask(&mut client, &format!("SET {key} 2"));
        assert_eq!(ask(&mut client, "EXEC"), if renewal == 0 { "[OK]" } else { "null" });
    }
}

#[test]
fn a_part_is_attached_to_by_its_number() {
    let rig = ClusterRig::new(2, 3);
    let refused = |address: String, part: Option<u16>| {
        let options = ConnectOptions::new(address);
        let error = Store::connect(part.into_iter().fold(options, ConnectOptions::part)).unwrap_err();
        assert!(matches!(error, StoreError::Refused(_)), "{error}");
        error.to_string()
    };
    let socket = format!("unix:{}", rig.servers[0].server.socket().display());
    assert!(refused(socket.clone(), None).contains("say which one with PART"));
    assert!(refused(rig.servers[0].address(), None).contains("say which one with PART"));
    assert!(refused(rig.servers[0].address(), Some(3)).contains("this store has no part 3"));
    for part in 0..3 {
        let key = rig.key_of(PartId(part), "key");
        for server in &rig.servers {
            let client = Store::connect(ConnectOptions::new(server.address()).part(part)).expect("connected");
            client.put(key.as_bytes(), b"1").expect("done");
            assert_eq!(client.get(key.as_bytes()).expect("found").as_deref(), Some(&b"1"[..]));
        }
        assert_eq!(ask(&mut rig.server_of(key.as_bytes()).client(), &format!("GET {key}")), "1");
    }
    // By the socket it is mapped.
    let client = Store::connect(ConnectOptions::new(&*socket).part(0)).expect("connected");
    assert_eq!(client.transport(), StoreTransport::Mapped);
    let key = rig.key_of(PartId(0), "key");
    assert_eq!(client.get(key.as_bytes()).unwrap().as_deref(), Some(&b"1"[..]));
    client.put(key.as_bytes(), b"2").unwrap();
    assert_eq!(ask(&mut rig.servers[0].client(), &format!("GET {key}")), "2");
}

#[test]
fn copies_are_told_by_wait_role_and_info() {
    let mut rig = ClusterRig::new(3, 3);
    rig.change(|configuration| {
        configuration.copies = 3;
        for (part, backups) in configuration.parts.iter_mut().zip([&[1, 2][..], &[2], &[]]) {
            part.made = true;
            part.backups = backups.iter().map(|member| MemberId(*member)).collect();
        }
    });
    let addresses: Vec<String> = rig.servers.iter().map(|server| server.address()).collect();
    let shown = |server: usize| format!("[127.0.0.1, {}, 0]", addresses[server].rsplit(':').next().unwrap());
    for (server, copies) in [(0, &[1, 2][..]), (1, &[2]), (2, &[])] {
        let mut client = rig.servers[server].client();
        assert_eq!(ask(&mut client, "WAIT 9 0"), copies.len().to_string());
        let holders: Vec<String> = copies.iter().map(|copy| shown(*copy)).collect();
        assert_eq!(ask(&mut client, "ROLE"), format!("[master, 0, [{}]]", holders.join(", ")));
        let info = ask(&mut client, "INFO replication");
        assert!(info.contains(&format!("connected_slaves:{}\r\n", copies.len())), "{info}");
    }
}
