//! Tests of how agents get to other hosts: over ssh with any login shell, from the PATH, from the cache there, or by
//! copying this program; and of the errors if that is impossible.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use crate::common::{Folder, caravan, text, wait_for};
use crate::sshd::{Hosts, Setup, program};
use rustix::process::{Pid, Signal, kill_process};

fn bare() -> Hosts {
    Hosts::with(&["a"], &Setup::bare())
}

fn run(mut command: Command) -> Output {
    command.output().expect("it starts")
}

fn pipe(hosts: &Hosts, words: &[&str]) -> Output {
    let mut command = hosts.pipe();
    command.args(words);
    run(command)
}

/// Checks that a pipe through the host prints hello and nothing else.
fn says_hello(hosts: &Hosts) {
    let output = pipe(hosts, &["a:echo hello"]);
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str(), text(&output.stderr).as_str()),
        (Some(0), "hello\n", "")
    );
}

/// Checks that the pipe was refused with this message.
fn refused(output: &Output, expected: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(255), "{said}");
    assert!(
        said.contains("a: ") && said.contains(expected) && output.stdout.is_empty(),
        "{expected}: {said}"
    );
}

/// Returns the entries of a folder; none if there is no folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn agents(hosts: &Hosts) -> PathBuf {
    hosts.cache("a").join("caravan/agents")
}

/// Returns the only cached copy.
fn copy(hosts: &Hosts) -> PathBuf {
    let mut copies = entries(&agents(hosts));
    assert_eq!(copies.len(), 1, "{copies:?}");
    copies.remove(0)
}

fn nothing_is_temporary(hosts: &Hosts) {
    let tmp = hosts.folder().join("a/tmp");
    wait_for("no copy to be left", || entries(&tmp).is_empty());
}

/// Greetings on both outputs, with and without a line end, and text that looks like a mark.
const NOISE: &str = "echo Welcome; echo oops >/dev/fd/2; echo caravan; printf 'no end of line: '";

#[test]
fn every_login_shell_will_do_whatever_it_prints() {
    for shell in [None, Some("dash"), Some("csh"), Some("bash")] {
        let hosts = Hosts::with(&["a"], &Setup { shell, ..Setup::bare() });
        fs::write(hosts.home("a").join(".bashrc"), format!("{NOISE}\n")).expect("written");
        // Every csh reads its file, that of a stage as well; so only the first one prints.
        let noise = format!("if ($?GREETED) exit\nsetenv GREETED 1\n{}\n", NOISE.replace("; ", "\n"));
        fs::write(hosts.home("a").join(".cshrc"), noise).expect("written");
        says_hello(&hosts);
        let first = copy(&hosts);
        let name = first.file_name().expect("a name").to_string_lossy().into_owned();
        let hash = name.strip_prefix("caravan-").expect("caravan-HASH");
        assert!(hash.len() == 64 && hash.chars().all(|char| char.is_ascii_hexdigit()), "{name}");
        let file = fs::metadata(&first).expect("a file");
        assert_eq!(file.permissions().mode() & 0o777, 0o700, "{shell:?}");
        let folder = fs::metadata(agents(&hosts)).expect("a folder");
        assert_eq!(folder.permissions().mode() & 0o777, 0o700, "{shell:?}");
        // The second run uses the same file.
        says_hello(&hosts);
        assert_eq!(fs::metadata(copy(&hosts)).expect("a file").ino(), file.ino(), "{shell:?}");
        nothing_is_temporary(&hosts);
    }
}

/// The greeting does not change the environment of commands: their umask, their locale, their input.
#[test]
fn commands_find_the_environment_of_a_login() {
    let hosts = Hosts::with(&["a"], &Setup { environment: vec![("LC_ALL", "C.UTF-8")], ..Setup::bare() });
    let expected = text(
        &run({
            let mut ssh = Command::new("ssh");
            ssh.arg("-F").arg(hosts.config()).args(["a", "umask; echo $LC_ALL; env | grep -c ^caravan"]);
            ssh.stdin(Stdio::null());
            ssh
        })
        .stdout,
    );
    assert!(expected.contains("C.UTF-8\n0\n"), "{expected}");
    for _ in 0..2 {
        let output = pipe(&hosts, &["a:umask; echo $LC_ALL; env | grep -c ^caravan; true"]);
        assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
    }
}

