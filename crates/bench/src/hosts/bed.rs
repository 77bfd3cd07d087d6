//! The hosts, daemons and input file of a benchmark between hosts.

use std::cell::Cell;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};

use crate::error::Error;
use crate::hosts::cpu;
use crate::interrupt::Interrupt;
use crate::pipe::PipeInput;
use crate::process::{ChildProgram, failed, is_installed, run};
use crate::scratch::{Scratch, random_word};

/// Hosts, daemons, and a file to send. Dropping it ends all processes that it has started, and removes the rest.
pub struct Bed {
    pub daemons: Daemons,
    pub input: PipeInput,
    pub interrupt: Interrupt,
    // Fields are dropped in this order: processes in a namespace before the namespace, and the folder last.
    _children: Children,
    pub net: Net,
    scratch: Scratch,
}

impl Bed {
    pub fn new(net: Net, bytes: u64, interrupt: &Interrupt) -> Result<Self, Error> {
        let scratch = Scratch::create()?;
        let children = Children;
        let daemons = Daemons::start(&net, scratch.path(), interrupt)?;
        let input = PipeInput::create(bytes)?;
        Ok(Self { daemons, input, interrupt: interrupt.clone(), _children: children, net, scratch })
    }

    /// Returns a file for the output of a program.
    pub fn log(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Returns this program on host a, with both hosts in its ssh's configuration.
    pub fn caravan(&self, command: &str) -> Command {
        let mut caravan = self.net.a.command(&program());
        caravan.args([command, "-F"]).arg(&self.daemons.config);
        if !self.net.is_veth() {
            // Both are one host, for which it would use a pipe.
            caravan.args(["-t", "tcp"]);
        }
        caravan.stdin(Stdio::null()).stdout(Stdio::null());
        caravan
    }
}

/// Returns a path to this program itself, for any process: its own path may meanwhile lead to another build.
pub fn program() -> String {
    format!("/proc/{}/exe", std::process::id())
}

/// All processes that this one has started; dropping it ends them.
struct Children;

impl Drop for Children {
    fn drop(&mut self) {
        cpu::kill_all();
    }
}

/// The start of every namespace's name; the pid of this process, a random word and `a` or `b` follow.
const PREFIX: &str = "caravan-bench-";
/// The folder where iproute2 keeps namespaces (ip-netns(8)).
const NAMESPACES: &str = "/run/netns";
/// The name of the interface at both ends.
const INTERFACE: &str = "veth0";
/// The subnet of both hosts.
const SUBNET: &str = "10.0.0.0/24";
/// The first port that is given out in namespaces, where nobody else takes any.
const FIRST_PORT: u16 = 20_000;
/// A queue of ten gigabits per second, with the bytes that pass at once and how long others may wait.
const TBF: [&str; 7] = ["tbf", "rate", "10gbit", "burst", "1mb", "latency", "10ms"];

/// One host.
#[derive(Debug)]
pub struct BenchHost {
    /// The name in ssh's configuration.
    pub name: &'static str,
    pub address: IpAddr,
    namespace: Option<String>,
}

impl BenchHost {
    /// Returns a command that runs on the host.
    pub fn command(&self, program: &str) -> Command {
        let Some(namespace) = &self.namespace else { return Command::new(program) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, program]);
        command
    }

    fn ip(&self, words: &str) -> Result<(), Error> {
        let mut command = Command::new("ip");
        command.args(self.namespace.iter().flat_map(|name| ["-n", name])).args(words.split(' '));
        run("ip (package iproute2)", command)
    }
}

/// Both hosts, and the network between them. Dropping it removes them.
#[derive(Debug)]
pub struct Net {
    pub a: BenchHost,
    pub b: BenchHost,
    next_port: Cell<u16>,
}

