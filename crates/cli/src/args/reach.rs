//! How hosts are reached: the options that `caravan pipe` and `caravan cp` share.

use std::time::Duration;

use caravan_pipe::coordinator::{self, PipelineOptions};
use clap::ValueEnum;

use super::{Moving, Ssh};

/// How hosts are reached: with ssh, and for the data.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Hosts")]
pub struct Reach {
    /// Nothing but this carries data between hosts; an error where it cannot
    #[arg(short = 't', long, value_name = "WHAT")]
    pub transport: Option<Transport>,
    /// The name or address under which other hosts reach this one
    #[arg(short = 'H', long = "here", value_name = "NAME", value_parser = name)]
    pub here: Option<String>,
    /// ssh's options
    #[command(flatten)]
    pub ssh: Ssh,
    /// Never copy this program to a host; it must have this version of it on its PATH
    #[arg(long)]
    pub no_bootstrap: bool,
    /// How long a host may be silent before it is taken for dead
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = silence)]
    pub silence: Duration,
}

impl Reach {
    /// What the coordinator is to know, with the defaults for one to many.
    pub fn options(&self, moving: &Moving, progress: bool) -> PipelineOptions {
        PipelineOptions {
            transport: self.transport.map(|transport| match transport {
                Transport::Rdma => coordinator::HopTransport::Rdma,
                Transport::Tcp => coordinator::HopTransport::Tcp,
                Transport::Ssh => coordinator::HopTransport::Ssh,
            }),
            ports: moving.ports,
            here: self.here.clone(),
            sealing: moving.sealing(),
            digest: moving.digest_kind(),
            compression: moving.compression_kind(),
            streams: moving.streams,
            rate: moving.rate,
            buffer_bytes: moving.buffer_bytes,
            progress,
            silence: self.silence,
            ..PipelineOptions::default()
        }
    }
}

/// What carries data between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// RDMA devices on both hosts
    Rdma,
    /// TCP
    Tcp,
    /// The ssh session
    Ssh,
}

/// Both ends say every second that they are there: less than two of that is chance.
const SILENCE_SECONDS_MIN: f64 = 2.0;
const SILENCE_SECONDS_MAX: f64 = 3600.0;

fn silence(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (SILENCE_SECONDS_MIN..=SILENCE_SECONDS_MAX).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!("it takes seconds from {SILENCE_SECONDS_MIN} to {SILENCE_SECONDS_MAX}, such as 10")),
    }
}

fn name(text: &str) -> Result<String, String> {
    match text.is_empty() || text.starts_with('-') || text.contains(char::is_whitespace) {
        true => Err("it takes a name or an address of this host, such as 192.0.2.7".into()),
        false => Ok(text.to_owned()),
    }
}
