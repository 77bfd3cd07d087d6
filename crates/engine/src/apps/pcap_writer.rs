//! Writes packets to a file.

mod output;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::app::{App, FileUse, Named, Trouble};
use crate::io::Io;
use crate::layout::Drop;
use output::Output;

/// Bytes of a packet that are written at most, unless the configuration says otherwise: what
/// tcpdump has, more than any packet.
const SNAPLEN_DEFAULT: u32 = 262_144;
/// How long packets wait in memory at most.
const FLUSH_NS: u64 = 1_000_000_000;

/// Writes every packet to a pcap file, with the time of the wall clock in nanoseconds.
///
/// Packets are written in large pieces, at least once a second. What the disk does not take is
/// dropped ([`Drop::Device`]) and counted in the report, with the error's number; the file ends with
/// the last whole packet, and goes on when there is room again.
#[derive(Debug)]
pub struct PcapWriter {
    file: PathBuf,
    output: Output,
    snaplen: u32,
    /// When the oldest packet came that is not written yet.
    oldest_ns: Option<u64>,
    packets: u64,
    lost: u64,
    failures: u64,
    error: u64,
}

/// Which file, and how much of each packet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapWriterConfig {
    /// The file; a relative path starts where the engine was started.
    pub file: PathBuf,
    /// Whether to go on behind what is in the file, which must be a pcap file of Ethernet frames then,
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

/// Which file the next one of the same name goes on with.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PcapWriterState {
    pcap_writer_file: PathBuf,
}

const INPUT: usize = 0;

impl App for PcapWriter {
    type Config = PcapWriterConfig;
    const OUTPUTS: Named = Named::Only(&[]);

    fn check(config: &PcapWriterConfig) -> Result<(), Trouble> {
        if config.snaplen == 0 || config.snaplen > SNAPLEN_DEFAULT {
            return Err(Trouble(format!(
                "snaplen = {}: 1 to {SNAPLEN_DEFAULT} bytes of a packet can be written",
                config.snaplen
            )));
        }
        Output::check(&config.file, config.append).map_err(|reason| trouble(config, reason))
    }

    fn files(config: &PcapWriterConfig) -> Vec<FileUse> {
        vec![FileUse { path: config.file.clone(), is_written: true }]
    }

    fn start(config: PcapWriterConfig, state: Option<Vec<u8>>) -> Result<Self, Trouble> {
        let state = state.and_then(|state| serde_json::from_slice::<PcapWriterState>(&state).ok());
        let goes_on = state.is_some_and(|state| state.pcap_writer_file == config.file);
        let output = Output::open(&config.file, config.append || goes_on, config.snaplen)
            .map_err(|reason| trouble(&config, reason))?;
        let snaplen = config.snaplen.min(output.snaplen());
        let (packets, lost, failures, error) = (0, 0, 0, 0);
        let mut writer =
            Self { file: config.file, output, snaplen, oldest_ns: None, packets, lost, failures, error };
        // So that a file without packets is one, too.
        writer.flush();
        Ok(writer)
    }

    fn push(&mut self, io: &mut Io) {
        if io.waiting(INPUT) > 0 {
            self.write(io);
        }
        let waited_ns = self.oldest_ns.map_or(0, |oldest_ns| io.now_ns().saturating_sub(oldest_ns));
        if waited_ns >= FLUSH_NS {
            let lost = self.flush();
            io.count_drops(Drop::Device, lost);
        }
    }

    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>> {
        let lost = self.flush();
        io.count_drops(Drop::Device, lost);
        serde_json::to_vec(&PcapWriterState { pcap_writer_file: self.file.clone() }).ok()
    }

    fn wake_ns(&self) -> Option<u64> {
        self.oldest_ns.map(|oldest_ns| oldest_ns.saturating_add(FLUSH_NS))
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
    /// Takes all that waits at the input.
    fn write(&mut self, io: &mut Io) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        while let Some(packet) = io.receive(INPUT) {
            self.output.add(now, packet.data(), self.snaplen);
            self.oldest_ns.get_or_insert(io.now_ns());
            io.free(packet);
            if self.output.is_full() {
                let lost = self.flush();
                io.count_drops(Drop::Device, lost);
            }
        }
    }

    /// Writes what is in memory. Returns how many packets were lost by that.
    fn flush(&mut self) -> u64 {
        self.oldest_ns = None;
        match self.output.flush() {
            Ok(written) => {
                self.packets += written;
                0
            }
            Err((lost, error)) => {
                self.lost += lost;
                self.failures += 1;
                self.error = error.raw_os_error().unwrap_or(0) as u64;
                lost
            }
        }
    }
}

fn trouble(config: &PcapWriterConfig, reason: String) -> Trouble {
    Trouble(format!("file = \"{}\": {reason}", config.file.display()))
}

#[cfg(test)]
mod tests;
