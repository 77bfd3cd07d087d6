//! Checks whether a configuration can be carried out, before anything is changed.
//!
//! All mistakes are found at once. Each is a sentence that says what is wrong, where, and what
//! would be right.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use caravan_segment::printable;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::{AppPort, Config, LinkName};
use crate::app::{AppKind, FileUse, Named, Registry};
use crate::limits::{APPS_MAX, CONFIG_BYTES_MAX, GRANT_PACKETS, LINKS_MAX, NAME_BYTES_MAX, WORKERS_MAX};

/// The number of existing names listed beside a wrong one at most.
const LISTED_MAX: usize = 24;
/// The number of names offered in place of one that does not exist, at most.
const NEAREST_MAX: usize = 3;
/// The similarity from which a name is offered: 1 means equal (Jaro's measure).
const NEAR: f64 = 0.8;

/// The part of a configuration that a mistake is in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigPart {
    /// The whole configuration.
    Whole,
    /// An app.
    App(String),
    /// A link.
    Link(LinkName),
    /// A worker, by its own table or by the apps that name it.
    Worker(String),
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The part that it is in.
    pub part: ConfigPart,
    /// A sentence about it that can stand alone.
    pub text: String,
}

/// Returns every mistake of a configuration as a sentence. Programs that run an engine use
/// [`Engine::check`](crate::Engine::check).
pub fn check(config: &Config, registry: &Registry, packets_max: u32) -> Result<(), Vec<String>> {
    let findings = findings(config, registry, packets_max);
    if findings.is_empty() { Ok(()) } else { Err(findings.into_iter().map(|finding| finding.text).collect()) }
}

/// Returns every mistake of a configuration for an engine of so many packets, and its part.
pub fn findings(config: &Config, registry: &Registry, packets_max: u32) -> Vec<Finding> {
    let mut check = ConfigCheck { config, registry, findings: Vec::new() };
    check.counts(packets_max);
    check.apps();
    check.files();
    check.links();
    check.workers();
    check.findings
}

struct ConfigCheck<'a> {
    config: &'a Config,
    registry: &'a Registry,
    findings: Vec<Finding>,
}

