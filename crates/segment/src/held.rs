//! A file that nobody changes, as memory.
//!
//! Pages of a file can go to a socket without a copy, and be looked at where they are; both are only the same bytes if
//! nobody writes to the file meanwhile. The kernel sees to that by a lease (fcntl(2), `F_SETLEASE`): it is given only
//! where nobody has the file open for writing, and whoever opens or truncates it later waits until it is given back.
//! A memfd can be sealed instead.
//!
//! A writer that waits takes it by force after `/proc/sys/fs/lease-break-time` (45 s). Nobody is to be held up that
//! long: see [`HeldFile::is_wanted`].

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// A mapping begins at a multiple of this: the largest usual page of any Linux.
const MAP_ALIGN_BYTES: u64 = 64 << 10;
/// Where a processor's own fetching ahead ends.
const PAGE_BYTES: usize = 4 << 10;
/// Of the next page, until its own fetching has begun. Measured over 2 GiB that are in no cache, to hash them with XXH3:
/// 0.113 s for a GB without, 0.105 with 256 bytes, 0.100 with 512, 0.108 with 1 KiB and more.
#[cfg(target_arch = "x86_64")]
const PREFETCH_BYTES: usize = 512;
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;
/// fcntl(2)'s `F_SETSIG`, which the libc crate does not have.
const F_SETSIG: libc::c_int = 10;

/// A regular file of which the bytes stay as they are until it is released or dropped.
#[derive(Debug)]
pub struct HeldFile {
    file: OwnedFd,
    bytes: u64,
    hold: Mutex<Hold>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// Its seals hold it.
    Sealed,
    /// A lease does.
    Leased,
    /// Nothing does.
    Released,
}

/// Bytes of a held file, in memory.
#[derive(Debug)]
pub struct View<'a> {
    mapping: NonNull<u8>,
    mapped_bytes: usize,
    /// Bytes of the mapping before the first that was asked for.
    lead_bytes: usize,
    /// As long as this is there nobody releases the file.
    _hold: MutexGuard<'a, Hold>,
}

impl HeldFile {
    /// Holds the file behind a descriptor, which stays as it is. [`Errno::AGAIN`] if somebody has it open for writing;
    /// [`Errno::ACCESS`] if it is another user's; other errors where it is no file, or its file system has no leases.
    pub fn hold(file: impl AsFd) -> Result<Self, Errno> {
        let file = file.as_fd();
        // Leases belong to an open file: this one is nobody else's.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let own = rustix::fs::open(
            path,
            OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY,
            Mode::empty(),
        )?;
        let fixed = SealFlags::WRITE | SealFlags::SHRINK;
        let is_sealed = rustix::fs::fcntl_get_seals(&own).is_ok_and(|seals| seals.contains(fixed));
        let hold = if is_sealed { Hold::Sealed } else { Hold::Leased };
        if hold == Hold::Leased {
            // The kernel does not count who may write to a memfd.
            if rustix::fs::fstat(&own)?.st_nlink == 0 {
                return Err(Errno::INVAL);
            }
            // What says that it is wanted is asked for here; SIGIO, the usual, would end the process.
            control(&own, F_SETSIG, libc::SIGURG)?;
            control(&own, libc::F_SETLEASE, libc::F_RDLCK)?;
        }
        // Only now does it stay the same.
        let bytes = u64::try_from(rustix::fs::fstat(&own)?.st_size).unwrap_or_default();
        Ok(Self { file: own, bytes, hold: Mutex::new(hold) })
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether somebody waits to write to it. To be asked often, and then [`release`](Self::release)d soon.
    pub fn is_wanted(&self) -> bool {
        // The lease that is left once it is broken is none.
        *self.lock() == Hold::Leased && control(&self.file, libc::F_GETLEASE, 0) != Ok(libc::F_RDLCK)
    }

    /// Gives it back: from now on it may change. Waits for a [`View`] that is there.
    pub fn release(&self) {
        let mut hold = self.lock();
        if *hold == Hold::Leased {
            // One that was taken by force is gone already.
            let _ = control(&self.file, libc::F_SETLEASE, libc::F_UNLCK);
        }
        *hold = Hold::Released;
    }

    /// So many of its bytes from a position on, one view at a time; they are read from where the file is, and all of
    /// them are there when it returns. [`Errno::INVAL`] if it does not have them, [`Errno::STALE`] once it was released.
    pub fn view(&self, position: u64, bytes: usize) -> Result<View<'_>, Errno> {
        let hold = self.lock();
        if *hold == Hold::Released {
            return Err(Errno::STALE);
        }
        let start = position / MAP_ALIGN_BYTES * MAP_ALIGN_BYTES;
        let lead_bytes = (position - start) as usize;
        let mapped_bytes = bytes.checked_add(lead_bytes).ok_or(Errno::INVAL)?;
        if bytes == 0 || position.checked_add(bytes as u64).is_none_or(|end| end > self.bytes) {
            return Err(Errno::INVAL);
        }
        // SAFETY: a null hint lets the kernel choose addresses that nothing else uses; `mapped_bytes` is not zero.
        let mapping = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                mapped_bytes,
                ProtFlags::READ,
                MapFlags::SHARED,
                &self.file,
                start,
            )?
        };
        let mapping = NonNull::new(mapping.cast::<u8>()).ok_or(Errno::FAULT)?;
        let view = View { mapping, mapped_bytes, lead_bytes, _hold: hold };
        // SAFETY: it is the mapping that was just made. Pages are brought in by one call, which also says where
        // the disk cannot give them: to touch such a page would end the process.
        unsafe {
            rustix::mm::madvise(mapping.as_ptr().cast(), mapped_bytes, Advice::LinuxPopulateRead)?;
        }
        Ok(view)
    }

    fn lock(&self) -> MutexGuard<'_, Hold> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View<'_> {
    /// Its bytes page by page, as it is read from its start to its end. The processor fetches ahead by itself, but not
    /// from one page to the next: here it is told to.
    pub fn pages(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks(PAGE_BYTES).enumerate().map(|(number, page)| {
            self.prefetch((number + 1) * PAGE_BYTES);
            page
        })
    }

    #[cfg(target_arch = "x86_64")]
    fn prefetch(&self, position: usize) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for line in (position..self.len().min(position + PREFETCH_BYTES)).step_by(LINE_BYTES) {
            // SAFETY: a hint, which touches nothing; every processor of this architecture has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.as_ptr().wrapping_add(line).cast()) };
        }
    }

    /// Stable Rust has no such hint for other processors.
    #[cfg(not(target_arch = "x86_64"))]
    fn prefetch(&self, _position: usize) {}
}

