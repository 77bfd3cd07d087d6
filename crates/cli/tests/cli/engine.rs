//! Tests of `caravan engine run`, `check`, `graph` and `reload` as a user runs them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::common::{Folder, caravan, json, printed, run, text, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A configuration with a link between two processes.
pub const TWO: &str = "\
links = [\"source.output -> sink.input\"]

[app.source]
kind = \"source\"
worker = \"left\"

[app.sink]
kind = \"sink\"
worker = \"right\"
";

/// The user id of a user without rights.
const NOBODY: u32 = 65534;

pub fn written(folder: &Folder, text: &str) -> PathBuf {
    let path = folder.path().join("engine.toml");
    std::fs::write(&path, text).expect("written");
    path
}

fn engine(words: &[&str], path: &Path) -> Output {
    caravan().arg("engine").args(words).arg(path).output().expect("the command starts")
}

/// A running engine, and what it says on standard error.
pub struct Running {
    pub child: Child,
    lines: Receiver<String>,
    workers: Vec<(String, i32)>,
}

impl Running {
    pub fn start(path: &Path) -> Self {
        let mut command = caravan();
        command.args(["engine", "run"]).arg(path);
        Self::of(command, 2)
    }

    fn of(mut command: Command, workers: usize) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the command starts");
        let errors = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut running = Self { child, lines, workers: Vec::new() };
        running.wait_line(" runs as process ");
        for _ in 0..workers {
            let line = running.wait_line("  worker ");
            let (name, rest) =
                line.trim_start()["worker ".len()..].split_once(": process ").expect("a worker");
            let pid = rest.split(' ').next().and_then(|pid| pid.parse().ok()).expect("a process");
            running.workers.push((name.to_owned(), pid));
        }
        running
    }

    /// Waits for the next line that contains `part`.
    fn wait_line(&mut self, part: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(Duration::from_secs(60)) {
                Ok(line) if line.contains(part) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no line with `{part}` ({error}): {seen:#?}"),
            }
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn worker(&self, name: &str) -> i32 {
        self.workers.iter().find(|worker| worker.0 == name).expect("a worker").1
    }

    fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    fn reload(&self) -> Output {
        run(&["engine", "reload", &self.pid().to_string()])
    }

    /// Returns the exit status and the last lines, after checking that none of the processes is left.
    fn ended(mut self) -> (ExitStatus, Vec<String>) {
        let status = self.child.wait().expect("it ends");
        let lines: Vec<_> = self.lines.iter().collect();
        for (name, pid) in &self.workers {
            wait_for(&format!("worker {name} to end"), || is_gone(*pid));
        }
        (status, lines)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a process"), signal).expect("sent");
}

/// True if the process has ended, even if nobody has waited for it.
fn is_gone(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['Z', 'X']))
}

#[test]
fn check_says_one_line_or_every_mistake() {
    let folder = Folder::new();
    let path = written(&folder, TWO);
    let said = printed(&engine(&["check"], &path));
    assert_eq!(said, format!("{}: 2 apps, 1 link, 2 workers\n", path.display()));
    let json = json(&engine(&["check", "--json"], &path));
    assert!(json["apps"] == 2 && json["workers"] == 2 && json["mistakes"] == Value::Array(vec![]), "{json}");

    let at = |line: &str| format!("{}:{line}\n", path.display());
    for (bad, expected) in [
        ("links = [\n", vec!["1:10: unclosed array, expected `]`"]),
        ("[engine]\nspin = 1\nfoo = 2\n", vec!["2:8: spin = 1: it takes", "3:1: [engine] has no key `foo`"]),
        (
            "links = ['a.output -> b.x']\n[app.a]\nkind = 'sorce'\n",
            vec![
                "1:10: link `a.output -> b.x`: there is no app `b`",
                "2:6: app `a`: there is no kind `sorce`",
            ],
        ),
        ("", vec![" there are no apps: add a table [app.NAME] for each"]),
    ] {
        std::fs::write(&path, bad).expect("written");
        let output = engine(&["check"], &path);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{bad}");
        let said = text(&output.stderr);
        assert_eq!(said.lines().count(), expected.len(), "{said}");
        for (line, expected) in said.lines().zip(&expected) {
            assert!(line.starts_with(at(expected).trim_end()), "{line}");
        }
        let output = engine(&["check", "--json"], &path);
        assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0), "{bad}");
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let mistakes = json["mistakes"].as_array().expect("a list");
        assert_eq!(mistakes.len(), expected.len(), "{json}");
        assert!(mistakes.iter().all(|mistake| mistake["text"].is_string()), "{json}");
    }
    std::fs::remove_file(&path).expect("removed");
    let output = engine(&["check"], &path);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!("{}: cannot read it: No such file", path.display());
    assert!(text(&output.stderr).starts_with(&expected), "{output:?}");
}

