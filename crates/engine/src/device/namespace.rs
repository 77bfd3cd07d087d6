//! Network namespaces other than the engine's own: setns(2).

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{DeviceFailure, failed};

/// The calls that can fail, as a [`DeviceFailure`] names them.
pub(crate) const OPEN: &str = "open a network namespace";
pub(crate) const ENTER: &str = "setns";

/// Does something in the network namespace that a file stands for, such as `/run/netns/NAME`; where this thread
/// is, if none is named.
pub(crate) fn within<T>(
    namespace: Option<&Path>,
    what: impl FnOnce() -> Result<T, DeviceFailure>,
) -> Result<T, DeviceFailure> {
    let Some(namespace) = namespace else { return what() };
    let there = opened(namespace)?;
    let home = opened(Path::new("/proc/thread-self/ns/net"))?;
    // Who may not enter its own could not come back.
    enter(&home)?;
    enter(&there)?;
    let done = what();
    if enter(&home).is_err() {
        // What else this process opens would be looked for in the wrong place.
        std::process::abort();
    }
    done
}

fn opened(path: &Path) -> Result<OwnedFd, DeviceFailure> {
    open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).map_err(failed(OPEN))
}

fn enter(namespace: &OwnedFd) -> Result<(), DeviceFailure> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map_err(failed(ENTER))
}
