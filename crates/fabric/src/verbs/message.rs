//! What two sides tell each other over the control channel. Parsed once, into checked values.
//!
//! Integers are big-endian. Each message begins with its magic, and bytes left over are an error.

use std::net::IpAddr;

use super::device::{Fabric, Gid};
use super::limits::OFFER_PORTS_MAX;
use super::resources::Target;
use crate::contract::{Error, Provider};

/// First bytes of every message: name, and version of the protocol.
const MAGIC: [u8; 8] = *b"caravan\x02";
/// Linux's names of devices are shorter.
const NAME_BYTES_MAX: usize = 64;

/// A port that a side can be reached at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// How it talks.
    pub fabric: Fabric,
    /// Its device.
    pub device: String,
    /// Its number, from 1.
    pub number: u8,
    /// Its address: for iWARP and RoCE an IP address in the form of a GID.
    pub gid: [u8; 16],
    /// Place of the address in the port's table.
    pub gid_index: u8,
    /// Its address in an InfiniBand subnet.
    pub lid: u16,
    /// Megabits a second.
    pub megabits: u32,
    /// Bytes of a packet's payload.
    pub mtu: u32,
}

impl Port {
    /// Its address as an IP address.
    pub fn ip(&self) -> IpAddr {
        as_gid(self.gid).ip()
    }

    /// Its address is valid on one link only.
    pub fn is_link_local(&self) -> bool {
        as_gid(self.gid).is_link_local()
    }

    /// "mlx5_0 port 1 (RoCE v2, 100 Gb/s)".
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

    /// Its address, as users write it.
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

/// One side's half of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Half {
    /// Its port.
    pub port: Port,
    /// Its queue pair; 0 where the connection manager makes it.
    pub queue_pair: u32,
    /// First sequence number of its packets.
    pub sequence: u32,
    /// Reads and swaps that it serves, and that it may have under way.
    pub reads: (u8, u8),
    /// Compare-and-swap exists there; and is atomic against its processor.
    pub swaps: (bool, bool),
    /// Immediates that it takes without having acknowledged any.
    pub window: u32,
    /// Its arena, and the key to what it has exposed.
    pub target: Target,
    /// What it has exposed: first byte, and bytes.
    pub exposed: (u64, u64),
}

/// The accepting side's ports.
pub fn offer(ports: &[Port]) -> Vec<u8> {
    let mut writer = Writer::new(b'O');
    writer.u8(ports.len().min(OFFER_PORTS_MAX) as u8);
    ports.iter().take(OFFER_PORTS_MAX).for_each(|port| writer.port(port));
    writer.bytes
}

/// Reads an [`offer`].
pub fn parse_offer(bytes: &[u8]) -> Result<Vec<Port>, Error> {
    let mut reader = Reader::new(bytes, b'O')?;
    let count = usize::from(reader.u8()?);
    if count > OFFER_PORTS_MAX {
        return Err(malformed());
    }
    let ports = (0..count).map(|_| reader.port()).collect::<Result<_, _>>()?;
    reader.end(ports)
}

/// The initiating side's choice among what was offered, and its half.
pub fn request(chosen: &Port, half: &Half) -> Vec<u8> {
    let mut writer = Writer::new(b'R');
    writer.port(chosen);
    writer.half(half);
    writer.bytes
}

/// Reads a [`request`].
pub fn parse_request(bytes: &[u8]) -> Result<(Port, Half), Error> {
    let mut reader = Reader::new(bytes, b'R')?;
    let read = (reader.port()?, reader.half()?);
    reader.end(read)
}

/// The accepting side's half; where the connection manager makes connections, the port that it
/// listens on and the bytes that prove who asks.
pub fn answer(half: &Half, listener: u16, nonce: [u8; 16]) -> Vec<u8> {
    let mut writer = Writer::new(b'A');
    writer.half(half);
    writer.bytes.extend(listener.to_be_bytes());
    writer.bytes.extend(nonce);
    writer.bytes
}

/// Reads an [`answer`].
pub fn parse_answer(bytes: &[u8]) -> Result<(Half, u16, [u8; 16]), Error> {
    let mut reader = Reader::new(bytes, b'A')?;
    let read = (reader.half()?, u16::from_be_bytes(reader.take()?), reader.take()?);
    reader.end(read)
}

