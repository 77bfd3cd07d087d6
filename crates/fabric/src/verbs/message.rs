//! The messages of two sides over the control channel. Each is parsed once, into checked values.
//!
//! Integers are big-endian. Each message begins with its magic, and bytes left over are an error.

use std::net::IpAddr;
use std::ops::Range;

use super::device::{AtomicSupport, Fabric, Gid, ReadDepths};
use super::limits::OFFER_PORTS_MAX;
use super::resources::RemoteMemory;
use crate::byte_reader::ByteReader;
use crate::contract::{Error, Provider};

/// The first bytes of every message: name, and version of the protocol.
const MAGIC: [u8; 8] = *b"caravan\x02";
/// The largest length of a device's name; Linux's names are shorter.
const NAME_BYTES_MAX: usize = 64;

/// A port at which a side can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The fabric of the port.
    pub fabric: Fabric,
    /// The name of the device.
    pub device: String,
    /// The number of the port, from 1.
    pub number: u8,
    /// The port's address: for iWARP and RoCE an IP address in the form of a GID.
    pub gid: [u8; 16],
    /// The index of the address in the port's table.
    pub gid_index: u8,
    /// The port's address in an InfiniBand subnet.
    pub lid: u16,
    /// The speed in megabits per second.
    pub megabits: u32,
    /// The number of bytes of a packet's payload.
    pub mtu: u32,
}

impl Port {
    /// Returns the port's address as an IP address.
    pub fn ip(&self) -> IpAddr {
        as_gid(self.gid).ip()
    }

    /// True if the port's address is valid on one link only.
    pub fn is_link_local(&self) -> bool {
        as_gid(self.gid).is_link_local()
    }

    /// Returns a description such as "mlx5_0 port 1 (RoCE v2, 100 Gb/s)".
    pub fn describe(&self) -> String {
        let Self { device, number, fabric, .. } = self;
        match self.megabits {
            0 => format!("{device} port {number} ({})", fabric.name()),
            megabits => {
                let gigabits = f64::from(megabits) / 1000.0;
                format!("{device} port {number} ({}, {gigabits} Gb/s)", fabric.name())
            }
        }
    }

    /// Returns the port's address, as users write it.
    pub fn address(&self) -> String {
        match self.fabric {
            Fabric::InfiniBand => format!("LID {}", self.lid),
            Fabric::Roce | Fabric::Iwarp => self.ip().to_string(),
        }
    }
}

fn as_gid(bytes: [u8; 16]) -> Gid {
    Gid { index: 0, bytes, version: 0, interface: String::new() }
}

/// What one side tells about its half of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePairHalf {
    /// The side's port.
    pub port: Port,
    /// The number of the side's queue pair; 0 if the connection manager makes it.
    pub queue_pair: u32,
    /// The first sequence number of the side's packets.
    pub sequence: u32,
    /// The number of reads and swaps that the side's device allows.
    pub reads: ReadDepths,
    /// What the side's device promises about compare-and-swap.
    pub swaps: AtomicSupport,
    /// The number of immediates that the side takes without having acknowledged any.
    pub immediate_credit: u32,
    /// The address of the side's arena, and the key to the exposed part.
    pub memory: RemoteMemory,
    /// The exposed part of the side's arena.
    pub exposed: Range<u64>,
}

/// The bytes by which an iWARP listener recognizes the peer.
pub type Nonce = [u8; 16];

/// The message of the initiating side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The port that the initiating side has chosen among those offered.
    pub chosen: Port,
    /// The half of the initiating side.
    pub half: QueuePairHalf,
}

/// The reply of the accepting side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectAnswer {
    /// The half of the accepting side.
    pub half: QueuePairHalf,
    /// On iWARP, the port that the connection manager listens on.
    pub listener: u16,
    /// On iWARP, the nonce that the peer must send to that listener.
    pub nonce: Nonce,
}

