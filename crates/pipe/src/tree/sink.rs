//! The sink: one thread reads the stream and makes directories, several write small files, one writes large files,
//! and one answers offers.

mod held;
mod large;
mod target;
mod worker;

use std::collections::HashMap;
use std::io;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use caravan_segment::printable;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use twox_hash::XxHash3_128;

use self::held::WantedFolder;
use self::large::Large;
use self::target::CopyTargets;
use self::worker::{Late, SmallFileWorker};
use super::attributes::{AttributeSetter, modified};
use super::format::{MAGIC, PIECE_BYTES, TreeFrameKind, TreeHeader, nonsense};
use super::options::{JOBS_MAX, SinkOptions};
use super::records::{OfferedFile, RecordParser, SinkHas, TreePath};
use super::source::outbox::OFFER_FILES_MAX;
use super::trust::is_own_part;
use super::{Buffers, FileComplaints, format, options, records, say};
use crate::{Error, lock};

/// The number of pieces of large files that may wait to be written.
const PIECES_MAX: usize = 4;
/// The number of batches that may wait for each worker.
const BATCHES_PER_WORKER: usize = 2;
/// The number of failures, without a success, after which nobody expects that any file can be written.
const FUTILE_MIN: u64 = 100;
/// The number of descriptors that the workers may need, if the system permits.
const DESCRIPTORS: u64 = 16_384;
/// The most parts of earlier copies that one copy resumes. A copy that is cut off leaves one.
const PARTS_MAX: usize = 64;

/// The index of the source, the directory and the name of a file.
type FileKey = (u32, Vec<u8>, Vec<u8>);

/// The state that all threads of the sink share.
#[derive(Debug)]
pub struct SinkShared<'a> {
    targets: &'a CopyTargets,
    complaints: &'a FileComplaints,
    giver: AttributeSetter,
    late: Late,
    buffers: Buffers,
    files: AtomicU64,
    folders: AtomicU64,
    bytes: AtomicU64,
    /// A number in the names of parts that no other copy, and no sender, knows.
    nonce: u64,
    /// The parts of earlier copies that were reported to the source.
    parts: Mutex<HashMap<FileKey, OwnedFd>>,
    /// The number of sources of which nothing can be written.
    lost: AtomicU64,
    /// Whether each file is on the disk before it gets its name.
    is_synced: bool,
    /// Whether the copy has ended, in any way.
    is_over: AtomicBool,
    /// The first reason why the stream is refused.
    fault: Mutex<Option<Error>>,
}

/// A batch, and the position where its records begin.
struct BatchWork {
    number: u64,
    payload: Vec<u8>,
    records: usize,
}

/// A frame of a large file; the last one has a number.
struct LargePiece {
    number: Option<u64>,
    header: TreeHeader,
    payload: Vec<u8>,
}

