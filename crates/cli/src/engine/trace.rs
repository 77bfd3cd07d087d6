//! `caravan engine trace`: writes the packets of a link as a pcap file.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, BufWriter, IsTerminal, Write, stdout};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use caravan_bench::Error as Shared;
use caravan_bench::interrupt::Interrupt;
use caravan_engine::trace::{TraceEnd, Tracer};
use caravan_engine::view;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::args::EngineTrace;
use crate::engine::counted;
use crate::error::Error;

/// The shortest and the longest pause before the next poll; it doubles each time. The ring holds the small packets of
/// a few milliseconds.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// The time between two checks that the link, the engine and the reader are still there.
const TEND_EVERY: Duration = Duration::from_millis(100);

/// Writes packets until the trace ends or its reader is gone.
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
    let mut file = PcapWriter::with_header(SharedWriter(&out), header(args.snaplen)).map_err(output)?;
    let mut packets = 0;
    let (mut pause, mut tended) = (PAUSE_MIN, Instant::now());
    let mut ended = None;
    // Flush before any wait, so that the reader gets what was written.
    let flush = || out.borrow_mut().flush().map_err(Shared::Output);
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
        // Ctrl-C is the normal way to end a trace.
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
            // The loop then takes what was sent before the end.
            ended = tracer.tend();
            tended = Instant::now();
            continue;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Returns a file header for Ethernet frames with times in nanoseconds.
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

fn sentence(ended: TraceEnd) -> &'static str {
    match ended {
        TraceEnd::Engine => "the engine has ended",
        TraceEnd::Link => "the link is no more",
        TraceEnd::Taken => "the engine has ended the trace",
    }
}

/// True if nobody can read the output any more: a pipe reports that without a write.
fn reader_gone() -> bool {
    let stdout = stdout();
    let mut set = [PollFd::new(&stdout, PollFlags::empty())];
    let asked = poll(&mut set, Some(&Timespec::default()));
    asked.is_ok() && set[0].revents().contains(PollFlags::ERR)
}

fn output(error: PcapError) -> Shared {
    Shared::Output(match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    })
}

/// A writer that can be flushed while the pcap writer holds it.
struct SharedWriter<'a, W: Write>(&'a RefCell<W>);

impl<W: Write> Write for SharedWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

/// Bytes that a pipe with room takes without waiting: PIPE_BUF, pipe(7).
const CHUNK_BYTES: usize = 4096;
/// Bytes that may wait for their reader. Beyond that, the oldest lines are left out, and their number is reported.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// How long the last lines may take.
const LAST_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// An output for lines whose reader may be slow.
#[derive(Debug)]
pub struct PatientOutlet {
    file: OwnedFd,
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    left_out: u64,
    /// Formats the line that reports how many lines were left out.
    gap: fn(u64) -> String,
}

impl PatientOutlet {
    /// Writes to an open file, such as standard error.
    pub fn new(file: impl AsFd, gap: fn(u64) -> String) -> Result<Self, Error> {
        let file = file.as_fd().try_clone_to_owned().map_err(Shared::Output)?;
        Ok(Self { file, waiting: VecDeque::new(), bytes: 0, left_out: 0, gap })
    }

    /// Returns the file while lines wait to be written.
    pub fn wants(&self) -> Option<BorrowedFd<'_>> {
        (!self.waiting.is_empty()).then(|| self.file.as_fd())
    }

    /// Adds a line, and writes as much as possible. Fails if there is no reader any more.
    pub fn say(&mut self, line: &str) -> Result<(), Error> {
        if self.left_out > 0 && self.bytes < WAITING_BYTES_MAX / 2 {
            let gap = (self.gap)(std::mem::take(&mut self.left_out));
            self.add(&gap);
        }
        self.add(line);
        self.write()
    }

    fn add(&mut self, line: &str) {
        let line = format!("{line}\n").into_bytes();
        self.bytes += line.len();
        self.waiting.push_back(line);
        // The first line may have been written in part.
        while self.bytes > WAITING_BYTES_MAX && self.waiting.len() > 2 {
            self.bytes -= self.waiting.remove(1).map_or(0, |line| line.len());
            self.left_out += 1;
        }
    }

    /// Writes as much as possible without waiting.
    pub fn write(&mut self) -> Result<(), Error> {
        self.write_within(&Timespec::default())
    }

    /// Writes the rest, as long as it is read.
    pub fn finish(mut self) -> Result<(), Error> {
        if self.left_out > 0 {
            let gap = (self.gap)(self.left_out);
            self.add(&gap);
        }
        self.write_within(&LAST_MAX)
    }

    fn write_within(&mut self, wait: &Timespec) -> Result<(), Error> {
        while let Some(line) = self.waiting.front_mut() {
            let mut ready = [PollFd::new(&self.file, PollFlags::OUT)];
            match poll(&mut ready, Some(wait)) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(Shared::Output(error.into()).into()),
            }
            let chunk = line.len().min(CHUNK_BYTES);
            match rustix::io::write(&self.file, &line[..chunk]) {
                Ok(written) => {
                    self.bytes -= written;
                    line.drain(..written);
                    if line.is_empty() {
                        self.waiting.pop_front();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(Shared::Output(error.into()).into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;
    use std::fs::File;
    use std::io::{ErrorKind, Read};

    fn gap(lines: u64) -> String {
        format!("({lines} lines left out)")
    }

    #[test]
    fn a_reader_that_does_not_read_holds_up_nobody() {
        let (reader, writer) = pipe().expect("a pipe");
        let mut outlet = PatientOutlet::new(&writer, gap).expect("a copy");
        drop(writer);
        outlet.say("first").expect("written");
        let line = "x".repeat(999);
        // This is far more than a pipe and the outlet hold together; a write that waited would never end.
        for _ in 0..2000 {
            outlet.say(&line).expect("kept");
        }
        assert!(outlet.bytes <= WAITING_BYTES_MAX && outlet.wants().is_some());
        let read = std::thread::spawn(move || {
            let mut text = String::new();
            File::from(reader).read_to_string(&mut text).map(|_| text)
        });
        outlet.finish().expect("written");
        let text = read.join().expect("ended").expect("read");
        let lines: Vec<_> = text.lines().collect();
        let told = lines.last().and_then(|last| last.strip_prefix('(')?.split(' ').next()?.parse().ok());
        assert_eq!(lines[0], "first");
        assert!(lines[1..lines.len() - 1].iter().all(|found| **found == line));
        assert_eq!(told, Some(2001 - (lines.len() - 1)), "{:?}", lines.last());
    }

    #[test]
    fn a_reader_that_has_gone_is_an_error() {
        let (reader, writer) = pipe().expect("a pipe");
        let mut outlet = PatientOutlet::new(&writer, gap).expect("a copy");
        drop(reader);
        let Err(Error::Shared(Shared::Output(error))) = outlet.say("line") else { panic!("no error") };
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}