#[test]
fn what_never_ends_to_print_is_given_up() {
    let hosts = bare();
    fs::write(hosts.home("a").join(".bashrc"), "yes\n").expect("written");
    refused(&pipe(&hosts, &["a:echo hello"]), "printed more than 1048576 bytes");
}

#[test]
fn the_same_program_on_the_path_is_taken() {
    let hosts = Hosts::start(&["a"]);
    says_hello(&hosts);
    assert!(entries(&hosts.cache("a")).is_empty());
    let output = pipe(&hosts, &["--no-bootstrap", "a:echo hello"]);
    assert_eq!(text(&output.stdout), "hello\n", "{}", text(&output.stderr));
}

#[test]
fn without_bootstrap_it_says_what_to_install() {
    let hosts = bare();
    let version = env!("CARGO_PKG_VERSION");
    let words = ["--no-bootstrap", "a:echo hello"];
    let output = pipe(&hosts, &words);
    refused(&output, "there is no caravan on its PATH, and --no-bootstrap");
    refused(&output, &format!("install caravan {version} there"));
    // A cached copy does not count as an installed one.
    says_hello(&hosts);
    refused(&pipe(&hosts, &words), "there is no caravan on its PATH");
    program(&hosts.bin("a").join("caravan"), "case $1 in --version) echo caravan 9.9.9 ;; *) exit 2 ;; esac");
    refused(&pipe(&hosts, &words), "its PATH has caravan 9.9.9, and --no-bootstrap");
    // Without the option, another version does not matter.
    says_hello(&hosts);
}

#[test]
fn two_at_once_do_not_disturb_each_other() {
    let hosts = bare();
    let start = || {
        let mut command = hosts.pipe();
        command.arg("a:echo hello").stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    };
    let both = [start(), start(), start()];
    for child in both {
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(text(&output.stdout), "hello\n", "{}", text(&output.stderr));
    }
    assert!(fs::metadata(copy(&hosts)).expect("a file").len() > 0);
    nothing_is_temporary(&hosts);
}

#[test]
fn a_cached_copy_that_is_broken_is_replaced() {
    let hosts = bare();
    says_hello(&hosts);
    let copy = copy(&hosts);
    let whole = fs::read(&copy).expect("read");
    for broken in [&whole[..whole.len() / 2], &vec![0; whole.len()]] {
        fs::write(&copy, broken).expect("written");
        says_hello(&hosts);
        assert!(fs::read(&copy).expect("read") == whole, "{}", broken.len());
    }
}

#[test]
fn copies_that_nobody_used_for_long_go() {
    let hosts = bare();
    let folder = agents(&hosts);
    fs::create_dir_all(&folder).expect("made");
    let day = Duration::from_secs(24 * 3600);
    for (name, days) in [("caravan-old", 40), ("caravan-young", 20), ("other", 40)] {
        let file = fs::File::create(folder.join(name)).expect("made");
        file.set_modified(SystemTime::now() - day * days).expect("changed");
    }
    says_hello(&hosts);
    let has = |name: &str| folder.join(name).exists();
    assert!(!has("caravan-old") && has("caravan-young") && has("other"));
    // A copy that is used stays.
    let copy = entries(&folder).into_iter().find(|path| path.to_string_lossy().len() > 80);
    let copy = copy.expect("a copy");
    let file = fs::File::open(&copy).expect("opened");
    file.set_modified(SystemTime::now() - day * 40).expect("changed");
    says_hello(&hosts);
    let age = fs::metadata(&copy).expect("a file").modified().expect("a time").elapsed();
    assert!(age.is_ok_and(|age| age < day));
}

/// A file system for one test.
struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    /// Mounts a file system; `None` if this user may not.
    fn new(at: &'a Path, options: &str) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then_some(Self(at))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn where_the_cache_cannot_be_used_a_temporary_copy_is_made() {
    let hosts = bare();
    let cache = hosts.cache("a");
    for options in ["size=1m", "size=1g,noexec"] {
        let mount = Mount::new(&cache, options);
        if mount.is_none() {
            // This user cannot mount, so a file takes the place of the cache.
            fs::remove_dir(&cache).and_then(|()| fs::write(&cache, "")).expect("a file");
        }
        says_hello(&hosts);
        assert!(entries(&agents(&hosts)).is_empty(), "{options}");
        nothing_is_temporary(&hosts);
        if mount.is_none() {
            fs::remove_file(&cache).and_then(|()| fs::create_dir(&cache)).expect("a folder");
        }
    }
}