impl Net {
    /// Returns two addresses of this host.
    pub fn loopback() -> Self {
        let place =
            |name, last| BenchHost { name, address: Ipv4Addr::new(127, 0, 0, last).into(), namespace: None };
        Self { a: place("a", 2), b: place("b", 3), next_port: Cell::new(0) }
    }

    /// Creates two namespaces; this takes root.
    pub fn veth() -> Result<Self, Error> {
        remove_abandoned();
        let word = random_word()?;
        let stem = format!("{PREFIX}{}-{}", std::process::id(), word.get(..8).unwrap_or_default());
        let place = |name, last| BenchHost {
            name,
            address: Ipv4Addr::new(10, 0, 0, last).into(),
            namespace: Some(format!("{stem}-{name}")),
        };
        // From here on, whatever exists is removed in any case.
        let net = Self { a: place("a", 1), b: place("b", 2), next_port: Cell::new(FIRST_PORT) };
        for place in net.places() {
            let mut command = Command::new("ip");
            command.args(["netns", "add"]).args(&place.namespace);
            run("ip (package iproute2)", command)?;
        }
        let other = net.b.namespace.as_deref().unwrap_or_default();
        net.a.ip(&format!("link add {INTERFACE} type veth peer name {INTERFACE} netns {other}"))?;
        for place in net.places() {
            place.ip(&format!("addr add {}/24 dev {INTERFACE}", place.address))?;
            place.ip("link set lo up")?;
            place.ip(&format!("link set {INTERFACE} up"))?;
            // Every tool's connections are as fast as possible: over a short distance bbr, the default of some
            // systems, has half of the rate of cubic. To set a namespace's own default would need the machine's
            // permission.
            place
                .ip(&format!("route change {SUBNET} dev {INTERFACE} src {} congctl cubic", place.address))?;
        }
        Ok(net)
    }

    /// True if the hosts are namespaces, apart from this host's own network.
    pub fn is_veth(&self) -> bool {
        self.a.namespace.is_some()
    }

    /// Limits the traffic from a to b to ten gigabits per second, or removes the limit.
    pub fn limit(&self, is_limited: bool) -> Result<(), Error> {
        if !self.is_veth() {
            return Err(Error::Sentence("it takes network namespaces".to_owned()));
        }
        let mut command = self.a.command("tc");
        command.args(["qdisc", if is_limited { "add" } else { "del" }, "dev", INTERFACE, "root"]);
        command.args(TBF.iter().filter(|_| is_limited));
        run("tc (package iproute2)", command)
    }

    /// Returns a TCP port of b at which nobody listens.
    pub fn free_port(&self) -> Result<u16, Error> {
        if self.is_veth() {
            let port = self.next_port.get();
            self.next_port.set(port.checked_add(1).unwrap_or(FIRST_PORT));
            return Ok(port);
        }
        let free = TcpListener::bind((self.b.address, 0)).and_then(|listener| listener.local_addr());
        free.map(|address| address.port()).map_err(|why| failed("network", &why))
    }

    /// Returns the bytes that the interface has received, in the network namespace of that process.
    pub fn received_bytes(&self, pid: u32) -> u64 {
        let name = if self.is_veth() { INTERFACE } else { "lo" };
        let table = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
        table.lines().find_map(|line| received(line, name)).unwrap_or(0)
    }

    fn places(&self) -> [&BenchHost; 2] {
        [&self.a, &self.b]
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in self.places().into_iter().filter_map(|place| place.namespace.as_deref()) {
            delete(name);
        }
    }
}

/// Parses a line of /proc/net/dev: `name: bytes packets ...`.
fn received(line: &str, name: &str) -> Option<u64> {
    let (interface, figures) = line.split_once(':')?;
    (interface.trim() == name).then(|| figures.split_whitespace().next()?.parse().ok()).flatten()
}

