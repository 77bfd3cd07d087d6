//! Processes of a test: this test binary again, which runs one role and says by its status whether its checks
//! held.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use caravan_store::faults::{PlantedFault, plant};
use rustix::process::Pid;

use crate::{
    branches, copies, copy_kills, cuts, fixed, hunter, kills, memory, owner, save, successors, threads,
};

const ROLE: &str = "CARAVAN_STORE_TEST_ROLE";
const FAULT: &str = "CARAVAN_STORE_TEST_FAULT";
/// The status of a process whose checks found something wrong.
pub const CAUGHT: i32 = 42;

const FAULTS: &[PlantedFault] = &[
    PlantedFault::TornRead,
    PlantedFault::NoValidation,
    PlantedFault::NoRevalidation,
    PlantedFault::HastyAbsence,
    PlantedFault::UnjoinedBuckets,
    PlantedFault::NoRecord,
    PlantedFault::NoRedo,
    PlantedFault::RedoAlways,
    PlantedFault::RecordOfAnyTime,
    PlantedFault::LeakedReservation,
    PlantedFault::UnnotedChange,
    PlantedFault::UnlockedMemory,
    PlantedFault::AnsweredEarly,
    PlantedFault::SkippedRecord,
    PlantedFault::NoNewBytes,
    PlantedFault::FillBesideCommits,
    PlantedFault::NoStructureRecord,
    PlantedFault::OutOfOrder,
    PlantedFault::RecordOfAnyLap,
    PlantedFault::IgnoredLease,
    PlantedFault::ForeignRecords,
    PlantedFault::UnnotedBranch,
    PlantedFault::UnnotedDecision,
    PlantedFault::ForgottenBranch,
    PlantedFault::NeverClosed,
];

/// What a role does: with the descriptor of its parent's store, and whether a fault is planted.
type Role = fn(OwnedFd, bool) -> Result<(), String>;

const ROLES: &[(&str, Role)] = &[
    ("torn", hunter::read_values),
    ("classes", hunter::read_classes),
    ("limited", memory::make_within_a_limit),
    ("present", hunter::read_present),
    ("fixed", fixed::read_fixed),
    ("sums", threads::move_and_sum),
    ("claims", threads::claim_keys),
    ("counts", threads::count_up),
    ("owner", owner::own),
    ("lent", owner::own_lent),
    ("cuts", cuts::cut_commits),
    ("branches", branches::cut_transactions),
    ("newer", cuts::cut_then_write),
    ("mixture", cuts::mix_records),
    ("kills", kills::work),
    ("saves", save::save_under_writes),
    ("histories", copies::run_histories),
    ("ways", copies::run_ways),
    ("successors", successors::run_successors),
    ("copied owner", copy_kills::own),
    ("copy keeper", copy_kills::keep),
];

/// Sets a flag when dropped, so that no thread waits for one that has panicked.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A started process, killed when it is dropped.
pub struct Running(Child);

impl Running {
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    pub fn status(&mut self) -> i32 {
        self.0.wait().unwrap().code().expect("the process was killed")
    }

    /// Waits until it has ended, in whatever way.
    pub fn wait(&mut self) {
        self.0.wait().unwrap();
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn start(role: &str, fault: Option<PlantedFault>, descriptor: OwnedFd) -> Running {
    start_with_output(role, fault, descriptor, Stdio::null())
}

/// Starts a role that gets another descriptor as its output.
pub fn start_with_output(
    role: &str,
    fault: Option<PlantedFault>,
    descriptor: OwnedFd,
    output: impl Into<Stdio>,
) -> Running {
    start_with(role, fault, descriptor, output, None)
}

/// Starts a role with a variable of its environment, too.
pub fn start_with(
    role: &str,
    fault: Option<PlantedFault>,
    descriptor: OwnedFd,
    output: impl Into<Stdio>,
    variable: Option<(&str, String)>,
) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "children::child", "--quiet", "--nocapture"])
        .env(ROLE, role)
        .stdin(descriptor)
        .stdout(output)
        .envs(variable);
    if let Some(fault) = fault {
        command.env(FAULT, format!("{fault:?}")).stderr(Stdio::null());
    }
    Running(command.spawn().unwrap())
}

/// Runs a role that needs no store of its parent's.
pub fn status_of(role: &str, fault: Option<PlantedFault>) -> i32 {
    start(role, fault, std::fs::File::open("/dev/null").unwrap().into()).status()
}

#[test]
#[ignore = "run by other tests as a process of its own"]
fn child() {
    let Ok(name) = std::env::var(ROLE) else { return };
    let fault = std::env::var(FAULT).ok();
    if let Some(fault) = &fault {
        plant(*FAULTS.iter().find(|known| format!("{known:?}") == *fault).unwrap());
    }
    let (_, role) = ROLES.iter().find(|(known, _)| *known == name).unwrap();
    let descriptor = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    if let Err(text) = role(descriptor, fault.is_some()) {
        eprintln!("{name}: {text}");
        std::process::exit(CAUGHT);
    }
}