#[test]
fn a_host_that_cannot_take_a_copy_says_why() {
    let hosts = bare();
    for (name, script, expected) in [
        ("uname", "echo Linux sparc64", "of another architecture (sparc64;"),
        ("uname", "echo OpenBSD amd64", "caravan needs Linux, and it runs OpenBSD"),
        ("df", "echo x; echo /dev/x 100 96 4 96% /", "there is no space for a copy of this program in "),
        // A folder mounted noexec behaves like this: a file cannot be made executable.
        ("chmod", "exit 0", "is mounted noexec"),
        ("mktemp", "exit 1", "no folder there can be written to"),
        ("head", "dd bs=1 count=9 status=none", "arrived torn"),
        ("head", "dd bs=1 count=9 status=none; exit 1", "there is no space for a copy of this program in "),
        ("sha256sum", "echo 0000 x", "arrived torn"),
        ("mv", "exit 1", "there is no space for a copy of this program in "),
    ] {
        program(&hosts.bin("a").join(name), script);
        refused(&pipe(&hosts, &["a:echo hello"]), expected);
        fs::remove_file(hosts.bin("a").join(name)).expect("removed");
        nothing_is_temporary(&hosts);
        wait_for("no part of a copy to be left", || entries(&agents(&hosts)).is_empty());
    }
    says_hello(&hosts);
}

#[test]
fn ssh_says_why_it_failed_and_what_to_do() {
    let mut hosts = Hosts::start(&["a", "b"]);
    let words = ["a:echo hello"];
    let known = hosts.folder().join("known_hosts");
    let right = fs::read_to_string(&known).expect("read");
    fs::write(&known, "").expect("written");
    refused(&pipe(&hosts, &words), "Its key is not known");
    let other = fs::read_to_string(hosts.folder().join("key.pub")).expect("read");
    fs::write(&known, format!("[{}]:{} {other}", hosts.address("a"), hosts.port("a"))).expect("written");
    refused(&pipe(&hosts, &words), "Its key is another than the one you know");
    fs::write(&known, right).expect("written");
    let authorized = hosts.folder().join("a/authorized");
    let key = fs::read(&authorized).expect("read");
    fs::write(&authorized, "").expect("written");
    refused(&pipe(&hosts, &words), "Permission denied");
    fs::write(&authorized, key).expect("written");
    let output = pipe(&hosts, &["nowhere.invalid:echo hello"]);
    assert!(
        text(&output.stderr).contains("Its name is not known (`ssh nowhere.invalid true`)"),
        "{output:?}"
    );
    hosts.stop("a");
    refused(&pipe(&hosts, &words), "No sshd answers at that port");
    let output = pipe(&hosts, &["--ssh", "/none/ssh", "a:echo hello"]);
    refused(&output, "cannot start `/none/ssh`");
    refused(&output, "openssh-client");
    let output = pipe(&hosts, &["--ssh", "no-such-ssh", "a:echo hello"]);
    refused(&output, "cannot start `no-such-ssh`: No such file");
}

/// Returns a program that is called as ssh, records its arguments and pid, and runs the script.
fn stand_in(folder: &Folder, script: &str) -> PathBuf {
    let path = folder.path().join("ssh");
    let at = folder.path().display();
    program(&path, &format!("printf '%s\\n' \"$@\" >{at}/words\necho $$ >{at}/pid\n{script}"));
    path
}