/// Sends the hello, and writes what the source sends.
pub fn run(options: &str, mut data: impl Read + Send, mut have: impl Write + Send) -> Result<(), Error> {
    let options: SinkOptions = options::parse(options)?;
    caravan_segment::process::allow_descriptors(DESCRIPTORS);
    let nonce = nonce()?;
    let targets = CopyTargets::new(&options, nonce)?;
    let complaints = FileComplaints::default();
    let workers = options::jobs(options.jobs);
    let shared = SinkShared {
        targets: &targets,
        complaints: &complaints,
        giver: AttributeSetter::here(),
        late: Late::default(),
        buffers: Buffers::new(workers * (BATCHES_PER_WORKER + 1) + PIECES_MAX),
        files: AtomicU64::new(0),
        folders: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        nonce,
        parts: Mutex::default(),
        lost: AtomicU64::new(0),
        is_synced: options.fsync,
        is_over: AtomicBool::new(false),
        fault: Mutex::new(None),
    };
    greet(&targets, &mut have)?;
    let received = std::thread::scope(|scope| {
        let (to_workers, batches) = sync_channel::<BatchWork>(workers * BATCHES_PER_WORKER);
        let (to_large, pieces) = sync_channel::<LargePiece>(PIECES_MAX);
        let (to_offers, offered) = sync_channel::<Vec<u8>>(JOBS_MAX);
        let batches = Arc::new(Mutex::new(batches));
        let (shared, have) = (&shared, &mut have);
        for number in 0..workers {
            let batches = Arc::clone(&batches);
            scope.spawn(move || write_small(shared, number, &batches));
        }
        scope.spawn(move || write_large(shared, &pieces));
        scope.spawn(move || {
            for offer in offered {
                shared.or_fault(answer(shared, &offer, have));
            }
        });
        let channels = Channels { to_workers, to_large, to_offers };
        let received = receive(shared, &mut data, &channels);
        // Pairs with the Acquire in offers.rs.
        shared.is_over.store(true, Ordering::Release);
        received
    });
    let received = match shared.take_fault() {
        Some(fault) => Err(fault),
        None => received,
    };
    if received.is_err() {
        for (part, is_for_next) in targets.unfinished() {
            say(&match is_for_next {
                true => format!("what has come is in {}; the same command goes on with it", printable(&part)),
                false => format!(
                    "what has come is in {}; no copy goes on with it, because other users can change the directory \
                     that it is in",
                    printable(&part)
                ),
            });
        }
    }
    let failed_there = received?;
    for (path, error) in targets.finish(options.fsync) {
        complaints.fail(&format!("cannot give {} its name: {error}", printable(path)));
    }
    // If the source is gone by now, that does not matter: everything is here.
    let _ = have.write_all(&format::frame(TreeFrameKind::Done, &[])).and_then(|()| have.flush());
    if options.verbose {
        say(&shared.summary(failed_there));
    }
    complaints.finish()
}

struct Channels {
    to_workers: SyncSender<BatchWork>,
    to_large: SyncSender<LargePiece>,
    to_offers: SyncSender<Vec<u8>>,
}

/// Sends the hello.
fn greet(targets: &CopyTargets, have: &mut impl Write) -> Result<(), Error> {
    let hello = serde_json::to_vec(&targets.hello()).map_err(|_| nonsense("greeting"))?;
    let frame = format::frame(TreeFrameKind::Hello, &hello);
    have.write_all(MAGIC)
        .and_then(|()| have.write_all(&frame))
        .and_then(|()| have.flush())
        .map_err(Error::system("write"))
}

/// Reads the stream until the source has sent everything. Returns how many files the source could not send.
fn receive(shared: &SinkShared<'_>, data: &mut impl Read, channels: &Channels) -> Result<u64, Error> {
    let gone = || Error::Cancelled;
    format::read_magic(data)?;
    let mut position = MAGIC.len() as u64;
    let mut numbers = 0..;
    let mut is_within_file = false;
    loop {
        let mut payload = shared.buffers.take();
        let header = format::read(data, &mut payload, &mut position)?;
        if shared.has_fault() {
            return Err(gone());
        }
        if !matches!(header.kind, TreeFrameKind::Data) {
            header.check(&payload)?;
        }
        match header.kind {
            TreeFrameKind::Batch if !is_within_file => {
                let records = make_folders(shared, &payload)?;
                let number = numbers.next().ok_or_else(gone)?;
                channels.to_workers.send(BatchWork { number, payload, records }).map_err(|_| gone())?;
            }
            TreeFrameKind::Begin | TreeFrameKind::Data | TreeFrameKind::End => {
                is_within_file = header.kind != TreeFrameKind::End;
                let number = if is_within_file { None } else { numbers.next() };
                channels.to_large.send(LargePiece { number, header, payload }).map_err(|_| gone())?;
            }
            TreeFrameKind::Offer => channels.to_offers.send(payload).map_err(|_| gone())?,
            TreeFrameKind::Finish if !is_within_file => return RecordParser(&payload).u64(),
            _ => return Err(nonsense("frame")),
        }
    }
}

