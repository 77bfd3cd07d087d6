//! The configuration in etcd: Debian's etcd-server, as one member or three, which are stopped and killed.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use caravan_cluster::{
    ClusterError, ConfigurationRegister, EtcdOptions, EtcdRegister, EtcdTls, Revision, SwapOutcome,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{Folder, begin, later, read, soon};

/// The members of an etcd, which end with the value.
struct Etcd {
    folder: Folder,
    members: Vec<Member>,
    /// More arguments for each member.
    arguments: Vec<String>,
}

struct Member {
    client: String,
    peer: String,
    process: Option<Child>,
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

impl Etcd {
    fn start(name: &str, count: usize, arguments: &[String]) -> Self {
        let member = |_| Member { client: free_address(), peer: free_address(), process: None };
        let mut etcd = Self {
            folder: Folder::new(name),
            members: (0..count).map(member).collect(),
            arguments: arguments.to_vec(),
        };
        (0..count).for_each(|index| etcd.run(index));
        etcd
    }

    fn run(&mut self, index: usize) {
        let scheme = if self.arguments.is_empty() { "http" } else { "https" };
        let peers: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(index, it)| format!("m{index}=http://{}", it.peer))
            .collect();
        let member = &mut self.members[index];
        let (client, peer) = (format!("{scheme}://{}", member.client), format!("http://{}", member.peer));
        let process = Command::new("etcd")
            .args(["--name", &format!("m{index}"), "--log-level", "error"])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .arg("--data-dir")
            .arg(self.folder.0.join(format!("m{index}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &peers.join(","), "--initial-cluster-state", "new"])
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        member.process = Some(process.expect("etcd (install etcd-server)"));
    }

    fn options(&self, key: &str) -> EtcdOptions {
        let endpoints: Vec<String> = self.members.iter().map(|member| member.client.clone()).collect();
        EtcdOptions::parse(&format!("etcd://{}/{key}", endpoints.join(","))).expect("right")
    }

    fn register(&self, key: &str) -> EtcdRegister {
        EtcdRegister::new(self.options(key)).expect("no files")
    }

    /// Asks the gateway of a member.
    fn ask(&self, index: usize, path: &str, body: &Value) -> Value {
        let url = format!("http://{}/v3/{path}", self.members[index].client);
        let answer = ureq::post(url)
            .config()
            .timeout_global(Some(Duration::from_secs(20)))
            .build()
            .send(body.to_string());
        let text = answer.expect("an answer").body_mut().read_to_string().expect("text");
        serde_json::from_str(&text).expect("JSON")
    }

    fn signal(&self, index: usize, signal: Signal) {
        let process = self.members[index].process.as_ref().expect("it runs");
        kill_process(Pid::from_child(process), signal).expect("it is our child");
    }

    fn kill(&mut self, index: usize) {
        let mut process = self.members[index].process.take().expect("it runs");
        process.kill().and_then(|()| process.wait()).expect("it is our child");
    }

    /// Returns which member leads, as one of these says.
    fn leader(&self, asked: usize) -> usize {
        let deadline = soon();
        loop {
            let leader = self.ask(asked, "maintenance/status", &json!({}))["leader"].clone();
            let ids = (0..self.members.len()).filter(|index| self.members[*index].process.is_some());
            for index in ids {
                let status = self.ask(index, "maintenance/status", &json!({}));
                if leader.is_string() && status["header"]["member_id"] == leader {
                    return index;
                }
            }
            assert!(Instant::now() < deadline, "etcd has no leader");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut process) = member.process.take() {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}

/// Reads until etcd answers: it takes a moment to start.
fn wait_for(register: &EtcdRegister) {
    let deadline = soon();
    while let Err(error) = register.read(deadline) {
        assert!(Instant::now() < deadline, "{error}");
    }
}

fn swap(register: &EtcdRegister) -> u64 {
    let stored = read(register);
    let outcome = register.compare_and_swap(stored.revision, &later(&stored.configuration), soon());
    assert!(matches!(outcome, Ok(SwapOutcome::Swapped(_))), "{outcome:?}");
    stored.configuration.epoch + 1
}

#[test]
fn one_endpoint_does_what_a_register_does() {
    let etcd = Etcd::start("etcd-one", 1, &[]);
    wait_for(&etcd.register("wait"));
    let registers: Vec<EtcdRegister> = (0..2).map(|_| etcd.register("caravan/race")).collect();
    let registers: Vec<&dyn ConfigurationRegister> = registers.iter().map(|it| it as _).collect();
    crate::race(&registers, 40);
    crate::watches(&etcd.register("caravan/watch"));
    crate::refuses_another_store(&etcd.register("caravan/foreign"));
    compacts_while_watched(&etcd);
    names_what_is_no_configuration(&etcd);
}

/// What was written and compacted away since the watched revision is noticed all the same.
fn compacts_while_watched(etcd: &Etcd) {
    let register = etcd.register("caravan/compacted");
    let first = begin(&register);
    std::thread::scope(|scope| {
        let watch =
            scope.spawn(|| etcd.register("caravan/compacted").watch(first.revision, soon()).expect("news"));
        for _ in 0..5 {
            swap(&register);
        }
        let revision = read(&register).revision.0;
        etcd.ask(0, "kv/compaction", &json!({ "revision": revision.to_string(), "physical": true }));
        assert!(watch.join().expect("no panic").is_some());
    });
    // The first revision is gone for ever.
    let news = register.watch(first.revision, soon()).expect("news").expect("news");
    assert_eq!(news.configuration.epoch, first.configuration.epoch + 5);
    assert_eq!(
        register.watch(news.revision, Instant::now() + Duration::from_millis(50)).expect("none"),
        None
    );
}

fn names_what_is_no_configuration(etcd: &Etcd) {
    // "key" and "value" in base64.
    etcd.ask(0, "kv/put", &json!({ "key": "a2V5", "value": "dmFsdWU=" }));
    let error = etcd.register("key").read(soon()).expect_err("refused").to_string();
    assert!(error.contains("not a configuration of Caravan") && error.contains("/key"), "{error}");
}

/// The leader is stopped, and killed; the majority is lost, and comes back.
#[test]
fn three_endpoints_outlive_their_leader() {
    let mut etcd = Etcd::start("etcd-three", 3, &[]);
    let register = etcd.register("caravan/store");
    wait_for(&register);
    let first = begin(&register);
    // A watch of its own, which may be at the leader that is stopped.
    std::thread::scope(|scope| {
        let leader = etcd.leader(0);
        let mut options = etcd.options("caravan/store");
        options.endpoints.rotate_left(leader);
        let watcher = EtcdRegister::new(options).expect("no files");
        let watch = scope.spawn(move || watcher.watch(first.revision, soon()).expect("news"));
        etcd.signal(leader, Signal::STOP);
        let epoch = swap(&register);
        let news = watch.join().expect("no panic").expect("news before the deadline");
        assert_eq!(news.configuration.epoch, epoch);
        etcd.signal(leader, Signal::CONT);
    });
    let leader = etcd.leader(0);
    etcd.kill(leader);
    swap(&register);
    // One of three alone can decide nothing, and says so by the deadline.
    let other = (leader + 1) % 3;
    etcd.signal(other, Signal::STOP);
    let begin = Instant::now();
    let error = register.read(begin + Duration::from_millis(1500)).expect_err("no majority");
    assert!(matches!(error, ClusterError::Unreachable(_)), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    let error = register.compare_and_swap(
        Revision(1),
        &first.configuration,
        Instant::now() + Duration::from_millis(300),
    );
    assert!(matches!(error, Err(ClusterError::Unreachable(_))), "{error:?}");
    etcd.signal(other, Signal::CONT);
    swap(&register);
}

#[test]
fn nobody_answers() {
    // One refuses, one is silent.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (refusing, silent_address) = (free_address(), silent.local_addr().expect("an address"));
    let options = EtcdOptions::parse(&format!("etcd://{refusing},{silent_address}/key")).expect("right");
    let register = EtcdRegister::new(options).expect("no files");
    let begin = Instant::now();
    let error = register.read(begin + Duration::from_millis(300)).expect_err("nobody answers").to_string();
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert!(error.contains(&refusing) && error.contains("refused"), "{error}");
    assert!(error.contains(&silent_address.to_string()) && error.contains("no answer in time"), "{error}");
    let error = register
        .watch(Revision::NONE, Instant::now() + Duration::from_millis(100))
        .expect_err("nobody answers");
    assert!(matches!(error, ClusterError::Unreachable(_)), "{error}");
}

#[test]
fn users_prove_themselves() {
    let mut etcd = Etcd::start("etcd-users", 1, &[]);
    wait_for(&etcd.register("wait"));
    for (path, body) in [
        ("auth/user/add", json!({ "name": "root", "password": "secret" })),
        ("auth/role/add", json!({ "name": "root" })),
        ("auth/user/grant", json!({ "user": "root", "role": "root" })),
        ("auth/user/add", json!({ "name": "guest", "password": "guest" })),
        ("auth/enable", json!({})),
    ] {
        let answer = etcd.ask(0, path, &body);
        assert!(answer["error"].is_null(), "{path}: {answer}");
    }
    let as_user = |etcd: &Etcd, user: Option<(&str, &str)>| {
        let user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
        EtcdRegister::new(EtcdOptions { user, ..etcd.options("caravan/store") }).expect("no files")
    };
    let refused = |user, words: &str| {
        let error = as_user(&etcd, user).read(soon()).expect_err("refused");
        assert!(matches!(&error, ClusterError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    refused(None, "it asks for a user and a password");
    refused(Some(("root", "wrong")), "name or password is wrong");
    refused(Some(("guest", "guest")), "a role that may");
    let register = as_user(&etcd, Some(("root", "secret")));
    assert!(!format!("{register:?}").contains("secret"));
    begin(&register);
    // Tokens do not outlive etcd's process: the next call gets a new one.
    etcd.kill(0);
    etcd.run(0);
    wait_for(&register);
    swap(&register);
}

fn openssl(folder: &Path, words: &str) {
    let output =
        Command::new("openssl").args(words.split(' ')).current_dir(folder).output().expect("openssl");
    assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn tls_proves_both_sides() {
    let folder = Folder::new("etcd-certificates");
    let path = |name: &str| -> PathBuf { folder.0.join(name) };
    for authority in ["ca", "other"] {
        let words = format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={authority} -keyout {authority}.key -out {authority}.pem"
        );
        openssl(&folder.0, &words);
    }
    fs::write(path("server.ext"), "subjectAltName=IP:127.0.0.1\n").expect("writable");
    fs::write(path("client.ext"), "extendedKeyUsage=clientAuth\n").expect("writable");
    for name in ["server", "client"] {
        openssl(
            &folder.0,
            &format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
            ),
        );
        openssl(
            &folder.0,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile {name}.ext -out {name}.pem"
            ),
        );
    }
    let file = |name: &str| path(name).display().to_string();
    let arguments = [
        format!("--cert-file={}", file("server.pem")),
        format!("--key-file={}", file("server.key")),
        "--client-cert-auth".to_owned(),
        format!("--trusted-ca-file={}", file("ca.pem")),
    ];
    let etcd = Etcd::start("etcd-tls", 1, &arguments);
    let register = |authority: &str, has_client: bool| {
        let client = has_client.then(|| (path("client.pem"), path("client.key")));
        let tls = Some(EtcdTls { authority: path(authority), client });
        EtcdRegister::new(EtcdOptions { tls, ..etcd.options("caravan/store") }).expect("readable files")
    };
    let good = register("ca.pem", true);
    wait_for(&good);
    begin(&good);
    swap(&good);
    crate::watches(&{
        let tls = Some(EtcdTls {
            authority: path("ca.pem"),
            client: Some((path("client.pem"), path("client.key"))),
        });
        EtcdRegister::new(EtcdOptions { tls, ..etcd.options("caravan/watch") }).expect("readable files")
    });
    let error = |register: EtcdRegister| {
        let error = register.read(Instant::now() + Duration::from_secs(2)).expect_err("refused").to_string();
        error.to_lowercase()
    };
    let stranger = error(register("other.pem", true));
    assert!(stranger.contains("certificate"), "{stranger}");
    let nobody = error(register("ca.pem", false));
    assert!(nobody.contains("certificate"), "{nobody}");
    let plain = error(etcd.register("caravan/store"));
    assert!(plain.contains("tls"), "{plain}");
    let missing = EtcdTls { authority: path("nothing.pem"), client: None };
    let error =
        EtcdRegister::new(EtcdOptions { tls: Some(missing), ..etcd.options("key") }).expect_err("refused");
    assert!(error.to_string().contains("nothing.pem"), "{error}");
}

#[test]
fn addresses_are_checked() {
    let options = EtcdOptions::parse("etcd://a,[::1]:5,b:7/x/y").expect("right");
    assert_eq!(
        (options.endpoints, options.key.as_str()),
        (vec!["a:2379".into(), "[::1]:5".into(), "b:7".into()], "x/y")
    );
    for wrong in [
        "",
        "etcd://",
        "etcd://a",
        "etcd://a/",
        "etcd:///k",
        "etcd://a:0/k",
        "etcd://a:x/k",
        "http://a/k",
        "etcd://u@a/k",
        "etcd://a,,b/k",
    ] {
        assert!(matches!(EtcdOptions::parse(wrong), Err(ClusterError::Options(_))), "{wrong}");
    }
}