/// An `answer` that claims the first `bytes` of the arena to be exposed, whatever is: for showing that
/// the device of the one who said it refuses the rest.
pub fn overstate(answered: &[u8], bytes: u64) -> Result<Vec<u8>, Error> {
    let (mut half, listener, nonce) = parse_answer(answered)?;
    half.exposed = (0, bytes);
    Ok(answer(&half, listener, nonce))
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

    fn half(&mut self, half: &Half) {
        self.port(&half.port);
        self.u32(half.queue_pair);
        self.u32(half.sequence);
        self.u8(half.reads.0);
        self.u8(half.reads.1);
        self.u8(u8::from(half.swaps.0) | u8::from(half.swaps.1) << 1);
        self.u32(half.window);
        self.u64(half.target.address);
        self.u32(half.target.key);
        self.u64(half.exposed.0);
        self.u64(half.exposed.1);
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8], kind: u8) -> Result<Self, Error> {
        match bytes.strip_prefix(&MAGIC).and_then(<[u8]>::split_first) {
            Some((&found, rest)) if found == kind => Ok(Self { rest }),
            _ => Err(malformed()),
        }
    }

    fn end<T>(&self, read: T) -> Result<T, Error> {
        if self.rest.is_empty() { Ok(read) } else { Err(malformed()) }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or_else(malformed)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Error> {
        Ok(self.take::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_be_bytes(self.take()?))
    }

    fn port(&mut self) -> Result<Port, Error> {
        let fabric = match self.u8()? {
            1 => Fabric::InfiniBand,
            2 => Fabric::Roce,
            3 => Fabric::Iwarp,
            _ => return Err(malformed()),
        };
        let length = usize::from(self.u8()?);
        if length == 0 || length > NAME_BYTES_MAX {
            return Err(malformed());
        }
        let (name, rest) = self.rest.split_at_checked(length).ok_or_else(malformed)?;
        self.rest = rest;
        // It is looked up and logged: only what the kernel uses in names.
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
        if !name.iter().all(plain) {
            return Err(malformed());
        }
        Ok(Port {
            fabric,
            device: String::from_utf8_lossy(name).into_owned(),
            number: self.u8()?,
            gid: self.take()?,
            gid_index: self.u8()?,
            lid: u16::from_be_bytes(self.take()?),
            megabits: self.u32()?,
            mtu: self.u32()?,
        })
    }

    fn half(&mut self) -> Result<Half, Error> {
        let half = Half {
            port: self.port()?,
            queue_pair: self.u32()?,
            sequence: self.u32()?,
            reads: (self.u8()?, self.u8()?),
            swaps: self.u8().map(|bits| (bits & 1 != 0, bits & 2 != 0))?,
            window: self.u32()?,
            target: Target { address: self.u64()?, key: self.u32()? },
            exposed: (self.u64()?, self.u64()?),
        };
        let (at, bytes) = half.exposed;
        let ends = at.checked_add(bytes).and_then(|end| half.target.address.checked_add(end));
        let numbers = half.queue_pair < 1 << 24 && half.sequence < 1 << 24 && half.window > 0;
        if ends.is_some() && numbers { Ok(half) } else { Err(malformed()) }
    }
}

fn malformed() -> Error {
    Error::Protocol(Provider::Rdma, "its message is malformed or of another version".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn port() -> impl Strategy<Value = Port> {
        let fabric = prop_oneof![Just(Fabric::InfiniBand), Just(Fabric::Roce), Just(Fabric::Iwarp)];
        (fabric, "[a-z][a-z0-9_]{0,63}", any::<(u8, [u8; 16], u8, u16, u32, u32)>()).prop_map(
            |(fabric, device, (number, gid, gid_index, lid, megabits, mtu))| Port {
                fabric,
                device,
                number,
                gid,
                gid_index,
                lid,
                megabits,
                mtu,
            },
        )
    }

    fn half() -> impl Strategy<Value = Half> {
        let numbers = (0..1u32 << 24, 0..1u32 << 24, any::<(u8, u8)>(), any::<(bool, bool)>(), 1u32..);
        (port(), numbers, (0..u64::MAX / 4, any::<u32>()), (0..u64::MAX / 4, 0..u64::MAX / 4)).prop_map(
            |(port, (queue_pair, sequence, reads, swaps, window), (address, key), exposed)| Half {
                port,
                queue_pair,
                sequence,
                reads,
                swaps,
                window,
                target: Target { address, key },
                exposed,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            ports in proptest::collection::vec(port(), 0..OFFER_PORTS_MAX),
            (chosen, half) in (port(), half()),
            (listener, nonce) in any::<(u16, [u8; 16])>(),
        ) {
            prop_assert_eq!(parse_offer(&offer(&ports)).unwrap(), ports);
            prop_assert_eq!(parse_request(&request(&chosen, &half)).unwrap(), (chosen, half.clone()));
            let answered = answer(&half, listener, nonce);
            prop_assert_eq!(parse_answer(&answered).unwrap(), (half, listener, nonce));
            for cut in 0..answered.len() {
                prop_assert!(parse_answer(&answered[..cut]).is_err());
            }
            prop_assert!(parse_answer(&[&answered[..], &[0]].concat()).is_err());
        }

        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0usize..3) {
            let bytes = [&MAGIC[..], &[b"ORA"[kind]], &bytes].concat();
            let _ = (parse_offer(&bytes), parse_request(&bytes), parse_answer(&bytes));
        }
    }
}
