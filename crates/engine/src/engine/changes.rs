//! The report of a change of the configuration, and the events of an engine.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::config::{Config, LinkName};
use crate::layout::{LinkMode, WorkerStage};
use crate::recovery::Recovered;

/// The report of a change of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// Apps that are new.
    pub started: Vec<String>,
    /// Apps that were removed.
    pub stopped: Vec<String>,
    /// Apps that have another kind or configuration.
    pub changed: Vec<String>,
    /// Apps that run in another worker: name, from, to.
    pub moved: Vec<(String, String, String)>,
    /// Apps that were left as they were.
    pub unchanged: usize,
    /// Links that are new.
    pub links_added: Vec<String>,
    /// Links that were removed.
    pub links_removed: Vec<String>,
    /// Workers that are new.
    pub workers_started: Vec<String>,
    /// Workers that were removed.
    pub workers_ended: Vec<String>,
    /// Links whose mode changed.
    pub links_changed: Vec<String>,
    /// Workers that run on another core, or now on any core.
    pub workers_changed: Vec<String>,
    /// Packets that were in apps, links and workers that were removed.
    pub lost: u64,
}

impl Changes {
    /// Returns the changes from `old` to `new`, without the number of packets lost.
    pub(super) fn between(old: &Config, new: &Config) -> Self {
        let mut changes = Self::default();
        for (name, app) in &new.apps {
            match old.apps.get(name) {
                None => changes.started.push(name.clone()),
                Some(before) if before == app => changes.unchanged += 1,
                Some(before) => {
                    if before.worker != app.worker {
                        changes.moved.push((name.clone(), before.worker.clone(), app.worker.clone()));
                    }
                    if (&before.kind, &before.config) != (&app.kind, &app.config) {
                        changes.changed.push(name.clone());
                    }
                }
            }
        }
        let gone = old.apps.keys().filter(|name| !new.apps.contains_key(*name));
        changes.stopped = gone.cloned().collect();
        let names = |config: &Config| config.links.keys().map(ToString::to_string).collect::<BTreeSet<_>>();
        changes.links_added = names(new).difference(&names(old)).cloned().collect();
        changes.links_removed = names(old).difference(&names(new)).cloned().collect();
        let workers =
            |config: &Config| config.apps.values().map(|app| app.worker.clone()).collect::<BTreeSet<_>>();
        changes.workers_started = workers(new).difference(&workers(old)).cloned().collect();
        changes.workers_ended = workers(old).difference(&workers(new)).cloned().collect();
        let has_other_mode = |(name, mode): &(&LinkName, &LinkMode)| {
            old.links.get(*name).is_some_and(|before| before != *mode)
        };
        changes.links_changed =
            new.links.iter().filter(has_other_mode).map(|(name, _)| name.to_string()).collect();
        let core = |config: &Config, name: &str| config.workers.get(name).and_then(|worker| worker.core);
        let stay = workers(new).intersection(&workers(old)).cloned().collect::<Vec<_>>();
        changes.workers_changed =
            stay.into_iter().filter(|name| core(old, name) != core(new, name)).collect();
        changes
    }
}

impl std::fmt::Display for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        let moved: Vec<_> =
            self.moved.iter().map(|(app, from, to)| format!("{app} ({from} -> {to})")).collect();
        for (what, names) in [
            ("started", &self.started),
            ("stopped", &self.stopped),
            ("changed", &self.changed),
            ("moved", &moved),
            ("links added", &self.links_added),
            ("links removed", &self.links_removed),
            ("workers started", &self.workers_started),
            ("workers ended", &self.workers_ended),
            ("links changed", &self.links_changed),
            ("workers changed", &self.workers_changed),
        ] {
            if !names.is_empty() {
                parts.push(format!("{what}: {}", names.join(", ")));
            }
        }
        parts.push(format!("unchanged: {}", self.unchanged));
        if self.lost > 0 {
            parts.push(format!("packets lost: {}", self.lost));
        }
        f.write_str(&parts.join("; "))
    }
}

/// An event that [`Engine::poll`](crate::Engine::poll) returns.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EngineEvent {
    /// A worker's process ended unasked.
    Crashed {
        /// The worker's name.
        worker: String,
        /// Its process.
        pid: i32,
        /// How it ended: `signal 11 (SIGSEGV)`, `status 1`.
        how: String,
        /// Its stage.
        stage: WorkerStage,
        /// True if it was waiting for packets it had asked for.
        growing: bool,
        /// Packets that it had taken from rings without releasing the slots.
        half_received: u64,
        /// The recovery of its packets.
        recovered: Recovered,
    },
    /// The successor of a crashed process runs.
    Restarted {
        /// The worker's name.
        worker: String,
        /// Its process.
        pid: i32,
        /// Nanoseconds since the crash was noticed.
        after_ns: u64,
    },
    /// A worker is not started again before the configuration changes.
    Parked {
        /// The worker's name.
        worker: String,
        /// The reason.
        why: String,
    },
    /// A worker did not carry out an order in time, and was killed: a crash follows.
    Hung {
        /// The worker's name.
        worker: String,
        /// How long the supervisor waited.
        seconds: u64,
    },
    /// A worker could not be started again; the supervisor tries again later.
    NotStarted {
        /// The worker's name.
        worker: String,
        /// The reason.
        why: String,
    },
    /// A worker has waited for packets for a while: the pool is empty, and the other workers need
    /// their packets. Reported once, until there are enough again.
    Short {
        /// The worker's name.
        worker: String,
        /// The number of packets: below `packets_max` if the machine has no memory for more.
        packets: u32,
        /// The number of packets that there may be.
        packets_max: u32,
    },
    /// The memory has grown.
    Grown {
        /// The number of packets now.
        packets: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(mode: LinkMode, core: Option<usize>) -> Config {
        let mut config = Config::new();
        config.app_in("left", "source", "source", ()).app_in("right", "sink", "sink", ());
        config.link_by("source.output -> sink.input", mode).unwrap();
        core.map(|core| config.core("right", core));
        config
    }

    #[test]
    fn another_mode_or_core_is_told() {
        let first = config(LinkMode::Swap, None);
        assert_eq!(Changes::between(&first, &first).to_string(), "unchanged: 2");
        let told = Changes::between(&first, &config(LinkMode::Copy, Some(3))).to_string();
        assert_eq!(told, "links changed: source.output -> sink.input; workers changed: right; unchanged: 2");
        let changes = Changes::between(&config(LinkMode::Swap, Some(3)), &config(LinkMode::Swap, Some(4)));
        assert_eq!((changes.links_changed.len(), changes.workers_changed), (0, vec!["right".to_owned()]));
    }
}
