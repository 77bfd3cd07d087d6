//! Makes packets.

use serde::Deserialize;

use crate::app::{App, Named, Trouble};
use crate::io::Io;
use crate::limits::{HEADROOM_BYTES, PACKET_BYTES_MAX, PULL_PACKETS};

/// Sends packets of one size to every output, as many as they take.
#[derive(Debug)]
pub struct Source {
    size: usize,
}

/// What a source sends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SourceConfig {
    /// Bytes in each packet.
    pub size: usize,
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self { size: 60 }
    }
}

impl App for Source {
    type Config = SourceConfig;
    const INPUTS: Named = Named::Only(&[]);
    const OUTPUTS: Named = Named::Any;

    fn check(config: &SourceConfig) -> Result<(), Trouble> {
        let most = PACKET_BYTES_MAX - HEADROOM_BYTES;
        if config.size == 0 || config.size > most {
            return Err(Trouble(format!(
                "size = {}: a source makes packets of 1 to {most} bytes",
                config.size
            )));
        }
        Ok(())
    }

    fn start(config: SourceConfig, _: Option<Vec<u8>>) -> Result<Self, Trouble> {
        Ok(Self { size: config.size })
    }

    fn pull(&mut self, io: &mut Io) {
        for output in 0..io.outputs() {
            for _ in 0..io.room(output).min(PULL_PACKETS) {
                let Some(mut packet) = io.allocate() else { return };
                packet.resize(self.size);
                io.transmit(output, packet);
            }
        }
    }
}
