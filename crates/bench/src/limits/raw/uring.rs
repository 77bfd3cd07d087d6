//! Many reads or writes of one file under way from one thread, through io_uring.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, Probe, opcode, types};

use super::Area;

/// Requests of one file, each in a slot with a buffer of its own.
///
/// Invariant: `under_way` requests were given to the kernel and have not been taken back by [`done`](Self::done). Until
/// then nobody looks at the buffers, which are unmapped only when `under_way` is 0.
pub struct Uring<'a> {
    ring: IoUring,
    file: &'a File,
    buffers: ManuallyDrop<Area>,
    block_bytes: u32,
    under_way: usize,
}

impl<'a> Uring<'a> {
    /// Sets up so many slots. An error says why io_uring cannot be had here.
    pub fn new(file: &'a File, slots: u32, buffers: Area, block_bytes: u32) -> io::Result<Self> {
        // As fio does: completions wait until this thread asks for them, instead of interrupting it. Kernels before 6.1
        // refuse that.
        let mut builder = IoUring::builder();
        let deferred = builder.setup_single_issuer().setup_defer_taskrun().build(slots);
        let ring = deferred.or_else(|_| IoUring::new(slots))?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring does not read"));
        }
        assert!(buffers.words().len() * 8 >= slots as usize * block_bytes as usize);
        Ok(Self { ring, file, buffers: ManuallyDrop::new(buffers), block_bytes, under_way: 0 })
    }

    /// Prepares a request in a slot that has none under way; [`wait`](Self::wait) gives it to the kernel.
    pub fn prepare(&mut self, slot: u32, offset: u64, is_write: bool) -> io::Result<()> {
        let place = slot as usize * self.block_bytes as usize;
        assert!(place + self.block_bytes as usize <= self.buffers.words().len() * 8);
        let buffer = self.buffers.start_mut().wrapping_add(place);
        let file = types::Fd(self.file.as_raw_fd());
        let entry = match is_write {
            true => opcode::Write::new(file, buffer, self.block_bytes).offset(offset).build(),
            false => opcode::Read::new(file, buffer, self.block_bytes).offset(offset).build(),
        };
        // SAFETY: the file is open and the buffer is mapped until the request is done (see the invariant); both are
        // within their bounds, as checked above.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(u64::from(slot))) };
        pushed.map_err(|_| io::Error::other("more requests than slots"))?;
        self.under_way += 1;
        Ok(())
    }

    /// Gives the kernel what was prepared, and waits until a request is done or a signal comes.
    pub fn wait(&mut self) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            Err(why) if why.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(why) => Err(why),
        }
    }

    /// Takes back a request that is done: its slot, and the bytes that it moved.
    pub fn done(&mut self) -> Option<(u32, io::Result<u32>)> {
        let entry = self.ring.completion().next()?;
        self.under_way -= 1;
        let moved = u32::try_from(entry.result()).map_err(|_| io::Error::from_raw_os_error(-entry.result()));
        Some((entry.user_data() as u32, moved))
    }

    /// Returns the number of requests under way.
    pub fn under_way(&self) -> usize {
        self.under_way
    }
}

impl Drop for Uring<'_> {
    fn drop(&mut self) {
        while self.under_way > 0 {
            if self.wait().is_err() {
                // The kernel may still write into the buffers: they stay mapped.
                return;
            }
            while self.done().is_some() {}
        }
        // SAFETY: nothing is under way, and the buffers are not used again.
        unsafe { ManuallyDrop::drop(&mut self.buffers) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn requests_come_back_with_what_they_moved_and_the_rest_is_waited_for() {
        let folder = crate::scratch::Scratch::create().expect("a folder");
        let path = folder.path().join("file");
        let mut file = File::create_new(&path).expect("made");
        file.write_all(&[7; 4096 + 100]).expect("written");
        let file = File::open(path).expect("opened");
        // Where io_uring is forbidden, there is nothing to test.
        let Ok(mut ring) = Uring::new(&file, 4, Area::new(4 * 4096).expect("memory"), 4096) else { return };
        ring.prepare(0, 0, false).expect("room");
        ring.prepare(1, 4096, false).expect("room");
        let mut moved = [0; 2];
        while ring.under_way() > 0 {
            ring.wait().expect("waited");
            while let Some((slot, bytes)) = ring.done() {
                moved[slot as usize] = bytes.expect("read");
            }
        }
        assert_eq!(moved, [4096, 100]);
        // A write to a file that is open for reading is refused; two more are still under way at the end.
        ring.prepare(2, 0, true).expect("room");
        ring.wait().expect("waited");
        assert!(ring.done().is_none_or(|(_, moved)| moved.is_err()));
        ring.prepare(0, 0, false).expect("room");
        ring.prepare(1, 0, false).expect("room");
    }
}
