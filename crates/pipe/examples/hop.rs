//! A bare hop over TCP, to be measured beside other programs.
//!
//! ```text
//! hop recv ADDRESS:PORT [FILE]            takes one stream into a file, or /dev/null
//! hop send ADDRESS:PORT BYTES [OPTION...] sends so many zeros; options: sealed, off, sha256, zstd, lz4,
//!                                         block=BYTES, buffer=BYTES, streams=N (to both), and pipe:
//!                                         out of a pipe instead of a file
//! ```
//!
//! Each prints its bytes, seconds, GB/s and seconds of processor time for each GB.

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Instant;

use caravan_pipe::cancel::Cancel;
use caravan_pipe::connect::{Channel, Connection, Secret};
use caravan_pipe::limits::BLOCK_BYTES;
use caravan_pipe::mover::{self, Compression, DigestKind, Gauge, HopOptions, Inlet, MoverOptions, Outlet};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut hop = HopOptions {
        digest: DigestKind::Xxh3,
        sealed: false,
        compression: None,
        block_bytes: BLOCK_BYTES,
        silence: None,
    };
    let mut own = MoverOptions::default();
    let mut streams = 1;
    for word in words.iter().skip(2) {
        match word.split_once('=').unwrap_or((word, "")) {
            ("sealed", _) => hop.sealed = true,
            ("off", _) => hop.digest = DigestKind::Off,
            ("sha256", _) => hop.digest = DigestKind::Sha256,
            ("zstd", _) => hop.compression = Some(Compression::Zstd),
            ("lz4", _) => hop.compression = Some(Compression::Lz4),
            ("block", bytes) => hop.block_bytes = bytes.parse()?,
            ("buffer", bytes) => own.buffer_bytes = bytes.parse()?,
            ("streams", count) => streams = count.parse()?,
            _ => {}
        }
    }
    match &words[..] {
        [what, address, ..] if what == "recv" => {
            let listener = TcpListener::bind(address)?;
            let accepted = (0..streams).map(|_| Ok(OwnedFd::from(listener.accept()?.0)));
            let connection = connection(accepted.collect::<Result<_, std::io::Error>>()?);
            let to = File::create("/dev/null")?;
            report(Inlet::Hop(Box::new(connection), hop), Outlet::Descriptor(to.into()), &own)
        }
        [what, address, bytes, ..] if what == "send" => {
            let connected = (0..streams).map(|_| Ok(OwnedFd::from(TcpStream::connect(address)?)));
            let connection = connection(connected.collect::<Result<_, std::io::Error>>()?);
            let bytes: usize = bytes.parse()?;
            let (from, feed) = rustix::pipe::pipe()?;
            let mut feed = File::from(feed);
            let piped = words.iter().any(|word| word == "pipe");
            let inlet = match piped {
                true => Inlet::Descriptor(from),
                false => Inlet::Descriptor(zeros(bytes)?.into()),
            };
            let feeder = std::thread::spawn(move || {
                let zeros = vec![0; 256 << 10];
                let mut left = if piped { bytes } else { 0 };
                while left > 0 && feed.write_all(&zeros[..left.min(zeros.len())]).is_ok() {
                    left -= left.min(zeros.len());
                }
            });
            report(inlet, Outlet::Hop(Box::new(connection), hop), &own)?;
            drop(feeder.join());
            Ok(())
        }
        _ => Err("hop recv ADDRESS:PORT | hop send ADDRESS:PORT BYTES [OPTION...]".into()),
    }
}

/// A file of zeros that takes no room.
fn zeros(bytes: usize) -> Result<File, Failure> {
    let path = std::env::temp_dir().join(format!("caravan-hop-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    file.set_len(bytes as u64)?;
    Ok(file)
}

fn connection(streams: Vec<OwnedFd>) -> Connection {
    Connection { channel: Channel::Streams(streams), secret: Secret::none(), description: "TCP".into() }
}

fn report(inlet: Inlet, outlet: Outlet, options: &MoverOptions) -> Result<(), Failure> {
    let since = Instant::now();
    let gauge = Gauge::default();
    let outcome = mover::run(inlet, vec![outlet], options, &gauge, &Cancel::new()?);
    let seconds = since.elapsed().as_secs_f64();
    outcome.inlet?;
    for outlet in outcome.outlets {
        outlet?;
    }
    let gigabytes = outcome.bytes as f64 / 1e9;
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    let [_, _, inlet, outlet] = gauge.read().map(|ns| ns as f64 / 1e9);
    println!(
        "{} bytes, {seconds:.2} s, {:.2} GB/s, {:.3} s/GB, waited {inlet:.2} and {outlet:.2} s",
        outcome.bytes,
        gigabytes / seconds,
        cpu / gigabytes
    );
    Ok(())
}