/// Makes the message that lists the accepting side's ports.
pub fn offer(ports: &[Port]) -> Vec<u8> {
    let mut writer = Writer::new(b'O');
    writer.u8(ports.len().min(OFFER_PORTS_MAX) as u8);
    ports.iter().take(OFFER_PORTS_MAX).for_each(|port| writer.port(port));
    writer.bytes
}

/// Parses an [`offer`].
pub fn parse_offer(bytes: &[u8]) -> Result<Vec<Port>, Error> {
    parse(bytes, b'O', |reader| {
        let count = usize::from(reader.u8()?);
        (count <= OFFER_PORTS_MAX).then_some(())?;
        (0..count).map(|_| read_port(reader)).collect()
    })
}

impl ConnectRequest {
    /// Returns the bytes of the message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(b'R');
        writer.port(&self.chosen);
        writer.half(&self.half);
        writer.bytes
    }

    /// Parses the message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        parse(bytes, b'R', |reader| Some(Self { chosen: read_port(reader)?, half: read_half(reader)? }))
    }
}

impl ConnectAnswer {
    /// Returns the bytes of the message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(b'A');
        writer.half(&self.half);
        writer.bytes.extend(self.listener.to_be_bytes());
        writer.bytes.extend(self.nonce);
        writer.bytes
    }

    /// Parses the message.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        parse(bytes, b'A', |reader| {
            Some(Self { half: read_half(reader)?, listener: reader.u16()?, nonce: reader.take()? })
        })
    }
}

/// Changes an accepting side's answer so that it claims to expose the first `bytes` of its arena. A
/// self-test uses it to show that the device of that side refuses access to the rest.
pub fn overstate(answer: &[u8], bytes: u64) -> Result<Vec<u8>, Error> {
    let mut answer = ConnectAnswer::parse(answer)?;
    answer.half.exposed = 0..bytes;
    Ok(answer.to_bytes())
}

struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn new(kind: u8) -> Self {
        Self { bytes: [&MAGIC[..], &[kind]].concat() }
    }

    fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_be_bytes());
    }

    fn port(&mut self, port: &Port) {
        self.u8(match port.fabric {
            Fabric::InfiniBand => 1,
            Fabric::Roce => 2,
            Fabric::Iwarp => 3,
        });
        let name = &port.device.as_bytes()[..port.device.len().min(NAME_BYTES_MAX)];
        self.u8(name.len() as u8);
        self.bytes.extend(name);
        self.u8(port.number);
        self.bytes.extend(port.gid);
        self.u8(port.gid_index);
        self.bytes.extend(port.lid.to_be_bytes());
        self.u32(port.megabits);
        self.u32(port.mtu);
    }

    fn half(&mut self, half: &QueuePairHalf) {
        self.port(&half.port);
        self.u32(half.queue_pair);
        self.u32(half.sequence);
        self.u8(half.reads.responder);
        self.u8(half.reads.initiator);
        self.u8(u8::from(half.swaps.exist) | u8::from(half.swaps.atomic_with_processor) << 1);
        self.u32(half.immediate_credit);
        self.u64(half.memory.address);
        self.u32(half.memory.key);
        self.u64(half.exposed.start);
        self.u64(half.exposed.end - half.exposed.start);
    }
}

/// Parses what follows the magic and `kind`; `read` returns `None` if it is malformed.
fn parse<'a, T>(
    bytes: &'a [u8],
    kind: u8,
    read: impl FnOnce(&mut ByteReader<'a>) -> Option<T>,
) -> Result<T, Error> {
    let read_all = || {
        let (&found, rest) = bytes.strip_prefix(&MAGIC)?.split_first()?;
        let mut reader = ByteReader::new(rest);
        let value = read(&mut reader)?;
        (found == kind && reader.is_empty()).then_some(value)
    };
    read_all().ok_or_else(malformed)
}

