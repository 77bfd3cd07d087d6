//! Tests of a store's keeper: servers that die or are replaced, the end, and files of snapshots.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caravan_store::Reader;
use caravan_store_server::keeper::channel::{KeeperChannel, ServerAnswer, ServerOrder};
use caravan_store_server::{StoreAnswer, StoreClient};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;

use crate::common::{Folder, caravan, signal, text, wait_for};
use crate::store::Served;

/// Says to a process of this program that it is to fail as a server does which cannot open the store.
const FAKE: &str = "CARAVAN_TEST_FAKE_SERVER";

impl Served {
    /// Returns the process of the server, the keeper's child.
    fn server(&self) -> Option<i32> {
        let is_server = |pid: &i32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == b"store-server")
        };
        self.children().into_iter().find(|pid| is_server(pid) && !is_heir(*pid))
    }

    /// Returns the living children of the keeper.
    fn children(&self) -> Vec<i32> {
        let children = caravan_segment::process::descendants(self.child.id() as i32);
        children.into_iter().filter(|(_, stat)| !stat.has_ended()).map(|(pid, _)| pid).collect()
    }

    /// Returns the heir of the server.
    fn heir(&self) -> Option<i32> {
        self.children().into_iter().find(|pid| is_heir(*pid))
    }

    fn kill_server(&self) -> i32 {
        let pid = self.server().expect("it is served");
        kill_process(Pid::from_raw(pid).expect("a process"), Signal::KILL).expect("sent");
        pid
    }

    /// Maps the store's memory, of which the keeper has a descriptor.
    fn reader(&self) -> Reader {
        let folder = format!("/proc/{}/fd", self.child.id());
        let is_memory = |path: &PathBuf| {
            std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:caravan-"))
        };
        let mut paths = std::fs::read_dir(folder).expect("read").flatten().map(|entry| entry.path());
        let memory = File::open(paths.find(is_memory).expect("the memory")).expect("opened");
        Reader::open(memory.into()).expect("a store")
    }

    fn client(&self) -> StoreClient {
        StoreClient::connect(Path::new(&self.socket())).expect("connected")
    }

    /// Has the store end, and returns its status and the rest of its messages.
    fn end(&mut self, by: Signal) -> (Option<i32>, String) {
        signal(&self.child, by);
        let mut said = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("read");
        (self.child.wait().expect("ended").code(), said)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

/// An heir has the command line of its server, and a name of its own.
fn is_heir(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "caravan-heir")
}

fn ok() -> StoreAnswer {
    StoreAnswer::Simple(b"OK".to_vec())
}

/// What went on while a store was disturbed.
#[derive(Debug, Default)]
struct Traffic {
    is_over: AtomicBool,
    writes: AtomicU64,
    reads: AtomicU64,
    /// The longest time between two acknowledged writes of a client, in microseconds.
    longest_pause_us: AtomicU64,
}

const WRITERS: u64 = 2;

impl Traffic {
    /// Disturbs a store under writes by clients and reads from its memory. No read fails, and no acknowledged write is lost.
    fn around(served: &Served, disturb: impl FnOnce(&Self)) -> Self {
        let traffic = Self::default();
        assert_eq!(served.client().call(&[b"SET", b"fixed", &[b'f'; 100]]).expect("an answer"), ok());
        let reader = served.reader();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|number| {
                    scope.spawn({
                        let traffic = &traffic;
                        move || traffic.write(served, number)
                    })
                })
                .collect();
            scope.spawn(|| {
                while !traffic.is_over.load(Ordering::Relaxed) {
                    let value = reader.get(b"fixed").expect("a read");
                    assert_eq!(value.as_deref(), Some(&[b'f'; 100][..]));
                    traffic.reads.fetch_add(1, Ordering::Relaxed);
                }
            });
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| disturb(&traffic)));
            traffic.is_over.store(true, Ordering::Relaxed);
            for (number, writer) in (0..).zip(writers) {
                let last: u64 = writer.join().expect("a writer");
                for write in 0..=last {
                    let key = format!("{number} {write}");
                    let value = reader.get(key.as_bytes()).expect("a read");
                    assert_eq!(
                        value,
                        Some(write.to_string().into_bytes()),
                        "write {write} of {last} is lost"
                    );
                }
            }
            outcome.expect("the disturbance succeeds");
        });
        traffic
    }

    /// Writes key after key, each until it is acknowledged; returns the number of the last one.
    fn write(&self, served: &Served, number: u64) -> u64 {
        let mut client = served.client();
        let mut last = Instant::now();
        for write in 0.. {
            let (key, value) = (format!("{number} {write}"), write.to_string());
            // A server that ends closes the connection: the client does not know whether it did the last one.
            while !matches!(client.call(&[b"SET", key.as_bytes(), value.as_bytes()]), Ok(answer) if answer == ok())
            {
                client = served.client();
            }
            self.longest_pause_us.fetch_max(last.elapsed().as_micros() as u64, Ordering::Relaxed);
            last = Instant::now();
            self.writes.fetch_add(1, Ordering::Relaxed);
            if self.is_over.load(Ordering::Relaxed) {
                return write;
            }
        }
        0
    }

    /// Waits until so many more writes have been acknowledged.
    fn wait_for_writes(&self, more: u64) {
        let wanted = self.writes.load(Ordering::Relaxed) + more;
        wait_for("writes", || self.writes.load(Ordering::Relaxed) >= wanted);
    }
}

