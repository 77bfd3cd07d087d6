//! How much memory there is for this process: on the host, or in its control group if that allows less.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The memory that this process can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// What the host has, or the most that the control group may use.
    pub total_bytes: u64,
    /// What of it is left, without what the kernel would free if it was needed.
    pub available_bytes: u64,
}

impl HostMemory {
    /// Reads how much memory there is now; `None` where the kernel does not say.
    pub fn read() -> Option<Self> {
        let text = read_to_string("/proc/meminfo").ok()?;
        let host = Self {
            total_bytes: field(&text, "MemTotal:")? * 1024,
            available_bytes: field(&text, "MemAvailable:")? * 1024,
        };
        let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
        Some(groups_of(&groups).filter_map(|group| group.memory()).fold(host, |least, group| Self {
            total_bytes: least.total_bytes.min(group.total_bytes),
            available_bytes: least.available_bytes.min(group.available_bytes),
        }))
    }
}

/// Returns the number behind a name in a text of lines with names and numbers.
fn field(text: &str, name: &str) -> Option<u64> {
    let words = |line: &'_ str| -> Option<u64> {
        let mut words = line.split_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    };
    text.lines().find_map(words)
}

/// A control group's folder, of either version.
struct ControlGroup {
    folder: PathBuf,
    is_first_version: bool,
}

/// Returns the control groups that limit the memory of the process whose `/proc/PID/cgroup` this is, and those above
/// them. In a container, some are not there.
fn groups_of(text: &str) -> impl Iterator<Item = ControlGroup> + '_ {
    text.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let root = match controllers {
            "" => Some(("/sys/fs/cgroup", false)),
            _ if controllers.split(',').any(|name| name == "memory") => Some(("/sys/fs/cgroup/memory", true)),
            _ => None,
        };
        root.into_iter().flat_map(move |(root, is_first_version)| {
            Path::new(path).ancestors().map(move |path| ControlGroup {
                folder: Path::new(root).join(path.strip_prefix("/").unwrap_or(path)),
                is_first_version,
            })
        })
    })
}

impl ControlGroup {
    /// Returns its memory, if it has a limit.
    fn memory(&self) -> Option<HostMemory> {
        let (limit, used, files) = match self.is_first_version {
            true => (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ["total_inactive_file", "total_active_file"],
            ),
            false => ("memory.max", "memory.current", ["inactive_file", "active_file"]),
        };
        let read = |name: &str| read_to_string(self.folder.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let total_bytes = number(limit)?;
        let used_bytes = number(used)?;
        let stat = read("memory.stat").unwrap_or_default();
        let freed_bytes: u64 = files.iter().filter_map(|name| field(&stat, name)).sum();
        let available_bytes = total_bytes.saturating_sub(used_bytes.saturating_sub(freed_bytes));
        Some(HostMemory { total_bytes, available_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_memory() {
        let host = HostMemory::read().expect("Linux says how much there is");
        assert!(host.total_bytes > 0 && host.available_bytes <= host.total_bytes, "{host:?}");
    }

    #[test]
    fn control_groups_are_found_in_both_versions() {
        let text = "4:cpu,memory:/a/b\n2:cpuset:/c\n0::/d\n";
        let found: Vec<_> = groups_of(text).map(|group| (group.folder, group.is_first_version)).collect();
        let expected = [
            ("/sys/fs/cgroup/memory/a/b", true),
            ("/sys/fs/cgroup/memory/a", true),
            ("/sys/fs/cgroup/memory", true),
            ("/sys/fs/cgroup/d", false),
            ("/sys/fs/cgroup", false),
        ];
        assert_eq!(found, expected.map(|(folder, is_first)| (PathBuf::from(folder), is_first)));
    }

    #[test]
    fn what_a_control_group_can_free_is_available() {
        let folder = std::env::temp_dir().join(format!("caravan-cgroup-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write("memory.current", "700\n");
        write("memory.stat", "anon 400\ninactive_file 100\nactive_file 50\nshmem 150\n");
        let group = ControlGroup { folder: folder.clone(), is_first_version: false };
        write("memory.max", "max\n");
        assert_eq!(group.memory(), None);
        write("memory.max", "1000\n");
        assert_eq!(group.memory(), Some(HostMemory { total_bytes: 1000, available_bytes: 450 }));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