#[test]
fn ssh_gets_its_options_and_no_command_of_the_users() {
    let hosts = Hosts::start(&["a"]);
    let folder = Folder::new();
    let ssh = stand_in(&folder, "exec ssh \"$@\"");
    let mut command = hosts.pipe();
    command.args(["-o", "Compression=no", "-i"]).arg(hosts.folder().join("key")).arg("--ssh").arg(ssh);
    let output = run({
        command.arg("a:echo very-private");
        command
    });
    assert_eq!(text(&output.stdout), "very-private\n", "{}", text(&output.stderr));
    let words = fs::read_to_string(folder.path().join("words")).expect("words");
    let config = hosts.config().display().to_string();
    for expected in ["-F", &config, "Compression=no", "-i", "RequestTTY=no", "a"] {
        assert!(words.lines().any(|word| word == expected), "{expected}: {words}");
    }
    assert!(!words.contains("private"), "{words}");
    let jump = stand_in(&folder, "exit 3");
    let mut command = caravan();
    command.args(["pipe", "-J", "x,y", "a:true", "--ssh"]).arg(jump);
    refused(&run(command), "ssh ended (exit status: 3)");
    let words = fs::read_to_string(folder.path().join("words")).expect("words");
    assert!(words.contains("-J\nx,y\n"), "{words}");
}

/// Several hosts are connected at once, but nobody can type two passwords at once: ssh may ask only after it was
/// refused without asking, and one at a time.
#[test]
fn ssh_asks_one_at_a_time_and_only_if_it_must() {
    let hosts = Hosts::start(&["a", "b"]);
    let folder = Folder::new();
    let at = folder.path().display();
    // A lock that fails if another ssh asks at the same time.
    let asks = format!(
        "case \" $* \" in *BatchMode=yes*) echo Permission denied >&2; exit 255 ;; esac\n\
         mkdir {at}/asking || {{ echo two ask >&2; exit 255; }}\nsleep 0.3\nrmdir {at}/asking\nexec ssh \"$@\""
    );
    let ssh = stand_in(&folder, &asks);
    let pipe = || {
        let mut command = hosts.pipe();
        command.arg("--ssh").arg(&ssh).args(["a:echo hello", "b:cat"]);
        command
    };
    let output = run({
        let mut command = pipe();
        command.env("SSH_ASKPASS", "/bin/false");
        command
    });
    assert_eq!(text(&output.stdout), "hello\n", "{}", text(&output.stderr));
    // If nobody can be asked, the first refusal counts.
    let mut command = Command::new("setsid");
    command.arg("-w").arg(pipe().get_program()).args(pipe().get_args()).env_remove("SSH_ASKPASS");
    let output = run(command);
    assert!(text(&output.stderr).contains("It lets you not in"), "{}", text(&output.stderr));
}

/// An interrupt ends the start at once, while ssh connects or asks for a password.
#[test]
fn a_start_is_interrupted_at_once() {
    let folder = Folder::new();
    let ssh = stand_in(&folder, "exec sleep 600");
    let mut command = caravan();
    command.args(["pipe", "a:true", "--ssh"]).arg(ssh).stderr(Stdio::piped());
    let child = command.spawn().expect("it starts");
    let pid = folder.path().join("pid");
    wait_for("ssh to be called", || fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n')));
    let begin = Instant::now();
    kill_process(Pid::from_child(&child), Signal::INT).expect("a signal");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    let pid = fs::read_to_string(pid).expect("a pid");
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "ssh is gone");
}

#[test]
fn a_broken_agent_is_named() {
    let folder = Folder::new();
    for (script, expected) in [
        ("echo caravan-agent dance; cat", "it says `dance `"),
        ("echo caravan-agent ready; exit 3", "ssh ended (exit status: 3)"),
        ("echo welcome; echo broken >&2; exit 127", "It said:\nbroken"),
        ("echo This account is not available.; exit 1", "printed: This account is not available."),
        ("printf 'caravan-agent no-run \\033[2Jx\\n'", "does not run there: \\u{1b}[2Jx"),
    ] {
        let ssh = stand_in(&folder, script);
        let mut command = caravan();
        command.args(["pipe", "a:true", "--ssh"]).arg(ssh);
        refused(&run(command), expected);
    }
}

/// Sessions over an existing connection start fast, and Ctrl-Z reaches no ssh.
#[test]
fn a_connection_that_is_kept_is_used() {
    let hosts = Hosts::start(&["a"]);
    hosts.keep_connections();
    for _ in 0..3 {
        says_hello(&hosts);
    }
    wait_for("sshd to say so", || hosts.sessions("a") == 1);
}
