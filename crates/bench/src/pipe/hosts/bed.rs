//! All that a benchmark between hosts stands on.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::super::input::Input;
use super::cpu;
use super::net::Net;
use super::sshd::Daemons;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::scratch::Scratch;

/// Hosts, daemons, and a file to send. Dropping it ends all that it has started, and removes the rest.
pub struct Bed {
    pub daemons: Daemons,
    pub input: Input,
    pub interrupt: Interrupt,
    // Declared behind the daemons: what runs in a namespace ends before it goes, and the folder goes last.
    _children: Children,
    pub net: Net,
    scratch: Scratch,
}

impl Bed {
    pub fn new(net: Net, bytes: u64, interrupt: &Interrupt) -> Result<Self, Error> {
        let scratch = Scratch::create()?;
        let children = Children;
        let daemons = Daemons::start(&net, scratch.path(), interrupt)?;
        let input = Input::create(bytes)?;
        Ok(Self { daemons, input, interrupt: interrupt.clone(), _children: children, net, scratch })
    }

    /// A file for what a program says.
    pub fn log(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// This program on host a, with both hosts in its ssh's configuration.
    pub fn caravan(&self, command: &str) -> Command {
        let mut caravan = self.net.a.command(&self.program());
        caravan.args([command, "-F"]).arg(&self.daemons.config);
        if !self.net.is_veth() {
            // Both are one host, where it would take a pipe.
            caravan.args(["-t", "tcp"]);
        }
        caravan.stdin(Stdio::null()).stdout(Stdio::null());
        caravan
    }

    /// This program itself: not by its path, which may meanwhile be another build's.
    pub fn program(&self) -> String {
        program()
    }
}

/// This program itself, for any process.
pub fn program() -> String {
    format!("/proc/{}/exe", std::process::id())
}

/// All that this process has started; dropping it ends them.
struct Children;

impl Drop for Children {
    fn drop(&mut self) {
        cpu::kill_all();
    }
}
