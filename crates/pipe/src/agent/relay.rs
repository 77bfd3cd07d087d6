//! A hop whose data go over the control channel, because nothing else leads to the other side.
//!
//! The mover gets one end of a socket pair; two threads carry what it says to the coordinator, and what
//! comes from there to it. At most a window of bytes is under way each way.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use super::outbox::ReportOutbox;
use crate::Error;
use crate::connect::{DataChannel, DataConnection, Secret};
use crate::control::AgentReport;
use crate::limits::{RELAY_BYTES_MAX, RELAY_WINDOW_BYTES};
use crate::window::Credit;

/// This side's end of a relayed hop.
pub struct HopRelay {
    /// What the coordinator has given us leave to send.
    window: Arc<Credit>,
    /// Its queue holds no more than the window that this side has given.
    inbound: Option<Sender<Vec<u8>>>,
    /// Bytes that came; against who sends more than he may.
    under_way: Arc<std::sync::atomic::AtomicU64>,
    socket: UnixStream,
}

impl HopRelay {
    /// The connection for the mover, and what moves its bytes.
    pub fn open(hop: u32, outbox: &ReportOutbox) -> Result<(DataConnection, Self), Error> {
        let failed = |source: io::Error| Error::System { call: "socketpair", source };
        let (theirs, ours) = UnixStream::pair().map_err(failed)?;
        let (reading, writing) = (ours.try_clone().map_err(failed)?, ours.try_clone().map_err(failed)?);
        let window = Arc::new(Credit::new(RELAY_WINDOW_BYTES));
        let under_way = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let (sender, inbound) = mpsc::channel::<Vec<u8>>();
        let (given, out) = (Arc::clone(&window), outbox.clone());
        std::thread::spawn(move || send(hop, reading, &given, &out));
        let (counted, out) = (Arc::clone(&under_way), outbox.clone());
        std::thread::spawn(move || {
            let mut writing = writing;
            for bytes in inbound {
                // A mover that has closed takes nothing more, but the credit is the other side's.
                let _ = writing.write_all(&bytes);
                let bytes = bytes.len() as u64;
                // Pairs with the fetch_add in take(); the count alone matters.
                counted.fetch_sub(bytes, std::sync::atomic::Ordering::Relaxed);
                out.report(AgentReport::Credit { hop, bytes });
            }
            let _ = writing.shutdown(Shutdown::Write);
        });
        let connection = DataConnection {
            channel: DataChannel::Streams(vec![OwnedFd::from(theirs)]),
            secret: Secret::none(),
            description: "ssh".to_owned(),
        };
        Ok((connection, Self { window, inbound: Some(sender), under_way, socket: ours }))
    }

    /// Bytes from the other side.
    pub fn take(&mut self, bytes: Vec<u8>) {
        let before = self.under_way.fetch_add(bytes.len() as u64, std::sync::atomic::Ordering::Relaxed);
        if before + bytes.len() as u64 > RELAY_WINDOW_BYTES {
            // More than it may: it is no coordinator of ours.
            return self.close();
        }
        if let Some(inbound) = &self.inbound {
            let _ = inbound.send(bytes);
        }
    }

    /// The other side took as much.
    pub fn credit(&self, bytes: u64) {
        self.window.give(bytes);
    }

    /// Nothing more comes from the other side.
    pub fn end(&mut self) {
        self.inbound = None;
    }

    fn close(&mut self) {
        self.inbound = None;
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Drop for HopRelay {
    fn drop(&mut self) {
        self.window.close();
        self.close();
    }
}

fn send(hop: u32, mut from: UnixStream, window: &Credit, outbox: &ReportOutbox) {
    let mut buffer = vec![0; RELAY_BYTES_MAX];
    while let Some(room) = window.take(RELAY_BYTES_MAX as u64) {
        let room = usize::try_from(room).map_or(RELAY_BYTES_MAX, |room| room.min(RELAY_BYTES_MAX));
        let Some(piece) = buffer.get_mut(..room) else { break };
        match from.read(piece) {
            Ok(0) => break,
            Ok(got) => {
                window.give((room - got) as u64);
                outbox.data(hop, piece.iter().take(got).copied().collect());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => window.give(room as u64),
            Err(_) => break,
        }
    }
    outbox.report(AgentReport::RelayEnd { hop });
}
