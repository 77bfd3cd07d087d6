//! The two commands of the pipeline that a copy is.

use std::fs::File;
use std::io::{self, Read, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use caravan_pipe::tree;
use rustix::event::{PollFd, PollFlags, poll};

use crate::args::{CopySink, CopySource};
use crate::error::Error;
use caravan_bench::interrupt::endings;

/// Sends. What the destination says about its own end, it says itself.
pub fn source(args: &CopySource) -> Result<ExitCode, Error> {
    let (input, output) = (descriptor(stdin())?, descriptor(stdout())?);
    match tree::source(&args.options.concat(), input, output) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(caravan_pipe::Error::Truncated { .. } | caravan_pipe::Error::Told(_)) => Err(Error::Said),
        Err(error) => Err(Error::Sentence(error.to_string())),
    }
}

/// Receives. A signal ends it as the end of its input does: so nothing half-written stays behind but
/// what the next copy goes on with.
pub fn sink(args: &CopySink) -> Result<ExitCode, Error> {
    let (told, signals) = UnixStream::pair().map_err(Error::Signals)?;
    for signal in endings() {
        let told = told.try_clone().map_err(Error::Signals)?;
        signal_hook::low_level::pipe::register(signal, told).map_err(Error::Signals)?;
    }
    let input = Attentive { input: descriptor(stdin())?, signals, is_told: false };
    match tree::sink(&args.options.concat(), input, descriptor(stdout())?) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // A pipeline's own failures have another exit status.
        Err(error) => Err(Error::Sentence(error.to_string())),
    }
}

/// Without the buffer that the standard library has around it.
fn descriptor(stream: impl AsFd) -> Result<File, Error> {
    let owned = stream.as_fd().try_clone_to_owned();
    owned
        .map(File::from)
        .map_err(|error| Error::Sentence(format!("cannot use the standard streams: {error}")))
}

/// Reads until a signal comes.
struct Attentive {
    input: File,
    signals: UnixStream,
    is_told: bool,
}

impl Read for Attentive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.is_told {
                return Err(io::Error::other("it was told to end"));
            }
            let mut set =
                [PollFd::new(&self.input, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            match poll(&mut set, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if !set[1].revents().is_empty() {
                self.is_told = true;
                continue;
            }
            return self.input.read(buffer);
        }
    }
}