#[test]
fn a_killed_server_loses_no_acknowledged_write_and_no_mapped_read_fails() {
    let mut served = Served::start(&[]);
    let mut killed = Vec::new();
    let traffic = Traffic::around(&served, |traffic| {
        for _ in 0..4 {
            traffic.wait_for_writes(2000);
            killed.push(served.kill_server());
            traffic.wait_for_writes(1);
        }
        traffic.wait_for_writes(1000);
    });
    println!("{traffic:?}");
    let (status, said) = served.end(Signal::TERM);
    assert_eq!(status, Some(0));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    for (line, pid) in lines.iter().zip(killed) {
        assert!(
            line.contains(&format!("the server (process {pid}) has died: it was ended by signal 9")),
            "{line}"
        );
    }
}

#[test]
fn an_upgrade_loses_no_acknowledged_write_and_no_mapped_read_fails() {
    let mut served = Served::start(&[]);
    let copy = served.path("caravan-copy");
    std::fs::copy(env!("CARGO_BIN_EXE_caravan"), &copy).expect("copied");
    let program = |served: &Served| {
        let pid = served.server().expect("it is served");
        std::fs::read_link(format!("/proc/{pid}/exe")).expect("read").display().to_string()
    };
    let first = served.server();
    let traffic = Traffic::around(&served, |traffic| {
        traffic.wait_for_writes(1000);
        served.said(&["upgrade"]);
        assert_ne!(served.server(), first);
        traffic.wait_for_writes(1000);
        assert!(
            served
                .said(&["upgrade", "--program", &copy])
                .starts_with("A new server of the store default serves")
        );
        assert_eq!(program(&served), copy);
        traffic.wait_for_writes(1000);
        // A program that is no server changes nothing, and a crash afterwards stays with the program of before.
        let before = served.server();
        let refused = served.refused(&["upgrade", "--program", "/bin/false"]);
        assert!(refused.contains("does not run as a server: it ended with status 1"), "{refused}");
        assert_eq!(served.server(), before);
        served.kill_server();
        traffic.wait_for_writes(1000);
        assert_eq!(program(&served), copy);
    });
    println!("{traffic:?}");
    let (status, said) = served.end(Signal::TERM);
    assert_eq!(status, Some(0));
    assert!(
        said.contains("upgraded, process") && said.contains("not upgraded, the old program serves it"),
        "{said}"
    );
}

