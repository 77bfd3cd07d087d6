//! The names of caps, and which of them the evidence speaks for.

use serde::{Deserialize, Serialize};

/// What keeps a bandwidth from growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapKind {
    /// The device itself.
    Device,
    /// The bus between it and the memory.
    Bus,
    /// A limit that a control group sets.
    ControlGroup,
    MemoryBandwidth,
    /// The kernel's work for each request.
    SystemCalls,
    /// The processor core that measures.
    OneCore,
}

impl CapKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Bus => "bus",
            Self::ControlGroup => "control group",
            Self::MemoryBandwidth => "memory bandwidth",
            Self::SystemCalls => "system calls",
            Self::OneCore => "one core",
        }
    }
}

/// A cap, and why it is that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCap {
    pub kind: CapKind,
    pub why: String,
}

impl NamedCap {
    pub fn new(kind: CapKind, why: String) -> Self {
        Self { kind, why }
    }
}