fn read_port(reader: &mut ByteReader<'_>) -> Option<Port> {
    let fabric = match reader.u8()? {
        1 => Fabric::InfiniBand,
        2 => Fabric::Roce,
        3 => Fabric::Iwarp,
        _ => return None,
    };
    let length = usize::from(reader.u8()?);
    let name = reader.bytes(length).filter(|_| (1..=NAME_BYTES_MAX).contains(&length))?;
    // The name is looked up and logged, so it may have only characters that the kernel uses in names.
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
    if !name.iter().all(is_plain) {
        return None;
    }
    Some(Port {
        fabric,
        device: String::from_utf8_lossy(name).into_owned(),
        number: reader.u8()?,
        gid: reader.take()?,
        gid_index: reader.u8()?,
        lid: reader.u16()?,
        megabits: reader.u32()?,
        mtu: reader.u32()?,
    })
}

fn read_half(reader: &mut ByteReader<'_>) -> Option<QueuePairHalf> {
    let port = read_port(reader)?;
    let (queue_pair, sequence) = (reader.u32()?, reader.u32()?);
    let reads = ReadDepths { responder: reader.u8()?, initiator: reader.u8()? };
    let swaps = reader.u8()?;
    let swaps = AtomicSupport { exist: swaps & 1 != 0, atomic_with_processor: swaps & 2 != 0 };
    let immediate_credit = reader.u32()?;
    let memory = RemoteMemory { address: reader.u64()?, key: reader.u32()? };
    let (start, bytes) = (reader.u64()?, reader.u64()?);
    let exposed = start..start.checked_add(bytes)?;
    memory.address.checked_add(exposed.end)?;
    let are_possible = queue_pair < 1 << 24 && sequence < 1 << 24 && immediate_credit > 0;
    are_possible.then_some(QueuePairHalf {
        port,
        queue_pair,
        sequence,
        reads,
        swaps,
        immediate_credit,
        memory,
        exposed,
    })
}

fn malformed() -> Error {
    Error::Protocol(Provider::Rdma, "its message is malformed or of another version".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn port()(
            fabric in prop_oneof![Just(Fabric::InfiniBand), Just(Fabric::Roce), Just(Fabric::Iwarp)],
            device in "[a-z][a-z0-9_]{0,63}",
            number: u8, gid: [u8; 16], gid_index: u8, lid: u16, megabits: u32, mtu: u32,
        ) -> Port {
            Port { fabric, device, number, gid, gid_index, lid, megabits, mtu }
        }
    }

    prop_compose! {
        fn half()(
            port in port(),
            queue_pair in 0..1u32 << 24, sequence in 0..1u32 << 24, immediate_credit in 1u32..,
            responder: u8, initiator: u8, exist: bool, atomic_with_processor: bool,
            address in 0..u64::MAX / 4, key: u32, start in 0..u64::MAX / 4, bytes in 0..u64::MAX / 4,
        ) -> QueuePairHalf {
            let reads = ReadDepths { responder, initiator };
            let swaps = AtomicSupport { exist, atomic_with_processor };
            let memory = RemoteMemory { address, key };
            let exposed = start..start + bytes;
            QueuePairHalf { port, queue_pair, sequence, reads, swaps, immediate_credit, memory, exposed }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            ports in proptest::collection::vec(port(), 0..OFFER_PORTS_MAX),
            chosen in port(), half in half(), listener: u16, nonce: Nonce,
        ) {
            prop_assert_eq!(parse_offer(&offer(&ports)).unwrap(), ports);
            let request = ConnectRequest { chosen, half: half.clone() };
            prop_assert_eq!(ConnectRequest::parse(&request.to_bytes()).unwrap(), request);
            let answer = ConnectAnswer { half, listener, nonce };
            let bytes = answer.to_bytes();
            prop_assert_eq!(ConnectAnswer::parse(&bytes).unwrap(), answer);
            for cut in 0..bytes.len() {
                prop_assert!(ConnectAnswer::parse(&bytes[..cut]).is_err());
            }
            prop_assert!(ConnectAnswer::parse(&[&bytes[..], &[0]].concat()).is_err());
        }

        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0usize..3) {
            let bytes = [&MAGIC[..], &[b"ORA"[kind]], &bytes].concat();
            let _ = (parse_offer(&bytes), ConnectRequest::parse(&bytes), ConnectAnswer::parse(&bytes));
        }
    }
}