#[test]
fn graph_draws_what_may_be_of_unknown_kinds() {
    let folder = Folder::new();
    let path = written(&folder, &TWO.replace("\"sink\"", "\"my-own\""));
    let dot = printed(&engine(&["graph", "--dot"], &path));
    assert!(dot.starts_with("digraph ") && dot.contains(r"my-own\ in\ right"), "{dot}");

    // A program in place of Graphviz shows what that gets.
    let programs = folder.path().join("programs");
    std::fs::create_dir(&programs).expect("a folder");
    let drawn = folder.path().join("engine.svg");
    let draw = || {
        let mut command = caravan();
        command.env("PATH", &programs).args(["engine", "graph", "-o"]).args([&drawn, &path]);
        command.output().expect("the command starts")
    };
    let output = draw();
    assert_eq!((output.status.code(), drawn.exists()), (Some(1), false), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("apt install graphviz") && said.contains("--dot"), "{said}");
    let program = programs.join("dot");
    let script = "#!/bin/sh\necho '<?xml version=\"1.0\"?><svg width=\"9\">'; exec /bin/cat\n";
    std::fs::write(&program, script).expect("written");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("a program");
    let output = draw();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    let svg = std::fs::read_to_string(&drawn).expect("written");
    assert!(svg.contains("<svg width=\"9\"><style>@media (prefers-color-scheme: dark)"), "{svg}");
    assert!(svg.ends_with(&dot), "{svg}");

    std::fs::write(&path, "links = 1").expect("written");
    let output = engine(&["graph"], &path);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(text(&output.stderr).contains(":1:9: links = ...: it takes a list"), "{output:?}");
}

#[test]
fn a_bad_file_or_app_starts_nothing() {
    let folder = Folder::new();
    let path = written(&folder, &TWO.replace("\"sink\"", "\"sunk\""));
    let output = engine(&["run"], &path);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    let expected =
        format!("{}:7:6: app `sink`: there is no kind `sunk`: do you mean `sink`?", path.display());
    assert_eq!(said.trim_end(), expected);
}

#[test]
fn it_runs_for_as_long_as_it_is_told() {
    let folder = Folder::new();
    let path = written(&folder, TWO);
    let output = engine(&["run", "--json", "--duration", "0.5", "--hugepages"], &path);
    let said = printed(&output);
    assert!(output.stderr.is_empty(), "{output:?}");
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (running, ended) = (&lines[0], &lines[lines.len() - 1]);
    assert_eq!((&running["event"], &running["apps"]), (&"running".into(), &2.into()));
    assert!(running["workers"]["left"]["pid"].as_i64() > Some(1), "{running}");
    assert!(running["pages"] == "small" || running["pages"] == "huge", "{running}");
    assert_eq!(ended["event"], "ended");
    assert_eq!(ended["links"][0]["name"], "source.output -> sink.input");
    assert!(ended["links"][0]["packets"].as_u64() > Some(0), "{ended}");
    assert!(ended["apps"]["sink"]["packets"].as_u64() > Some(0), "{ended}");
    assert!(ended["seconds"].as_f64().is_some_and(|seconds| (0.5..30.0).contains(&seconds)), "{ended}");
    assert!(lines.iter().all(|line| line["time"].as_str().is_some_and(|time| time.ends_with('Z'))), "{said}");
}

/// Returns the last line of what an engine has printed as JSON.
fn last_line(output: &Output) -> Value {
    serde_json::from_str(printed(output).lines().last().expect("a line")).expect("JSON")
}

/// Runs the examples that need no devices: packets come out at their ends.
#[test]
fn examples_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/examples");
    for name in ["two_workers.toml", "tunnel.toml", "shaping.toml"] {
        let ended = last_line(&engine(&["run", "--json", "--duration", "0.3"], &folder.join(name)));
        assert!(ended["apps"]["sink"]["packets"].as_u64() > Some(0), "{name}: {ended}");
        assert_eq!(ended["restarts"], serde_json::json!({}), "{name}");
    }
}

#[test]
fn ctrl_c_and_a_termination_stop_it_in_order() {
    let folder = Folder::new();
    let path = written(&folder, TWO);
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 0)] {
        let running = Running::start(&path);
        // Ctrl-C at a terminal goes to the workers, too.
        if signal == Signal::INT {
            running.workers.iter().for_each(|worker| send(worker.1, signal));
        }
        running.signal(signal);
        let (ended, lines) = running.ended();
        assert_eq!(ended.code(), Some(status), "{lines:#?}");
        let last = lines.iter().position(|line| line.contains("  ended after ")).expect("last words");
        assert!(lines[last + 1].starts_with("  link source.output -> sink.input: "), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.contains("crashed")), "{lines:#?}");
    }
}

