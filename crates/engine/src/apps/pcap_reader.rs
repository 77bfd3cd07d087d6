//! An app that reads packets from a capture file.

mod records;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, FileUse, Named};
use crate::io::Io;
use crate::layout::DropReason;
use crate::limits::PULL_PACKETS;
use records::{Look, Position, Records};

/// Sends the packets of a pcap or pcapng file of any link type.
///
/// A frame that is longer than any packet is dropped ([`DropReason::Oversize`]). Where the file is damaged
/// or cut off, the app ends, and that counts as one packet dropped ([`DropReason::Malformed`]); where it cannot
/// be read, as [`DropReason::Device`].
#[derive(Debug)]
pub struct PcapReader {
    config: PcapReaderConfig,
    records: Records,
    epoch: Option<ReplayEpoch>,
    /// The number of records since the start of the file.
    in_round: u64,
    ended: bool,
    wake_ns: Option<u64>,
    packets: u64,
    oversize: u64,
    rounds: u64,
    damaged: u64,
}

/// The configuration of a reader.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapReaderConfig {
    /// The file; a relative path starts at the engine's working directory.
    pub file: PathBuf,
    /// True to start over at its end. A file without packets ends all the same.
    #[serde(default)]
    pub repeat: bool,
    /// The times at which packets are sent.
    #[serde(default)]
    pub timing: ReplayTiming,
}

/// The times at which packets are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayTiming {
    /// As fast as the output takes them.
    #[default]
    Fast,
    /// At the intervals at which they were captured.
    Recorded,
}

/// The start of a round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplayEpoch {
    /// The time by the engine's clock.
    started_ns: u64,
    /// The time of the file's first packet.
    first_ns: u64,
}

/// The state that a reader leaves to its successor, for the same file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PcapReaderState {
    file: PathBuf,
    position: Position,
    epoch: Option<ReplayEpoch>,
    in_round: u64,
    ended: bool,
}

const OUTPUT: usize = 0;

impl App for PcapReader {
    type Config = PcapReaderConfig;
    const INPUTS: Named = Named::Only(&[]);

    fn check(config: &PcapReaderConfig) -> Result<(), AppError> {
        open(config, None).map(drop)
    }

    fn files(config: &PcapReaderConfig) -> Vec<FileUse> {
        vec![FileUse { path: config.file.clone(), is_written: false }]
    }

    fn start(config: PcapReaderConfig, state: Option<Vec<u8>>) -> Result<Self, AppError> {
        let state = state.and_then(|state| serde_json::from_slice::<PcapReaderState>(&state).ok());
        let state = state.filter(|state| state.file == config.file);
        let records = open(&config, state.as_ref().map(|state| &state.position))?;
        // A position in another file of that name is useless.
        let state = state.filter(|state| state.position.inode == records.inode());
        let (epoch, in_round, ended) =
            state.map_or((None, 0, false), |state| (state.epoch, state.in_round, state.ended));
        let (packets, oversize, rounds, damaged) = (0, 0, 0, 0);
        Ok(Self {
            config,
            records,
            epoch,
            in_round,
            ended,
            wake_ns: None,
            packets,
            oversize,
            rounds,
            damaged,
        })
    }

    fn pull(&mut self, io: &mut Io) {
        self.wake_ns = None;
        let mut room = io.room(OUTPUT).min(PULL_PACKETS);
        while room > 0 && !self.ended {
            match self.records.look() {
                Look::Record { timestamp_ns } => {
                    if !self.is_due(timestamp_ns, io.now_ns()) || !self.send(io) {
                        return;
                    }
                    room -= 1;
                }
                Look::Later => {
                    self.wake_ns = Some(io.now_ns());
                    return;
                }
                Look::End => self.end_round(),
                Look::Damaged(why) => {
                    self.damaged += 1;
                    io.count_drops(why, 1);
                    self.end_round();
                }
            }
        }
    }

    fn stop(&mut self, _: &mut Io) -> Option<Vec<u8>> {
        let state = PcapReaderState {
            file: self.config.file.clone(),
            position: self.records.position(),
            epoch: self.epoch,
            in_round: self.in_round,
            ended: self.ended,
        };
        serde_json::to_vec(&state).ok()
    }

    fn wake_ns(&self) -> Option<u64> {
        self.wake_ns
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("packets", self.packets),
            ("oversize", self.oversize),
            ("rounds", self.rounds),
            ("damaged", self.damaged),
            ("ended", u64::from(self.ended)),
        ]
    }
}

impl PcapReader {
    fn is_due(&mut self, timestamp_ns: u64, now_ns: u64) -> bool {
        if self.config.timing == ReplayTiming::Fast {
            return true;
        }
        let new = ReplayEpoch { started_ns: now_ns, first_ns: timestamp_ns };
        let epoch = self.epoch.get_or_insert(new);
        let due_ns = epoch.started_ns.saturating_add(timestamp_ns.saturating_sub(epoch.first_ns));
        if due_ns > now_ns {
            self.wake_ns = Some(due_ns);
        }
        due_ns <= now_ns
    }

    /// Sends the current packet. Returns false, and does nothing, if there is no empty packet for it.
    fn send(&mut self, io: &mut Io) -> bool {
        let Some(mut packet) = io.allocate() else { return false };
        if packet.fill(self.records.data()) {
            self.packets += 1;
            io.transmit(OUTPUT, packet);
        } else {
            self.oversize += 1;
            io.discard(packet, DropReason::Oversize);
        }
        self.records.advance();
        self.in_round += 1;
        true
    }

    fn end_round(&mut self) {
        self.rounds += 1;
        self.ended = !self.config.repeat || self.in_round == 0;
        if !self.ended {
            self.records.rewind();
            self.epoch = None;
        }
        self.in_round = 0;
    }
}

fn open(config: &PcapReaderConfig, position: Option<&Position>) -> Result<Records, AppError> {
    Records::open(&config.file, position)
        .map_err(|reason| AppError(format!("file = \"{}\": {reason}", config.file.display())))
}

#[cfg(test)]
pub(super) mod tests;
