//! What every command that moves data takes: how fast, through how much memory, and how it is checked and
//! sealed on its way.

use caravan_bench::{quantity, size};
use caravan_pipe::connect::Ports;
use caravan_pipe::coordinator::Sealing;
use caravan_pipe::limits::STREAMS_MAX;
use caravan_pipe::mover::{Compression, DigestKind};
use clap::ValueEnum;

/// Options of a stream between hosts.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Moving")]
pub struct Moving {
    /// Bytes a second at most: 500k, 100M, 1.5G, 64Ki
    #[arg(short = 'L', long = "rate", value_name = "RATE", value_parser = rate)]
    pub rate: Option<u64>,
    /// Bytes that may wait in memory between reading and writing: 64M, 1Gi
    #[arg(short = 'm', long = "buffer", value_name = "SIZE", default_value = "0", hide_default_value = true, value_parser = size)]
    pub buffer_bytes: u64,
    /// TCP connections for each hop
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(STREAMS_MAX)))]
    pub streams: u32,
    /// Compress what goes between hosts
    #[arg(short = 'c', long = "compress", value_name = "HOW")]
    pub compression: Option<Compress>,
    /// What the end of the stream is checked by, beside its length
    #[arg(long, visible_alias = "hash", value_name = "KIND", default_value = "xxh3")]
    pub digest: Digest,
    /// Encrypt whatever leaves a host; over TCP that is the default
    #[arg(long, conflicts_with = "insecure")]
    pub encrypt: bool,
    /// Do not encrypt over TCP: whoever is on the way can read and change the data
    #[arg(long)]
    pub insecure: bool,
    /// Listen for data on one of these ports, which a firewall lets through: 40000:40010
    #[arg(short = 'p', long, value_name = "LO:HI", value_parser = ports)]
    pub ports: Option<Ports>,
}

impl Moving {
    /// What --encrypt and --insecure come to.
    pub fn sealing(&self) -> Sealing {
        match (self.encrypt, self.insecure) {
            (true, _) => Sealing::Always,
            (false, true) => Sealing::Never,
            (false, false) => Sealing::Default,
        }
    }

    /// As the mover takes it.
    pub fn digest_kind(&self) -> DigestKind {
        match self.digest {
            Digest::Xxh3 => DigestKind::Xxh3,
            Digest::Sha256 => DigestKind::Sha256,
            Digest::Off => DigestKind::Off,
        }
    }

    /// As the mover takes it.
    pub fn compression_kind(&self) -> Option<Compression> {
        self.compression.map(|compress| match compress {
            Compress::Zstd => Compression::Zstd,
            Compress::Lz4 => Compression::Lz4,
        })
    }
}

/// How data are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compress {
    /// Zstandard: smaller
    Zstd,
    /// LZ4: faster
    Lz4,
}

/// What the end of a stream carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Digest {
    /// XXH3 with 128 bits: finds every accident
    Xxh3,
    /// SHA-256: finds forgery, too
    Sha256,
    /// The length alone
    Off,
}

/// As fast as no network is.
const RATE_MAX: u64 = 1 << 50;

/// `100M`, `1.5G` (powers of 1,000), `64Ki` (of 1,024); also `1.5GB`, `64KiB`.
pub fn rate(text: &str) -> Result<u64, String> {
    match quantity(text.strip_suffix("/s").unwrap_or(text)) {
        Some(bytes) if (1..=RATE_MAX).contains(&bytes) => Ok(bytes),
        _ => Err("it takes bytes a second, such as 500k, 100M, 1.5G or 64Mi".into()),
    }
}

/// `LO:HI`, or a single port.
pub fn ports(text: &str) -> Result<Ports, String> {
    let (first, last) = text.split_once([':', '-']).unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Ports { first, last }),
        _ => Err("it takes two ports, the lower one first, such as 40000:40010, or a single one (`caravan cp` keeps \
                  times and permissions without -p)"
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_decimal_or_binary() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("100k", 100_000),
            ("100K", 100_000),
            ("1.5G", 1_500_000_000),
            ("64Ki", 65_536),
            ("64KiB", 65_536),
            ("8MB", 8_000_000),
            ("0.5Mi", 524_288),
            ("1Ti", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        assert_eq!(rate("100MB/s"), Ok(100_000_000));
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in
            ["", "k", "i", "1i", "-1", "1e9", "1..5M", "M1", "1 M", "1X", "2Ti", "99999999999999999999", "∞"]
        {
            let refusal = size(text).expect_err(text);
            assert!(refusal.contains("such as 64k, 100M"), "{text}: {refusal}");
        }
        for text in ["0", "0k", "fast", "9999999T"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ports_are_a_range_or_one() {
        assert_eq!(ports("40000:40010"), Ok(Ports { first: 40_000, last: 40_010 }));
        assert_eq!(ports("40000-40010"), Ok(Ports { first: 40_000, last: 40_010 }));
        assert_eq!(ports("7"), Ok(Ports { first: 7, last: 7 }));
        for text in ["", "0", "0:7", "9:7", "1:65536", "a:b", "1:2:3", ":5"] {
            assert!(ports(text).expect_err(text).contains("the lower one first"), "{text}");
        }
    }
}
