//! What an app is, and the kinds of apps that an engine knows.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::io::Io;

/// The reason why an app cannot start, or cannot have a configuration: a sentence that names what is wrong and what
/// to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AppError(pub String);

impl AppError {
    /// Makes an error of anything that can be displayed.
    pub fn new(what: impl std::fmt::Display) -> Self {
        Self(what.to_string())
    }
}

/// The names that the ports of a kind of app can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// These names, each at most once.
    Only(&'static [&'static str]),
    /// Any number of ports, with any names.
    Any,
}

/// A file that an app uses while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileUse {
    /// The path of the file, as the configuration has it.
    pub path: PathBuf,
    /// True if the app writes the file, false if it only reads it.
    pub is_written: bool,
}

/// An app: it pulls packets into the engine, and pushes packets on.
///
/// The engine calls all methods with `self` in the one thread of the worker's process. Apps share nothing but packets.
pub trait App: Sized + 'static {
    /// The keys of the app's table in a configuration file. Have serde refuse unknown keys
    /// (`deny_unknown_fields`), so that users are told of their typing errors.
    type Config: DeserializeOwned;

    /// The inputs that the app can have.
    const INPUTS: Named = Named::Only(&["input"]);
    /// The outputs that the app can have.
    const OUTPUTS: Named = Named::Only(&["output"]);

    /// Checks whether a configuration can be used, without opening anything for good. The supervisor calls it before
    /// anything changes.
    fn check(config: &Self::Config) -> Result<(), AppError> {
        let _ = config;
        Ok(())
    }

    /// Returns the files that an app of this configuration uses. The engine refuses a configuration in which an app
    /// writes a file that another app uses.
    fn files(config: &Self::Config) -> Vec<FileUse> {
        let _ = config;
        Vec::new()
    }

    /// Makes the app. The worker calls it. `state` is what [`stop`](App::stop) returned if the app has moved from
    /// another worker or has got another configuration.
    fn start(config: Self::Config, state: Option<Vec<u8>>) -> Result<Self, AppError>;

    /// Takes in packets from outside, at most [`PULL_PACKETS`](crate::limits::PULL_PACKETS) for each output, and sends
    /// them. The worker calls it once in each breath. It must not block.
    fn pull(&mut self, io: &mut Io) {
        let _ = io;
    }

    /// Takes packets from the inputs, and sends, frees or keeps them. The worker calls it once in each breath. It must
    /// not block.
    fn push(&mut self, io: &mut Io) {
        let _ = io;
    }

    /// Takes a new configuration while the app runs. Returns false, and does nothing, if the app must be stopped and
    /// started instead, which is good enough for most apps.
    fn reconfigure(&mut self, config: &Self::Config) -> bool {
        let _ = config;
        false
    }

    /// Ends the app, which sends now the packets that it still holds. The app of the same name that is started in its
    /// place gets what this returns, up to [`STATE_BYTES_MAX`](crate::limits::STATE_BYTES_MAX) bytes.
    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>> {
        let _ = io;
        None
    }

    /// Returns the descriptors on which an idle worker sleeps. Once one of them is readable, it calls `pull`.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Returns when the worker must call the app again even if nothing arrives, on the clock of [`Io::now_ns`].
    fn wake_ns(&self) -> Option<u64> {
        None
    }

    /// Returns the app's own figures, which `caravan engine run` prints at its end: few, and cheap to make. The
    /// figure `ended` of an app that comes to an end says whether it has (1) or not (0).
    fn report(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// An [`App`] without its type, as a worker calls it.
pub(crate) trait DynApp {
    fn pull(&mut self, io: &mut Io);
    fn push(&mut self, io: &mut Io);
    fn reconfigure(&mut self, config: &Value) -> bool;
    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>>;
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;
    fn wake_ns(&self) -> Option<u64>;
    fn report(&self) -> Vec<(&'static str, u64)>;
}

impl<A: App> DynApp for A {
    fn pull(&mut self, io: &mut Io) {
        App::pull(self, io);
    }
    fn push(&mut self, io: &mut Io) {
        App::push(self, io);
    }
    fn reconfigure(&mut self, config: &Value) -> bool {
        parse::<A>(config).is_ok_and(|config| App::reconfigure(self, &config))
    }
    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>> {
        App::stop(self, io)
    }
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        App::descriptors(self)
    }
    fn wake_ns(&self) -> Option<u64> {
        App::wake_ns(self)
    }
    fn report(&self) -> Vec<(&'static str, u64)> {
        App::report(self)
    }
}

/// The configuration of an app that has no keys.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoKeys {}

type StartFn = fn(&Value, Option<Vec<u8>>) -> Result<Box<dyn DynApp>, AppError>;

/// A kind of app, as a registry keeps it.
pub(crate) struct AppKind {
    pub inputs: Named,
    pub outputs: Named,
    pub check: fn(&Value) -> Result<(), AppError>,
    pub files: fn(&Value) -> Vec<FileUse>,
    pub start: StartFn,
}

/// The kinds of apps that an engine knows, by the names that configurations use. It must be complete before
/// the engine starts, as workers are forked from the supervisor.
#[derive(Default)]
pub struct Registry {
    kinds: BTreeMap<String, AppKind>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.kinds.keys()).finish()
    }
}

impl Registry {
    /// Makes a registry without any kind.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a registry with every kind of this crate ([`crate::apps`]).
    pub fn standard() -> Self {
        let mut registry = Self::new();
        crate::apps::register(&mut registry);
        registry
    }

    /// Adds the kind `name`, or replaces it.
    pub fn add<A: App>(&mut self, name: &str) -> &mut Self {
        let kind = AppKind {
            inputs: A::INPUTS,
            outputs: A::OUTPUTS,
            check: |config| A::check(&parse::<A>(config)?),
            files: |config| parse::<A>(config).map(|config| A::files(&config)).unwrap_or_default(),
            start: |config, state| Ok(Box::new(A::start(parse::<A>(config)?, state)?)),
        };
        self.kinds.insert(name.to_owned(), kind);
        self
    }

    /// Returns the names of all kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &str> + Clone {
        self.kinds.keys().map(String::as_str)
    }

    pub(crate) fn kind(&self, name: &str) -> Option<&AppKind> {
        self.kinds.get(name)
    }
}

fn parse<A: App>(config: &Value) -> Result<A::Config, AppError> {
    // To a user, a table without keys and no table are the same. An app that has nothing to configure may
    // have `()` for its configuration.
    let empty = config.is_null() || config.as_object().is_some_and(serde_json::Map::is_empty);
    if !empty {
        return A::Config::deserialize(config).map_err(AppError::new);
    }
    let table = A::Config::deserialize(&Value::Object(Default::default()));
    table.or_else(|error| A::Config::deserialize(&Value::Null).map_err(|_| AppError::new(error)))
}
