//! `caravan engine trace`: the packets of a link as a pcap file.

use std::cell::RefCell;
use std::io::{self, BufWriter, IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

use caravan_engine::trace::{Ended, Tracer};
use caravan_engine::view;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::counted;
use crate::args::EngineTrace;
use crate::error::Error;
use caravan_bench::interrupt::Interrupt;

/// How long to wait before looking again: at first, and, doubled each time, at most. The ring holds
/// the small packets of a few milliseconds.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// How often it is looked whether the link, the engine and the reader are still there.
const TEND_EVERY: Duration = Duration::from_millis(100);

/// Writes until there is nothing to write, or nobody to write for.
pub fn run(args: &EngineTrace) -> Result<(), Error> {
    if stdout().is_terminal() {
        return Err(Error::Terminal);
    }
    let interrupt = Interrupt::watch()?;
    let engine = view::find(args.pid)?;
    let mut tracer = Tracer::start(&engine, &args.link, args.snaplen as usize)?;
    let packets = copy(args, &mut tracer, &interrupt)?;
    let dropped = tracer.dropped();
    eprintln!("{}: {}, {dropped} left out", tracer.link(), counted(packets as usize, "packet"));
    Ok(())
}

fn copy(args: &EngineTrace, tracer: &mut Tracer, interrupt: &Interrupt) -> Result<u64, Error> {
    let out = RefCell::new(BufWriter::new(stdout().lock()));
    let mut file = PcapWriter::with_header(Shared(&out), header(args.snaplen)).map_err(output)?;
    let mut packets = 0;
    let (mut pause, mut tended) = (PAUSE_MIN, Instant::now());
    let mut ended = None;
    // What is written reaches the reader before anybody waits.
    let flush = || out.borrow_mut().flush().map_err(Error::Output);
    flush()?;
    loop {
        while let Some(record) = tracer.receive()? {
            let packet =
                PcapPacket::new(Duration::from_nanos(record.unix_ns), record.length as u32, record.data);
            file.write_packet(&packet).map_err(output)?;
            packets += 1;
            pause = PAUSE_MIN;
            if args.count == Some(packets) {
                flush()?;
                return Ok(packets);
            }
            if interrupt.check().is_err() {
                break;
            }
        }
        flush()?;
        // Ctrl-C is how a trace is ended.
        if interrupt.check().is_err() {
            return Ok(packets);
        }
        if let Some(ended) = ended {
            eprintln!("{}", sentence(ended));
            return Ok(packets);
        }
        if tended.elapsed() >= TEND_EVERY {
            if reader_gone() {
                return Ok(packets);
            }
            // What was sent before is taken first.
            ended = tracer.tend();
            tended = Instant::now();
            continue;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Ethernet frames, with nanoseconds.
fn header(snaplen: u32) -> PcapHeader {
    PcapHeader {
        version_major: 2,
        version_minor: 4,
        ts_correction: 0,
        ts_accuracy: 0,
        snaplen,
        datalink: DataLink::ETHERNET,
        ts_resolution: TsResolution::NanoSecond,
        endianness: Endianness::native(),
    }
}

fn sentence(ended: Ended) -> &'static str {
    match ended {
        Ended::Engine => "the engine has ended",
        Ended::Link => "the link is no more",
        Ended::Taken => "the engine has ended the trace",
    }
}

/// Whether nobody can read what is written any more: a pipe says so without being written to.
fn reader_gone() -> bool {
    let stdout = stdout();
    let mut set = [PollFd::new(&stdout, PollFlags::empty())];
    let asked = poll(&mut set, Some(&Timespec::default()));
    asked.is_ok() && set[0].revents().contains(PollFlags::ERR)
}

fn output(error: PcapError) -> Error {
    Error::Output(match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    })
}

/// A writer that can be flushed while the file's own has it.
struct Shared<'a, W: Write>(&'a RefCell<W>);

impl<W: Write> Write for Shared<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}
