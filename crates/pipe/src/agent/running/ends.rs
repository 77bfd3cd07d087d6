//! What commands and movers begin and end at: pipes, files, the user's own input and output.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::super::hops::{Hops, pipe};
use super::RunningStages;
use crate::Error;
use crate::control::{InletSpec, Mover, OpenMode, OutletSpec};
use crate::mover::{MoverInlet, MoverOutlet};

/// Ends of pipes that nobody has taken yet.
pub(super) struct Pipes<'a> {
    pub hops: &'a Hops,
    pub ends: HashMap<u32, (Option<OwnedFd>, Option<OwnedFd>)>,
}

impl Pipes<'_> {
    pub fn reading(&mut self, number: u32) -> Result<OwnedFd, Error> {
        self.end(number, |ends| ends.0.take())
    }

    pub fn writing(&mut self, number: u32) -> Result<OwnedFd, Error> {
        self.end(number, |ends| ends.1.take())
    }

    fn end(
        &mut self,
        number: u32,
        which: impl Fn(&mut (Option<OwnedFd>, Option<OwnedFd>)) -> Option<OwnedFd>,
    ) -> Result<OwnedFd, Error> {
        if let Some(handed) = self.hops.pipe(number) {
            return Ok(handed);
        }
        let ends = match self.ends.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let (reading, writing) = pipe()?;
                vacant.insert((Some(reading), Some(writing)))
            }
        };
        let end = which(ends);
        end.ok_or_else(|| Error::Protocol("names an end of a pipe twice".to_owned()))
    }

    fn connection(&self, hop: u32) -> Result<crate::connect::DataConnection, Error> {
        let missing = || Error::Protocol("names a hop that is not connected".to_owned());
        self.hops.connection(hop).ok_or_else(missing)
    }
}

impl RunningStages {
    pub(super) fn ends_of(
        &self,
        mover: &Mover,
        pipes: &mut Pipes<'_>,
        shared_output: &mut Option<Arc<Mutex<File>>>,
    ) -> Result<(MoverInlet, Vec<MoverOutlet>), Error> {
        let inlet = match &mover.from {
            InletSpec::Hop(hop, options) => {
                MoverInlet::Hop(Box::new(pipes.connection(*hop)?), options.clone())
            }
            InletSpec::Pipe(pipe) => MoverInlet::Descriptor(pipes.reading(*pipe)?),
            InletSpec::File { stage } => MoverInlet::Descriptor(self.file(*stage)?),
            InletSpec::Caller => MoverInlet::Descriptor(self.caller(|caller| &caller.0)?),
            InletSpec::Null => MoverInlet::Descriptor(open(Path::new("/dev/null"), OpenMode::Read)?.0.into()),
        };
        let mut outlets = Vec::new();
        for target in &mover.to {
            outlets.push(match target {
                OutletSpec::Hop(hop, options) => {
                    MoverOutlet::Hop(Box::new(pipes.connection(*hop)?), options.clone())
                }
                OutletSpec::Pipe(pipe) => MoverOutlet::Descriptor(pipes.writing(*pipe)?),
                OutletSpec::File { stage } => MoverOutlet::Descriptor(self.file(*stage)?),
                OutletSpec::Caller => MoverOutlet::Descriptor(self.caller(|caller| &caller.1)?),
                OutletSpec::Null => {
                    MoverOutlet::Descriptor(open(Path::new("/dev/null"), OpenMode::Append)?.0.into())
                }
                OutletSpec::Lines(prefix) => {
                    let to = match shared_output {
                        Some(to) => Arc::clone(to),
                        None => {
                            let to = File::from(self.caller(|caller| &caller.1)?);
                            Arc::clone(shared_output.insert(Arc::new(Mutex::new(to))))
                        }
                    };
                    MoverOutlet::Lines { prefix: prefix.clone(), to }
                }
            });
        }
        Ok((inlet, outlets))
    }

    fn file(&self, stage: u32) -> Result<OwnedFd, Error> {
        let opened = self.state(|state| state.files.remove(&stage));
        let (file, mode) =
            opened.ok_or_else(|| Error::Protocol("names a file that is not open".to_owned()))?;
        if mode == OpenMode::Write && file.metadata().is_ok_and(|file| file.is_file()) {
            file.set_len(0).map_err(|source| Error::System { call: "ftruncate", source })?;
        }
        Ok(file.into())
    }

    pub(super) fn caller(&self, which: impl Fn(&(OwnedFd, OwnedFd)) -> &OwnedFd) -> Result<OwnedFd, Error> {
        let nobody = || Error::Protocol("names a terminal that is not here".to_owned());
        self.state(|state| {
            let end = which(state.caller.as_ref().ok_or_else(nobody)?);
            end.as_fd().try_clone_to_owned().map_err(|source| Error::System { call: "dup", source })
        })
    }
}

/// The file, and its length if it has one that counts.
pub(super) fn open(path: &Path, mode: OpenMode) -> Result<(File, Option<u64>), Error> {
    let what = if mode == OpenMode::Read { "read" } else { "write" };
    let failed = |source| Error::File { what, path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    match mode {
        OpenMode::Read => options.read(true),
        OpenMode::Write => options.write(true).create(true),
        OpenMode::Append => options.append(true).create(true),
    };
    let file = options.open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(std::io::ErrorKind::IsADirectory.into()));
    }
    let length = (metadata.is_file() && metadata.len() > 0).then_some(metadata.len());
    Ok((file, length))
}
