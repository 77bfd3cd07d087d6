//! Tests between two hosts. On the other host the test `agent` starts processes, and runs commands, as it
//! is told over TCP; a process that it started talks to its test over the connection that requested it.

use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use caravan_fabric::{Error, Link, verbs};

use super::{PATIENCE, forge};

/// The port that the agent listens on.
const PORT: u16 = 7471;
const ROLE: &str = "CARAVAN_TEST_ROLE";

/// Sends one message.
pub fn say(control: &mut impl Write, message: &[u8]) -> Result<()> {
    control.write_all(&(message.len() as u32).to_le_bytes())?;
    control.write_all(message)
}

/// Receives one message.
pub fn hear(control: &mut impl Read) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    control.read_exact(&mut length)?;
    let mut message = vec![0; u32::from_le_bytes(length) as usize];
    control.read_exact(&mut message)?;
    Ok(message)
}

/// A process on the other host. It is killed when this is dropped.
#[derive(Debug)]
pub struct Remote {
    pub control: TcpStream,
    pub pid: u32,
}

impl Remote {
    /// Starts the test `child` of this program on the other host.
    pub fn start(role: &str) -> Self {
        let mut control = ask(&format!("play {role}"));
        let pid = hear(&mut control).unwrap();
        Self { control, pid: String::from_utf8(pid).unwrap().parse().unwrap() }
    }

    /// Sends the process a signal; returns when it has been delivered.
    pub fn signal(&self, name: &str) {
        assert!(there(&format!("kill -{name} {}", self.pid)), "kill -{name}");
    }

    /// Checks that the process has done its part.
    pub fn succeeded(&mut self) {
        assert_eq!(hear(&mut self.control).expect("the other process failed"), b"done");
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = there(&format!("kill -KILL {} 2>/dev/null", self.pid));
    }
}

/// Runs a shell command on the other host; true if it succeeded.
pub fn there(command: &str) -> bool {
    hear(&mut ask(&format!("run {command}"))).is_ok_and(|said| said == b"0")
}

/// Runs a shell command on this host; true if it succeeded.
pub fn here(command: &str) -> bool {
    Command::new("sh").args(["-c", command]).status().unwrap().success()
}

/// Sends a request to the agent. Tries again: the agent starts when the other host does, and the wire may be coming
/// back.
fn ask(what: &str) -> TcpStream {
    let (begun, peer) = (Instant::now(), std::env::var("VERBS_PEER_IP").unwrap());
    loop {
        match TcpStream::connect((peer.as_str(), PORT)) {
            Ok(mut control) => {
                control.set_read_timeout(Some(PATIENCE)).unwrap();
                say(&mut control, what.as_bytes()).unwrap();
                return control;
            }
            Err(error) if begun.elapsed() > PATIENCE => panic!("the other host has no agent: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Serves the other host until its first connection ends.
pub fn agent() {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
    let (mut leash, _) = listener.accept().unwrap();
    std::thread::spawn(move || {
        for control in listener.incoming() {
            std::thread::spawn(|| serve(control.unwrap()));
        }
    });
    while leash.read(&mut [0]).is_ok_and(|count| count > 0) {}
}

fn serve(mut control: TcpStream) {
    let Ok(said) = hear(&mut control) else { return };
    let said = String::from_utf8(said).unwrap();
    if let Some(command) = said.strip_prefix("run ") {
        let status = if here(command) { "0" } else { "1" };
        // The requesting test may have gone on.
        let _ = say(&mut control, status.as_bytes());
    } else if let Some(role) = said.strip_prefix("play ") {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(OwnedFd::from(control))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        process.wait().unwrap();
    }
}

/// Returns the role and the control channel of the test `child`, if this process is one.
pub fn role() -> Option<(String, TcpStream)> {
    let role = std::env::var(ROLE).ok()?;
    let mut control = TcpStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    control.set_read_timeout(None).unwrap();
    say(&mut control, std::process::id().to_string().as_bytes()).unwrap();
    Some((role, control))
}

/// How two sides make a link.
#[derive(Clone, Copy, Debug)]
pub struct Meeting {
    pub ring_bytes: u64,
    /// This side is the initiating one.
    pub initiates: bool,
    /// The sides use IPv6 addresses only, or IPv4.
    pub v6: bool,
    /// The time limit for the whole connection.
    pub limit: Duration,
}

impl Meeting {
    /// Makes this side's end of the link, over the control channel.
    pub fn link(self, control: &mut TcpStream) -> std::result::Result<Link, Error> {
        let exposure = Link::exposure(self.ring_bytes)?;
        let (pending, answer) = if self.initiates {
            let offer = forge::only_family(&hear(control).unwrap(), self.v6);
            let (pending, request) = verbs::connect(&offer, &exposure)?;
            say(control, &request).unwrap();
            (pending, hear(control).unwrap())
        } else {
            say(control, &verbs::offer()?).unwrap();
            let (pending, answer) = verbs::accept(&hear(control).unwrap(), &exposure)?;
            say(control, &answer).unwrap();
            (pending, Vec::new())
        };
        Link::new(pending.finish(&answer, self.limit)?, self.ring_bytes)
    }
}
