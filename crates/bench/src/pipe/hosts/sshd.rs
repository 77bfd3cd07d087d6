//! An sshd of the benchmark's own on each host, and ssh's configuration for both: keys, ports and sessions are
//! in the benchmark's folder and go with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::net::{Net, Place};
use super::process::{Running, failed, is_installed, run};
use crate::error::Error;
use crate::interrupt::Interrupt;

const SSHD: &str = "/usr/sbin/sshd";
/// What Debian's package makes at boot; sshd of root wants it.
const PRIVILEGE_FOLDER: &str = "/run/sshd";
/// The cipher of all sessions: the fastest that ssh has.
const CIPHER: &str = "aes128-gcm@openssh.com";

/// How long sessions stay without use: longer than a round takes, and not for ever where this process is killed.
const PERSIST: &str = "10m";

/// Both daemons.
#[derive(Debug)]
pub struct Daemons {
    _a: Running,
    pub b: Running,
    /// For `ssh -F`: hosts `a` and `b`, with sessions that stay.
    pub config: PathBuf,
}

impl Daemons {
    pub fn start(net: &Net, folder: &Path, interrupt: &Interrupt) -> Result<Self, Error> {
        if !Path::new(SSHD).exists() || !is_installed("ssh") {
            return Err(failed(
                "ssh server",
                &"sshd is not installed: apt install openssh-server openssh-client",
            ));
        }
        for name in ["host", "key"] {
            let mut keygen = Command::new("ssh-keygen");
            run("ssh-keygen", {
                keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(name));
                keygen
            })?;
        }
        if rustix::process::geteuid().is_root() {
            // It is there already, or sshd says what it lacks.
            let _ = std::fs::create_dir(PRIVILEGE_FOLDER);
        }
        let key = read(&folder.join("host.pub"))?;
        write(&folder.join("authorized"), &read(&folder.join("key.pub"))?)?;
        let (mut known, mut config) = (String::new(), String::new());
        let mut start = |place: &Place| {
            let port = net.free_port()?;
            let daemon = daemon(place, port, folder, interrupt)?;
            known.push_str(&format!("[{}]:{port} {key}", place.address));
            config.push_str(&format!("Host {}\n HostName {}\n Port {port}\n", place.name, place.address));
            Ok::<_, Error>(daemon)
        };
        let (a, b) = (start(&net.a)?, start(&net.b)?);
        write(&folder.join("known_hosts"), &known)?;
        let at = folder.display();
        config.push_str(&format!(
            "Host *\n IdentityFile {at}/key\n IdentitiesOnly yes\n UserKnownHostsFile {at}/known_hosts\n \
             GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking yes\n BatchMode yes\n Ciphers {CIPHER}\n \
             Compression no\n ControlMaster auto\n ControlPath {at}/session-%n\n ControlPersist {PERSIST}\n"
        ));
        let path = folder.join("ssh_config");
        write(&path, &config)?;
        Ok(Self { _a: a, b, config: path })
    }
}

fn daemon(place: &Place, port: u16, folder: &Path, interrupt: &Interrupt) -> Result<Running, Error> {
    let (at, name) = (folder.display(), place.name);
    // A home of its own for each host: what Caravan leaves there goes with it, and what the user's shell does
    // when it starts is no part of any figure.
    let own = folder.join(name);
    std::fs::create_dir(&own).map_err(|source| Error::File { what: "make", path: own.clone(), source })?;
    let own = own.display();
    let config = format!(
        "Port {port}\nListenAddress {}\nHostKey {at}/host\nAuthorizedKeysFile {at}/authorized\nPidFile none\n\
         StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n\
         SetEnv HOME={own} TMPDIR={own} XDG_CACHE_HOME={own}\n",
        place.address
    );
    let path = folder.join(format!("sshd_config-{name}"));
    write(&path, &config)?;
    // It ends with this process, even if that is killed.
    let mut command = place.command("setpriv");
    command
        .args(["--pdeathsig", "KILL", SSHD, "-D", "-e", "-f"])
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut daemon = Running::start("sshd", command, &folder.join(format!("sshd-{name}.log")))?;
    daemon.until_listening(port, interrupt)?;
    Ok(daemon)
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|source| Error::File { what: "write", path: path.to_owned(), source })
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|source| Error::File {
        what: "read",
        path: path.to_owned(),
        source,
    })
}
