//! Makes the plan of each worker from a configuration, without side effects.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{Config, LinkName};
use crate::layout::LinkMode;
use crate::owner::LinkId;

/// One app of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AppPlan {
    pub name: String,
    pub kind: String,
    pub config: Value,
    /// Ports and links, sorted by the port's name.
    pub inputs: Vec<(String, LinkId)>,
    /// Ports and links, sorted by the port's name.
    pub outputs: Vec<(String, LinkId)>,
}

/// The ends of a link that a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkRole {
    /// Both ends.
    Local,
    /// The end that sends.
    Producer,
    /// The end that receives.
    Consumer,
}

/// One link of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkPlan {
    pub id: LinkId,
    pub role: LinkRole,
    pub mode: LinkMode,
}

/// Everything that a worker does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerPlan {
    /// The apps from the sources to the sinks, as far as there is such an order.
    pub apps: Vec<AppPlan>,
    pub links: Vec<LinkPlan>,
}

/// Returns the plan of each worker of a configuration, by the worker's name. The configuration has been checked:
/// every link has a number, and every app that a link names exists.
pub fn plans(config: &Config, ids: &BTreeMap<LinkName, LinkId>) -> BTreeMap<String, WorkerPlan> {
    let mut plans: BTreeMap<String, WorkerPlan> = BTreeMap::new();
    for name in order(config) {
        let Some(app) = config.apps.get(name) else { continue };
        let ports = |end: fn(&LinkName) -> &crate::config::AppPort| {
            let ours =
                ids.iter().filter(|(link, _)| end(link).app == name && config.links.contains_key(link));
            let mut ports: Vec<_> = ours.map(|(link, id)| (end(link).port.clone(), *id)).collect();
            ports.sort();
            ports
        };
        let plan = AppPlan {
            name: name.to_owned(),
            kind: app.kind.clone(),
            config: app.config.clone(),
            inputs: ports(|link| &link.to),
            outputs: ports(|link| &link.from),
        };
        plans.entry(app.worker.clone()).or_default().apps.push(plan);
    }
    for (link, mode) in &config.links {
        let worker = |app: &str| config.apps.get(app).map(|app| app.worker.as_str());
        let (Some(id), Some(from), Some(to)) =
            (ids.get(link).copied(), worker(&link.from.app), worker(&link.to.app))
        else {
            continue;
        };
        let mut add = |worker: &str, role| {
            if let Some(plan) = plans.get_mut(worker) {
                plan.links.push(LinkPlan { id, role, mode: *mode });
            }
        };
        if from == to {
            add(from, LinkRole::Local);
        } else {
            add(from, LinkRole::Producer);
            add(to, LinkRole::Consumer);
        }
    }
    plans
}

/// Returns the apps from the sources to the sinks: each after those that send to it. A cycle is entered at the
/// app whose name comes first.
fn order(config: &Config) -> Vec<&str> {
    let mut before: BTreeMap<&str, BTreeSet<&str>> =
        config.apps.keys().map(|name| (name.as_str(), BTreeSet::new())).collect();
    for link in config.links.keys() {
        if link.from.app != link.to.app && config.apps.contains_key(&link.from.app) {
            if let Some(senders) = before.get_mut(link.to.app.as_str()) {
                senders.insert(&link.from.app);
            }
        }
    }
    let mut order = Vec::new();
    while let Some(first) = before.keys().next().copied() {
        let next = before.iter().find(|(_, senders)| senders.is_empty()).map_or(first, |(name, _)| *name);
        before.remove(next);
        before.values_mut().for_each(|senders| {
            senders.remove(next);
        });
        order.push(next);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(config: &Config) -> BTreeMap<LinkName, LinkId> {
        let links = config.links.keys().enumerate();
        links.filter_map(|(place, link)| Some((link.clone(), LinkId::new(place)?))).collect()
    }

    #[test]
    fn a_link_between_two_workers_has_an_end_in_each() {
        let mut config = Config::new();
        config.app_in("left", "z", "source", ()).app_in("right", "a", "sink", ());
        config.app_in("right", "m", "tee", ());
        config.link("z.output -> m.input").unwrap().link("m.output -> a.input").unwrap();
        let ids = ids(&config);
        let plans = plans(&config, &ids);
        let roles = |worker: &str| plans[worker].links.iter().map(|link| link.role).collect::<Vec<_>>();
        assert_eq!(roles("left"), [LinkRole::Producer]);
        assert_eq!(roles("right"), [LinkRole::Local, LinkRole::Consumer]);
        let names: Vec<_> = plans["right"].apps.iter().map(|app| app.name.as_str()).collect();
        assert_eq!(names, ["m", "a"], "the sink comes after who sends to it, whatever its name");
    }

    #[test]
    fn a_circle_has_an_order_too() {
        let mut config = Config::new();
        config.app("b", "tee", ()).app("a", "tee", ()).app("c", "source", ());
        for link in ["a.output -> b.input", "b.output -> a.input", "c.output -> a.back"] {
            config.link(link).unwrap();
        }
        assert_eq!(order(&config), ["c", "a", "b"]);
    }
}
