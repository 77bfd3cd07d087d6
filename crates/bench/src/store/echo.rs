//! The peer of calls through a link: another process that returns what it reads from a TCP socket.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use crate::control::BenchChannel;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::{PeerTask, failed};
use crate::store::link::CALL_BYTES;
use crate::store::sampling::{ClientOutcome, ClientSampling};

/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The process that answers.
#[derive(Debug)]
pub struct EchoPeer {
    control: BenchChannel,
    pub pid: i32,
}

fn socket_failed(why: io::Error) -> Error {
    failed("TCP socket", &why)
}

impl EchoPeer {
    pub fn start() -> Result<Self, Error> {
        let control = BenchChannel::start(&PeerTask::StoreEcho)?;
        let pid = control.peer_pid().ok_or_else(|| failed("TCP socket", &"nobody answers"))?;
        Ok(Self { control, pid })
    }

    /// Sends `under_way` messages and takes their answers, over and over, on a connection of its own. Each is written and read by itself on
    /// both sides, or `are_together`.
    pub fn sample(
        &mut self,
        under_way: usize,
        are_together: bool,
        sampling: ClientSampling,
    ) -> Result<ClientOutcome, Error> {
        let bytes = CALL_BYTES * if are_together { under_way } else { 1 };
        let port: u16 = self.control.ask(&bytes)?;
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(socket_failed)?;
        stream.set_nodelay(true).map_err(socket_failed)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(socket_failed)?;
        let (message, mut answer) = (vec![7; bytes], vec![0; bytes]);
        let writes = CALL_BYTES * under_way / bytes;
        sampling.repeat(under_way, || {
            for _ in 0..writes {
                stream.write_all(&message).map_err(socket_failed)?;
            }
            for _ in 0..writes {
                answer.fill(0);
                stream.read_exact(&mut answer).map_err(socket_failed)?;
                if answer != message {
                    return Err(failed("TCP socket", &"an answer is not what was sent"));
                }
            }
            Ok(())
        })
    }
}

/// Runs the other process: for each connection it is told how many bytes to read and write at once.
pub fn peer() -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    BenchChannel::inherited()?.answer_all(&interrupt, |control, bytes: usize| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(socket_failed)?;
        control.reply(&listener.local_addr().map_err(socket_failed)?.port())?;
        let (stream, _) = listener.accept().map_err(socket_failed)?;
        answer(stream, bytes).map_err(socket_failed)
    })
}

/// Returns what arrives until the other side closes the connection.
fn answer(mut stream: TcpStream, bytes: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; bytes];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            read => stream.write_all(&buffer[..read])?,
        }
    }
}