/// Makes the directories at the beginning of a batch. Returns where its records begin.
fn make_folders(shared: &SinkShared<'_>, payload: &[u8]) -> Result<usize, Error> {
    let mut parser = RecordParser(payload);
    let bytes = parser.u32()? as usize;
    let mut parser = RecordParser(parser.take(bytes)?);
    while !parser.is_empty() {
        let (spot, wanted) = (parser.spot()?, WantedFolder { mode: parser.u32()?, owner: parser.u32()? });
        match shared.targets.make(spot, wanted)? {
            // The figures are for people: they need no order.
            Ok(()) => _ = shared.folders.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                let shown = shared.targets.shown(spot, b"");
                let what = match Errno::from_io_error(&error) {
                    Some(Errno::NOTDIR | Errno::LOOP) => "there is something else".to_owned(),
                    _ => error.to_string(),
                };
                shared.fail(spot, b"", &error, &format!("cannot make the directory {shown}: {what}"));
            }
        }
    }
    Ok(4 + bytes)
}

fn write_small(shared: &SinkShared<'_>, number: usize, batches: &Mutex<Receiver<BatchWork>>) {
    let mut worker = SmallFileWorker::new(shared, number);
    loop {
        let work = match batches.lock() {
            Ok(batches) => batches.recv(),
            Err(_) => return,
        };
        let Ok(work) = work else { return };
        // After a fault, the rest is taken and dropped, so that nobody waits for this thread.
        if !shared.has_fault() {
            let deeds = worker.write(work.payload.get(work.records..).unwrap_or_default());
            if let Some(deeds) = shared.or_fault(deeds) {
                shared.late.complete(work.number, deeds, shared);
            }
        }
        shared.buffers.give_back(work.payload);
    }
}

fn write_large(shared: &SinkShared<'_>, pieces: &Receiver<LargePiece>) {
    let mut large = Large::new(shared);
    for piece in pieces {
        if !shared.has_fault() && shared.or_fault(large.take(&piece.header, &piece.payload)).is_some() {
            if let Some(number) = piece.number {
                shared.late.complete(number, Vec::new(), shared);
            }
        }
        shared.buffers.give_back(piece.payload);
    }
}

impl SinkShared<'_> {
    /// Returns the name of a file that is not complete.
    fn temporary(&self, of: &str) -> Vec<u8> {
        temporary(self.nonce, of)
    }

    /// Keeps a part of an earlier copy open, so that the file that was checked is the one that is resumed.
    fn keep_part(&self, folder: TreePath<'_>, name: &[u8], fd: OwnedFd) -> bool {
        let mut parts = lock(&self.parts);
        if parts.len() == PARTS_MAX {
            return false;
        }
        parts.insert((folder.root, folder.path.to_vec(), name.to_vec()), fd);
        true
    }

    fn take_part(&self, folder: TreePath<'_>, name: &[u8]) -> Option<OwnedFd> {
        let mut parts = lock(&self.parts);
        parts.remove(&(folder.root, folder.path.to_vec(), name.to_vec()))
    }

    fn or_fault<T>(&self, result: Result<T, Error>) -> Option<T> {
        result
            .map_err(|error| {
                let mut fault = lock(&self.fault);
                fault.get_or_insert(error);
            })
            .ok()
    }

    /// Reports why something could not be written. Ends the copy if nothing more can be written, so that the rest
    /// is not sent in vain.
    fn fail(&self, spot: TreePath<'_>, name: &[u8], error: &io::Error, sentence: &str) {
        self.complaints.fail(sentence);
        let is_source = spot.path.is_empty() && name.is_empty();
        // Each source fails once, and the figures are for people: they need no order.
        let lost = self.lost.fetch_add(is_source.into(), Ordering::Relaxed) + u64::from(is_source);
        let is_full = matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT | Errno::ROFS));
        let failed = self.complaints.failed();
        let is_futile = failed >= FUTILE_MIN && self.files.load(Ordering::Relaxed) == 0;
        if is_full || is_futile || is_source && lost == self.targets.count() as u64 {
            self.or_fault(Err::<(), _>(Error::Files(failed)));
        }
    }

    /// Closes a written file, after fsync(2) if that is wanted. Network file systems report only now that there is
    /// no room.
    fn closed(&self, file: OwnedFd) -> io::Result<()> {
        if self.is_synced {
            rustix::fs::fsync(&file)?;
        }
        caravan_segment::close(file)
    }

    fn has_fault(&self) -> bool {
        lock(&self.fault).is_some()
    }

    fn take_fault(&self) -> Option<Error> {
        lock(&self.fault).take()
    }

    fn summary(&self, failed_there: u64) -> String {
        let [files, folders, bytes] =
            [&self.files, &self.folders, &self.bytes].map(|figure| figure.load(Ordering::Relaxed));
        let failed = match failed_there + self.complaints.failed() {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        format!("{files} files, {folders} directories, {bytes} bytes written{failed}")
    }
}

