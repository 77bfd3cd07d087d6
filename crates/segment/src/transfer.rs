//! System calls that move bytes between a slice and a descriptor, with no copy in between.
//!
//! The kernel gets the address itself: a slice of memory that a peer may write would be undefined
//! behaviour in Rust before the call even begins.

#![allow(unsafe_code, reason = "gives addresses to the kernel")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};

use crate::slice::SharedSlice;

/// Closes a descriptor, and returns errors: a network file system may find out only now that there is no room.
pub fn close(descriptor: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor was owned, so nobody else uses it or closes it once more.
    match unsafe { libc::close(descriptor.into_raw_fd()) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // On Linux the descriptor is closed all the same.
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}

impl SharedSlice {
    /// Reads from `descriptor` directly to `offset` (read(2)); at most `bytes` bytes, and 0 at the end of the file.
    pub fn read_from(&self, descriptor: impl AsFd, offset: usize, bytes: usize) -> io::Result<usize> {
        let to = self.address(offset, bytes);
        // SAFETY: `address` has checked that the bytes are inside the slice, which outlives the
        // call; the kernel may write them while others do; the descriptor is open as long as it
        // is borrowed.
        let got = unsafe { libc::read(descriptor.as_fd().as_raw_fd(), to.cast(), bytes) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Writes the bytes at `offset` directly to `descriptor` (write(2)); returns the number of bytes written.
    pub fn write_to(&self, descriptor: impl AsFd, offset: usize, bytes: usize) -> io::Result<usize> {
        let from = self.address(offset, bytes);
        // SAFETY: as above; the kernel only reads.
        let put = unsafe { libc::write(descriptor.as_fd().as_raw_fd(), from.cast(), bytes) };
        usize::try_from(put).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::{Pages, Segment};

    #[test]
    fn bytes_go_through_descriptors() {
        let segment = Arc::new(Segment::create("caravan-test", 4096, Pages::Small).unwrap());
        segment.grow(4096).unwrap();
        let slice = segment.slice(0, 4096).unwrap();
        let (output, input) = rustix::pipe::pipe().unwrap();
        slice.copy_in(0, b"straight");
        assert_eq!(slice.write_to(&input, 0, 8).unwrap(), 8);
        drop(input);
        assert_eq!(slice.read_from(&output, 100, 50).unwrap(), 8);
        assert_eq!(slice.read_from(&output, 200, 50).unwrap(), 0, "the end");
        let mut seen = [0; 8];
        slice.copy_out(100, &mut seen);
        assert_eq!(&seen, b"straight");
        let error = slice.write_to(&output, 0, 8).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::BADF.raw_os_error()));
    }
}