impl ConfigCheck<'_> {
    fn find(&mut self, part: ConfigPart, text: String) {
        self.findings.push(Finding { part, text });
    }

    fn counts(&mut self, packets_max: u32) {
        let workers = self.config.workers_used().len();
        for (what, count, most) in [
            ("apps", self.config.apps.len(), APPS_MAX),
            ("links", self.config.links.len(), LINKS_MAX),
            ("workers", workers, WORKERS_MAX),
        ] {
            if count > most {
                self.find(ConfigPart::Whole, format!("{count} {what}: an engine has at most {most}"));
            }
        }
        // With fewer packets, one worker could have some while another waits for them without end.
        let workers = workers.min(WORKERS_MAX);
        let least = workers * GRANT_PACKETS as usize;
        if (packets_max as usize) < least {
            let text = format!(
                "packets_max = {packets_max}: {workers} workers need at least {least}, {GRANT_PACKETS} each. \
                 Raise it, or have fewer workers"
            );
            self.find(ConfigPart::Whole, text);
        }
        let bytes: usize = self.config.apps.values().map(|app| app.config.to_string().len()).sum();
        if bytes > CONFIG_BYTES_MAX {
            let text = format!(
                "the configurations of all apps take {bytes} bytes as JSON: at most {CONFIG_BYTES_MAX}"
            );
            self.find(ConfigPart::Whole, text);
        }
    }

    fn apps(&mut self) {
        for (name, app) in &self.config.apps {
            let part = ConfigPart::App(name.clone());
            if let Some(wrong) = wrong_name(name) {
                self.find(part.clone(), format!("app `{}`: {wrong}", shown(name)));
            }
            match self.registry.kind(&app.kind) {
                None => {
                    let instead = instead(&app.kind, self.registry.kinds(), "kinds");
                    let kind = shown(&app.kind);
                    self.find(part, format!("app `{}`: there is no kind `{kind}`: {instead}", shown(name)));
                }
                Some(kind) => {
                    if let Err(trouble) = (kind.check)(&app.config) {
                        self.find(part, format!("app `{}`: {}", shown(name), printable(&trouble.0)));
                    }
                }
            }
        }
    }

    fn links(&mut self) {
        let mut outputs: BTreeMap<&AppPort, Vec<&LinkName>> = BTreeMap::new();
        let mut inputs: BTreeMap<&AppPort, Vec<&LinkName>> = BTreeMap::new();
        for link in self.config.links.keys() {
            self.end(link, &link.from, "output", |kind| kind.outputs);
            self.end(link, &link.to, "input", |kind| kind.inputs);
            outputs.entry(&link.from).or_default().push(link);
            inputs.entry(&link.to).or_default().push(link);
        }
        self.linked_twice(outputs, "output", "to", "tee", |link| &link.to);
        self.linked_twice(inputs, "input", "from", "join", |link| &link.from);
    }

    /// Checks that a link's end is an existing port.
    fn end(&mut self, link: &LinkName, port: &AppPort, what: &str, named: fn(&AppKind) -> Named) {
        let told = format!("link `{}`", shown(&link.to_string()));
        let Some(app) = self.config.apps.get(&port.app) else {
            let names = self.config.apps.keys().map(String::as_str);
            let instead = instead(&port.app, names, "apps");
            let text = format!("{told}: there is no app `{}`: {instead}", shown(&port.app));
            return self.find(ConfigPart::Link(link.clone()), text);
        };
        // The ports of an unknown kind are unknown too; the app's own mistake has been reported.
        let Some(kind) = self.registry.kind(&app.kind) else { return };
        let text = match named(kind) {
            Named::Any => match wrong_name(&port.port) {
                None => return,
                Some(wrong) => format!("{told}: {what} `{}`: {wrong}", shown(&port.port)),
            },
            Named::Only(names) if names.contains(&port.port.as_str()) => return,
            Named::Only([]) => {
                format!("{told}: `{}` has no {what}s: it is of kind `{}`", shown(&port.app), app.kind)
            }
            Named::Only(names) => format!(
                "{told}: `{}` has no {what} `{}`: kind `{}` has {}",
                shown(&port.app),
                shown(&port.port),
                app.kind,
                listed(names.iter().copied())
            ),
        };
        self.find(ConfigPart::Link(link.clone()), text);
    }

    fn linked_twice(
        &mut self,
        ports: BTreeMap<&AppPort, Vec<&LinkName>>,
        what: &str,
        way: &str,
        remedy: &str,
        other: fn(&LinkName) -> &AppPort,
    ) {
        for (port, links) in ports {
            let [_, second, ..] = links.as_slice() else { continue };
            let others: Vec<_> = links.iter().map(|link| other(link).to_string()).collect();
            let remedy = match self.registry.kind(remedy) {
                Some(_) => format!(". Put a `{remedy}` between"),
                None => String::new(),
            };
            let text = format!(
                "{what} `{}` is linked {} times, {way} {}: a port has one link{remedy}",
                shown(&port.to_string()),
                links.len(),
                listed(others.iter().map(String::as_str)),
            );
            self.find(ConfigPart::Link((*second).clone()), text);
        }
    }

    fn workers(&mut self) {
        let used = self.config.workers_used();
        for name in &used {
            if let Some(wrong) = wrong_name(name) {
                self.find(
                    ConfigPart::Worker((*name).to_owned()),
                    format!("worker `{}`: {wrong}", shown(name)),
                );
            }
        }
        for (name, worker) in &self.config.workers {
            let part = ConfigPart::Worker(name.clone());
            if !used.contains(name.as_str()) {
                let instead = instead(name, used.iter().copied(), "workers");
                let text = format!("worker `{}` has no apps: {instead}", shown(name));
                self.find(part.clone(), text);
            }
            if let Some(text) = worker.core.and_then(wrong_core) {
                self.find(part, format!("worker `{}`: {text}", shown(name)));
            }
        }
    }
}

impl Config {
    /// Returns the names of all workers that apps run in.
    pub fn workers_used(&self) -> BTreeSet<&str> {
        self.apps.values().map(|app| app.worker.as_str()).collect()
    }
}

/// Returns the mistake in a name, if there is one. Names are shown in tables, are single words in
/// commands, and have limited room in shared memory.
fn wrong_name(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("a name has at least one letter".into());
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(format!("{} bytes are too many: a name has at most {NAME_BYTES_MAX}", name.len()));
    }
    let odd = name.chars().find(|letter| !letter.is_ascii_alphanumeric() && !['_', '-'].contains(letter))?;
    Some(format!("`{}` cannot stand in a name: use letters, digits, `_` and `-`", odd.escape_debug()))
}

