//! `caravan engine graph`: a file as a picture.

use caravan_engine::config::file::ConfigFile;
use caravan_engine::config::graph;

use super::{print, refused};
use crate::args::EngineGraph;
use crate::error::Error;

/// Writes it.
pub fn run(args: &EngineGraph) -> Result<(), Error> {
    let file = ConfigFile::open_unchecked(&args.file).map_err(|mistakes| refused(&args.file, &mistakes))?;
    let svg = graph::svg(&file.config);
    match &args.output {
        None => print(&svg),
        Some(path) => {
            let failed = |source| Error::File { what: "write", path: path.clone(), source };
            std::fs::write(path, svg).map_err(failed)
        }
    }
}
