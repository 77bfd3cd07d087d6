//! What an app is, and the kinds of apps that an engine knows.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::io::Io;

/// Why an app cannot start, or take a new configuration: a sentence that names what is wrong and
/// what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AppError(pub String);

impl AppError {
    /// From anything that can be shown.
    pub fn new(what: impl std::fmt::Display) -> Self {
        Self(what.to_string())
    }
}

/// The links that a kind of app can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// These, each at most once.
    Only(&'static [&'static str]),
    /// Any number, of any name.
    Any,
}

/// A file that an app uses while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileUse {
    /// Its path, as the configuration has it.
    pub path: PathBuf,
    /// Whether the app writes it; it reads it otherwise.
    pub is_written: bool,
}

/// An app: it is made, pulls packets into the engine, and pushes packets on. All of it happens in
/// the one thread of its worker's process; an app shares nothing with others but packets.
pub trait App: Sized + 'static {
    /// What it is configured with: the keys of its table in a configuration file. Have serde refuse
    /// unknown ones (`deny_unknown_fields`), so that users are told of their typing errors.
    type Config: DeserializeOwned;

    /// The inputs it can have.
    const INPUTS: Named = Named::Only(&["input"]);
    /// The outputs it can have.
    const OUTPUTS: Named = Named::Only(&["output"]);

    /// Looks whether a configuration can be used, without taking hold of anything: it is called in
    /// the supervisor, before anything changes.
    fn check(config: &Self::Config) -> Result<(), AppError> {
        let _ = config;
        Ok(())
    }

    /// The files that an app of this configuration uses: a configuration in which an app writes a file that
    /// another app uses is refused.
    fn files(config: &Self::Config) -> Vec<FileUse> {
        let _ = config;
        Vec::new()
    }

    /// Makes the app, in its worker. What an earlier one [left](App::stop), if anything, is in `state`: that one
    /// ran in another worker, or had another configuration.
    fn start(config: Self::Config, state: Option<Vec<u8>>) -> Result<Self, AppError>;

    /// Takes in packets from outside, at most [`PULL_PACKETS`](crate::limits::PULL_PACKETS) for each output, and sends
    /// them. Called once in each breath; must not block.
    fn pull(&mut self, io: &mut Io) {
        let _ = io;
    }

    /// Takes packets from the inputs, and sends, frees or keeps them. Called in each breath; must not
    /// block.
    fn push(&mut self, io: &mut Io) {
        let _ = io;
    }

    /// Takes a new configuration while it runs. False, and nothing done, if it must be stopped
    /// and started for that, as most may.
    fn reconfigure(&mut self, config: &Self::Config) -> bool {
        let _ = config;
        false
    }

    /// Ends the app: packets that it still holds are sent now. What is returned is handed to the app
    /// of the same name that is started in its place, up to
    /// [`STATE_BYTES_MAX`](crate::limits::STATE_BYTES_MAX).
    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>> {
        let _ = io;
        None
    }

    /// Descriptors which, once readable, want `pull`: what an idle worker sleeps on.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// When to be called again even if nothing arrives, on the clock of [`Io::now_ns`].
    fn wake_ns(&self) -> Option<u64> {
        None
    }

    /// Figures of its own, for the last words of `caravan engine run`: few, and cheap to make. One called `ended`
    /// says of an app that has an end whether it has come to it (1) or not (0).
    fn report(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// An app whose type is known to its kind alone.
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

type CheckFn = Box<dyn Fn(&Value) -> Result<(), AppError>>;
type FilesFn = Box<dyn Fn(&Value) -> Vec<FileUse>>;
type StartFn = Box<dyn Fn(&Value, Option<Vec<u8>>) -> Result<Box<dyn DynApp>, AppError>>;

/// A kind of app, as a registry keeps it.
pub(crate) struct AppKind {
    pub inputs: Named,
    pub outputs: Named,
    pub check: CheckFn,
    pub files: FilesFn,
    pub start: StartFn,
}

/// The kinds of apps that an engine knows, by the names that configurations use. Complete before
/// the engine starts: workers are forked from it.
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
    /// Without any kind.
    pub fn new() -> Self {
        Self::default()
    }

    /// With every kind of this crate ([`crate::apps`]).
    pub fn standard() -> Self {
        let mut registry = Self::new();
        crate::apps::register(&mut registry);
        registry
    }

    /// Adds the kind `name`; one of the same name is replaced.
    pub fn add<A: App>(&mut self, name: &str) -> &mut Self {
        let kind = AppKind {
            inputs: A::INPUTS,
            outputs: A::OUTPUTS,
            check: Box::new(|config| A::check(&parse::<A>(config)?)),
            files: Box::new(|config| parse::<A>(config).map(|config| A::files(&config)).unwrap_or_default()),
            start: Box::new(|config, state| Ok(Box::new(A::start(parse::<A>(config)?, state)?))),
        };
        self.kinds.insert(name.to_owned(), kind);
        self
    }

    /// The names of all kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &str> + Clone {
        self.kinds.keys().map(String::as_str)
    }

    pub(crate) fn kind(&self, name: &str) -> Option<&AppKind> {
        self.kinds.get(name)
    }
}

fn parse<A: App>(config: &Value) -> Result<A::Config, AppError> {
    // A table without keys and no table at all are the same to a user; who has nothing to configure may
    // have `()` for it.
    let empty = config.is_null() || config.as_object().is_some_and(serde_json::Map::is_empty);
    if !empty {
        return A::Config::deserialize(config).map_err(AppError::new);
    }
    let table = A::Config::deserialize(&Value::Object(Default::default()));
    table.or_else(|error| A::Config::deserialize(&Value::Null).map_err(|_| AppError::new(error)))
}
