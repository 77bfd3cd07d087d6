//! Movers between threads of one process, with socket pairs for connections.

mod damage;
mod endings;
mod life;
mod links;
mod several;
mod spliced;
mod whole;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};

use super::start::{MoverShape, run_timed};
use super::*;
use crate::connect::{DataChannel, Secret};

const BLOCK: u32 = 16 << 10;
const OPTIONS: HopOptions = HopOptions {
    digest: DigestKind::Xxh3,
    sealed: false,
    compression: None,
    block_bytes: BLOCK,
    silence: Some(SILENCE),
};
const SILENCE: Duration = Duration::from_millis(2000);
/// So short that a test can outwait them, so long that a busy machine does not.
const TIMING: MoverTiming = MoverTiming {
    ping: Duration::from_millis(50),
    slow: Duration::from_millis(100),
    linger: Duration::from_secs(1),
};

/// A mover in a thread of its own.
struct Running {
    cancel: Cancel,
    gauge: Arc<Gauge>,
    thread: JoinHandle<MoverOutcome>,
}

impl Running {
    fn start(inlet: MoverInlet, outlets: Vec<MoverOutlet>, options: MoverOptions) -> Self {
        let (cancel, gauge) = (Cancel::new().expect("an event"), Arc::new(Gauge::default()));
        let (theirs, counts) = (cancel.clone(), Arc::clone(&gauge));
        let thread =
            std::thread::spawn(move || run_timed(inlet, outlets, &options, &counts, &theirs, TIMING));
        Self { cancel, gauge, thread }
    }

    fn join(self) -> MoverOutcome {
        self.thread.join().expect("no panic")
    }
}

fn connection(streams: Vec<OwnedFd>) -> DataConnection {
    DataConnection {
        channel: DataChannel::Streams(streams),
        secret: Secret([3; 32]),
        description: "a test".into(),
    }
}

/// Both ends of a hop.
fn hop(streams: u32) -> (DataConnection, DataConnection) {
    let pairs = (0..streams).map(|_| UnixStream::pair().expect("a pair"));
    let (near, far) = pairs.map(|(near, far)| (OwnedFd::from(near), OwnedFd::from(far))).unzip();
    (connection(near), connection(far))
}

fn from_hop(connection: DataConnection, options: &HopOptions) -> MoverInlet {
    MoverInlet::Hop(Box::new(connection), options.clone())
}

fn to_hop(connection: DataConnection, options: &HopOptions) -> MoverOutlet {
    MoverOutlet::Hop(Box::new(connection), options.clone())
}

/// A pipe as an inlet, and what feeds it.
fn fed() -> (MoverInlet, File) {
    let (from, feed) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    (MoverInlet::Descriptor(from), feed.into())
}

/// A pipe as an outlet, and what comes out of it.
fn drained() -> (MoverOutlet, File) {
    let (drain, to) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    (MoverOutlet::Descriptor(to), drain.into())
}

fn all_of(mut drain: impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    drain.read_to_end(&mut all).expect("read");
    all
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect()
}

/// Writes all of it from a thread of its own, as far as somebody reads it, and then closes.
fn feeding(mut feed: impl Write + Send + 'static, data: &[u8]) -> JoinHandle<()> {
    let data = data.to_vec();
    std::thread::spawn(move || drop(feed.write_all(&data)))
}

/// Of a mover of one thread towards a hop.
fn shape(digest: DigestKind) -> MoverShape {
    MoverShape {
        block_bytes: BLOCK as usize,
        digests: vec![digest],
        digest: Some(digest),
        sends: true,
        rate: None,
    }
}

fn is_complete(outcome: &MoverOutcome) -> bool {
    let all_took_it = outcome.outlets.iter().all(|outlet| matches!(outlet, Ok(OutletEnd::Complete)));
    matches!(outcome.inlet, Ok(InletEnd::Complete)) && all_took_it && outcome.unfinished.is_empty()
}
