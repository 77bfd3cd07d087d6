//! Looks at a file's bytes where they are, so that they need not be copied for a digest.
//!
//! What was looked at must be what goes: the file is held ([`HeldFile`]), so whoever wants to write to it waits. That
//! is short: once somebody waits the rest of the file is copied, as any other stream is, and the file is given back when
//! what is under way has had the time to arrive. The same where the network turns out slow, as nothing is won there
//! and more would be under way. What comes too late even so is refused by its receiver for its digest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use caravan_segment::HeldFile;

use super::descriptor::Descriptor;
use super::digest::Digests;
use super::start::spawn;

/// Bytes that are looked at at once. Measured over veth, sender's time: 0.25 s of a processor for each GB with 256 KiB,
/// 0.21 with 1 and 2 MiB, and more again above, where they leave the core's cache before they are sent.
const WINDOW_BYTES: u64 = 1 << 20;
/// Of a smaller file nobody notices whether it is copied.
const FILE_BYTES_MIN: u64 = 4 * WINDOW_BYTES;
/// A window that took longer goes over a slow network: 20 MB/s.
const SLOW_WINDOW: Duration = Duration::from_millis(50);
/// How often somebody asks whether the file is wanted.
const ASK_INTERVAL: Duration = Duration::from_millis(50);
/// How long what is under way may take, as long as a network is fast enough: sockets hold up to 6 MB.
const ARRIVAL_LIMIT: Duration = Duration::from_millis(500);

/// A file that is looked at.
pub(super) struct Looker {
    file: Arc<HeldFile>,
    keeper: Keeper,
    /// Bytes that were looked at and are not taken yet.
    ahead: usize,
    looked_at: Option<Instant>,
}

impl Looker {
    /// `None` where it is not for this one.
    pub fn of(descriptor: &Descriptor) -> Option<Self> {
        let position = descriptor.position()?;
        let file = HeldFile::hold(descriptor.file()).ok()?;
        if file.bytes().saturating_sub(position) < FILE_BYTES_MIN {
            return None;
        }
        let file = Arc::new(file);
        let keeper = Keeper::start(Arc::clone(&file))?;
        Some(Self { file, keeper, ahead: 0, looked_at: None })
    }

    /// Shows the digests what comes next, if they have not seen it. How many bytes may be taken without a copy: at its
    /// end, one that is not there. `None` if the rest is to be copied: now, and from now on.
    pub fn look(&mut self, descriptor: &Descriptor, digests: &mut Digests) -> Option<usize> {
        if self.ahead > 0 {
            return Some(self.ahead);
        }
        let is_slow = self.looked_at.is_some_and(|at| at.elapsed() > SLOW_WINDOW);
        if is_slow || self.keeper.is_ending() {
            self.keeper.end();
            return None;
        }
        self.looked_at = Some(Instant::now());
        let position = descriptor.position()?;
        let left = self.file.bytes().saturating_sub(position);
        if left == 0 {
            return Some(1);
        }
        let bytes = left.min(WINDOW_BYTES - position % WINDOW_BYTES) as usize;
        let Ok(view) = self.file.view(position, bytes) else {
            // Where the disk is at fault, a read will say so.
            self.keeper.end();
            return None;
        };
        view.pages().for_each(|page| digests.update(page));
        self.ahead = bytes;
        Some(bytes)
    }

    /// So many were taken.
    pub fn took(&mut self, bytes: usize) {
        self.ahead = self.ahead.saturating_sub(bytes);
    }

    /// Whether bytes that the digests have seen are still to be taken.
    pub fn is_ahead(&self) -> bool {
        self.ahead > 0
    }
}

/// Gives the file back once somebody wants it: in a thread of its own, as the mover's may wait for the network.
/// Dropped, at once.
struct Keeper {
    /// Gone when dropped; a word says that no more will be taken.
    words: Option<SyncSender<()>>,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    fn start(file: Arc<HeldFile>) -> Option<Self> {
        let (words, heard) = sync_channel(1);
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&is_ending);
        let thread = spawn("lease", move || keep(&file, &heard, &ending)).ok()?;
        Some(Self { words: Some(words), is_ending, thread: Some(thread) })
    }

    fn is_ending(&self) -> bool {
        // Whoever sees it late takes one more window.
        self.is_ending.load(Ordering::Relaxed)
    }

    fn end(&self) {
        if let Some(words) = &self.words {
            // One word is enough, and nobody listens once the file is given back.
            let _ = words.try_send(());
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.words = None;
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

fn keep(file: &HeldFile, words: &Receiver<()>, is_ending: &AtomicBool) {
    while words.recv_timeout(ASK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if file.is_wanted() {
            break;
        }
    }
    is_ending.store(true, Ordering::Relaxed);
    let until = Instant::now() + ARRIVAL_LIMIT;
    while words.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {}
    file.release();
}
