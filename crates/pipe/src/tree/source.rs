//! The source: one thread walks, several read, one writes.

pub mod large;
pub mod outbox;
pub mod reader;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use self::outbox::{FrameOutbox, OfferAnswers};
use self::reader::{BatchReader, LinkedFiles};
use super::format::{MAGIC, TreeFrameKind};
use super::options::{SourceOptions, TreeHello};
use super::walk::{Batch, Walk};
use super::{Buffers, FileComplaints, format, options};
use crate::Error;

/// The number of batches that may wait for a reader.
const WALKED_MAX: usize = 4;
/// The number of frames for each reader: being filled, waiting, being written.
const BUFFERS_PER_READER: usize = 3;
/// The number of descriptors that the readers and a deep tree may need, if the system permits.
const DESCRIPTORS: u64 = 8192;

/// The state that all threads of the source share.
#[derive(Debug)]
pub struct SourceShared<'a> {
    options: &'a SourceOptions,
    hello: &'a TreeHello,
    complaints: &'a FileComplaints,
    outbox: FrameOutbox,
    answers: OfferAnswers,
    links: LinkedFiles,
    buffers: Buffers,
    /// The number of the next offer.
    offers: AtomicU64,
}

/// Reads the options and the sink's hello, and sends what the sink does not have.
pub fn run(options: &str, mut have: impl Read + Send, mut data: impl Write + Send) -> Result<(), Error> {
    let options: SourceOptions = options::parse(options)?;
    caravan_segment::process::allow_descriptors(DESCRIPTORS);
    let (hello, position) = hello(&mut have)?;
    let complaints = FileComplaints::default();
    let readers = options::jobs(options.jobs);
    let shared = SourceShared {
        options: &options,
        hello: &hello,
        complaints: &complaints,
        outbox: FrameOutbox::new(readers),
        answers: OfferAnswers::default(),
        links: LinkedFiles::default(),
        buffers: Buffers::new(readers * BUFFERS_PER_READER),
        offers: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        let (to, batches) = sync_channel(WALKED_MAX);
        // Only the readers hold the receiver: the walk ends once they have ended.
        let batches = Arc::new(Mutex::new(batches));
        let heard = scope.spawn(|| {
            let result = shared.answers.read(&mut have, position);
            if result.is_err() {
                shared.outbox.close();
            }
            result
        });
        for _ in 0..readers {
            let batches = Arc::clone(&batches);
            scope.spawn(|| read(&shared, batches));
        }
        drop(batches);
        scope.spawn(|| {
            let walk = Walk::new(shared.options, shared.hello, shared.complaints, to);
            match walk.run() {
                Ok(total) => shared.outbox.set_total(total),
                Err(_) => shared.outbox.close(),
            }
        });
        let written = write(&shared, &mut data);
        shared.outbox.close();
        if written.is_err() {
            shared.answers.close();
        }
        // The close tells the sink that nothing more comes.
        drop(data);
        let heard = heard.join().unwrap_or(Err(Error::Cancelled));
        written.and(heard)
    })?;
    complaints.finish()
}

fn hello(have: &mut impl Read) -> Result<(TreeHello, u64), Error> {
    format::read_magic(have).map_err(|error| match error {
        // The sink has printed the cause itself.
        Error::Truncated { .. } => Error::Told("the destination takes nothing".to_owned()),
        error => error,
    })?;
    let (mut payload, mut position) = (Vec::new(), MAGIC.len() as u64);
    let header = format::read(have, &mut payload, &mut position)?;
    header.check(&payload)?;
    if header.kind != TreeFrameKind::Hello {
        return Err(format::nonsense("greeting"));
    }
    let hello: TreeHello = serde_json::from_slice(&payload).map_err(|_| format::nonsense("greeting"))?;
    Ok((hello.received(), position))
}

/// Reads batches until there are no more.
fn read(shared: &SourceShared<'_>, batches: Arc<Mutex<Receiver<Batch>>>) {
    let mut reader = BatchReader::new(shared);
    loop {
        let batch = match batches.lock() {
            Ok(batches) => batches.recv(),
            Err(_) => return,
        };
        let Ok(batch) = batch else { return };
        if reader.read(batch).is_err() {
            return;
        }
    }
}

fn write(shared: &SourceShared<'_>, data: &mut impl Write) -> Result<(), Error> {
    let mut position = 0;
    let mut put = |bytes: &[u8]| {
        position += bytes.len() as u64;
        data.write_all(bytes).map_err(|error| Error::Truncated {
            bytes: position,
            why: match error.kind() {
                std::io::ErrorKind::BrokenPipe => "the destination has ended".to_owned(),
                _ => error.to_string(),
            },
        })
    };
    put(MAGIC)?;
    while let Some(frame) = shared.outbox.next() {
        put(&frame)?;
        shared.buffers.give_back(frame);
    }
    if !shared.outbox.is_complete() {
        return Err(Error::Told("the destination has ended before all was copied".to_owned()));
    }
    put(&format::frame(TreeFrameKind::Finish, &shared.complaints.failed().to_le_bytes()))?;
    data.flush().map_err(Error::system("write"))
}

impl SourceShared<'_> {
    fn next_offer(&self) -> u64 {
        // The numbers only have to differ from each other.
        self.offers.fetch_add(1, Ordering::Relaxed)
    }
}
