//! What may cap a disk from outside: the bus to it, and the limits of control groups.

use std::fs;
use std::path::{Path, PathBuf};

/// A rate that something sets, and what sets it.
#[derive(Clone, Debug, PartialEq)]
pub struct SetRate {
    pub bytes_per_s: Option<f64>,
    pub requests_per_s: Option<f64>,
    pub what: String,
}

/// Returns the folder of a device in /sys: that of the whole disk for a partition.
fn folder(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let folder = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    match folder.join("partition").exists() {
        true => folder.parent().map(Path::to_owned),
        false => Some(folder),
    }
}

/// Returns the rate of the PCI Express link that leads to a device, if one does.
pub fn bus(device: u64) -> Option<SetRate> {
    let folder = folder(device)?;
    folder.ancestors().find_map(|folder| {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let bytes_per_s = pci_express(&read("current_link_speed")?, &read("current_link_width")?)?;
        let what = format!("the PCI Express link at {}", folder.display());
        Some(SetRate { bytes_per_s: Some(bytes_per_s), requests_per_s: None, what })
    })
}

/// Returns the bytes a second of a link such as `8.0 GT/s PCIe` and `4`: up to the second generation 8 of 10 bits are data,
/// from the third on 128 of 130.
fn pci_express(speed: &str, width: &str) -> Option<f64> {
    let speed: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let width: f64 = width.trim().parse().ok().filter(|width| *width > 0.0)?;
    let data = if speed < 8.0 { 0.8 } else { 128.0 / 130.0 };
    Some(speed * 1e9 * data * width / 8.0)
}

/// Returns the limits that control groups set for reads or writes of a device.
pub fn control_groups(device: u64, is_write: bool) -> Vec<SetRate> {
    let number = folder(device).and_then(|folder| fs::read_to_string(folder.join("dev")).ok());
    let Some(number) = number.map(|text| text.trim().to_owned()) else { return Vec::new() };
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = |folder: PathBuf| limit_of(&folder, &number, is_write);
    groups.lines().flat_map(folders).filter_map(limit).collect()
}

/// Returns where the files of a line of /proc/self/cgroup may be, and those of the groups above it.
fn folders(line: &str) -> Vec<PathBuf> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let roots: &[&str] = match controllers {
        "" => &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
        _ if controllers.split(',').any(|name| name == "blkio") => &["/sys/fs/cgroup/blkio"],
        _ => &[],
    };
    let below = |root: &&str| {
        let root = PathBuf::from(root);
        let groups = Path::new(path).ancestors();
        groups.map(move |group| root.join(group.strip_prefix("/").unwrap_or(group))).collect::<Vec<_>>()
    };
    roots.iter().flat_map(below).collect()
}

fn limit_of(folder: &Path, device: &str, is_write: bool) -> Option<SetRate> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let what = if is_write { "write" } else { "read" };
    let letter = if is_write { 'w' } else { 'r' };
    let (bytes_per_s, requests_per_s, name) = match io_max(&read("io.max"), device, letter) {
        (None, None) => {
            let of =
                |unit: &str| first_version(&read(&format!("blkio.throttle.{what}_{unit}_device")), device);
            (of("bps"), of("iops"), format!("blkio.throttle.{what}"))
        }
        (bytes, requests) => (bytes, requests, "io.max".to_owned()),
    };
    let what = format!("{name} in {}", folder.display());
    (bytes_per_s.is_some() || requests_per_s.is_some()).then_some(SetRate {
        bytes_per_s,
        requests_per_s,
        what,
    })
}

/// Parses `8:16 rbps=2097152 wbps=max riops=max wiops=120`.
fn io_max(text: &str, device: &str, letter: char) -> (Option<f64>, Option<f64>) {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(device)).unwrap_or_default();
    let of = |unit: &str| {
        let name = format!("{letter}{unit}=");
        line.split_whitespace().find_map(|word| word.strip_prefix(&name)?.parse().ok())
    };
    (of("bps"), of("iops"))
}

/// Parses `8:16 2097152`.
fn first_version(text: &str, device: &str) -> Option<f64> {
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next()? == device).then(|| words.next()?.parse().ok())?
    };
    text.lines().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_the_rate_of_its_lanes() {
        let rate = |speed, width| pci_express(speed, width).map(|rate| (rate / 1e6).round());
        assert_eq!(rate("8.0 GT/s PCIe\n", "4\n"), Some(3938.0));
        assert_eq!(rate("5.0 GT/s PCIe", "8"), Some(4000.0));
        assert_eq!(rate("Unknown", "0"), None);
    }

    #[test]
    fn limits_of_both_versions_are_read() {
        let text =
            "8:0 rbps=1000 wbps=max riops=max wiops=9\n8:16 rbps=2097152 wbps=max riops=max wiops=120\n";
        assert_eq!(io_max(text, "8:16", 'r'), (Some(2_097_152.0), None));
        assert_eq!(io_max(text, "8:16", 'w'), (None, Some(120.0)));
        assert_eq!(io_max(text, "8:32", 'r'), (None, None));
        assert_eq!(first_version("8:0 1\n8:16 5000\n", "8:16"), Some(5000.0));
    }

    #[test]
    fn groups_are_looked_for_up_to_the_root() {
        let shown = |line| folders(line).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(
            shown("4:blkio:/a/b"),
            ["/sys/fs/cgroup/blkio/a/b", "/sys/fs/cgroup/blkio/a", "/sys/fs/cgroup/blkio/"]
        );
        assert_eq!(shown("0::/x")[0], "/sys/fs/cgroup/x");
        assert!(shown("3:memory:/a").is_empty());
    }
}
