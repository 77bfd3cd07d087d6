//! A stage as it is written: `[user@]host[,host...]:'CMD'`, `:'CMD'` for this host.

use std::path::PathBuf;

/// A stage of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Where it runs, as ssh takes it (`host`, `user@host`). Empty: on this host. Several: the whole stream
    /// goes to each.
    pub hosts: Vec<String>,
    /// What it is.
    pub kind: Kind,
    /// As the user wrote it, without the hosts.
    pub text: String,
}

/// What a stage does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A command for the login shell.
    Shell(String),
    /// This program itself, with these arguments: one half of `caravan cp`.
    Program(Vec<String>),
    /// `<file`: its bytes; what came before is discarded.
    Read(PathBuf),
    /// `>file` or `>>file`: takes what comes, and gives nothing.
    Write {
        /// The file.
        path: PathBuf,
        /// `>>`.
        append: bool,
    },
}

impl Stage {
    /// From an argument of the command line.
    pub fn parse(text: &str) -> Result<Self, crate::Error> {
        let _ = text;
        Err(crate::Error::Usage("stages cannot be parsed yet".to_owned()))
    }
}
