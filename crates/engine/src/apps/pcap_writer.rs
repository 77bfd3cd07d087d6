//! An app that writes packets to a file.

mod output;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, FileUse, Named};
use crate::io::Io;
use crate::layout::DropReason;
use output::{LostPackets, PcapOutput};

/// Bytes of a packet that are written at most by default: tcpdump's
/// default, more than any packet.
const SNAPLEN_DEFAULT: u32 = 262_144;
/// How long packets wait in memory at most.
const FLUSH_NS: u64 = 1_000_000_000;
/// The time after which the app tries again to write to a pipe that was full.
const RETRY_NS: u64 = 10_000_000;

/// Writes every packet to a pcap file, with the time of the wall clock in nanoseconds.
///
/// Packets are written in large pieces, at least once a second. Packets that the disk does not take are
/// dropped ([`DropReason::Device`]) and counted in the report, with the error's number; the file ends with
/// the last whole packet, and goes on when there is room again. The app never waits for a pipe: packets that its
/// reader does not take in time, or that come while it has none, are lost in the same way.
#[derive(Debug)]
pub struct PcapWriter {
    file: PathBuf,
    output: PcapOutput,
    snaplen: u32,
    /// The time at which the packets in memory must be written.
    due_ns: Option<u64>,
    packets: u64,
    lost: u64,
    failures: u64,
    error: u64,
}

/// The configuration of a writer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapWriterConfig {
    /// The file; a relative path starts at the engine's working directory.
    pub file: PathBuf,
    /// True to append to the file, which must be a pcap file of Ethernet frames then,
    /// instead of starting it anew.
    #[serde(default)]
    pub append: bool,
    /// Bytes of each packet that are written at most.
    #[serde(default = "snaplen_default")]
    pub snaplen: u32,
}

fn snaplen_default() -> u32 {
    SNAPLEN_DEFAULT
}

/// The state that a writer leaves to its successor: the file to go on with.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PcapWriterState {
    pcap_writer_file: PathBuf,
}

const INPUT: usize = 0;

impl App for PcapWriter {
    type Config = PcapWriterConfig;
    const OUTPUTS: Named = Named::Only(&[]);

    fn check(config: &PcapWriterConfig) -> Result<(), AppError> {
        if config.snaplen == 0 || config.snaplen > SNAPLEN_DEFAULT {
            return Err(AppError(format!(
                "snaplen = {}: 1 to {SNAPLEN_DEFAULT} bytes of a packet can be written",
                config.snaplen
            )));
        }
        PcapOutput::check(&config.file, config.append).map_err(|reason| trouble(config, reason))
    }

    fn files(config: &PcapWriterConfig) -> Vec<FileUse> {
        vec![FileUse { path: config.file.clone(), is_written: true }]
    }

    fn start(config: PcapWriterConfig, state: Option<Vec<u8>>) -> Result<Self, AppError> {
        let state = state.and_then(|state| serde_json::from_slice::<PcapWriterState>(&state).ok());
        let goes_on = state.is_some_and(|state| state.pcap_writer_file == config.file);
        let output = PcapOutput::open(&config.file, config.append || goes_on, config.snaplen)
            .map_err(|reason| trouble(&config, reason))?;
        let snaplen = config.snaplen.min(output.snaplen());
        let (packets, lost, failures, error) = (0, 0, 0, 0);
        let mut writer =
            Self { file: config.file, output, snaplen, due_ns: None, packets, lost, failures, error };
        // The header makes a file without packets valid, too.
        writer.flush(0);
        Ok(writer)
    }

    fn push(&mut self, io: &mut Io) {
        if io.waiting(INPUT) > 0 {
            self.write(io);
        }
        if self.due_ns.is_some_and(|due_ns| due_ns <= io.now_ns()) {
            self.flush_counted(io);
        }
    }

    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>> {
        let result = self.output.finish();
        let lost = self.account(result);
        io.count_drops(DropReason::Device, lost);
        self.due_ns = None;
        serde_json::to_vec(&PcapWriterState { pcap_writer_file: self.file.clone() }).ok()
    }

    fn wake_ns(&self) -> Option<u64> {
        self.due_ns
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("packets", self.packets),
            ("lost", self.lost),
            ("failures", self.failures),
            ("error", self.error),
        ]
    }
}

impl PcapWriter {
    /// Takes all packets that wait at the input.
    fn write(&mut self, io: &mut Io) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if self.output.is_full() {
            self.flush_counted(io);
        }
        while let Some(packet) = io.receive(INPUT) {
            if self.output.is_full() {
                self.lost += 1;
                io.discard(packet, DropReason::Device);
                continue;
            }
            self.output.add(now, packet.data(), self.snaplen);
            self.due_ns.get_or_insert(io.now_ns() + FLUSH_NS);
            io.free(packet);
            if self.output.is_full() {
                self.flush_counted(io);
            }
        }
    }

    fn flush_counted(&mut self, io: &mut Io) {
        let lost = self.flush(io.now_ns());
        io.count_drops(DropReason::Device, lost);
    }

    /// Writes the packets in memory. Returns the number of packets lost.
    fn flush(&mut self, now_ns: u64) -> u64 {
        let result = self.output.flush();
        self.due_ns = self.output.is_held_up().then_some(now_ns + RETRY_NS);
        self.account(result)
    }

    /// Counts the result of a write. Returns the number of packets lost.
    fn account(&mut self, written: Result<u64, LostPackets>) -> u64 {
        match written {
            Ok(written) => {
                self.packets += written;
                0
            }
            Err(lost) => {
                self.lost += lost.packets;
                self.failures += 1;
                self.error = lost.error.raw_os_error().unwrap_or(0) as u64;
                lost.packets
            }
        }
    }
}

fn trouble(config: &PcapWriterConfig, reason: String) -> AppError {
    AppError(format!("file = \"{}\": {reason}", config.file.display()))
}

#[cfg(test)]
mod tests;
