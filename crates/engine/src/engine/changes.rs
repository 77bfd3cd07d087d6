//! What a change of the configuration did.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::config::{Config, LinkName};
use crate::layout::{LinkMode, WorkerStage};
use crate::recovery::Recovered;

/// What a change of the configuration did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// Apps that were not there before.
    pub started: Vec<String>,
    /// Apps that are no more.
    pub stopped: Vec<String>,
    /// Apps that have another kind or configuration.
    pub changed: Vec<String>,
    /// Apps that run in another worker: name, from, to.
    pub moved: Vec<(String, String, String)>,
    /// Apps that went on as they were.
    pub unchanged: usize,
    /// Links that were not there before.
    pub links_added: Vec<String>,
    /// Links that are no more.
    pub links_removed: Vec<String>,
    /// Workers that were not there before.
    pub workers_started: Vec<String>,
    /// Workers that are no more.
    pub workers_ended: Vec<String>,
    /// Links that hand packets over in another way.
    pub links_changed: Vec<String>,
    /// Workers that are kept on another core, or on any.
    pub workers_changed: Vec<String>,
    /// Packets that were in apps, links and workers that are no more.
    pub lost: u64,
}

impl Changes {
    /// What becomes of `old` by `new`, but for packets lost.
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

/// What happened, as [`Engine::poll`](crate::Engine::poll) tells it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EngineEvent {
    /// A worker's process ended unasked.
    Crashed {
        /// Its name.
        worker: String,
        /// The process.
        pid: i32,
        /// `signal 11 (SIGSEGV)`, `status 1`.
        how: String,
        /// What it was doing.
        stage: WorkerStage,
        /// Whether it was waiting for packets it had asked for.
        growing: bool,
        /// Packets that it had taken from rings without giving the slots back.
        half_received: u64,
        /// What became of its packets.
        recovered: Recovered,
    },
    /// Its successor runs.
    Restarted {
        /// Its name.
        worker: String,
        /// The process.
        pid: i32,
        /// Nanoseconds since the crash was noticed.
        after_ns: u64,
    },
    /// It is not started again before the configuration changes.
    Parked {
        /// Its name.
        worker: String,
        /// Why.
        why: String,
    },
    /// It did not do as it was told in time, and was killed: a crash follows.
    Hung {
        /// Its name.
        worker: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// It could not be started again, and will be tried again later.
    NotStarted {
        /// Its name.
        worker: String,
        /// Why.
        why: String,
    },
    /// A worker has been waiting for packets for a while: there are no more, and the other workers cannot
    /// do without theirs. Told once, until there are enough again.
    Short {
        /// Its name.
        worker: String,
        /// How many there are: less than there may be where the machine has no memory for more.
        packets: u32,
        /// How many there may be.
        packets_max: u32,
    },
    /// The memory has grown.
    Grown {
        /// Packets there are now.
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