/// Returns the mistake in a core, if there is one.
fn wrong_core(core: usize) -> Option<String> {
    // If the kernel does not list the cores, it still refuses a wrong one when the worker starts.
    let allowed = sched_getaffinity(None).ok()?;
    if core < CpuSet::MAX_CPU && allowed.is_set(core) {
        return None;
    }
    let cores: Vec<_> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    Some(format!("core = {core}: this process may use {}", ranges(&cores)))
}

/// Returns sorted numbers as `0-3, 8`.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|before, after| before + 1 == *after);
    let shown = runs.filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Returns the names that a user may have meant by one that does not exist, or all that exist.
pub(super) fn instead<'a>(name: &str, there: impl Iterator<Item = &'a str> + Clone, what: &str) -> String {
    let mut near: Vec<_> = there
        .clone()
        .map(|other| (strsim::jaro(&name.to_lowercase(), &other.to_lowercase()), other))
        .filter(|(alike, _)| *alike > NEAR)
        .collect();
    near.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.cmp(other)));
    near.truncate(NEAREST_MAX);
    if !near.is_empty() {
        return format!("do you mean {}?", joined(near.into_iter().map(|(_, name)| name), "or"));
    }
    match there.clone().next() {
        None => format!("there are no {what}"),
        Some(_) => format!("{what} are {}", listed(there)),
    }
}

/// Returns a list as `a`, `b` and `c`.
pub(super) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    joined(names, "and")
}

fn joined<'a>(names: impl Iterator<Item = &'a str>, last: &str) -> String {
    let mut names: Vec<_> = names.map(|name| format!("`{}`", shown(name))).collect();
    if names.len() > LISTED_MAX {
        let more = names.split_off(LISTED_MAX - 1).len();
        names.push(format!("{more} more"));
    }
    match (names.pop(), names.is_empty()) {
        (None, _) => "none".into(),
        (Some(only), true) => only,
        (Some(end), false) => format!("{} {last} {end}", names.join(", ")),
    }
}

/// Returns a name from outside for a line of a terminal, cut to about the longest valid name.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 4 * (NAME_BYTES_MAX + 1);
    match text.char_indices().nth(MOST) {
        None => printable(text),
        Some((end, _)) => printable(&text[..end]) + "...",
    }
}

/// The identity of a file, whatever paths lead to it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    /// The device and inode of an existing file.
    There(u64, u64),
    /// The device and inode of the folder of a missing file, and the file's name.
    Missing(u64, u64, OsString),
}

impl ConfigCheck<'_> {
    /// Finds apps that write a file that another app uses.
    pub(super) fn files(&mut self) {
        let mut users: BTreeMap<Identity, Vec<(&str, FileUse)>> = BTreeMap::new();
        let config = self.config;
        for (name, app) in &config.apps {
            let kind = self.registry.kind(&app.kind);
            for file in kind.map(|kind| (kind.files)(&app.config)).unwrap_or_default() {
                if let Some(identity) = identity(&file.path) {
                    users.entry(identity).or_default().push((name, file));
                }
            }
        }
        for users in users.values() {
            let Some((writer, file)) = users.iter().find(|(_, file)| file.is_written) else { continue };
            for (other, theirs) in users.iter().filter(|(other, _)| other != writer) {
                let does = if theirs.is_written { "writes" } else { "reads" };
                let text = format!(
                    "app `{}`: file = \"{}\": app `{}` {does} the same file: write to another one",
                    shown(writer),
                    printable(file.path.display().to_string()),
                    shown(other)
                );
                self.find(ConfigPart::App((*writer).to_owned()), text);
            }
        }
    }
}

/// Returns `None` for a path that is no file of its own, such as `/dev/null`, or that cannot be examined.
fn identity(path: &Path) -> Option<Identity> {
    if let Ok(file) = path.metadata() {
        let is_device = file.file_type().is_char_device();
        return (!is_device).then(|| Identity::There(file.dev(), file.ino()));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = folder.metadata().ok()?;
    Some(Identity::Missing(folder.dev(), folder.ino(), path.file_name()?.to_owned()))
}

#[cfg(test)]
pub(super) mod tests;
