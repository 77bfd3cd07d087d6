//! `caravan engine check`: whether a file can be run.

use std::path::Path;

use caravan_engine::Registry;
use caravan_engine::config::file::{ConfigFile, Mistake};
use serde::Serialize;

use super::{counted, print, print_json, refused};
use crate::args::EngineCheck;
use crate::error::Error;

#[derive(Debug, Serialize)]
struct Report<'a> {
    file: &'a Path,
    apps: usize,
    links: usize,
    workers: usize,
    mistakes: &'a [Mistake],
}

/// Prints it. An error if the file cannot be run.
pub fn run(args: &EngineCheck) -> Result<(), Error> {
    let path = args.file.as_path();
    let outcome = ConfigFile::open(path, &Registry::standard());
    let (file, mistakes) = match outcome {
        Ok(file) => (file, Vec::new()),
        Err(mistakes) => (ConfigFile::default(), mistakes),
    };
    let (apps, links) = (file.config.apps.len(), file.config.links.len());
    let workers = file.config.workers_used().len();
    if args.json {
        print_json(&Report { file: path, apps, links, workers, mistakes: &mistakes })?;
        return if mistakes.is_empty() { Ok(()) } else { Err(Error::Said) };
    }
    if !mistakes.is_empty() {
        return Err(refused(path, &mistakes));
    }
    print(&format!(
        "{}: {}, {}, {}\n",
        path.display(),
        counted(apps, "app"),
        counted(links, "link"),
        counted(workers, "worker")
    ))
}
