//! The configuration of an engine: apps, where they run, and the links between them.

pub mod check;
pub mod file;
pub mod graph;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::layout::LinkMode;

/// The worker of apps that name no worker.
pub const WORKER_DEFAULT: &str = "main";

/// One app.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AppConfig {
    /// The app kind, a name of the [`Registry`](crate::Registry).
    pub kind: String,
    /// The worker that it runs in.
    pub worker: String,
    /// The app's own configuration.
    pub config: Value,
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AppPort {
    /// An app's name.
    pub app: String,
    /// The name of one of the app's inputs or outputs.
    pub port: String,
}

impl std::fmt::Display for AppPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.app, self.port)
    }
}

/// A link's two ends, which identify it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LinkName {
    /// The output that sends.
    pub from: AppPort,
    /// The input that receives.
    pub to: AppPort,
}

impl std::fmt::Display for LinkName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} -> {}", self.from, self.to)
    }
}

/// The configuration of a worker besides its apps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerConfig {
    /// The core that the worker runs on.
    pub core: Option<usize>,
}

/// A configuration: apps, where they run, and the links between them.
///
/// ```
/// use caravan_engine::Config;
///
/// let mut config = Config::new();
/// config.app_in("left", "source", "source", ()).app_in("right", "sink", "sink", ());
/// config.link("source.output -> sink.input")?.core("left", 2);
/// assert_eq!(config.links.keys().next().unwrap().to_string(), "source.output -> sink.input");
/// # Ok::<(), caravan_engine::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Apps by name.
    pub apps: BTreeMap<String, AppConfig>,
    /// Links, and how their ends hand packets over if the two ends are in two processes.
    pub links: BTreeMap<LinkName, LinkMode>,
    /// Workers that have more configuration than their name.
    pub workers: BTreeMap<String, WorkerConfig>,
}

impl Config {
    /// Makes a configuration without apps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an app of a kind to the worker [`WORKER_DEFAULT`].
    pub fn app(&mut self, name: &str, kind: &str, config: impl Serialize) -> &mut Self {
        self.app_in(WORKER_DEFAULT, name, kind, config)
    }

    /// Adds an app to a worker. A `config` that cannot be written as JSON is refused when
    /// the configuration is used.
    pub fn app_in(&mut self, worker: &str, name: &str, kind: &str, config: impl Serialize) -> &mut Self {
        let config = serde_json::to_value(config).unwrap_or_else(|error| Value::String(error.to_string()));
        let app = AppConfig { kind: kind.to_owned(), worker: worker.to_owned(), config };
        self.apps.insert(name.to_owned(), app);
        self
    }

    /// Adds a link, written `app.port -> app.port`.
    pub fn link(&mut self, name: &str) -> Result<&mut Self, crate::Error> {
        self.link_by(name, LinkMode::Swap)
    }

    /// Adds a link of a link mode.
    pub fn link_by(&mut self, name: &str, mode: LinkMode) -> Result<&mut Self, crate::Error> {
        self.links.insert(name.parse()?, mode);
        Ok(self)
    }

    /// Has a worker run on a core.
    pub fn core(&mut self, worker: &str, core: usize) -> &mut Self {
        self.workers.entry(worker.to_owned()).or_default().core = Some(core);
        self
    }
}

impl std::str::FromStr for LinkName {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, crate::Error> {
        let port = |text: &str| {
            let (app, port) = text.trim().rsplit_once('.')?;
            let whole = !app.is_empty() && !port.is_empty();
            whole.then(|| AppPort { app: app.to_owned(), port: port.to_owned() })
        };
        let ends = text.split_once("->").and_then(|(from, to)| Some((port(from)?, port(to)?)));
        let (from, to) = ends.ok_or_else(|| crate::Error::LinkForm(text.to_owned()))?;
        Ok(Self { from, to })
    }
}