#[test]
fn a_hangup_moves_an_app_to_another_worker() {
    let folder = Folder::new();
    let path = written(&folder, TWO);
    let mut running = Running::start(&path);
    std::fs::write(&path, TWO.replace("right", "left")).expect("written");
    running.signal(Signal::HUP);
    let line = running.wait_line("  reloaded ");
    assert!(line.contains("moved: sink (right -> left); workers ended: right"), "{line}");
    let right = running.worker("right");
    wait_for("the worker without apps to end", || is_gone(right));
    assert!(!is_gone(running.worker("left")), "it goes on");

    std::fs::write(&path, TWO).expect("written");
    let said = printed(&running.reload());
    assert!(said.contains("moved: sink (left -> right)"), "{said}");
    running.wait_line("moved: sink (left -> right)");
    running.signal(Signal::TERM);
    assert_eq!(running.ended().0.code(), Some(0));
}

#[test]
fn a_refused_file_changes_nothing() {
    let folder = Folder::new();
    let path = written(&folder, TWO);
    let mut running = Running::start(&path);
    for (bad, expected) in [
        ("links = [", ":1:10: unclosed array"),
        ("", ": there are no apps"),
        (&TWO.replace("\"source\"", "\"sorce\"") as &str, ":3:6: app `source`: there is no kind `sorce`"),
        (
            &format!("{TWO}\n[engine]\nheadroom = 8\n"),
            ": [engine] cannot change while the engine runs: put it back",
        ),
    ] {
        std::fs::write(&path, bad).expect("written");
        let output = running.reload();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.starts_with(&format!("{}{expected}", path.display())), "{said}");
        running.wait_line("is refused, and all goes on as before");
    }
    std::fs::write(&path, "links = [").expect("written");
    // The pid of a worker also leads to its engine.
    let worker = running.worker("left").to_string();
    let output = run(&["engine", "reload", "--json", &worker]);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&json["pid"], &json["changes"]), (&running.pid().into(), &Value::Null));
    assert!(json["refused"][0].as_str().is_some_and(|why| why.contains(":1:10: ")), "{json}");

    std::fs::write(&path, TWO).expect("written");
    let output = running.reload();
    assert_eq!(text(&output.stdout), "unchanged: 2\n", "{output:?}");
    running.signal(Signal::TERM);
    let (status, lines) = running.ended();
    assert_eq!(status.code(), Some(0), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("crashed")), "the same processes: {lines:#?}");
}

#[test]
fn what_came_through_a_pipe_is_not_read_again() {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    let mut command = caravan();
    command.args(["engine", "run", "/dev/stdin"]).stdin(reader);
    std::fs::File::from(writer).write_all(TWO.as_bytes()).expect("written");
    let running = Running::of(command, 2);
    let output = running.reload();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("no regular file, and cannot be read again"), "{output:?}");
    running.signal(Signal::INT);
    assert_eq!(running.ended().0.code(), Some(130));
}

#[test]
fn a_crash_is_told_and_mended() {
    let folder = Folder::new();
    let path = written(&folder, TWO);
    let mut running = Running::start(&path);
    let pid = running.worker("right");
    send(pid, Signal::ABORT);
    let line = running.wait_line("crashed while ");
    assert!(line.contains(&format!("worker right (process {pid})")) && line.contains("SIGABRT"), "{line}");
    let line = running.wait_line("worker right runs again as process ");
    assert!(!line.contains(&format!("process {pid},")), "{line}");
    running.signal(Signal::INT);
    let (status, lines) = running.ended();
    assert_eq!(status.code(), Some(130));
    assert!(lines.iter().any(|line| line == "  worker right: restarted once"), "{lines:#?}");
}

#[test]
fn a_killed_supervisor_leaves_no_process() {
    let folder = Folder::new();
    let path = written(&folder, TWO);
    let running = Running::start(&path);
    running.signal(Signal::KILL);
    let (status, _) = running.ended();
    assert_eq!(status.code(), None);
}

/// Returns a copy of the program that any user may run, because others may have no access to the original, and opens
/// the file to them.
fn for_anybody(folder: &Folder, path: &Path) -> PathBuf {
    let copied = folder.path().join("caravan");
    std::fs::copy(env!("CARGO_BIN_EXE_caravan"), &copied).expect("copied");
    for path in [folder.path(), &copied, path] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("changed");
    }
    copied
}

/// Returns `caravan engine`; as root, it runs as a user who is not root.
fn by_anybody(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).arg("engine");
    if rustix::process::geteuid().is_root() {
        command.gid(NOBODY).uid(NOBODY);
    }
    command
}

