//! Helpers that all tests of the command share.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Returns the command, with an empty standard input.
pub fn caravan() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_caravan"));
    command.stdin(Stdio::null());
    command
}

/// Runs the command to its end.
pub fn run(words: &[&str]) -> Output {
    caravan().args(words).output().expect("the command starts")
}

/// Returns what a command that succeeded has printed.
pub fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Returns the JSON that a command that succeeded has printed.
pub fn json(output: &Output) -> Value {
    serde_json::from_str(&printed(output)).expect("JSON")
}

/// Sends a signal to a child.
pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("sent");
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until `is_so`, for what another process does.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A folder that is removed when the value is dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("caravan-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("made");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).expect("changed");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