#[test]
fn the_next_server_does_not_wait_until_the_memory_of_the_one_before_is_unmapped() {
    let mut served = Served::start(&[]);
    let maps_the_memory = |pid: i32| {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.contains("/memfd:caravan-default")
    };
    let by = |pid: i32, signal| kill_process(Pid::from_raw(pid).expect("a process"), signal).expect("sent");
    for is_killed in [true, false] {
        served.said(&["set", "a", "1"]);
        let (server, heir) =
            (served.server().expect("it is served"), served.heir().expect("there is an heir"));
        // Stopped, it cannot begin to end.
        by(heir, Signal::STOP);
        if is_killed {
            by(server, Signal::KILL);
        } else {
            served.said(&["upgrade"]);
        }
        wait_for("another server", || served.server().is_some_and(|pid| pid != server));
        assert_eq!(served.said(&["get", "a"]), "1");
        assert!(maps_the_memory(heir));
        by(heir, Signal::CONT);
        wait_for("the end of the heir", || !Path::new(&format!("/proc/{heir}")).exists());
    }
    // Nor does the end of the store.
    let heir = served.heir().expect("there is an heir");
    by(heir, Signal::STOP);
    assert_eq!(served.end(Signal::TERM).0, Some(0));
    assert!(!Path::new(&format!("/proc/{heir}")).exists());
}

#[test]
fn what_clients_have_set_outlives_a_server() {
    let served = Served::start(&[]);
    let set = |client: &mut StoreClient, name: &[u8], value: &[u8]| {
        assert_eq!(client.call(&[b"CONFIG", b"SET", name, value]).expect("an answer"), ok());
    };
    let mut client = served.client();
    set(&mut client, b"maxclients", b"77");
    set(&mut client, b"requirepass", b"secret");
    let before = served.kill_server();
    wait_for("another server", || served.server().is_some_and(|pid| pid != before));
    let mut client = served.client();
    let refused = client.call(&[b"GET", b"a"]).expect("an answer");
    assert_eq!(refused, StoreAnswer::Error(b"NOAUTH Authentication required.".to_vec()));
    assert_eq!(client.call(&[b"AUTH", b"secret"]).expect("an answer"), ok());
    let answer = client.call(&[b"CONFIG", b"GET", b"maxclients"]).expect("an answer");
    let bulk = |text: &str| StoreAnswer::Bulk(text.into());
    assert_eq!(answer, StoreAnswer::Array(vec![bulk("maxclients"), bulk("77")]));
}

#[test]
fn fake_server_role() {
    if std::env::var_os(FAKE).is_none() {
        return;
    }
    let channel = KeeperChannel::of(io::stdin().as_fd().try_clone_to_owned().expect("a descriptor"));
    channel.send(&ServerAnswer::Running, &[]).expect("sent");
    let order = channel.receive().map(|(order, _)| order);
    if matches!(order, Ok(ServerOrder::Serve(_))) {
        channel.send(&ServerAnswer::Failed("the memory has another form".to_owned()), &[]).expect("sent");
    }
    std::process::exit(3);
}

