//! Hosts for tests: sshds on addresses of the loopback interface that let this user in with a key of the test, each
//! with its own folders for everything.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Folder, caravan};

/// Writes a script of sh.
pub fn program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).expect("written");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("changed");
}

/// The default key exchange takes ssh longer than anything else in these tests.
const KEY_EXCHANGE: &str = "KexAlgorithms curve25519-sha256";

/// The properties of a host.
#[derive(Clone, Debug)]
pub struct Setup {
    /// True if this program is on the host's PATH.
    pub has_caravan: bool,
    /// The login shell, as sshd would start it: `csh` runs `csh -c COMMAND`.
    pub shell: Option<&'static str>,
    /// Variables that override those of all hosts; `@` in a value is the host's folder.
    pub environment: Vec<(&'static str, &'static str)>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { has_caravan: true, shell: None, environment: Vec::new() }
    }
}

impl Setup {
    /// Returns a host without this program on its PATH.
    pub fn bare() -> Self {
        Self { has_caravan: false, ..Self::default() }
    }
}

/// The hosts of a test. Each has a folder of its own: `NAME/home`, `NAME/tmp`, `NAME/run`, `NAME/cache`, and
/// `NAME/bin`, which is first on its PATH.
pub struct Hosts {
    folder: Folder,
    daemons: Vec<Daemon>,
}

impl Hosts {
    /// Starts hosts with this program on their PATH.
    pub fn start(names: &[&str]) -> Self {
        Self::with(names, &Setup::default())
    }

    /// Starts hosts; the first listens at 127.0.0.2, the second at 127.0.0.3, and so on.
    pub fn with(names: &[&str], setup: &Setup) -> Self {
        let folder = Folder::new();
        let at = folder.path();
        for name in ["host", "key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at.join(name)).stdin(Stdio::null());
            assert!(keygen.status().expect("ssh-keygen (package openssh-client)").success());
        }
        // Debian's package creates this folder at boot; sshd needs it when root runs it.
        let _ = fs::create_dir("/run/sshd");
        let daemons =
            names.iter().enumerate().map(|(number, name)| Daemon::start(at, name, number + 2, setup));
        let hosts = Self { daemons: daemons.collect(), folder };
        hosts.write_config("");
        hosts
    }