/// An engine takes no privileges, and no orders from users without rights over it. As root, this test runs it as
/// another user.
#[test]
fn any_user_may_run_one() {
    let folder = Folder::new();
    let path = written(&folder, TWO);
    let is_root = rustix::process::geteuid().is_root();
    let copied = for_anybody(&folder, &path);
    let by_anybody = || by_anybody(&copied);
    let mut command = by_anybody();
    command.arg("run").arg(&path);
    let running = Running::of(command, 2);
    let pid = running.pid().to_string();
    for command in [&mut by_anybody(), caravan().arg("engine")] {
        let output = command.args(["reload", &pid]).output().expect("the command starts");
        assert_eq!(text(&output.stdout), "unchanged: 2\n", "{output:?}");
    }
    running.signal(Signal::TERM);
    assert_eq!(running.ended().0.code(), Some(0));
    if is_root {
        let roots = Running::start(&path);
        let output = by_anybody().args(["reload", &roots.pid().to_string()]).output().expect("it starts");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains("or is not yours"), "{output:?}");
    }
}

/// Returns a configuration that copies a capture in one process to a file in another.
fn copying(from: &Path, to: &Path) -> String {
    format!(
        "links = [\"reader.output -> writer.input\"]\n\
         [app.reader]\nkind = \"pcap_reader\"\nfile = {from:?}\n\
         [app.writer]\nkind = \"pcap_writer\"\nworker = \"disk\"\nfile = {to:?}\n"
    )
}

#[test]
fn it_ends_after_the_last_packet_and_counts_it() {
    let folder = Folder::new();
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/captures/ping.pcap");
    let copied = folder.path().join("copy.pcap");
    let ended = |to: &Path| {
        let path = written(&folder, &copying(&capture, to));
        last_line(&engine(&["run", "--json", "--until-end"], &path))
    };
    let last = ended(&copied);
    let read = last["apps"]["reader"]["packets"].as_u64().expect("a number");
    assert!(read > 0, "{last}");
    assert_eq!(last["apps"]["writer"]["packets"], read, "{last}");
    let length = |path: &Path| std::fs::metadata(path).expect("a file").len();
    assert_eq!(length(&copied), length(&capture));
    let last = ended(Path::new("/dev/full"));
    let writer = &last["apps"]["writer"];
    assert_eq!(
        (&writer["packets"], &writer["lost"], &writer["error"]),
        (&0.into(), &read.into(), &28.into())
    );
    assert_eq!(last["drops"]["device"], read, "{last}");

    let output = engine(&["run", "--until-end"], &written(&folder, TWO));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("--until-end: no app has an end"), "{output:?}");
}

/// The program has a capability from its file, as `check` advises for packet sockets.
#[test]
fn an_engine_with_capabilities_is_found_by_its_user() {
    let folder = Folder::new();
    let path = written(&folder, TWO);
    let copied = for_anybody(&folder, &path);
    // `cap_net_raw+ep`, as struct vfs_cap_data, revision 2, of linux/capability.h.
    let words = [0x0200_0001_u32, 1 << 13, 0, 0, 0];
    let capability: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let set =
        rustix::fs::setxattr(&copied, "security.capability", &capability, rustix::fs::XattrFlags::empty());
    if let Err(error) = set {
        return println!(
            "skipped: a file's capabilities take root, and a file system that has them: {error}"
        );
    }
    let mut command = by_anybody(&copied);
    command.arg("run").arg(&path);
    let running = Running::of(command, 2);
    let pid = running.pid().to_string();
    for words in [
        &["reload", &pid] as &[_],
        &["top", &pid, "--once"],
        &["top", &running.worker("left").to_string(), "--once"],
    ] {
        let output = by_anybody(&copied).args(words).output().expect("the command starts");
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}

#[test]
fn an_engine_in_another_network_namespace_takes_orders() {
    let unshare = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.arg("--net").args(words).stdin(Stdio::null());
        command
    };
    if !unshare(&["true"]).output().is_ok_and(|output| output.status.success()) {
        return println!("skipped: a network namespace takes root");
    }
    let folder = Folder::new();
    let path = written(&folder, TWO);
    let copied = for_anybody(&folder, &path);
    let nobody = NOBODY.to_string();
    for (words, reaches) in [(&[] as &[&str], true), (&["--setgid", &nobody, "--setuid", &nobody], false)] {
        let mut command = unshare(words);
        command.arg(&copied).args(["engine", "run"]).arg(&path);
        let mut running = Running::of(command, 2);
        let pid = running.pid().to_string();
        assert_eq!(printed(&running.reload()), "unchanged: 2\n");
        running.wait_line("  reloaded ");
        if !reaches {
            let output = by_anybody(&copied).args(["reload", &pid]).output().expect("the command starts");
            let said = text(&output.stderr);
            assert!(
                said.contains("another network namespace") && said.contains(&format!("kill -HUP {pid}")),
                "{said}"
            );
        }
    }
}
