//! Processes of a test: this test program again, which runs one role.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use caravan_store::faults::{PlantedFault, plant};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::clients::{self, ClientOrder};
use super::rig::{self, ServerOrder};
use super::several::{self, KeeperOrder};

const ORDER: &str = "CARAVAN_HISTORY_ORDER";
/// How long a process may take to begin or to end.
pub const LIMIT: Duration = Duration::from_secs(60);

/// What a process is to do, and the fault of the store's that is planted in it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    pub role: Role,
    pub planted: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Role {
    Client(ClientOrder),
    Server(ServerOrder),
    Keeper(KeeperOrder),
}

/// The faults that a process can be told to plant.
const FAULTS: &[PlantedFault] = &[
    PlantedFault::TornRead,
    PlantedFault::NoValidation,
    PlantedFault::NoRevalidation,
    PlantedFault::IgnoredRequirement,
    PlantedFault::AnsweredEarly,
    PlantedFault::SkippedRecord,
    PlantedFault::IgnoredLease,
    PlantedFault::UnnotedBranch,
    PlantedFault::UnnotedDecision,
    PlantedFault::ForgottenBranch,
    PlantedFault::NeverClosed,
];

/// A started process, killed when it is dropped.
pub struct Running(Child);

impl Running {
    pub fn stdout(&mut self) -> ChildStdout {
        self.0.stdout.take().expect("taken once")
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, signal: Signal) {
        // It fails only for a process that has ended by itself, which its status tells.
        let _ = kill_process(Pid::from_child(&self.0), signal);
    }

    /// Waits for its end, and returns whether it was content; not so if it was killed.
    pub fn is_content(&mut self) -> bool {
        let begin = Instant::now();
        loop {
            match self.0.try_wait().expect("waited") {
                Some(status) => return status.success(),
                None => assert!(begin.elapsed() < LIMIT, "a process does not end"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills it, and waits for its end.
    pub fn end(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("waited");
    }

    /// Returns whether it has ended before it was killed.
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("waited").is_some()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It fails only for a process that has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a process with this standard input and output.
pub fn start(order: &Order, input: OwnedFd, output: Stdio) -> Running {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command
        .args(["--ignored", "--exact", "histories::children::child", "--quiet", "--nocapture"])
        .env(ORDER, serde_json::to_string(order).expect("JSON"))
        .stdin(input)
        .stdout(output);
    Running(command.spawn().expect("started"))
}

/// Returns the order that this process or the one that has started it was given, and plants the fault.
pub fn order() -> Option<Order> {
    // A test that is ended leaves nobody behind.
    let order: Order = serde_json::from_str(&std::env::var(ORDER).ok()?).expect("an order");
    set_parent_process_death_signal(Some(Signal::KILL)).expect("set");
    if let Some(name) = &order.planted {
        plant(*FAULTS.iter().find(|known| format!("{known:?}") == *name).expect("a fault"));
    }
    Some(order)
}

#[test]
#[ignore = "run by other tests as a process of its own"]
fn child() {
    let Some(order) = order() else { return };
    let input = std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor");
    let done = match &order.role {
        Role::Client(order) => clients::run(input, order),
        Role::Server(order) => rig::serve(input, order),
        Role::Keeper(order) => several::keep(order),
    };
    // At once: the harness would go on to write to an output that may be closed.
    if let Err(text) = done {
        eprintln!("{:?}: {text}", order.role);
        std::process::exit(1);
    }
    std::process::exit(0);
}