/// Removes the namespaces of benchmarks that have ended, with the processes in them.
fn remove_abandoned() {
    let Ok(entries) = fs::read_dir(NAMESPACES) else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let is_gone = |pid: &str| !Path::new("/proc").join(pid).exists();
        if owner.is_some_and(|pid| pid.parse::<u32>().is_ok() && is_gone(pid)) {
            kill_in(&name);
            delete(&name);
        }
    }
}

/// Kills the processes in a namespace of ours.
fn kill_in(name: &str) {
    let Ok(listed) = Command::new("ip").args(["netns", "pids", name]).output() else { return };
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    for pid in text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
        // The process may have ended meanwhile.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

fn delete(name: &str) {
    // A namespace that was never made cannot be deleted.
    let _ = Command::new("ip").args(["netns", "del", name]).output();
}

/// Returns why namespaces are impossible; `None` if they are possible.
pub fn obstacle() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces take root: run it with sudo");
    }
    (!is_installed("ip") || !is_installed("tc"))
        .then_some("ip and tc are not installed: apt install iproute2")
}

const SSHD: &str = "/usr/sbin/sshd";
/// The folder that Debian's package creates at boot; sshd needs it when root runs it.
const PRIVILEGE_FOLDER: &str = "/run/sshd";
/// The cipher of all sessions: the fastest that ssh has.
const CIPHER: &str = "aes128-gcm@openssh.com";

/// How long sessions stay without use: longer than a round takes, and not for ever where this process is killed.
const PERSIST: &str = "10m";

/// The sshd of each host.
#[derive(Debug)]
pub struct Daemons {
    _a: ChildProgram,
    pub b: ChildProgram,
    /// The file for `ssh -F`, with hosts `a` and `b` and sessions that stay.
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
            // If the folder exists, all is well; otherwise sshd reports what it lacks.
            let _ = std::fs::create_dir(PRIVILEGE_FOLDER);
        }
        let key = read(&folder.join("host.pub"))?;
        write(&folder.join("authorized"), &read(&folder.join("key.pub"))?)?;
        let (mut known, mut config) = (String::new(), String::new());
        let mut start = |place: &BenchHost| {
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

fn daemon(place: &BenchHost, port: u16, folder: &Path, interrupt: &Interrupt) -> Result<ChildProgram, Error> {
    let (at, name) = (folder.display(), place.name);
    // Each host has a home of its own: Caravan's files there are removed with it, and the start-up files of the user's
    // shell do not affect any figure.
    let own = folder.join(name);
    std::fs::create_dir(&own).map_err(Error::file("make", &own))?;
    let own = own.display();
    let config = format!(
        "Port {port}\nListenAddress {}\nHostKey {at}/host\nAuthorizedKeysFile {at}/authorized\nPidFile none\n\
         StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n\
         SetEnv HOME={own} TMPDIR={own} XDG_CACHE_HOME={own}\n",
        place.address
    );
    let path = folder.join(format!("sshd_config-{name}"));
    write(&path, &config)?;
    // The daemon ends with this process, even if that is killed.
    let mut command = place.command("setpriv");
    command
        .args(["--pdeathsig", "KILL", SSHD, "-D", "-e", "-f"])
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut daemon = ChildProgram::logged("sshd", command, &folder.join(format!("sshd-{name}.log")))?;
    daemon.until_listening(port, interrupt)?;
    Ok(daemon)
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(Error::file("write", path))
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(Error::file("read", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_are_those_of_the_interface() {
        assert_eq!(received("  veth0: 123 4 0 0 0 0 0 0 99 1", "veth0"), Some(123));
        assert_eq!(received("    lo: 123 4", "veth0"), None);
        assert_eq!(received("Inter-|   Receive", "veth0"), None);
    }

    #[test]
    fn loopback_has_two_addresses_and_free_ports() {
        let net = Net::loopback();
        assert_ne!(net.a.address, net.b.address);
        assert!(net.free_port().expect("a port") > 0 && !net.is_veth());
        assert_eq!(net.a.command("true").get_program(), "true");
    }
}