fn temporary(nonce: u64, of: &str) -> Vec<u8> {
    format!(".caravan-{nonce:016x}-{of}.part").into_bytes()
}

fn nonce() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| Error::Random(error.into()))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Answers one offer. If the source does not get the answer, the stream shows it.
pub fn answer(shared: &SinkShared<'_>, offer: &[u8], have: &mut impl Write) -> Result<(), Error> {
    let mut parser = RecordParser(offer);
    let number = parser.u64()?;
    let is_update = parser.byte()? != 0;
    let mut answer = number.to_le_bytes().to_vec();
    let mut count = 0;
    while !parser.is_empty() {
        let offered = parser.offered()?;
        count += 1;
        if count > OFFER_FILES_MAX {
            return Err(nonsense("offer"));
        }
        // A file that cannot be read counts as missing.
        records::put_had(&mut answer, had(shared, &offered, is_update).unwrap_or(SinkHas::Nothing));
    }
    let _ = have.write_all(&format::frame(TreeFrameKind::Answer, &answer)).and_then(|()| have.flush());
    Ok(())
}

fn had(shared: &SinkShared<'_>, offered: &OfferedFile<'_>, is_update: bool) -> Result<SinkHas, Errno> {
    let (folder, name) = if offered.name.is_empty() {
        shared.targets.file(offered.folder)?
    } else {
        (shared.targets.old_folder(offered.folder)?, offered.name.to_vec())
    };
    if is_update {
        let stat = rustix::fs::statat(&folder, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
        let is_same = stat.is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && u64::try_from(stat.st_size) == Ok(offered.size)
                && modified(&stat) == offered.modified
        });
        if is_same {
            return Ok(SinkHas::Same);
        }
    }
    let part = crate::tree::part_name(&name);
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&folder, part.as_slice(), flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if !is_own_part(&stat) || bytes == 0 || bytes > offered.size {
        return Ok(SinkHas::Nothing);
    }
    let mut hash = XxHash3_128::new();
    let mut space = vec![0; PIECE_BYTES];
    let mut position = 0;
    while position < bytes {
        // Pairs with the Release where the copy ends.
        if shared.is_over.load(Ordering::Acquire) {
            return Ok(SinkHas::Nothing);
        }
        let wanted = (bytes - position).min(PIECE_BYTES as u64) as usize;
        match rustix::io::pread(&fd, &mut space[..wanted], position) {
            Ok(0) => return Ok(SinkHas::Nothing),
            Ok(count) => {
                hash.write(&space[..count]);
                position += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    let is_kept = shared.keep_part(offered.folder, offered.name, fd);
    Ok(if is_kept { SinkHas::Part { bytes, digest: hash.finish_128() } } else { SinkHas::Nothing })
}
