//! The machine on which the figures were taken.

use std::fs;

use serde::Serialize;

use crate::placement::{self, CorePair};

/// The facts of a machine, which every table and every file of results names.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub processor: String,
    /// The number of cores that this process may use.
    pub cores: usize,
    pub memory_gib: Option<u64>,
    pub kernel: String,
    pub system: String,
    /// The cores of the two sides, if there are two.
    pub apart: Option<Apart>,
}

/// The distance between the two cores.
#[derive(Clone, Debug, Serialize)]
pub struct Apart {
    pub cores: CorePair,
    /// Nanoseconds of a cache line one way.
    pub line_ns: f64,
    pub placement: &'static str,
}

impl Machine {
    /// Reads /proc and measures the distance of two cores, which takes some milliseconds.
    pub fn here() -> Self {
        let cores = placement::cores();
        Self {
            processor: field("/proc/cpuinfo", "model name", ':').unwrap_or_else(|| "unknown".into()),
            cores: cores.len(),
            memory_gib: field("/proc/meminfo", "MemTotal", ':').and_then(|text| gib(&text)),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| "unknown".into(), |text| text.trim().to_owned()),
            system: field("/etc/os-release", "PRETTY_NAME", '=')
                .map_or_else(|| "Linux".into(), |text| text.trim_matches('"').to_owned()),
            apart: placement::pair(&cores).and_then(|cores| {
                let line_ns = placement::line_ns(cores).ok()?;
                Some(Apart { cores, line_ns, placement: placement::word(line_ns) })
            }),
        }
    }

    /// Describes the machine in one line.
    pub fn sentence(&self) -> String {
        let apart = self.apart.as_ref().map_or_else(String::new, |apart| {
            format!(
                "; cores {} are {} ({:.0} ns a cache line one way)",
                apart.cores, apart.placement, apart.line_ns
            )
        });
        let Self { cores, processor, kernel, system, .. } = self;
        format!("{cores} x {processor}, Linux {kernel}, {system}{apart}")
    }
}

/// Returns the value of the first line `key SEPARATOR value` of a file.
fn field(path: &str, key: &str, separator: char) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(separator)?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

/// Converts `16384 kB` to GiB, rounded.
fn gib(text: &str) -> Option<u64> {
    let kib: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some((kib + (1 << 19)) >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_rounded_to_gib() {
        assert_eq!(gib("16384000 kB"), Some(16));
        assert_eq!(gib("none"), None);
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_core() {
        let machine = Machine::here();
        assert!(machine.cores > 0);
        assert!(machine.sentence().contains(&machine.kernel), "{}", machine.sentence());
    }
}