    /// Returns the folder for everything of this test.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn home(&self, name: &str) -> PathBuf {
        self.folder().join(name).join("home")
    }

    /// Returns the folder that is first on the PATH of that host.
    pub fn bin(&self, name: &str) -> PathBuf {
        self.folder().join(name).join("bin")
    }

    /// Returns the folder of the cached copies of this program.
    pub fn cache(&self, name: &str) -> PathBuf {
        self.folder().join(name).join("cache")
    }

    /// Returns the file for ssh's `-F` with all hosts.
    pub fn config(&self) -> PathBuf {
        self.folder().join("ssh_config")
    }

    /// From now on, ssh keeps a connection for later sessions.
    pub fn keep_connections(&self) {
        let path = self.folder().join("mux-%C");
        self.write_config(&format!(
            "ControlMaster auto\nControlPersist yes\nControlPath {}\n",
            path.display()
        ));
    }

    fn write_config(&self, more: &str) {
        let at = self.folder().display();
        let host = fs::read_to_string(self.folder().join("host.pub")).expect("a key");
        let (mut config, mut known) = (String::new(), String::new());
        for Daemon { name, address, port, .. } in &self.daemons {
            config += &format!("Host {name}\nHostName {address}\nPort {port}\n");
            known += &format!("[{address}]:{port} {host}");
        }
        config += &format!(
            "Host *\nIdentityFile {at}/key\nIdentitiesOnly yes\nUserKnownHostsFile {at}/known_hosts\n\
             GlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\nBatchMode yes\n{more}"
        );
        fs::write(self.folder().join("known_hosts"), known).expect("written");
        fs::write(self.config(), config).expect("written");
    }

    /// Returns `caravan pipe` with these hosts' configuration.
    pub fn pipe(&self) -> Command {
        let mut command = caravan();
        command.arg("pipe").arg("-F").arg(self.config());
        command
    }

    fn host(&self, name: &str) -> &Daemon {
        self.daemons.iter().find(|daemon| daemon.name == name).expect("a host of that name")
    }

    /// Returns the pid of the sshd that listens.
    pub fn daemon(&self, name: &str) -> i32 {
        self.host(name).pid()
    }

    pub fn is_daemon(&self, pid: i32) -> bool {
        self.daemons.iter().any(|daemon| daemon.pid() == pid)
    }

    pub fn port(&self, name: &str) -> u16 {
        self.host(name).port
    }

    pub fn address(&self, name: &str) -> &str {
        &self.host(name).address
    }

    /// Returns how many sessions the host has accepted.
    pub fn sessions(&self, name: &str) -> usize {
        // Pairs with the addition in the thread that reads what sshd says, which may lag behind it.
        self.host(name).accepted.load(Ordering::SeqCst)
    }

    /// Stops the sshd of a host, which accepts no more sessions.
    pub fn stop(&mut self, name: &str) {
        let daemon = self.daemons.iter_mut().find(|daemon| daemon.name == name).expect("a host of that name");
        daemon.stop();
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // Ends the connections that ssh keeps.
        let files = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        for socket in files.filter(|file| file.file_name().to_string_lossy().starts_with("mux-")) {
            let mut ssh = Command::new("ssh");
            ssh.arg("-F").arg(self.config()).args(["-O", "exit", "-S"]).arg(socket.path()).arg("any");
            let _ = ssh.stdin(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

struct Daemon {
    name: String,
    address: String,
    port: u16,
    child: Child,
    accepted: Arc<AtomicUsize>,
}

impl Daemon {
    fn start(at: &Path, name: &str, number: usize, setup: &Setup) -> Self {
        let folder = at.join(name);
        for part in ["home", "tmp", "run", "cache", "bin"] {
            fs::create_dir_all(folder.join(part)).expect("made");
        }
        if setup.has_caravan {
            symlink(env!("CARGO_BIN_EXE_caravan"), folder.join("bin/caravan")).expect("linked");
        }
        let key = fs::read_to_string(at.join("key.pub")).expect("a key");
        let key = match setup.shell {
            None => key,
            Some(shell) => format!(r#"command="exec {shell} -c \"$SSH_ORIGINAL_COMMAND\"" {key}"#),
        };
        fs::write(folder.join("authorized"), key).expect("written");
        let address = format!("127.0.0.{number}");
        let started = (0..10).find_map(|_| listen(at, &folder, &address, setup));
        let (port, child, accepted) = started.expect("sshd listens");
        Self { name: name.to_owned(), address, port, child, accepted }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts an sshd; `None` if something else took the port.
fn listen(at: &Path, folder: &Path, address: &str, setup: &Setup) -> Option<(u16, Child, Arc<AtomicUsize>)> {
    let port = TcpListener::bind((address, 0)).ok()?.local_addr().ok()?.port();
    let config = folder.join("sshd_config");
    fs::write(&config, configuration(at, folder, address, port, setup)).expect("written");
    let mut command = Command::new("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f"]).arg(config).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("/usr/sbin/sshd (package openssh-server)");
    let errors = child.stderr.take().expect("a pipe");
    let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
    if !lines.any(|line| line.contains("Server listening")) {
        let _ = child.wait();
        return None;
    }
    // The sshd goes on writing, and must not block.
    let accepted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&accepted);
    std::thread::spawn(move || {
        let accepts = lines.filter(|line| line.contains("Accepted publickey"));
        accepts.for_each(|_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
    });
    Some((port, child, accepted))
}

fn configuration(at: &Path, folder: &Path, address: &str, port: u16, setup: &Setup) -> String {
    let own = folder.display().to_string();
    let path = format!("{own}/bin:/usr/local/bin:/usr/bin:/bin");
    let mut environment = vec![
        ("HOME", format!("{own}/home")),
        ("TMPDIR", format!("{own}/tmp")),
        ("XDG_RUNTIME_DIR", format!("{own}/run")),
        ("XDG_CACHE_HOME", format!("{own}/cache")),
        ("PATH", path),
    ];
    for (name, value) in &setup.environment {
        environment.retain(|(other, _)| other != name);
        environment.push((name, value.replace('@', &own)));
    }
    let environment: Vec<_> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!(
        "Port {port}\nListenAddress {address}\nHostKey {}/host\nAuthorizedKeysFile {own}/authorized\nPidFile none\n\
         StrictModes no\nUsePAM no\nPasswordAuthentication no\n{KEY_EXCHANGE}\nMaxStartups 100\nMaxSessions 100\nSetEnv {}\n",
        at.display(),
        environment.join(" "),
    )
}
