//! Tests that need a process of their own: engines fork, which takes a process of one thread, and devices are tried in
//! network namespaces, which end with their process.
//!
//!     cargo test -p caravan-engine --test processes [PART OF A NAME]...
//!
//! Each scene is a child that runs this program again, so that a scene that fails or is interrupted leaves nothing
//! behind.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod devices;
mod kills;
mod moves;
mod random;
mod supervision;

use std::process::{Command, ExitCode};

/// The name of a scene, and its function.
type Scene = (&'static str, fn());

/// In front of the name of the scene that a child runs.
const SCENE: &str = "scene=";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let first = arguments.first().map_or("", String::as_str);
    if first == kills::killer::ARGUMENT {
        kills::killer::run();
        return ExitCode::SUCCESS;
    }
    let devices = devices::cases();
    let mut scenes = [supervision::SCENES, &[("moves", moves::run), ("kills", kills::run)]].concat();
    scenes.extend(devices.iter().flatten());
    if let Some(name) = first.strip_prefix(SCENE) {
        if devices.iter().flatten().any(|case| case.0 == name) {
            devices::enter_namespace();
        }
        let scene = scenes.iter().chain([&supervision::SUPERVISOR]).find(|scene| scene.0 == name);
        scene.expect("a scene of that name").1();
        return ExitCode::SUCCESS;
    }
    if let Err(why) = &devices {
        println!("devices: skipped: {why}");
    }
    // Cargo passes options of its own harness: the other words are names.
    let wanted: Vec<_> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    let mut failed = Vec::new();
    for (name, _) in scenes.into_iter().filter(|(name, _)| is_wanted(name)) {
        let status = this_program(name).status().expect("a child");
        println!("{name} ... {}", if status.success() { "ok" } else { "FAILED" });
        failed.extend((!status.success()).then_some(name));
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failed: {}", failed.join(", "));
    ExitCode::FAILURE
}

/// Returns the command that runs a scene.
fn this_program(scene: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.arg(format!("{SCENE}{scene}"));
    command
}
