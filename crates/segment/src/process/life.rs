//! A word of shared memory that says whether the process that has made it still runs. `unsafe`: set_robust_list(2).
//!
//! The kernel changes it when that process ends, in whatever way. It does so before it closes the descriptors of the process
//! and before it reports its death: who learns of the death, from a pidfd or a closed socket, finds the word changed. So a reader that
//! finds it unchanged knows that nobody could know of a death yet, and it takes one load to look. (`exit_mm` calls
//! `exit_robust_list`, and comes before `exit_files` and `exit_notify` in `do_exit`; Linux's kernel/exit.c and
//! kernel/futex/core.c.)
//!
//! To the kernel, the word is a robust futex that a thread holds which does nothing else and lives as long as the process.

#![allow(
    unsafe_code,
    reason = "calls set_robust_list(2), and writes words by their addresses as that wants it"
)]

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, system};
use crate::slice::SharedSlice;

/// The bits of the word as the kernel knows them: the thread that holds it; that this has ended.
const THREAD: u32 = 0x3fff_ffff;
const OWNER_DIED: u32 = 0x4000_0000;

/// Where a life word has its second word, by which the kernel finds it.
const LINK: u64 = 8;

/// What set_robust_list(2) takes: a circle of addresses, from each of which the futex is as far. Never freed.
#[repr(C)]
#[derive(Debug)]
struct RobustList {
    first: AtomicUsize,
    futex_offset: isize,
    pending: usize,
}

/// The thread that holds the words of this process.
#[derive(Debug)]
struct Holder {
    thread: u32,
    list: &'static RobustList,
    /// The addresses of the links, the last one first in the circle.
    links: Mutex<Vec<usize>>,
}

/// A word of shared memory that says, until it is dropped, that this process lives. Readers ask [`lives`].
#[derive(Debug)]
pub struct LifeWord {
    slice: SharedSlice,
}

/// Tells whether the process lives that has made a life word, which is loaded as one word of 64 bits.
#[inline]
pub fn lives(word: u64) -> bool {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d]) & THREAD != 0
}

impl LifeWord {
    /// The size of the slice that [`new`](Self::new) takes.
    pub const BYTES: u64 = 16;

    /// How many a process may have: the kernel looks at so many when it ends (`ROBUST_LIST_LIMIT`).
    pub const COUNT_MAX: usize = 2048;

    /// Makes the first word of `slice` a life word. The second one is the kernel's.
    pub fn new(slice: SharedSlice) -> Result<Self, Error> {
        if slice.bytes() < Self::BYTES {
            return Err(Error::Range { offset: 0, bytes: Self::BYTES, segment_bytes: slice.bytes() });
        }
        let holder = holder()?;
        let mut links = holder.links.lock().unwrap_or_else(PoisonError::into_inner);
        if links.len() >= Self::COUNT_MAX {
            return Err(Error::TooManyLives { maximum: Self::COUNT_MAX });
        }
        let word = Self { slice };
        word.set(holder.thread);
        let link = word.link();
        // Complete before it is in the circle, as this process may be killed between any two instructions.
        word.slice
            .word(LINK as usize)
            .store(holder.list.first.load(Ordering::Relaxed) as u64, Ordering::Release);
        holder.list.first.store(link, Ordering::Release);
        links.push(link);
        Ok(word)
    }

    fn set(&self, value: u32) {
        let [a, b, c, d] = value.to_ne_bytes();
        self.slice.word(0).store(u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]), Ordering::Release);
    }

    fn link(&self) -> usize {
        ptr::from_ref(self.slice.word(LINK as usize)).expose_provenance()
    }
}

impl Drop for LifeWord {
    fn drop(&mut self) {
        self.set(OWNER_DIED);
        let Ok(holder) = holder() else { return };
        let mut links = holder.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = self.link();
        let Some(index) = links.iter().position(|known| *known == link) else { return };
        let next = self.slice.word(LINK as usize).load(Ordering::Relaxed) as usize;
        let before = match links.get(index + 1) {
            // SAFETY: it is the address of the second word of another `LifeWord`, aligned and mapped: that one takes it out of
            // `links`, under the lock that is held here, before it lets go of its slice.
            Some(before) => unsafe { &*ptr::with_exposed_provenance::<AtomicUsize>(*before) },
            None => &holder.list.first,
        };
        before.store(next, Ordering::Release);
        links.remove(index);
    }
}

