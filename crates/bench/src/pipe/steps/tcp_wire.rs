//! Messages over a TCP connection. The kernel's socket buffers are between the two sides' own.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;

use super::plan::{ACK_BYTES_MAX, BUFFERS_MAX, MESSAGE_BYTES_MAX};
use super::wire::{Buffer, Wire, failed};
use crate::error::Error;

/// One side. It sends or receives, and needs one set of buffers.
#[derive(Debug)]
pub struct TcpWire {
    stream: TcpStream,
    buffers: Vec<u8>,
    ack: Vec<u8>,
}

impl TcpWire {
    pub fn new(stream: TcpStream) -> Result<Self, Error> {
        stream.set_nodelay(true).map_err(|why| failed(&why))?;
        // Over a short way bbr, the default of some systems, has half of the rate; where cubic may not be had,
        // it is what there is.
        let _ = rustix::net::sockopt::set_tcp_congestion(&stream, "cubic");
        let buffers = vec![0x5a; BUFFERS_MAX * MESSAGE_BYTES_MAX];
        Ok(Self { stream, buffers, ack: vec![0; ACK_BYTES_MAX] })
    }

    /// For a stream that has no messages.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    fn buffer(&mut self, buffer: Buffer) -> (&mut TcpStream, &mut [u8]) {
        (&mut self.stream, &mut self.buffers[buffer.offset()..][..buffer.bytes])
    }
}

impl Wire for TcpWire {
    fn fill(&mut self, buffer: Buffer, file: &File, at: u64) -> Result<(), Error> {
        let (_, bytes) = self.buffer(buffer);
        file.read_exact_at(bytes, at).map_err(|why| failed(&why))
    }

    fn send(&mut self, buffer: Buffer) -> Result<(), Error> {
        let (stream, bytes) = self.buffer(buffer);
        stream.write_all(bytes).map_err(|why| failed(&why))
    }

    fn receive(&mut self, buffer: Buffer) -> Result<(), Error> {
        let (stream, bytes) = self.buffer(buffer);
        stream.read_exact(bytes).map_err(|why| failed(&why))
    }

    fn copy_out(&self, buffer: Buffer, to: &mut [u8]) {
        to.copy_from_slice(&self.buffers[buffer.offset()..][..to.len()]);
    }

    fn acknowledge(&mut self, bytes: usize) -> Result<(), Error> {
        self.stream.write_all(&self.ack[..bytes]).map_err(|why| failed(&why))
    }

    fn await_acknowledgement(&mut self, bytes: usize) -> Result<(), Error> {
        self.stream.read_exact(&mut self.ack[..bytes]).map_err(|why| failed(&why))
    }
}
