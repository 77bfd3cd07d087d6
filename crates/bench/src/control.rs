//! The connection of a benchmark's two processes, on one machine or two: a line of JSON for each message. It carries
//! what a link and the peer's tools need to know of each other.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use caravan_fabric::{Endpoint, Exposure, shm, verbs};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::interrupt::{GLANCE, Interrupt};
use crate::process::{ChildProgram, PeerTask, failed as process_failed};

/// The most bytes of a message: an offer of all ports fits many times.
const LINE_BYTES_MAX: u64 = 1 << 16;
/// How long the other side may take for an answer; longer than any sample.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
/// How long to wait for a server that is not there yet.
const CALL_LIMIT: Duration = Duration::from_secs(20);

/// One side of the connection. Dropping it ends the other side's process if that was started here.
#[derive(Debug)]
pub struct BenchChannel {
    reader: BufReader<File>,
    writer: File,
    /// The address of the other side.
    pub host: IpAddr,
    child: Option<ChildProgram>,
}

impl BenchChannel {
    fn over(stream: OwnedFd, host: IpAddr, limit: Option<Duration>) -> Result<Self, Error> {
        set_socket_timeout(&stream, Timeout::Recv, limit).map_err(|why| failed(&why))?;
        let reader = BufReader::new(File::from(stream.try_clone().map_err(|why| failed(&why))?));
        Ok(Self { reader, writer: File::from(stream), host, child: None })
    }

    /// Starts the other process on this machine.
    pub fn start(task: &PeerTask) -> Result<Self, Error> {
        let (here, there) = UnixStream::pair().map_err(|why| failed(&why))?;
        let mut command = task.command()?;
        command.stdin(Stdio::from(OwnedFd::from(there)));
        let child = ChildProgram::start("other side", command)?;
        let mut control = Self::over(here.into(), Ipv4Addr::LOCALHOST.into(), Some(ANSWER_LIMIT))?;
        control.child = Some(child);
        Ok(control)
    }

    /// Returns the other process's side of [`start`](Self::start).
    pub fn inherited() -> Result<Self, Error> {
        let stream = std::io::stdin().as_fd().try_clone_to_owned().map_err(|why| failed(&why))?;
        // The other side may measure something else for long. If it ends, so does the connection.
        Self::over(stream, Ipv4Addr::LOCALHOST.into(), None)
    }

    /// Connects to a server, and waits a while for it.
    pub fn to(address: &str, interrupt: &Interrupt) -> Result<Self, Error> {
        let deadline = Instant::now() + CALL_LIMIT;
        let unreachable =
            |why: &dyn std::fmt::Display| failed(&format!("cannot connect to {address}: {why}"));
        let addresses: Vec<SocketAddr> =
            address.to_socket_addrs().map_err(|why| unreachable(&why))?.collect();
        loop {
            interrupt.check()?;
            match TcpStream::connect(&addresses[..]) {
                Ok(stream) => {
                    let host = stream.peer_addr().map_err(|why| failed(&why))?.ip();
                    return Self::over(stream.into(), host, Some(ANSWER_LIMIT));
                }
                Err(why) if Instant::now() >= deadline => return Err(unreachable(&why)),
                Err(_) => std::thread::sleep(GLANCE),
            }
        }
    }

    /// Waits for the first connection to `port`.
    pub fn serve(port: u16, interrupt: &Interrupt) -> Result<Self, Error> {
        let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
        let listener = listener.map_err(|why| failed(&format!("cannot listen on port {port}: {why}")))?;
        listener.set_nonblocking(true).map_err(|why| failed(&why))?;
        loop {
            interrupt.check()?;
            match listener.accept() {
                Ok((stream, from)) => {
                    stream.set_nonblocking(false).map_err(|why| failed(&why))?;
                    return Self::over(stream.into(), from.ip(), Some(ANSWER_LIMIT));
                }
                Err(why) if why.kind() == std::io::ErrorKind::WouldBlock => std::thread::sleep(GLANCE),
                Err(why) => return Err(failed(&why)),
            }
        }
    }

    /// Returns the pid of the other side's process, if that was started here.
    pub fn peer_pid(&self) -> Option<i32> {
        self.child.as_ref().map(|child| child.pid() as i32)
    }