impl Deref for View<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is `mapped_bytes` long, readable, inside the file, and there until drop; `lead_bytes` is
        // below that. Nobody writes to it: the file is sealed against it, or leased and the guard keeps it so. What is
        // left is a process that is stopped for longer than the kernel lets a writer wait while it looks: a byte that
        // changes under it then is read as one or the other, and makes a digest that its receiver refuses.
        unsafe {
            let first = self.mapping.add(self.lead_bytes);
            std::slice::from_raw_parts(first.as_ptr(), self.mapped_bytes - self.lead_bytes)
        }
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it outlives the borrow of this value.
        // It fails for arguments that are no mapping alone.
        let _ = unsafe { rustix::mm::munmap(self.mapping.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// fcntl(2) of a number.
fn control(file: impl AsFd, command: libc::c_int, number: libc::c_int) -> Result<libc::c_int, Errno> {
    // SAFETY: the descriptor is open, and none of the commands that are used here takes a pointer.
    let did = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, number) };
    match did {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        did => Ok(did),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::Write;
    use std::path::PathBuf;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A file with a name; gone at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, bytes: &[u8]) -> Self {
            let path = std::env::temp_dir().join(format!("caravan-held-{}-{name}", std::process::id()));
            std::fs::write(&path, bytes).expect("written");
            Self(path)
        }

        fn open(&self) -> File {
            File::open(&self.0).expect("open")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 31 >> 3) as u8).collect()
    }

    #[test]
    fn every_part_of_it_is_what_the_file_holds() {
        let data = pattern(300_001);
        let scratch = Scratch::new("parts", &data);
        let held = HeldFile::hold(scratch.open()).expect("held");
        assert_eq!(held.bytes(), 300_001);
        for (from, bytes) in
            [(0, 1), (0, 300_001), (65_535, 2), (65_536, 65_536), (131_071, 168_930), (300_000, 1)]
        {
            let view = held.view(from as u64, bytes).expect("a view");
            assert!(*view == data[from..from + bytes], "{from} {bytes}");
            assert!(view.pages().flatten().eq(&data[from..from + bytes]), "{from} {bytes}");
        }
        for (from, bytes) in [(0, 300_002), (300_001, 1), (u64::MAX, 1), (1, usize::MAX), (0, 0)] {
            assert_eq!(held.view(from, bytes).err(), Some(Errno::INVAL), "{from} {bytes}");
        }
    }

    #[test]
    fn a_file_that_is_being_written_is_not_held() {
        let scratch = Scratch::new("written", b"words");
        let writer = OpenOptions::new().append(true).open(&scratch.0).expect("open");
        assert_eq!(HeldFile::hold(scratch.open()).err(), Some(Errno::AGAIN));
        drop(writer);
        assert!(HeldFile::hold(scratch.open()).is_ok());
    }

    #[test]
    fn a_writer_waits_until_it_is_given_back_and_is_seen_to() {
        let scratch = Scratch::new("wanted", b"words");
        let held = HeldFile::hold(scratch.open()).expect("held");
        assert!(!held.is_wanted());
        let (path, (tell, told)) = (scratch.0.clone(), mpsc::channel());
        let writer = std::thread::spawn(move || {
            let file = OpenOptions::new().write(true).truncate(true).open(path);
            let _ = tell.send(());
            file.and_then(|mut file| file.write_all(b"others")).expect("written");
        });
        while !held.is_wanted() {
            assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty), "nobody writes to what is held");
            std::thread::yield_now();
        }
        assert_eq!(*held.view(0, 5).expect("still held"), *b"words");
        held.release();
        told.recv_timeout(Duration::from_secs(20)).expect("the writer goes on");
        writer.join().expect("no panic");
        assert_eq!(held.view(0, 5).err(), Some(Errno::STALE));
        assert!(!held.is_wanted(), "there is nothing to give back any more");
        assert_eq!(std::fs::read(&scratch.0).expect("read"), b"others");
    }

    #[test]
    fn a_file_without_a_name_is_held_only_by_its_seals() {
        let memory =
            rustix::fs::memfd_create("caravan-test", rustix::fs::MemfdFlags::ALLOW_SEALING).expect("a memfd");
        let mut file = File::from(memory);
        file.write_all(b"words").expect("written");
        assert_eq!(HeldFile::hold(&file).err(), Some(Errno::INVAL));
        rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW)
            .expect("sealed");
        let held = HeldFile::hold(&file).expect("held");
        assert_eq!(*held.view(1, 3).expect("a view"), *b"ord");
        assert!(!held.is_wanted());
    }

    #[test]
    fn what_is_no_file_is_not_held() {
        let (reading, _writing) = rustix::pipe::pipe().expect("a pipe");
        assert!(HeldFile::hold(&reading).is_err());
        assert!(HeldFile::hold(File::open("/dev/zero").expect("open")).is_err());
    }
}
