//! The two processes' ends: how they come to be connected, and a sample on each.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use caravan_fabric::{Endpoint, Link};
use serde::{Deserialize, Serialize};

use super::fabric_wire::{ARENA_BYTES, FabricWire, exposure};
use super::plan::Program;
use super::program::{self, Output, Task};
use super::stream::{self, CHUNK_BYTES, RING_BYTES, Ring};
use super::tcp_wire::TcpWire;
use super::wire::{Wire, failed};
use crate::args::StepsTransport;
use crate::control::Control;
use crate::endpoint;
use crate::error::Error;
use crate::pipe::input::Input;

/// What carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    Rdma,
    Shm,
    Tcp,
}

impl From<StepsTransport> for Carrier {
    fn from(transport: StepsTransport) -> Self {
        match transport {
            StepsTransport::Rdma => Self::Rdma,
            StepsTransport::Shm => Self::Shm,
            StepsTransport::Tcp => Self::Tcp,
        }
    }
}

/// One process's end.
pub enum End {
    Fabric(FabricWire, Box<Ring>),
    Tcp(TcpWire),
}

impl End {
    /// The side that sends. The other has been told which carrier. Also what users see of the connection.
    pub fn connect(control: &mut Control, carrier: Carrier) -> Result<(Self, String), Error> {
        let (wire, link) = match carrier {
            Carrier::Rdma => (
                endpoint::connect_rdma(control, &exposure())?,
                endpoint::connect_rdma(control, &Link::exposure(RING_BYTES)?)?,
            ),
            Carrier::Shm => (endpoint::connect_shm(control)?, endpoint::connect_shm(control)?),
            Carrier::Tcp => {
                let port: u16 = control.answer()?;
                let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(|why| failed(&why))?;
                return Ok((Self::Tcp(TcpWire::new(stream)?), "TCP over loopback".to_owned()));
            }
        };
        let what = match link.description() {
            nothing if nothing.is_empty() => "shared memory".to_owned(),
            description => description,
        };
        Ok((Self::fabric(wire, link)?, what))
    }

    /// The other side.
    pub fn accept(control: &mut Control, carrier: Carrier) -> Result<Self, Error> {
        let (wire, link) = match carrier {
            Carrier::Rdma => (
                endpoint::accept_rdma(control, &exposure())?,
                endpoint::accept_rdma(control, &Link::exposure(RING_BYTES)?)?,
            ),
            Carrier::Shm => (
                endpoint::accept_shm(control, ARENA_BYTES)?,
                endpoint::accept_shm(control, Link::mapped_arena_bytes(RING_BYTES)?)?,
            ),
            Carrier::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|why| failed(&why))?;
                let port = listener.local_addr().map_err(|why| failed(&why))?.port();
                control.say(&Ok::<_, String>(port))?;
                let (stream, _) = listener.accept().map_err(|why| failed(&why))?;
                return Ok(Self::Tcp(TcpWire::new(stream)?));
            }
        };
        Self::fabric(wire, link)
    }

    /// The sending side of a sample: its nanoseconds.
    pub fn send(&mut self, task: &Task, input: &Input) -> Result<f64, Error> {
        match (task.program, self) {
            (Program::Stream, Self::Fabric(_, ring)) => ring.send(task, input),
            (Program::Stream, Self::Tcp(wire)) => stream::send(wire.stream(), task, input),
            (Program::Messages(messages), end) => program::send(end.wire(), task, &messages, input),
        }
    }

    /// The receiving side of a sample: the digest, if it is a check.
    pub fn receive(&mut self, task: &Task) -> Result<Option<Vec<u8>>, Error> {
        let bytes = match task.program {
            Program::Messages(messages) => messages.message_bytes,
            Program::Stream => CHUNK_BYTES,
        };
        let mut output = Output::of(task, bytes);
        match (task.program, self) {
            (Program::Stream, Self::Fabric(_, ring)) => ring.receive(task, &mut output)?,
            (Program::Stream, Self::Tcp(wire)) => stream::receive(wire.stream(), task, &mut output)?,
            (Program::Messages(messages), end) => {
                program::receive(end.wire(), task, &messages, &mut output)?;
            }
        }
        Ok(output.digest())
    }

    fn fabric(wire: Box<dyn Endpoint>, link: Box<dyn Endpoint>) -> Result<Self, Error> {
        let ring = Ring::new(Link::new(link, RING_BYTES)?);
        Ok(Self::Fabric(FabricWire::new(wire), Box::new(ring)))
    }

    fn wire(&mut self) -> &mut dyn Wire {
        match self {
            Self::Fabric(wire, _) => wire,
            Self::Tcp(wire) => wire,
        }
    }
}