    /// Sends one message.
    pub fn say(&mut self, what: &impl Serialize) -> Result<(), Error> {
        let mut line = serde_json::to_vec(what).map_err(|why| failed(&why))?;
        line.push(b'\n');
        self.writer.write_all(&line).map_err(|why| failed(&format!("it is gone: {why}")))
    }

    /// Sends the answer to a request.
    pub fn reply(&mut self, answer: &impl Serialize) -> Result<(), Error> {
        self.say(&Ok::<_, String>(answer))
    }

    /// Sends a request, and returns the other side's answer.
    pub fn ask<T: DeserializeOwned>(&mut self, request: &impl Serialize) -> Result<T, Error> {
        self.say(request)?;
        self.answer()
    }

    /// Answers requests until the other side ends. A failure is told to the other side, and returned.
    pub fn answer_all<T: DeserializeOwned>(
        &mut self,
        interrupt: &Interrupt,
        mut answer: impl FnMut(&mut Self, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while let Some(request) = self.hear()? {
            interrupt.check()?;
            if let Err(error) = answer(self, request) {
                self.say(&Err::<(), _>(error.to_string()))?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits for the next message of the other side; `None` at its end.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        let mut line = Vec::new();
        let read = self.reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        read.map_err(|why| failed(&format!("it does not answer: {why}")))?;
        if line.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&line).map(Some).map_err(|why| failed(&format!("it is unclear: {why}")))
    }

    /// Hears a message like [`hear`](Self::hear); fails at the end.
    pub fn expect<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        self.hear()?.ok_or_else(|| failed(&"it ended"))
    }

    /// Hears a message like `hear`, and returns the other side's error as an error of this side.
    pub fn answer<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        self.expect::<Result<T, String>>()?.map_err(|why| failed(&why))
    }
}

fn failed(why: &dyn std::fmt::Display) -> Error {
    process_failed("other side", why)
}

/// How long a sleeper sleeps before it checks for the other side's end.
const NAP: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Sleeps until the bell of a link or an endpoint rings, or for a nap. Returns true if the bell rang.
pub fn sleep(bell: Option<BorrowedFd<'_>>) -> Result<bool, Error> {
    let bell = bell.ok_or_else(|| failed(&"it has no descriptor to wait for"))?;
    let mut set = [PollFd::new(&bell, PollFlags::IN)];
    Ok(rustix::event::poll(&mut set, Some(&NAP)).map_err(|why| failed(&why))? > 0)
}

/// How long connecting may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Connects over an RDMA device, on the side that measures.
pub fn connect_rdma(control: &mut BenchChannel, exposure: &Exposure) -> Result<Box<dyn Endpoint>, Error> {
    let offer: Vec<u8> = control.answer()?;
    let (pending, request) = verbs::connect(&offer, exposure)?;
    control.say(&request)?;
    let answer: Vec<u8> = control.answer()?;
    Ok(pending.finish(&answer, CONNECT_LIMIT)?)
}

/// The other side of [`connect_rdma`].
pub fn accept_rdma(control: &mut BenchChannel, exposure: &Exposure) -> Result<Box<dyn Endpoint>, Error> {
    control.reply(&verbs::offer()?)?;
    let request: Vec<u8> = control.expect()?;
    let (pending, answer) = verbs::accept(&request, exposure)?;
    control.reply(&answer)?;
    Ok(pending.finish(&[], CONNECT_LIMIT)?)
}

/// Connects through mapped memory, on the side that measures.
pub fn connect_shm(control: &mut BenchChannel) -> Result<Box<dyn Endpoint>, Error> {
    let descriptor: Vec<u8> = control.answer()?;
    let endpoint = shm::connect(&descriptor)?;
    control.say(&())?;
    Ok(Box::new(endpoint))
}

/// The other side of [`connect_shm`].
pub fn accept_shm(control: &mut BenchChannel, arena_bytes: u64) -> Result<Box<dyn Endpoint>, Error> {
    let (listener, descriptor) = shm::Listener::listen(arena_bytes)?;
    control.reply(&descriptor)?;
    control.expect::<()>()?;
    Ok(Box::new(listener.accept()?))
}