#[test]
fn the_old_program_serves_again_if_the_new_one_does_not_open_the_store() {
    // This test program takes the name of the store for that of the test to run.
    let folder = Folder::new();
    let mut command = caravan();
    command.env("XDG_RUNTIME_DIR", folder.path()).env(FAKE, "1").args(["store", "serve", "fake_server_role"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut ready = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut ready).expect("a line");
    let served = Served { folder, child, ready };
    let own = ["--name", "fake_server_role"];
    served.said(&[&["set", "a", "1"][..], &own].concat());
    let this = std::env::current_exe().expect("a path").display().to_string();
    let refused = served.refused(&["upgrade", "fake_server_role", "--program", &this]);
    let expected = "the new server did not open the store: the memory has another form";
    assert!(refused.contains(expected), "{refused}");
    assert_eq!(served.said(&[&["get", "a"][..], &own].concat()), "1");
}

#[test]
fn a_store_in_the_background_ends_with_its_keeper_and_logs_to_its_file() {
    let folder = Folder::new();
    let log = folder.path().join("log");
    let serve = |words: &[&str]| {
        let mut command = caravan();
        command
            .env("XDG_RUNTIME_DIR", folder.path())
            .args(["store", "serve", "--detach", "--json"])
            .args(words);
        command.output().expect("it starts")
    };
    let output = serve(&["--log", &log.display().to_string()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let ready: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let [keeper, server] = ["pid", "server_pid"].map(|name| ready[name].as_i64().expect("a process") as i32);
    let second = serve(&[]);
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains(&format!("by process {keeper}")), "{}", text(&second.stderr));
    kill_process(Pid::from_raw(server).expect("a process"), Signal::KILL).expect("sent");
    let has_logged = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("has died"));
    wait_for("the line in the log", has_logged);
    kill_process(Pid::from_raw(keeper).expect("a process"), Signal::TERM).expect("sent");
    wait_for("the end", || !folder.path().join("caravan/default.sock").exists());
    let failed = serve(&["--load", "/nowhere"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(text(&failed.stderr).contains("cannot load /nowhere"), "{}", text(&failed.stderr));
}

#[test]
fn a_store_whose_keeper_was_killed_ends_in_order_and_saves() {
    let folder = Folder::new();
    let file = folder.path().join("snapshot");
    let mut served = Served::start_in(folder, &["--save", &file.display().to_string()]);
    served.said(&["set", "a", "1"]);
    let reader = served.reader();
    let server = served.server().expect("it is served");
    signal(&served.child, Signal::KILL);
    served.child.wait().expect("ended");
    wait_for("the end of the server", || !Path::new(&format!("/proc/{server}")).exists());
    assert_eq!(reader.get(b"a").expect("a read"), Some(b"1".to_vec()));
    let folder = std::mem::replace(&mut served.folder, Folder::new());
    let again = Served::start_in(folder, &["--load", &file.display().to_string()]);
    assert_eq!(again.said(&["get", "a"]), "1");
}

#[test]
fn what_was_saved_at_the_end_is_there_at_the_next_start() {
    let (mut folder, mut before) = (Folder::new(), 0);
    for (by, status) in [(Signal::TERM, 0), (Signal::INT, 130)] {
        let file = folder.path().join("snapshot").display().to_string();
        let mut words = vec!["--save", &file];
        if before > 0 {
            words.extend(["--load", &file]);
        }
        let mut served = Served::start_in(folder, &words);
        let mut client = served.client();
        for number in before..before + 1000 {
            client.call(&[b"SET", number.to_string().as_bytes(), b"v"]).expect("an answer");
        }
        before += 1000;
        assert_eq!(client.call(&[b"DBSIZE"]).expect("an answer"), StoreAnswer::Integer(before));
        let (ended, said) = served.end(by);
        assert_eq!(
            (ended, said.as_str()),
            (Some(status), if status == 0 { "" } else { "caravan: interrupted\n" })
        );
        folder = std::mem::replace(&mut served.folder, Folder::new());
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&file).expect("saved").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn an_end_in_the_middle_of_an_upgrade_saves() {
    let folder = Folder::new();
    let file = folder.path().join("snapshot").display().to_string();
    let mut served = Served::start_in(folder, &["--save", &file]);
    served.client().call(&[b"SET", b"long", &vec![b'x'; 900_000]]).expect("an answer");
    // The server that is to leave waits for a client that takes nothing of its replies.
    let mut silent = UnixStream::connect(served.socket()).expect("connected");
    silent.write_all(&b"GET long\r\n".repeat(20)).expect("sent");
    silent.read_exact(&mut [0]).expect("the first of them begins");
    let mut upgrade = caravan();
    upgrade.env("XDG_RUNTIME_DIR", served.folder.path()).args(["store", "upgrade"]);
    let upgrade = upgrade.stderr(Stdio::piped()).spawn().expect("it starts");
    wait_for("the old server to leave", || {
        let mut client = UnixStream::connect(served.socket()).expect("connected");
        client.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
        client.write_all(b"PING\r\n").expect("sent");
        client.read(&mut [0; 7]).is_err()
    });
    assert_eq!(served.end(Signal::TERM), (Some(0), String::new()));
    assert_eq!(upgrade.wait_with_output().expect("ended").status.code(), Some(1));
    let folder = std::mem::replace(&mut served.folder, Folder::new());
    let again = Served::start_in(folder, &["--load", &file]);
    assert_eq!(again.said(&["get", "long"]).len(), 900_000);
}

#[test]
fn a_save_that_fails_leaves_the_old_file_and_the_store() {
    let file = |served: &Served| served.path("snapshot");
    let folder = Folder::new();
    let path = folder.path().join("snapshot").display().to_string();
    let mut served = Served::start_in(folder, &["--save", &path]);
    served.said(&["set", "a", &"x".repeat(10_000)]);
    assert!(served.said(&["save", &path]).starts_with("Saved the store default to"));
    let old = std::fs::read(file(&served)).expect("saved");
    let message = served.refused(&["save", "/dev/full"]);
    assert!(message.contains("No space left on device"), "{message}");
    assert!(served.refused(&["save", "/nowhere/at/all"]).contains("/nowhere/at"), "{message}");
    // Files of the server may have 4 KiB from now on, as on a full disk.
    let server = Pid::from_raw(served.server().expect("it is served"));
    let limit = Rlimit { current: Some(4096), maximum: Some(4096) };
    prlimit(server, Resource::Fsize, limit).expect("limited");
    served.said(&["set", "b", &"y".repeat(10_000)]);
    let message = served.refused(&["save", &path]);
    assert!(message.contains("is as it was: the snapshot could not be written: File too large"), "{message}");
    assert_eq!(std::fs::read(file(&served)).expect("there"), old);
    assert_eq!(served.said(&["get", "b"]).len(), 10_000);
    let (status, said) = served.end(Signal::TERM);
    assert_eq!(status, Some(1));
    assert!(said.contains("the store was not saved") && said.contains("File too large"), "{said}");
    assert_eq!(std::fs::read(file(&served)).expect("there"), old);
    let names = std::fs::read_dir(served.folder.path()).expect("read").flatten();
    assert!(names.map(|entry| entry.file_name()).all(|name| name != "snapshot.part"));
}

#[test]
fn a_save_that_is_interrupted_leaves_nothing_and_ends_in_the_server() {
    let served = Served::start(&[]);
    served.said(&["set", "a", "1"]);
    // A pipe that nobody reads keeps the server writing.
    let value = vec![b'x'; 4 << 20];
    let mut client = served.client();
    assert_eq!(client.call(&[b"SET", b"long", &value]).expect("an answer"), ok());
    let path = served.path("keys.snapshot");
    let save = |fifo: bool| {
        let mut command = caravan();
        let to = if fifo { served.path("fifo") } else { path.clone() };
        command.env("XDG_RUNTIME_DIR", served.folder.path()).args(["store", "save", &to]);
        command.stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    rustix::fs::mknodat(rustix::fs::CWD, served.path("fifo"), fifo, mode, 0).expect("made");
    let pipe = File::options().read(true).write(true).open(served.path("fifo")).expect("opened");
    let mut child = save(true);
    let is_full = || rustix::io::ioctl_fionread(&pipe).expect("a pipe") > 0;
    wait_for("the save", is_full);
    signal(&child, Signal::INT);
    assert_eq!(child.wait().expect("ended").code(), Some(130));
    // The server ends that save as soon as it can write, and takes another one.
    wait_for("another save", || {
        let mut bytes = vec![0; 1 << 20];
        while rustix::io::ioctl_fionread(&pipe).expect("a pipe") > 0 {
            assert!((&pipe).read(&mut bytes).expect("read") > 0);
        }
        save(false).wait().expect("ended").success()
    });
    assert!(!Path::new(&format!("{path}.part")).exists());
}

#[test]
fn a_file_that_is_no_whole_snapshot_starts_no_store() {
    let served = Served::start(&[]);
    (0..100).for_each(|key| _ = served.client().call(&[b"SET", &[key], b"value"]).expect("an answer"));
    let path = served.path("snapshot");
    served.said(&["save", &path]);
    let whole = std::fs::read(&path).expect("saved");
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    for (bytes, expected) in [
        (&whole[..whole.len() - 1], "is damaged at byte"),
        (&flipped, "is damaged at byte 24"),
        (b"something else", "no snapshot of a store"),
        (b"", "no snapshot of a store"),
    ] {
        std::fs::write(&path, bytes).expect("written");
        let message = served.refused(&["serve", "other", "--load", &path]);
        assert!(
            message.contains(&format!("cannot load {path}: ")) && message.contains(expected),
            "{message}"
        );
        assert!(!served.folder.path().join("caravan/other.sock").exists());
    }
    std::fs::write(&path, &whole).expect("written");
    let message = served.refused(&["serve", "other", "--load", &path, "--save", "/nowhere/at/all"]);
    assert!(message.contains("/nowhere/at"), "{message}");
}
