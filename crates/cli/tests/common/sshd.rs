//! An sshd of a test's own, for what goes to another host.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::{Folder, caravan};

/// A script of sh.
pub fn program(path: &Path, script: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{script}\n")).expect("written");
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).expect("changed");
}

/// An sshd on the loopback interface that lets this user in by a key of its own.
pub struct Sshd {
    pub folder: Folder,
    port: u16,
    daemon: Child,
}

impl Sshd {
    pub fn start() -> Self {
        let folder = Folder::new();
        let at = folder.path();
        for name in ["host", "key"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at.join(name)).stdin(Stdio::null());
            assert!(keygen.status().expect("ssh-keygen (package openssh-client)").success());
        }
        std::fs::create_dir(at.join("tmp")).expect("made");
        std::fs::copy(at.join("key.pub"), at.join("authorized")).expect("copied");
        // What Debian's package makes at boot; sshd of root wants it.
        let _ = std::fs::create_dir("/run/sshd");
        let (port, daemon) = (0..10).find_map(|_| listen(at)).expect("sshd listens");
        let key = std::fs::read_to_string(at.join("host.pub")).expect("a key");
        std::fs::write(at.join("known_hosts"), format!("[127.0.0.1]:{port} {key}")).expect("written");
        std::fs::write(at.join("empty"), "").expect("written");
        Self { folder, port, daemon }
    }

    /// `caravan selftest` towards it, but for more options.
    pub fn selftest(&self) -> Command {
        let at = self.folder.path();
        let mut command = caravan();
        command.args(["selftest", "127.0.0.1", "-p", &self.port.to_string(), "-i"]).arg(at.join("key"));
        command.arg("-F").arg(at.join("empty"));
        let known = format!("UserKnownHostsFile={}", at.join("known_hosts").display());
        command.args(["-o", &known, "-o", "GlobalKnownHostsFile=/dev/null"]);
        command.args(["-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes"]);
        command
    }

    /// No process of the copied program is there, and no file of it.
    pub fn is_clean(&self) -> bool {
        let tmp = self.folder.path().join("tmp");
        let no_file = std::fs::read_dir(&tmp).expect("a folder").next().is_none();
        let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
        let mut programs = processes.filter_map(|entry| std::fs::read_link(entry.path().join("exe")).ok());
        no_file && !programs.any(|program| program.starts_with(&tmp))
    }
}

/// `None` if something else took the port.
fn listen(at: &Path) -> Option<(u16, Child)> {
    let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
    let folder = at.display();
    let config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n\
         PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nSetEnv TMPDIR={folder}/tmp\n"
    );
    std::fs::write(at.join("sshd_config"), config).expect("written");
    let mut command = Command::new("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f"]).arg(at.join("sshd_config")).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut daemon = command.spawn().expect("/usr/sbin/sshd (package openssh-server)");
    let errors = daemon.stderr.take().expect("a pipe");
    let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
    if lines.any(|line| line.contains("Server listening")) {
        // It goes on complaining, and must not block.
        std::thread::spawn(move || lines.for_each(drop));
        return Some((port, daemon));
    }
    let _ = daemon.wait();
    None
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
