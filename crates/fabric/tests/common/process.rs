//! A second process for a test: the test program once more, with the other end of a socket pair as
//! its standard input.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use caravan_fabric::shm::{Listener, ShmEndpoint, connect};

const ROLE: &str = "CARAVAN_TEST_ROLE";

/// A process that plays `role`, and the control channel to it. It is killed when this is dropped.
#[derive(Debug)]
pub struct Other {
    pub process: Child,
    pub control: UnixStream,
}

impl Other {
    /// Starts the test `child` of this program in a process of its own.
    pub fn start(role: &str) -> Self {
        let (control, theirs) = UnixStream::pair().unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, control }
    }

    /// Waits for the process to end, and returns whether it succeeded.
    pub fn succeeded(mut self) -> bool {
        self.process.wait().unwrap().success()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the role of this process, if it is a second one.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Returns the control channel of a second process.
pub fn control() -> UnixStream {
    UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap())
}

/// Accepts a connection over the control channel.
pub fn accept_over(control: &mut UnixStream, arena_bytes: u64) -> ShmEndpoint {
    let (listener, descriptor) = Listener::listen(arena_bytes).unwrap();
    say(control, &descriptor);
    assert_eq!(hear(control), b"connected");
    listener.accept().unwrap()
}

/// Makes a connection over the control channel.
pub fn connect_over(control: &mut UnixStream) -> ShmEndpoint {
    let endpoint = connect(&hear(control)).unwrap();
    say(control, b"connected");
    endpoint
}

/// Sends one message of up to 255 bytes.
pub fn say(control: &mut UnixStream, message: &[u8]) {
    control.write_all(&[message.len() as u8]).unwrap();
    control.write_all(message).unwrap();
}

/// Receives one message.
pub fn hear(control: &mut UnixStream) -> Vec<u8> {
    let mut length = [0];
    control.read_exact(&mut length).unwrap();
    let mut message = vec![0; length[0].into()];
    control.read_exact(&mut message).unwrap();
    message
}

/// Returns the numbers of descriptors that this process has open, and of Caravan's files in /dev/shm: neither may grow.
pub fn possessions() -> (usize, usize) {
    let entries = |path: &str, part: &str| {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().contains(part)).count()
    };
    (entries("/proc/self/fd", ""), entries("/dev/shm", "caravan"))
}