fn holder() -> Result<&'static Holder, Error> {
    static HOLDER: Mutex<Option<&Holder>> = Mutex::new(None);
    let mut known = HOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    if known.is_none() {
        *known = Some(Box::leak(Box::new(start()?)));
    }
    known.ok_or(Error::Malformed("no thread holds the words"))
}

/// Starts the thread that holds the words.
fn start() -> Result<Holder, Error> {
    let list: &'static RobustList = Box::leak(Box::new(RobustList {
        first: AtomicUsize::new(0),
        futex_offset: -(LINK as isize),
        pending: 0,
    }));
    // The circle begins and ends at the list itself, whose first member is such a link, too.
    list.first.store(ptr::from_ref(list).expose_provenance(), Ordering::Relaxed);
    let (tell, told) = channel();
    let run = move || {
        let address = ptr::from_ref(list);
        // SAFETY: the list stays for ever, and whatever leads from it stays until it is taken out. This thread locks no robust mutex of
        // the C library, whose list this one replaces.
        let result = unsafe { libc::syscall(libc::SYS_set_robust_list, address, size_of::<RobustList>()) };
        let result = if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
        let is_set = result.is_ok();
        let _ = tell.send(result.map(|()| rustix::thread::gettid().as_raw_nonzero().get() as u32));
        if is_set {
            loop {
                std::thread::park();
            }
        }
    };
    let spawned = std::thread::Builder::new().name("caravan-life".to_owned()).spawn(run);
    spawned.map_err(system("clone"))?;
    let thread = told.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::BrokenPipe.into()));
    Ok(Holder { thread: thread.map_err(system("set_robust_list"))?, list, links: Mutex::default() })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::{AsFd, OwnedFd};
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use super::*;
    use crate::memory::{Pages, Segment};
    use crate::process::Process;
    use crate::view::SegmentView;

    const PAGE: u64 = 4096;

    /// The child of `a_death_is_in_the_words_when_it_is_known`: marks all words of the memory that is its input, but drops one.
    #[test]
    #[ignore = "is run by another test, as a process of its own"]
    fn child() {
        let memory = std::io::stdin().as_fd().try_clone_to_owned().expect("an input");
        let segment = Arc::new(Segment::adopt(memory, PAGE, PAGE).expect("a segment"));
        let word = |index| LifeWord::new(segment.slice(16 * index, 16).expect("in it")).expect("a word");
        let mut words: Vec<LifeWord> = (0..PAGE / 16).map(word).collect();
        drop(words.remove(7));
        words.push(word(7));
        drop(words.remove(0));
        println!("marked");
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn a_death_is_in_the_words_when_it_is_known() {
        for _ in 0..20 {
            let segment = Segment::create("life", PAGE, Pages::Small).expect("a segment");
            segment.grow(PAGE).expect("memory");
            let view =
                SegmentView::attach(segment.read_only_descriptor().expect("opened"), PAGE).expect("a view");
            let lives = |index: u64| lives(view.load(16 * index as usize));
            assert!(!lives(1));
            let memory: OwnedFd = segment.as_fd().try_clone_to_owned().expect("a copy");
            let mut child = Command::new(std::env::current_exe().expect("this program"))
                .args(["--ignored", "--exact", "process::life::tests::child", "--quiet", "--nocapture"])
                .stdin(Stdio::from(memory))
                .stdout(Stdio::piped())
                .spawn()
                .expect("started");
            let process = Process::open(child.id() as i32).expect("opened");
            let mut said = [0; 1];
            let mut output = child.stdout.take().expect("a pipe");
            let mut text = String::new();
            while !text.contains("marked") {
                assert_eq!(output.read(&mut said).expect("read"), 1, "{text}");
                text.push(char::from(said[0]));
            }
            assert!((1..PAGE / 16).all(lives) && !lives(0));
            child.kill().expect("killed");
            while process.is_alive() {}
            assert!(!(0..PAGE / 16).any(lives));
            child.wait().expect("reaped");
        }
    }
}
