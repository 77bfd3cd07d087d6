//! What a change of the configuration did.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::config::Config;

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
    /// Packets that were in links that are no more.
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
        ] {
            if !names.is_empty() {
                parts.push(format!("{what}: {}", names.join(", ")));
            }
        }
        parts.push(format!("unchanged: {}", self.unchanged));
        if self.lost > 0 {
            parts.push(format!("packets lost in removed links: {}", self.lost));
        }
        f.write_str(&parts.join("; "))
    }
}
